"""`sordino explain`: what a method decided on the way, in words and numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import sordino
from sordino.cli.explain import explain
from sordino.core import plugin
from sordino.core.errors import RunError, SordinoError, SpecError
from support.problems import federation, linear

KEYS = {"rounds": 4, "learning_rate": 0.1, "epsilon": 4.0, "seed": 0}


def run(tmp_path, method, **keys):
    tags = [(np.arange(12) % 3 == 0).astype(int) for _ in range(8)] if method.startswith("fedsdp") else None
    found = sordino.train(
        linear(), federation(), private_data=tags, method=method, out=str(tmp_path), name=method, **(KEYS | keys)
    )
    return found.folder


def told(folder, *args):
    found = CliRunner().invoke(explain, [str(folder), "--owner", *args], catch_exceptions=False)
    assert found.exit_code == 0
    return found.output


@pytest.mark.parametrize(
    ("method", "keys", "words"),
    [
        ("dp-sgd", {}, "makes no decisions during the run"),
        ("adaptive-noise", {}, "released updates"),
        ("adaptive-noise-paper", {"local_steps": 2}, "(a claim)"),
        ("fedsdp", {"refresh": 2}, "private"),
        ("fedsdp-paper", {"local_steps": 2}, "Round 1"),
        ("udp-fl", {}, "the Harmonizer chose gaussian"),
        ("adap-dp-fl", {}, "clipped at 1 in round 1"),
        ("adap-dp-fl-paper", {}, "it is lowered when the clients' exact loss has fallen 3 times in a row"),
        ("dp-fedavg", {"adaptive_clip": True}, "Updates were clipped at 1 in round 1 and at "),
        ("dp-fedavg", {}, "makes no decisions during the run"),
        ("pfa", {"budgets": "0.5:0.5,4:0.5"}, "projected on 1 direction"),
    ],
)
def test_every_kind_of_method_explains_itself(tmp_path, method, keys, words):
    text = told(run(tmp_path, method, **keys))
    assert words in text and "Accounted" in text
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


def test_a_client_of_the_sound_form_is_told_its_own_noise(tmp_path):
    folder = run(tmp_path, "fedsdp", refresh=2, client_rate=0.6, rounds=6, budgets="1:0.5,4:0.5", seed=5)
    chosen = {r["round"]: r["decided"]["clients"] for r in json.loads(told(folder, "--json"))["rounds"]}
    multipliers = set()
    for client in ("0", "5"):
        said = {int(w.split(":")[0][6:]): w for w in told(folder, "--client", client).splitlines() if w[:5] == "Round"}
        assert said.keys() == chosen.keys()
        for number, words in said.items():
            own = chosen[number].get(client)
            if own is None:
                assert "was not in it" in words and "Client" not in words
            else:
                multipliers.add(own["noise_multiplier"])
                assert f"Client {client}: multiplier {own['noise_multiplier']:.3g}, for " in words
                assert f"{100 * own['left']:.3g} % of it is left" in words
        assert len({client in clients for clients in chosen.values()}) == 2  # in some rounds, not in all
    assert len(multipliers) > 3
    spent = sum(clients["0"]["rho"] for clients in chosen.values() if "0" in clients)
    assert 0 < spent <= 1 + 1e-5


def test_records_of_earlier_versions_are_read(tmp_path):
    new = ("shares_used", "learnt_in", "clients")
    for method, keys in (("fedsdp", {"refresh": 2}), ("fedsdp-paper", {"local_steps": 2})):
        folder = run(tmp_path, method, **keys)
        path = folder / "private" / "records.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            record["noise"] = 0.125
            if method == "fedsdp":
                record["decided"] = {k: v for k, v in record["decided"].items() if k not in new}
        path.write_text("".join(json.dumps(r) + "\n" for r in records))
        text = told(folder)
        assert "Round 4: " in text and "standard deviation 0.125 per coordinate in rounds 1 to 4" in text
    found = CliRunner().invoke(explain, [str(tmp_path / "fedsdp"), "--client", "2", "--owner"])
    assert isinstance(found.exception, SpecError) and "or none were recorded" in str(found.exception)


def test_noise_is_summed_up(tmp_path):
    folder = run(tmp_path, "dp-sgd")
    assert "in rounds 1 to 4." in told(folder) and "per coordinate in round 2." in told(folder, "--rounds", "2-2")
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
        (["--client", "2"], "makes no decisions for single clients"),
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
    assert isinstance(found.exception, RunError) and "is not a run folder" in str(found.exception)


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
    why = json.loads((tmp_path / "adaptive-noise-paper" / "public" / "plan.json").read_text())["claim"]["why_not"]
    assert text.count(why) == 1 and "No guarantee (epsilon is infinite)" in text


def test_a_run_that_failed_says_why(tmp_path):
    folder = run(tmp_path, "dp-sgd")
    (folder / "private" / "error.json").write_text(json.dumps({"error": "RunError: boxed.merge fails"}))
    assert "The run stopped after round 4: RunError: boxed.merge fails" in told(folder)
    assert json.loads(told(folder, "--json"))["error"] == "RunError: boxed.merge fails"


def test_a_bad_range_is_refused(tmp_path):
    found = CliRunner().invoke(explain, [str(run(tmp_path, "dp-sgd")), "--rounds", "a-b"])
    assert found.exit_code == 2 and "range of rounds" in found.output
    assert torch.get_num_threads() >= 1


def test_noise_of_clients_with_budgets_is_split_only_where_it_is_in_proportion(tmp_path):
    budgets = {"budgets": "1:0.5,4:0.5"}
    text = told(run(tmp_path / "a", "udp-fl", mechanism="gaussian", **budgets))
    assert text.count("of 4 clients with a budget") == 2
    for more in ({"mechanism": "staircase"}, {"mechanism": "gaussian", "managed": True, "client_rate": 0.5}):
        text = told(run(tmp_path / str(len(more)), "udp-fl", **more, **budgets))
        assert "on average over clients" in text and "of 4 clients with a budget" not in text


def refused(folder, *args):
    found = CliRunner().invoke(explain, [str(folder), "--owner", *args])
    assert isinstance(found.exception, RunError), found.exception
    assert "\n" not in str(found.exception)
    return str(found.exception)


def test_a_finished_run_says_what_was_promised_and_what_was_spent(tmp_path):
    folder = run(tmp_path, "dp-sgd", client_rate=0.3, rounds=6, seed=3)
    plan, result = (json.loads((folder / name).read_text()) for name in ("public/plan.json", "private/result.json"))
    promised, drawn = plan["promise"]["sentence"], result["guarantees"]["server"]
    spent = drawn["sentence"]
    assert promised != spent
    text = told(folder).splitlines()
    assert f"Accounted, as promised before the first round: {promised}" in text
    assert f"Accounted, as spent when the run had ended: {spent}" in text
    assert json.loads(told(folder, "--json"))["guarantee"] == drawn
    (folder / "public" / "result.json").unlink()
    text = told(folder)
    assert f"Accounted (promised; the run is not finished): {promised}" in text and spent not in text
    assert json.loads(told(folder, "--json"))["guarantee"] is None
    assert "Accounted (as promised, and as spent): In total over 4 rounds" in told(run(tmp_path / "all", "dp-sgd"))


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("public/plan.json", "{}"),
        ("public/plan.json", "[]"),
        ("public/plan.json", '{"promise": {}, "algorithm": "fedavg", "clients": 8}'),
        ("public/plan.json", '{"promise": 3, "algorithm": "fedavg", "clients": 8}'),
        ("public/result.json", "{}"),
        ("public/result.json", "[1]"),
        ("private/error.json", "[]"),
        ("public/records.jsonl", "{}"),
        ("public/records.jsonl", "[]"),
        ("public/records.jsonl", ""),
        ("private/records.jsonl", "{}"),
    ],
)
def test_a_damaged_file_is_one_line_that_names_it(tmp_path, name, holds):
    folder = run(tmp_path, "dp-sgd")
    (folder / name).write_text(holds)
    assert str(folder / name) in refused(folder)


@pytest.mark.parametrize("bad", ["{}", "[]", "null", "x", '{"epsilon": []}', '{"round": 3, "epsi'])
def test_a_line_that_is_no_round_is_damage_unless_a_crash_tore_the_last(tmp_path, bad):
    folder = run(tmp_path, "dp-sgd")
    path = folder / "public" / "records.jsonl"
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*whole[:2], bad + "\n", *whole[3:]]))
    assert refused(folder) == f"{path} is damaged: line 3 is not the record of a round."
    path.write_text("".join([*whole[:2], bad]))
    (folder / "public" / "result.json").rename(tmp_path / "result.json")
    if bad.startswith('{"round'):  # torn
        assert "in rounds 1 to 2." in told(folder)
        (tmp_path / "result.json").rename(folder / "public" / "result.json")
        assert "2 of the run's 4 rounds" in refused(folder)  # but this one had ended
    else:
        assert "line 3" in refused(folder)


@pytest.mark.parametrize(("key", "value"), [("round", "3"), ("decided", [1]), ("noise", "much")])
def test_a_record_whose_parts_are_of_another_kind_is_damage(tmp_path, key, value):
    folder = run(tmp_path, "dp-sgd")
    path = folder / ("private" if key == "decided" else "public") / "records.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records[2][key] = value
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    assert refused(folder) == f"{path} is damaged: line 3 is not the record of a round."


def test_a_decision_that_lacks_what_the_method_records_is_damage(tmp_path):
    folder = run(tmp_path, "fedsdp", refresh=2)
    path = folder / "private" / "records.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    del records[1]["decided"]["rho"]
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    text = refused(folder)
    assert str(path) in text and "'rho'" in text


def test_noise_that_differs_between_clients_is_said_to_be_a_mean(tmp_path):
    for method in ("fedsdp-paper", "adaptive-noise-paper"):
        folder = run(tmp_path, method, local_steps=2)
        for args in ([], ["--client", "3"]) if method == "fedsdp-paper" else ([],):
            (line,) = [w for w in told(folder, *args).splitlines() if w.startswith("Noise in")]
            assert line.startswith("Noise in a client's message, on average over clients")
    (line,) = [w for w in told(run(tmp_path, "dp-sgd")).splitlines() if w.startswith("Noise in")]
    assert "average" not in line


def test_a_claim_that_holds_is_nowhere_said_to_fail(tmp_path):
    folder = run(tmp_path, "fed-cdp-paper")
    assert "not hold" not in told(folder) and "epsilon = 4, delta" in told(folder)
    result = json.loads((folder / "public" / "result.json").read_text())
    assert result["claim"] is None and "its claim holds" in result["notes"][-1]


def test_the_docs_name_the_unit_and_the_viewer_of_each_form():
    """What docs/methods.md has in its table, of every method there is."""
    text = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    seen = set()
    for first, cell in re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", text, flags=re.MULTILINE):
        name = first.split("`")[1]
        shared, only = "`, `-paper`" in first, "`-paper`: record only" in first
        cases = {name: cell} | ({f"{name}-paper": "record, server" if only else cell} if shared or only else {})
        for method, said in cases.items():
            seen.add(method)
            if method == "none":
                continue
            cls, (unit, viewer) = plugin.load("methods", method), said.split(";")[0].split(", ")
            assert (method, tuple(unit.split(" or ")), viewer) == (method, cls.units, cls.viewer)
            for_record = unit == "client" and method.endswith("-paper")
            assert ("claimed for a record" in said) == for_record, method
            assert ("claimed against another client" in said) == (method == "fedsdp-paper")
    assert seen == {name for name in plugin.available("methods") if plugin.ours("methods", name)}
