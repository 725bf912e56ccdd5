"""`sordino explain`: what a method decided on the way, in words and numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import sordino
from problems import federation, linear
from sordino.cli.explain import explain
from sordino.core.errors import RunError, SordinoError, SpecError

KEYS = {"rounds": 4, "learning_rate": 0.1, "epsilon": 4.0}


def run(tmp_path, method, **keys):
    tags = [(np.arange(12) % 3 == 0).astype(int) for _ in range(8)] if method.startswith("fedsdp") else None
    found = sordino.train(
        linear(), federation(), private_data=tags, method=method, out=str(tmp_path), name=method, **(KEYS | keys)
    )
    return found.folder


def told(folder, *args):
    found = CliRunner().invoke(explain, [str(folder), *args], catch_exceptions=False)
    assert found.exit_code == 0
    return found.output


@pytest.mark.parametrize(
    ("method", "keys", "words"),
    [
        ("dp-sgd", {}, "decides nothing on the way"),
        ("adaptive-noise", {}, "released updates"),
        ("adaptive-noise-paper", {"local_steps": 2}, "(a claim)"),
        ("fedsdp", {"refresh": 2}, "private"),
        ("fedsdp-paper", {"local_steps": 2}, "Round 1"),
        ("udp-fl", {}, "the Harmonizer chose gaussian"),
        ("adap-dp-fl", {}, "clipped at 1 in round 1"),
        ("adap-dp-fl-paper", {}, "it is lowered when the clients' exact loss has fallen 3 times in a row"),
        ("dp-fedavg", {"adaptive_clip": True}, "Updates were clipped at 1 in round 1 and at "),
        ("dp-fedavg", {}, "decides nothing on the way"),
        ("pfa", {"budgets": "0.5:0.5,4:0.5"}, "projected on 1 direction"),
    ],
)
def test_every_kind_of_method_explains_itself(tmp_path, method, keys, words):
    text = told(run(tmp_path, method, **keys))
    assert words in text and "Accounted: " in text
    assert ("It does not hold" in text) == method.endswith("-paper")


def test_rounds_can_be_picked_and_programs_get_json(tmp_path):
    folder = run(tmp_path, "adaptive-noise")
    assert "Round 2:" in told(folder, "--rounds", "2-3") and "Round 4:" not in told(folder, "--rounds", "2-3")
    data = json.loads(told(folder, "--json"))
    assert data["method"] == "adaptive-noise" and len(data["rounds"]) == 4
    assert data["rounds"][0]["decided"]["scale_rms"] == pytest.approx(1.0, rel=1e-3)
    assert data["plan"]["claim"] is None and data["plan"]["promise"]["epsilon"] <= 4.0


def test_one_client_is_shown_alone(tmp_path):
    data = json.loads(told(run(tmp_path, "fedsdp-paper", local_steps=2), "--json", "--client", "3"))
    assert len(data["rounds"][0]["decided"]["clients"]) == 8  # the data are of all, the words of one
    (words,) = [line for line in data["text"] if line.startswith("Round 1")]
    assert "Client 3: " in words and "Most" not in words and "group 1" in words


def test_noise_is_summed_up(tmp_path):
    folder = run(tmp_path, "dp-sgd")
    assert "in rounds 1 to 4." in told(folder) and "a coordinate in round 2." in told(folder, "--rounds", "2-2")
    assert "least" in told(run(tmp_path, "geodp", noise_ratio=0.8))


@pytest.mark.parametrize("args", [["nowhere"], ["nowhere", "--rounds", "x"]])
def test_a_folder_that_is_none_is_one_error(tmp_path, args):
    found = CliRunner().invoke(explain, [str(tmp_path / args[0]), *args[1:]])
    assert isinstance(found.exception, SordinoError | SystemExit) and not (tmp_path / "nowhere").exists()
    if len(args) == 1:
        assert isinstance(found.exception, RunError)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--rounds", "3-2"], "rounds 1 to 4"),
        (["--rounds", "0-1"], "rounds 1 to 4"),
        (["--rounds", "3-9"], "rounds 1 to 4"),
        (["--rounds", "50"], "rounds 1 to 4"),
        (["--client", "99"], "numbered 0 to 7"),
        (["--client", "-1"], "numbered 0 to 7"),
        (["--client", "2"], "decides nothing for single clients"),
    ],
)
def test_rounds_and_clients_that_are_not_there_are_errors(tmp_path, args, words):
    found = CliRunner().invoke(explain, [str(run(tmp_path, "dp-sgd")), *args])
    assert isinstance(found.exception, SpecError) and words in str(found.exception)


def test_a_folder_of_runs_says_which_there_are(tmp_path):
    folder = run(tmp_path, "dp-sgd")
    (tmp_path / "empty").mkdir()
    found = CliRunner().invoke(explain, [str(tmp_path)])
    assert isinstance(found.exception, RunError) and f"runs in it: {folder}." in str(found.exception)
    found = CliRunner().invoke(explain, [str(tmp_path / "empty")])
    assert isinstance(found.exception, RunError) and "is no run folder" in str(found.exception)


def test_noise_of_own_budgets_is_that_of_each_kind(tmp_path):
    """The record has the mean over clients, which is nobody's."""
    folder = run(tmp_path, "pfa", budgets="0.5:0.5,4:0.5")
    data = json.loads(told(folder, "--json"))
    low, high = sorted(float(w.split("deviation ")[1].split()[0]) for w in data["text"] if w.startswith("Noise in"))
    each = sorted(k["noise_multiplier"] for k in data["plan"]["budgets"])
    assert high / low == pytest.approx(each[1] / each[0], rel=1e-2)
    assert (low + high) / 2 == pytest.approx(data["rounds"][0]["noise"], rel=1e-2)


def test_why_a_claim_does_not_hold_is_said_once(tmp_path):
    text = told(run(tmp_path, "adaptive-noise-paper", local_steps=2))
    why = json.loads((tmp_path / "adaptive-noise-paper" / "plan.json").read_text())["claim"]["why_not"]
    assert text.count(why) == 1 and "No guarantee (epsilon is infinite)" in text


def test_a_run_that_failed_says_why(tmp_path):
    folder = run(tmp_path, "dp-sgd")
    (folder / "error.json").write_text(json.dumps({"error": "RunError: boxed.merge fails"}))
    assert "The run stopped after round 4: RunError: boxed.merge fails" in told(folder)
    assert json.loads(told(folder, "--json"))["error"] == "RunError: boxed.merge fails"


def test_a_bad_range_is_refused(tmp_path):
    found = CliRunner().invoke(explain, [str(run(tmp_path, "dp-sgd")), "--rounds", "a-b"])
    assert found.exit_code == 2 and "range of rounds" in found.output
    assert torch.get_num_threads() >= 1
