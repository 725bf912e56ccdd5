"""What a run says and refuses before it costs anything, and how it says it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import sordino
from sordino.advice import case, startup
from sordino.cli import main
from sordino.cli.completion import PLUGGED, WORDS, values
from sordino.cli.progress import InsideRound
from sordino.cli.run import run
from sordino.core.errors import BudgetError, DataError, ModelError, RunError, SordinoError, SpecError
from sordino.runs import dry_evaluation, estimate, prepare
from sordino.spec import other_names, spec
from support.problems import federation, held_out, job, linear


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["--unit", "patient"], SpecError),
        (["--unit", "client"], SpecError),
        (["--viewer", "spy"], SpecError),
        (["--method", "dp-fedavg", "--viewer", "server"], BudgetError),
        (["--channel", "pigeon"], SpecError),
        (["--model", "cnnn"], SpecError),
        (["--partition", "ild"], SpecError),
        (["--dataset", "none.csv"], DataError),
        (["--dataset", "a.toml", "--test", "none.csv"], DataError),
        (["--dataset", "a.toml", "--schema", "none.toml"], DataError),
        (["--out", "a.toml"], RunError),
        (["--out", ".", "--name", "a.toml"], RunError),
        (["--ledger", "a.toml"], RunError),
    ],
)
def test_a_mistake_is_told_before_data_are_loaded(args, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text("rounds = 1")
    calls = []
    monkeypatch.setattr(prepare, "load", lambda *a, **k: calls.append(a))
    done = CliRunner().invoke(run, args)
    assert isinstance(done.exception, error) and not calls
    assert "\n" not in str(done.exception)


def test_shapes_are_checked_before_features(monkeypatch):
    real, counts = prepare._features, []

    def counted(wanted, data, x):
        counts.append(len(x))
        return real(wanted, data, x)

    monkeypatch.setattr(prepare, "_features", counted)
    done = CliRunner().invoke(run, ["--batch-size", "99999"])
    assert isinstance(done.exception, SpecError) and max(counts) <= 3


def test_help_fits_two_screens_and_has_the_methods_own_keys():
    short = CliRunner().invoke(run, ["--method", "dp-fedavg", "--help"], terminal_width=100).output
    assert len(short.splitlines()) <= 70 and "--quantile" in short and "Only for dp-fedavg" in short
    assert len(CliRunner().invoke(run, ["--help"], terminal_width=100).output.splitlines()) <= 60
    everything = CliRunner().invoke(run, ["--help-all"], terminal_width=100).output
    assert all("--" + f.name.replace("_", "-") in everything for f in spec.fields())


def test_names_of_other_tools_lead_to_keys_that_exist():
    known = {f.name for f in spec.fields()}
    assert all(key in known or spec.owners(key) for key in set(other_names.KEYS.values()))
    with pytest.raises(SpecError, match="use learning_rate"):
        spec.from_dict({"lr": 0.1})
    done = CliRunner().invoke(run, ["--sigma", "1"])
    assert isinstance(done.exception, SpecError) and "set epsilon" in str(done.exception)


@pytest.mark.parametrize("key", [*PLUGGED, *WORDS])
def test_completed_values_are_accepted(key):
    for value in values(key):
        if key in ("unit", "viewer", "mode", "evaluate_on", "optimizer", "device", "averaging", "features", "merge"):
            extra = {"validation": 0.1, "tuning": 0.1} if key == "evaluate_on" else {}
            spec.from_dict({key: value} | extra)
    assert values(key)


def test_errors_are_json_on_every_command(monkeypatch, capsys):
    for args in (["run", "--unit", "patient", "--json"], ["init", "/no/such/folder/x", "--json"], ["rum", "--json"]):
        monkeypatch.setattr(sys, "argv", ["sordino", *args])
        with pytest.raises(SystemExit) as done:
            main.main()
        told = capsys.readouterr()
        assert done.value.code == 2 and not told.out and set(json.loads(told.err)) == {"error", "message"}


def test_a_run_says_what_check_calls_broken():
    assert any("Warning (broken): delta = 0.5" in line for line in startup.lines(job(method="dp-sgd", delta=0.5)))
    assert any("hopeless" in line for line in startup.lines(job(method="dp-sgd", epsilon=1e-9)))


def test_an_estimate_is_made_of_made_up_records():
    made = job(method="dp-sgd", rounds=3)
    expected = estimate.estimate(made)
    assert expected is not None and expected.round > 0 and "about" in expected.sentence()
    assert expected.seconds >= 3 * expected.round and expected.memory > 1e6


def test_progress_inside_a_round_starts_after_two_seconds(monkeypatch):
    column = InsideRound(200)
    column.beat(50)
    assert column.text() == ""
    column.start -= 3
    assert column.text() == "this round: 25 %"


def test_an_evaluation_that_fails_is_found_before_it_is_paid(monkeypatch):
    made = replace(job(method="dp-sgd", rounds=1), test=held_out(), test_clients=None)
    dry_evaluation.try_evaluation(made)

    def broken(*_):
        raise IndexError("a metric of one's own")

    monkeypatch.setattr(dry_evaluation.loop, "Meter", broken)
    with pytest.raises(ModelError, match="Nothing was charged"):
        dry_evaluation.try_evaluation(made)


X = torch.randn(12, 4)
Y = (X[:, 0] > 0).long()


@pytest.mark.parametrize(
    ("model", "clients", "keys"),
    [
        (nn.Linear(4, 2), {"a": {"features": X, "label": Y}}, {}),
        (nn.Linear(4, 2), (X, Y), {}),
        (nn.Linear(4, 2), [(X, Y)], {"test": (X, Y, Y)}),
        (nn.Linear(4, 2), [(X, Y)], {"test": X}),
        (nn.Linear(4, 2), [(X, Y)], {"test": (X[:, :3], Y)}),
        (nn.Linear(4, 2), [(X, Y.double())], {}),
        (nn.Linear(4, 2), [([[1, 2], [3]], [0, 1])], {}),
        (nn.Linear, [(X, Y)], {}),
        ("linear", [(X, Y)], {}),
        (lambda: None, [(X, Y)], {}),
        (nn.Linear(4, 2), [(X, Y)], {"loss": lambda p: p}),
        (nn.Linear(4, 2), [(X, Y)], {"eps": 2}),
    ],
)
def test_a_wrong_call_from_python_is_one_line(model, clients, keys, tmp_path):
    with pytest.raises(SordinoError) as told:
        sordino.train(model, clients, rounds=1, device="cpu", out=str(tmp_path / "runs"), **keys)
    assert "\n" not in str(told.value) and not (tmp_path / "runs").exists()


def test_a_parameter_without_a_part_in_the_output_is_named():
    model = linear()
    model.spare = nn.Parameter(torch.zeros(2))
    with pytest.raises(ModelError, match="spare has no part"):
        sordino.train(model, federation(), rounds=1, device="cpu")


def test_a_one_hot_table_is_not_taken_for_a_fitted_one():
    draw = torch.Generator().manual_seed(0)
    flags = torch.eye(5)[torch.randint(5, (500,), generator=draw)]
    ages = 18 + 60 * torch.rand(500, 1, generator=draw)
    assert not case.looks_fitted(torch.cat([flags, ages], dim=1))
    scaled = (ages - ages.min()) / (ages.max() - ages.min())
    assert case.looks_fitted(torch.cat([flags, scaled], dim=1))
