"""`sordino plan` as people and programs meet it."""

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest

from sordino.cli.main import main

FEW = ("--clients", "3", "--records", "500", "--parameters", "26010", "--epsilon", "2", "--delta", "1e-5")


@pytest.fixture
def call(tmp_path, sordino_command):
    return lambda *args: sordino_command(*args, cwd=tmp_path)


def test_a_person_reads_what_is_hopeless_and_what_would_work(call):
    done = call("plan", *FEW)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "3 clients with 500 records each" in lines[0] and "total epsilon = 2, delta = 1e-05" in lines[0]
    hopeless = next(x for x in lines if x.startswith("Hopeless: a client against the public"))
    for words in (
        "NSR 1",
        "add/remove",
        "total epsilon = 2, delta = 1e-05",
        "With 3 clients",
        "would work: ",
        " clients",
    ):
        assert words in hopeless
    assert "measured on MNIST" in done.stdout and "L2 norm" in done.stdout


def test_a_program_gets_every_number(call):
    found = json.loads(call("plan", *FEW, "--json").stdout)
    assert {(s["unit"], s["viewer"]) for s in found["settings"]} == {
        ("record", "server"),
        ("record", "public"),
        ("client", "public"),
        ("client", "server"),
    }
    for s in found["settings"]:
        g = s["guarantee"]
        assert g["total"] and 1.99 < g["epsilon"] <= 2.0 and g["delta"] == 1e-5 and g["relation"] and g["viewer"]
        assert s["noise_multiplier"] > 0 and s["nsr_round"] > s["nsr_run"] > 0 and s["rounds"] >= 1
        assert s["verdict"] == "works" or s["would_work"]
    assert found["question"]["clients"] == 3 and "MNIST" in found["measured"]["on"]


def test_more_clients_than_suggested_work(call):
    found = json.loads(call("plan", *FEW, "--json", "--method", "dp-fedavg").stdout)
    (only,) = found["settings"]
    more = [str(only["would_work"]["clients"]) if x == "3" else x for x in FEW]
    again = json.loads(call("plan", *more, "--json", "--method", "dp-fedavg").stdout)
    assert only["verdict"] == "hopeless" and again["settings"][0]["verdict"] == "works"
    assert "Nothing here is sure to work" in str(found["verdicts"]) and "Nothing here is sure to work" not in str(
        again["verdicts"]
    )
    assert again["verdicts"][0].startswith("Works: a client against the public")


def test_a_delta_that_is_too_large_is_named(call):
    args = ["0.01" if x == "1e-5" else x for x in FEW]
    notes = " ".join(json.loads(call("plan", *args, "--json").stdout)["notes"])
    assert "too large to protect 1,500 records" in notes and "3 clients" not in notes


def test_a_model_of_a_size_that_was_not_measured_is_a_guess(call):
    args = ["100000000" if x == "26010" else x for x in FEW]
    assert "treat the bands as a guess" in call("plan", *args).stdout
    assert "treat the bands as a guess" not in call("plan", *FEW).stdout


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--clients", "0"), "clients must be at least 1"),
        (("--epsilon", "nan"), "epsilon must be finite"),
        (("--method", "none"), "the planner does not cover none"),
        (("--method", "dp-sg"), "Did you mean 'dp-sgd'?"),
    ],
)
def test_an_error_is_one_line(more, words, call):
    done = call("plan", *FEW, *more)
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1


def test_what_is_missing_or_no_number_is_named(call):
    assert "--clients" in call("plan").stderr
    done = call("plan", *FEW, "--clients", "many")
    assert done.returncode == 2 and "many" in done.stderr and "Traceback" not in done.stderr


def test_it_takes_seconds_even_where_clients_are_drawn(call):
    start = time.perf_counter()
    done = call("plan", "--clients", "100000", "--records", "20", "--parameters", "1000000", "--epsilon", "1",
                "--delta", "1e-7", "--client-rate", "0.01", "--batch-rate", "0.5")  # fmt: skip
    assert done.returncode == 0 and "0.01 of them per round" in done.stdout
    assert time.perf_counter() - start < 15  # about two on an idle machine


@pytest.fixture
def planned(tmp_path, monkeypatch, capsys):
    """`sordino plan` in this process, on a table of one's own: exit code, stdout, stderr."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(600, 9)).astype(np.float32)
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=(x[:, 0] > 0).astype(np.int64), classes=np.array(2))
    (tmp_path / "my.toml").write_text('dataset = "mine.npz"\nclients = 6\nepsilon = 0.1\n[tune]\nclip = [0.5]\n')
    monkeypatch.chdir(tmp_path)

    def make(*args):
        monkeypatch.setattr("sys.argv", ["sordino", "plan", *args])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code
        return SimpleNamespace(returncode=code, **capsys.readouterr()._asdict())

    return make


def test_a_file_is_planned_by_public_facts(planned, tmp_path):
    done = planned("my.toml")
    assert done.returncode == 0, done.err
    assert "your own data: 6 clients with about 100 records each, 9 features, 2 classes" in done.out
    for words in ("Hopeless. Noise ratio", "drowns the signal", "This would work: epsilon"):
        assert words in done.out
    assert "MNIST" not in done.out and not (tmp_path / "runs").exists()
    found = json.loads(planned("my.toml", "--epsilon", "8", "--json").out)
    assert found["table"]["verdict"] == "works" and found["question"]["epsilon"] == 8


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("my.toml", "--records", "5"), "follows from the data"),
        (("none.toml",), "cannot read"),
        (("--clients", "3"), "Missing option '--records'"),
    ],
)
def test_a_file_or_all_numbers(planned, args, words):
    done = planned(*args)
    assert done.returncode == 2 and words in done.err
