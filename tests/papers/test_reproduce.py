"""Every figure and table in small: each method of each runs, pages and pictures come out, jobs resume."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from sordino.cli.reproduce import reproduce
from sordino.core.errors import RunError, SordinoError, SpecError
from sordino.papers import feng_times, li, page, pictures
from sordino.papers import run as running
from sordino.papers.base import Experiment, Outcome, Trial, scaled
from sordino.spec import legal


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Small pictures of ten classes, and a small regression."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    y = np.arange(300) % 10
    x = (rng.normal(60, 20, (300, 8, 8)) + 12 * y[:, None, None]).clip(0, 255).astype(np.uint8)
    np.savez(folder / "p.npz", x_train=x[:240], y_train=y[:240], x_test=x[240:], y_test=y[240:], classes=10)
    r = rng.normal(size=(120, 4)).astype(np.float32)
    t = (0.5 + 0.1 * r[:, 0]).astype(np.float32)
    np.savez(folder / "r.npz", x_train=r[:100], y_train=t[:100], x_test=r[100:], y_test=t[100:])
    save_file({"1.weight": torch.zeros(10, 64), "1.bias": torch.zeros(10)}, folder / "start.safetensors")
    return folder


def small(experiment: Experiment, data: Path) -> dict[str, object]:
    file = "r.npz" if experiment.name.startswith("003/fig5") else "p.npz"
    found: dict[str, object] = {
        "dataset": str(data / file),
        "public_data": True,
        "model": "linear",
        "features": "none",
        "rounds": 2,
        "clients": 4,
    }
    if experiment.name.endswith("-checkpoint"):
        found["initial_weights"] = str(data / "start.safetensors")
    return found | {"partition": "iid", "batch_rate": 1.0, "local_steps": 2}


def few(trials, kind):
    """The first trial of every method, form, mechanism, way of aggregation and of whatever else decides which code
    runs; of every row where rows are compared with each other."""
    seen = {}
    for trial, cell in trials:
        row = trial.row if kind == "points" else ""
        keys = cell.spec.to_dict()
        kinds = [keys.get(k) for k in ("mechanism", "algorithm", "path", "reading", "penalty", "budgets", "noised")]
        seen.setdefault((cell.method, trial.form, row, *kinds), (trial, cell))
    return list(seen.values())


def cells_of(experiment, data, scale=0.01):
    """Batches and steps stay what they are where keys exclude each other."""
    wanted = small(experiment, data)
    original = experiment.trials
    made = []
    for trial in original(scale):
        keys = {k: v for k, v in trial.keys.items() if k not in ("batch_size", "local_epochs")}
        if keys.get("algorithm") == "fedsgd" or keys["method"] in ("dp-ftrl",):
            keys["local_steps"] = 1
        made.append(Trial(trial.row, trial.x, trial.form, trial.seed, keys))
    changed = replace(experiment, trials=lambda s: made)
    if any(t.keys.get("algorithm") == "fedsgd" for t in made):
        wanted = {k: v for k, v in wanted.items() if k != "local_steps"}
    return changed, running.cells(changed, scale, wanted if made else {})


@pytest.mark.slow
@pytest.mark.parametrize("name", list(running.EXPERIMENTS))
def test_every_experiment_runs_in_small(name, data, tmp_path):
    experiment, trials = cells_of(running.find(name), data)
    some = few(trials, experiment.kind)
    folder = running.open_folder(tmp_path, experiment, 0.01, some)
    failures = running.execute(folder, some, 1, lambda news: None, None)
    folder.close()
    assert not failures
    found = running.outcomes(folder.path, some)
    assert len(found) == len(some) and all(o.result["rounds"] >= 1 for o in found)
    for o in found:
        assert (o.trial.form == "printed") == (o.result["claim"] is not None) or o.trial.keys.get(
            "mechanism"
        ) == "gaussian"
        assert o.trial.form not in ("sound", "features") or o.honest <= float(o.trial.keys["epsilon"])
    text = page.section(experiment, found, page.Provenance("sordino reproduce ...", 0.01), None)
    assert experiment.title in text and ("| --- |" in text or experiment.kind == "table" or experiment.within)
    drawn = pictures.draw(tmp_path / "p.png", experiment, found)
    assert drawn == ((tmp_path / "p.png").is_file() and (tmp_path / "p.png").stat().st_size > 5000)
    assert drawn or experiment.kind == "table"


@pytest.mark.parametrize("name", list(running.EXPERIMENTS))
def test_every_setting_of_the_papers_is_one_that_a_run_accepts(name):
    """At full scale: keys, their types and what goes with what; the datasets need not be at hand."""
    for trial, cell in running.cells(running.find(name), 1.0, {}):
        assert cell.spec.method_object().private == (trial.form in ("sound", "features")), trial.name
        legal.require(cell.spec.method, cell.spec.algorithm, cell.spec.unit)


def test_a_folder_of_an_earlier_version_goes_on_unless_a_setting_differs(data, tmp_path):
    experiment, trials = cells_of(running.find("003/path"), data)
    running.open_folder(tmp_path, experiment, 0.01, trials).close()
    path = tmp_path / "003-path" / "private" / "experiment.json"
    held = json.loads(path.read_text())
    begun = tmp_path / "003-path" / "cells" / trials[0][1].name
    begun.mkdir(parents=True)
    (begun / "plan.json").write_text("{}")
    for keys in held["trials"].values():
        del keys["compile"]  # which came later
    path.write_text(json.dumps(held))
    running.open_folder(tmp_path, experiment, 0.01, trials).close()
    held["trials"][trials[0][1].name]["compile"] = True
    path.write_text(json.dumps(held))
    with pytest.raises(RunError, match="made with another scale or other settings"):
        running.open_folder(tmp_path, experiment, 0.01, trials)


def test_the_papers_numbers_belong_to_trials():
    for experiment in running.EXPERIMENTS.values():
        known = {(t.row, t.x) for t in experiment.trials(1.0)}
        rows = {row for row, _ in known}
        assert all(row in rows for row, _ in experiment.paper), experiment.name
        names = [t.name for t in experiment.trials(1.0)]
        assert len(names) == len(set(names)), experiment.name


def test_what_the_papers_report_is_typed_as_printed():
    """Spot checks against the text of the papers."""
    assert running.find("002/fig4d").paper[("adaptive noise (002)", 0.5)] == 93.70
    assert running.find("002/fig4d").paper[("adap DP-FL", 0.3)] == 52.87
    assert running.find("003/table3").paper[("UDP-FL, staircase", 8.0)] == 78.0
    assert (li.CIFAR[("FedSDP", 0.2)], li.CIFAR_LAST[("FedSDP", 0.2)]) == (74.79, 73.26)
    assert (li.FEMNIST[("NbAFL", 0.1)], li.FEMNIST_LAST[("NbAFL", 0.1)]) == (57.62, 5.20)
    assert feng_times.SECONDS[("Computing Parameters", 1000)] == 54.30


def test_scale_shrinks_and_never_below_the_least():
    assert (
        scaled(100, 1.0, 5) == 100
        and scaled(100, 0.1, 5) == 10
        and scaled(100, 0.001, 5) == 5
        and scaled(3, 0.1, 5) == 3
    )
    for bad in (0.0, -1.0, 1.5, math.nan):
        with pytest.raises(SpecError, match="scale"):
            running.cells(running.find("002/fig2"), bad, {})


@pytest.mark.slow
def test_jobs_stop_in_time_and_go_on(data, tmp_path, monkeypatch):
    private = ["002/fig2", "--set", f"dataset={data / 'p.npz'}", "--out", str(tmp_path / "p")]
    refused = CliRunner().invoke(reproduce, private).exception
    assert "must be public" in str(refused) and not (tmp_path / "p").exists()
    keys = {
        "dataset": str(data / "p.npz"),
        "public_data": "true",
        "model": "linear",
        "features": "none",
        "clients": 4,
        "rounds": 2,
    }
    flags = [a for k, v in keys.items() for a in ("--set", f"{k}={v}")]
    args = ["002/fig2", "--scale", "0.01", *flags, "--out", str(tmp_path / "o"), "--pages", str(tmp_path / "docs")]
    runner = CliRunner()
    stopped = runner.invoke(reproduce, [*args, "--minutes", "0.0001"])
    assert stopped.exit_code == 3 and "the same command continues" in stopped.output
    done = runner.invoke(reproduce, args)
    assert done.exit_code == 0, done.output
    assert "4 of 4 runs are finished" in done.output
    again = runner.invoke(reproduce, [*args, "--minutes", "0.0001"])
    assert again.exit_code == 0 and "continues" not in again.output  # there is nothing left to stop
    text = (tmp_path / "docs" / "002.md").read_text()
    assert "sordino reproduce 002/fig2 --scale 0.01" in text and "infinite" in text and "002/fig2.png" in text
    assert (tmp_path / "docs" / "002" / "fig2.csv").read_text().count("\n") == 5
    damaged = next((tmp_path / "o" / "002-fig2" / "cells").iterdir())
    (damaged / "public" / "result.json").write_text("{}")
    found = runner.invoke(reproduce, args)
    assert isinstance(found.exception, RunError) and f"Remove {damaged}, and" in str(found.exception)
    shutil.rmtree(damaged)
    assert "4 of 4 runs are finished" in runner.invoke(reproduce, args).output
    assert (tmp_path / "docs" / "002.md").read_text() == text
    other = runner.invoke(reproduce, [*args[:1], "--scale", "0.02", *flags, "--out", str(tmp_path / "o")])
    assert isinstance(other.exception, RunError)


def test_bad_input_is_one_error_and_leaves_nothing(tmp_path):
    runner = CliRunner()
    for args in (["002/fig9"], ["002/fig2", "--set", "nonsense"], ["002/fig2", "--set", "no_such=1"],
                 ["002/fig2", "--jobs", "0"], ["002/fig2", "--scale", "3"]):  # fmt: skip
        found = runner.invoke(reproduce, [*args, "--out", str(tmp_path / "o")])
        assert isinstance(found.exception, SordinoError), args
    assert not (tmp_path / "o").exists()
    listed = runner.invoke(reproduce, [])
    assert (
        listed.exit_code == 0
        and "002/fig4d" in listed.output
        and len(listed.output.splitlines()) == len(running.EXPERIMENTS)
    )
    assert json.dumps(sorted(running.PAPERS)) == '["002", "003", "004"]'


def test_shares_of_clients_have_a_bound_on_how_often_one_takes_part():
    caps = {
        (t.x, t.form): (t.keys.get("max_participations"), t.keys["rounds"]) for t in running.find("002/fig5c").trials(1)
    }
    assert caps[(0.2, "printed")][0] is None
    assert caps[(0.2, "sound")] == (38, 120)  # 24 + 3 sqrt(19.2) = 37.1
    assert caps[(0.2, "features")] == (19, 50)  # 10 + 3 sqrt(8) = 18.5
    assert caps[(1.0, "sound")] == (120, 120)


@pytest.mark.parametrize("data", [None, b"no tensors"])
def test_a_model_that_cannot_be_read_is_one_error(tmp_path, data):
    if data is not None:
        (tmp_path / "model.safetensors").write_bytes(data)
    experiment = running.find("002/theorem3")
    found = [Outcome(t, {}, [], tmp_path) for t in experiment.trials(1.0)[:2]]
    with pytest.raises(RunError, match=r"model\.safetensors is missing or damaged\. Remove"):
        experiment.extra(found)
