"""`sordino ledger` as people and programs meet it."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3

import numpy as np
import pytest

from support.errors import one_line
from support.problems import federation, held_out, registry

TOML = """
dataset = "small.npz"
data_name = "study"
features = "none"
clients = 8
rounds = 3
epsilon = 1.0
learning_rate = 0.5
device = "cpu"
mode = "research"
"""


@pytest.fixture
def here(small_npz):
    (small_npz.parent / "small.toml").write_text(TOML)
    return small_npz.parent


@pytest.fixture(scope="module")
def made(tmp_path_factory, sordino_command):
    """A folder with two runs on the same data, dealt differently, and a home with their registry."""
    folder = tmp_path_factory.mktemp("made")
    (x, y), (x_test, y_test) = federation((96,))[0], held_out()
    np.savez(folder / "small.npz", x_train=x.numpy(), y_train=y.numpy(), x_test=x_test.numpy(), y_test=y_test.numpy())
    (folder / "small.toml").write_text(TOML)
    for name, seed in (("one", 1), ("two", 2)):
        run = ("run", "small.toml", "--name", name, "--seed", seed, "--json")
        done = sordino_command(*run, cwd=folder, home=str(folder / "home"))
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def two_runs(made, here, call):
    shutil.copytree(made, here, dirs_exist_ok=True)
    shutil.copytree(made / "home", registry().parent.parent, dirs_exist_ok=True)
    return call


def test_a_budget_is_set_used_and_shown(call, here):
    done = call("ledger", "budget", "--epsilon", 2.5, "--delta", 1e-4)
    assert done.returncode == 0 and "total budget epsilon = 2.5, delta = 0.0001 (plans)" in done.stdout, done.stderr
    for name in ("one", "two"):
        assert call("run", "small.toml", "--name", name, "--seed", 7, "--json").returncode == 0
    refused = call("run", "small.toml", "--name", "three", "--json")
    one_line(refused, "BudgetError", "left: epsilon 0.5", "What would fit: epsilon <= 0.5", "sordino ledger budget")
    assert not (here / "runs" / "three").exists()
    shown = call("ledger", "show")
    for words in (
        "data study", "dp-sgd", "3 of 3", "two",
        "total over 2 charges: epsilon = 2 at delta = 2e-05 for a record (add/remove) against the server",
        "budget: total epsilon <= 2.5 at delta = 0.0001 (plans); left: epsilon 0.5",
    ):  # fmt: skip
        assert words in shown.stdout, shown.stdout
    found = json.loads(call("ledger", "show", "--json").stdout)
    (data,) = found["data"]
    assert [j["run"] for j in data["jobs"]] == ["one", "two"] and data["budget"]["left"]["delta"] == pytest.approx(8e-5)
    assert data["totals"][0]["unit"] == "record" and 1.99 < data["totals"][0]["epsilon"] <= 2.0
    assert found["entries"] == 9


def test_other_seeds_deal_the_same_data(two_runs):
    found = json.loads(two_runs("ledger", "show", "--json").stdout)
    assert len(found["data"]) == 1 and len(found["data"][0]["jobs"]) == 2 and found["data"][0]["budget"] is None


def test_a_budget_for_the_data_of_a_run(two_runs, here):
    by_run = ("ledger", "budget", "--epsilon", 3, "--delta", 1e-4, "--run", "runs/one", "--theory", "gdp", "--json")
    done = two_runs(*by_run)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["data"] == "study" and found["kind"] == "budget" and "nonce" not in found
    by_data = ("ledger", "budget", "--epsilon", 3, "--delta", 1e-4, "--data-name")
    assert two_runs(*by_data, "study").returncode == 0
    assert two_runs(*by_data, "to-come").returncode == 0  # a budget may be there before the data
    one_line(two_runs(*by_data, "two words"), "SpecError", "data name", "two words")
    one_line(two_runs(*by_run, "--data-name", "ab"), "SpecError", "not both")
    one_line(two_runs(*by_data, "study", "--unit", "record"), "SpecError", "together")
    low = two_runs("ledger", "budget", "--epsilon", 1.5, "--delta", 1e-4, "--run", "runs/one")
    one_line(low, "BudgetError", "more than this budget has already been spent on data study")
    one_line(two_runs("ledger", "budget", "--epsilon", "nan", "--delta", 1e-4), "SpecError", "epsilon must be finite")
    one_line(two_runs("ledger", "budget", "--epsilon", 1, "--delta", 2), "SpecError", "delta")
    one_line(two_runs("ledger", "budget", "--epsilon", 1, "--delta", 0.1, "--run", "no"), "RunError", "cannot read no")


def test_a_whole_ledger_verifies(two_runs):
    done = two_runs("ledger", "verify")
    assert done.returncode == 0 and "8 entries are intact" in done.stdout
    done = two_runs("ledger", "verify", "--against", "runs/one", "--against", "runs/two", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["problems"] == []
    elsewhere = two_runs("ledger", "verify", "--ledger", registry(), "--against", "runs/one/private/ledger.json")
    assert elsewhere.returncode == 0 and "contain what 1 run(s) saw" in elsewhere.stdout


FORGERIES = {
    "edited": ("UPDATE entry SET epsilon = 0.1 WHERE id = 5", "row 5 was edited: expected hash"),
    "cut": ("DELETE FROM entry WHERE id > 6", "row 8 is missing: runs/two has it with hash"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_ledger_is_named_by_row(forgery, two_runs, here):
    statement, words = FORGERIES[forgery]
    db = sqlite3.connect(registry())
    for name in ("no_update", "no_delete"):
        db.execute(f"DROP TRIGGER {name}")
    db.execute(statement)
    db.commit()
    db.close()
    done = two_runs("ledger", "verify", "--against", "runs/two")
    assert done.returncode == 1 and words in done.stderr and "Traceback" not in done.stderr
    found = two_runs("ledger", "verify", "--against", "runs/two", "--json")
    assert found.returncode == 1 and any(words in p for p in json.loads(found.stdout)["problems"])


def test_an_old_copy_that_is_put_back_is_noticed(call, here):
    """The copy is whole in itself; only what a run saw tells it apart."""
    ledger = registry()
    assert call("run", "small.toml", "--name", "one", "--json").returncode == 0
    shutil.copy(ledger, here / "old")
    assert call("run", "small.toml", "--name", "two", "--json").returncode == 0
    shutil.copy(here / "old", ledger)
    assert call("ledger", "verify").returncode == 0
    done = call("ledger", "verify", "--against", "runs/one", "--against", "runs/two")
    assert done.returncode == 1 and "row 8 is missing: runs/two has it" in done.stderr and done.stderr.count("\n") == 1
    assert call("run", "small.toml", "--name", "three", "--seed", "5", "--json").returncode == 0
    done = call("ledger", "verify", "--against", "runs/two")
    assert done.returncode == 1 and "row 8: expected hash" in done.stderr


def test_export(two_runs, here):
    done = two_runs("ledger", "export", "out.csv")
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((here / "out.csv").read_text().splitlines()))
    assert [r["kind"] for r in rows] == ["plan", "round", "round", "round"] * 2
    assert rows[1]["owners"] == "0 1 2 3 4 5 6 7" and rows[0]["owners"] == "" and rows[1]["previous"] == rows[0]["hash"]
    assert two_runs("ledger", "export", "out.json", "--format", "json").returncode == 0
    found = json.loads((here / "out.json").read_text())
    assert found[1]["owners"] == list(range(8)) and found[0]["event"]["kind"] == "Repeated"
    assert float(rows[0]["epsilon"]) == found[0]["epsilon"]
    one_line(two_runs("ledger", "export", "no/such/out.csv"), "RunError", "cannot write")


@pytest.mark.parametrize("command", ["show", "verify", "export", "budget"])
def test_a_file_that_is_no_ledger_is_one_line_and_stays_as_it_is(command, call, here):
    tail = {
        "show": ["--ledger", "bad"], "verify": ["--ledger", "bad"], "export": ["out", "--ledger", "bad"],
        "budget": ["--epsilon", "1", "--delta", "0.1", "--ledger", "bad"],
    }[command]  # fmt: skip
    if command != "budget":
        one_line(call("ledger", command, *tail), "RunError", "there is no ledger bad")
    old = sqlite3.connect(here / "old")
    old.execute("CREATE TABLE charge (id INTEGER, round INTEGER, cohort BLOB, costs TEXT)")
    old.commit()
    old.close()
    for content, words in ((b"x" * 3000, "not a database"), ((here / "old").read_bytes(), "older version")):
        (here / "bad").write_bytes(content)
        one_line(call("ledger", command, *tail), "RunError", words)
        assert (here / "bad").read_bytes() == content and not (here / "out").exists()


def test_budgets_are_a_key_like_any_other(call, here):
    (here / "b.csv").write_text("client,epsilon\n" + "".join(f"{i},{0.01 if i == 3 else 1}\n" for i in range(8)))
    done = call("run", "small.toml", "--budgets", "b.csv", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["notes"][-1] == "1 clients never take part, as their budgets pay for no round: 3"
    assert [b["participations"] for b in found["plan"]["budgets"]] == [0, 3]
    one_line(call("run", "small.toml", "--budgets", "none.csv"), "SpecError", "cannot read none.csv")


def test_a_baseline_is_not_run_on_data_with_a_budget(call, data_file):
    """A benchmark's too: on one's own data there is none at all."""
    folder = data_file("breast_cancer_wdbc/breast_cancer.csv.gz").parents[1]
    assert call("ledger", "budget", "--epsilon", 8, "--delta", 1e-4).returncode == 0
    flags = ("--clients", 5, "--rounds", 3, "--device", "cpu", "--baseline")
    done = call("run", "--dataset", "breast-cancer", "--data-dir", folder, *flags)
    one_line(done, "BudgetError", "Drop baseline")


def test_help_names_every_subcommand(call):
    done = call("ledger", "--help")
    assert done.returncode == 0
    for word in (
        "budget", "show", "verify", "export", "backup", "restore", "merge", "import", "distinct", "forget", "key",
        "SORDINO_HOME", "does not protect against an owner who lies",
    ):  # fmt: skip
        assert word in " ".join(done.stdout.split())
