"""A registry that travels, loses its key, meets another one and forgets people."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3

import numpy as np
import pandas as pd
import pytest

from sordino.ledger import home
from sordino.ledger.units import UnitStore
from sordino.runs.fingerprint import fingerprints
from support.errors import one_line as refused
from support.problems import registry

TOML = """
dataset = "people.csv"
label_column = "sick"
clients = 4
rounds = 1
epsilon = 1.0
learning_rate = 0.1
device = "cpu"
"""


def people(seed=0, rows=40):
    draw = np.random.default_rng(seed)
    found = pd.DataFrame(draw.normal(size=(rows, 3)).round(4), columns=list("abc"))
    names = [f"{v:012d}" for v in draw.integers(0, 10**12, rows // 2)] * 2
    return found.assign(who=names, sick=draw.integers(0, 2, rows))


@pytest.fixture
def here(tmp_path):
    (tmp_path / "it.toml").write_text(TOML)
    people().drop(columns="who").to_csv(tmp_path / "people.csv", index=False)
    return tmp_path


@pytest.fixture
def call(here, sordino_command):
    """call(..., home=...) in a folder with a small study."""
    return lambda *args, **keys: sordino_command(*args, cwd=here, **{k: str(v) for k, v in keys.items()})


@pytest.fixture
def ran(call):
    fine(call("run", "it.toml", "--name", "one", "--json"))
    fine(call("ledger", "budget", "--epsilon", 1.5, "--delta", 1e-3))
    return call


def fine(done):
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def again(call, name="two", **keys):
    return call("run", "it.toml", "--name", name, "--json", **keys)


def entries(path=None):
    db = sqlite3.connect(path or registry())
    try:
        return db.execute("SELECT id, kind, job, data, what FROM entry ORDER BY id").fetchall()
    finally:
        db.close()


# --- backups and keys


def test_a_backup_is_restored_on_another_machine_with_its_key(ran, here):
    done = fine(ran("ledger", "backup", "it.zip"))
    assert "units.key" in done.stdout and "key export" in done.stdout
    refused(ran("ledger", "backup", "it.zip"), "RunError", "exists already")
    fine(ran("ledger", "key", "export", "it.key"))
    assert (here / "it.key").stat().st_mode & 0o777 == 0o600 and (here / "it.zip").stat().st_mode & 0o777 == 0o600
    assert (here / "it.key").read_bytes() not in (here / "it.zip").read_bytes()
    refused(ran("ledger", "key", "export", "it.key"), "RunError", "exists already")
    refused(ran("ledger", "restore", "it.zip"), "RunError", "a registry already exists")
    there = here / "laptop"
    done = fine(ran("ledger", "restore", "it.zip", home=there))
    assert "key is still missing" in done.stdout
    refused(again(ran, home=there), "RunError", "is missing", "ledger key import FILE", "ledger key new")
    assert not (here / "runs" / "two").exists()
    fine(ran("ledger", "key", "import", "it.key", home=there))
    refused(again(ran, home=there), "BudgetError", "left: epsilon 0.5", "40 of 40 records")
    assert entries(there / "registry" / "ledger.sqlite") == entries()
    fine(ran("ledger", "verify", "--against", "runs/one", home=there))


def test_a_lost_key_stops_every_run_until_one_says_what_to_do(ran, here):
    home.key_file().unlink()
    refused(again(ran), "RunError", "the key", "is missing", "ledger key import FILE", "ledger key new")
    fine(ran("ledger", "show"))  # looking is still possible
    fine(ran("ledger", "key", "new"))
    refused(ran("ledger", "key", "new"), "RunError", "there is already a key")
    fine(again(ran))  # nobody can be recognised any more ...
    plans = [e for e in entries() if e[1] == "plan"]
    assert len(plans) == 2 and plans[0][3] != plans[1][3]


def test_names_count_without_the_key(call):
    fine(call("run", "it.toml", "--name", "one", "--data-name", "study", "--json"))
    fine(call("ledger", "budget", "--epsilon", 1.5, "--delta", 1e-3, "--data-name", "study"))
    home.key_file().unlink()
    fine(call("ledger", "key", "new"))
    refused(call("run", "it.toml", "--name", "two", "--data-name", "study"), "BudgetError", "data study")


def test_keys_are_never_replaced(ran, here):
    (here / "other.key").write_bytes(b"z" * 32)
    (here / "bad.key").write_bytes(b"short")
    before = home.key_file().read_bytes()
    refused(ran("ledger", "key", "import", "other.key"), "RunError", "already another key")
    refused(ran("ledger", "key", "import", "bad.key"), "RunError", "not a Sordino key")
    refused(ran("ledger", "key", "import", "none.key"), "RunError", "there is no key none.key")
    refused(ran("ledger", "key", "export", "no/such/folder.key"), "RunError", "cannot write the key")
    refused(ran("ledger", "key", "export", "x", home=here / "empty"), "RunError", "there is no key")
    assert home.key_file().read_bytes() == before
    fine(ran("ledger", "key", "export", "same.key"))
    fine(ran("ledger", "key", "import", "same.key"))


def test_what_is_no_backup_is_one_line(ran, here):
    (here / "bad.zip").write_bytes(b"PK nonsense")
    shutil.make_archive(str(here / "other"), "zip", here, "it.toml")
    for name in ("bad.zip", "other.zip", "none.zip"):
        refused(ran("ledger", "restore", name, home=here / "new"), "RunError", name)
    assert not (here / "new" / "registry").exists()
    refused(ran("ledger", "backup", "no/such/it.zip"), "RunError", "cannot write")
    refused(ran("ledger", "backup", "x.zip", "--ledger", "none.sqlite"), "RunError", "there is no ledger none.sqlite")


# --- two analysts


def test_registries_are_merged_and_jobs_of_both_count_once(ran, here):
    fine(ran("ledger", "backup", "it.zip"))
    fine(ran("ledger", "key", "export", "it.key"))
    there = here / "colleague"
    fine(ran("ledger", "restore", "it.zip", home=there))
    fine(ran("ledger", "key", "import", "it.key", home=there))
    people(5).drop(columns="who").to_csv(here / "people.csv", index=False)
    fine(again(ran, "theirs", home=there))  # other people, on the other machine
    done = fine(ran("ledger", "merge", there))
    assert "1 charges are new" in done.stdout and "another key" not in done.stderr
    refused(again(ran, "mine"), "BudgetError", "left: epsilon 0.5", "(theirs)")
    before = entries()
    assert "0 charges are new" in fine(ran("ledger", "merge", there / "registry" / "ledger.sqlite")).stdout
    assert entries() == before
    fine(ran("ledger", "verify"))
    assert "theirs" in fine(ran("ledger", "show")).stdout
    fine(ran("ledger", "backup", "all.zip", home=there))
    assert "0 charges are new" in fine(ran("ledger", "merge", "all.zip")).stdout


def test_hashes_of_another_key_count_by_name_only(call, here):
    for where, name in ((here / "a", "one"), (here / "b", "two")):
        fine(call("run", "it.toml", "--name", name, "--data-name", "study", "--json", home=where))
    done = fine(call("ledger", "merge", here / "b", home=here / "a"))
    assert "1 charges are new" in done.stdout and "another key" in done.stderr and "by the name" in done.stderr
    fine(call("ledger", "budget", "--epsilon", 2.5, "--delta", 1e-3, home=here / "a"))
    named = ("run", "it.toml", "--name", "three", "--data-name")
    refused(call(*named, "study", home=here / "a"), "BudgetError", "left: epsilon 0.5")
    refused(call("ledger", "merge", "it.toml", home=here / "a"), "RunError", "it.toml")
    refused(call("ledger", "merge", "none", home=here / "a"), "RunError", "there is no ledger none")
    refused(call("ledger", "merge", here / "a", home=here / "a"), "RunError", "this ledger itself")


def test_a_forged_registry_is_not_merged(ran, here):
    there = here / "forged"
    shutil.copytree(registry().parent.parent, there)
    db = sqlite3.connect(there / "registry" / "ledger.sqlite")
    for name in ("no_update", "no_delete"):
        db.execute(f"DROP TRIGGER {name}")
    db.execute("UPDATE entry SET epsilon = 0.1 WHERE id = 1")
    db.commit()
    db.close()
    before = entries()
    refused(ran("ledger", "merge", there), "RunError", "row 1 was edited", "nothing was merged")
    assert entries() == before


# --- erasure


def stored():
    store = UnitStore(registry().with_name("units.sqlite"), "read")
    try:
        return sum(len(next(iter(store.forms(p).values()))) for p in store.parts())
    finally:
        store.close()


def test_rows_are_forgotten_and_charges_stay(ran, here):
    table = people().drop(columns="who")
    table.iloc[[3, 8]].to_csv(here / "gone.csv", index=False)
    before = len(entries())
    assert stored() == 40
    done = fine(ran("ledger", "forget", "--rows", "gone.csv", "--label-column", "sick"))
    assert "2 hashes were erased" in done.stdout and stored() == 38
    found = entries()
    assert len(found) == before + 1 and found[-1][1] == "note" and json.loads(found[-1][4]) == {"forgotten": "rows"}
    assert [e for e in found if e[1] == "plan"]
    refused(ran("ledger", "forget", "--rows", "gone.csv"), "RunError", "knows nothing about these rows")
    assert len(entries()) == before + 1
    table.iloc[[3, 8]].sample(60, replace=True, random_state=0).reset_index(drop=True).pipe(
        lambda t: pd.concat([t, people(9, 30).drop(columns="who")])
    ).to_csv(here / "people.csv", index=False)
    fine(again(ran))  # nobody knows them any more
    fine(ran("ledger", "verify"))


def test_of_equal_rows_the_last_copies_are_forgotten(call, here):
    table = people().drop(columns="who")
    pd.concat([table, table.iloc[[3, 3]]]).to_csv(here / "people.csv", index=False)
    fine(call("run", "it.toml", "--json"))
    table.iloc[[3, 3]].to_csv(here / "gone.csv", index=False)
    assert "2 hashes" in fine(call("ledger", "forget", "--rows", "gone.csv", "--label-column", "sick")).stdout
    assert stored() == 40
    table.iloc[[3]].to_csv(here / "gone.csv", index=False)
    assert "1 hashes" in fine(call("ledger", "forget", "--rows", "gone.csv")).stdout and stored() == 39


def test_a_user_is_forgotten_by_id(call, here):
    people().to_csv(here / "people.csv", index=False)
    by_user = ("--unit", "user", "--user-column", "who", "--records-per-user", 2, "--data-name", "study", "--json")
    fine(call("run", "it.toml", "--name", "one", *by_user))
    name = people()["who"][0]
    done = fine(call("ledger", "forget", "--user", name))
    assert "1 hashes were erased" in done.stdout and "--rows" in done.stdout
    assert name not in "".join(map(str, entries())) and name not in registry().read_bytes().decode("latin1")
    refused(call("ledger", "forget", "--client", name), "RunError", f"knows nothing about client {name!r}")


def test_what_cannot_be_forgotten_is_one_line(ran, here):
    refused(ran("ledger", "forget"), "SpecError", "one of --user, --client and --rows")
    refused(ran("ledger", "forget", "--user", "a", "--client", "b"), "SpecError", "one of")
    refused(ran("ledger", "forget", "--user", "a", "--label-column", "y"), "SpecError", "--rows")
    refused(ran("ledger", "forget", "--rows", "none.csv"), "DataError", "none.csv")
    refused(ran("ledger", "forget", "--rows", "people.csv", "--label-column", "x"), "DataError", "no column 'x'")
    assert stored() == 40


# --- ledgers of the version before


OLD = """CREATE TABLE entry (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, job TEXT NOT NULL, data TEXT NOT NULL, owners BLOB, what TEXT NOT NULL,
    time TEXT NOT NULL, unit TEXT NOT NULL, relation TEXT NOT NULL, viewer TEXT NOT NULL,
    event TEXT NOT NULL, epsilon REAL, delta REAL, previous TEXT NOT NULL, hash TEXT NOT NULL)"""


def old_ledger(path, data, epsilon=1.0):
    """A file as version 2 wrote it: a budget, a plan and a round."""
    path.parent.mkdir(exist_ok=True)
    event = json.dumps({"kind": "Gaussian", "noise_multiplier": 20.0})
    view = ("record", "add/remove", "server", event)
    what = json.dumps({"rounds": 3, "participations": 3, "run": "long-ago"})
    rows = [
        ("budget", "", "", None, '{"theory": "plans"}', "2025", "", "", "", "", 1.5, 1e-3),
        ("plan", "j1", data, None, what, "2025", *view, epsilon, 1e-5),
        ("round", "j1", data, b"\0" * 8, '{"round": 0}', "2025", *view, None, None),
    ]
    db = sqlite3.connect(path)
    db.execute(OLD)
    previous = "0" * 64
    for number, row in enumerate(rows, 1):
        content = [number, *(v.hex() if isinstance(v, bytes) else v for v in row), previous]
        hash = hashlib.blake2b(json.dumps(content).encode(), digest_size=32).hexdigest()
        db.execute(f"INSERT INTO entry VALUES ({', '.join('?' * 15)})", (number, *row, previous, hash))
        previous = hash
    db.execute(f"PRAGMA application_id = {0x534F5244}")
    db.execute("PRAGMA user_version = 2")
    db.commit()
    db.close()
    return path


def exact(here):
    from sordino.runs import build
    from sordino.spec import spec

    keys = spec.read(here / "it.toml") | {"dataset": str(here / "people.csv")}
    return fingerprints(build.from_spec(spec.from_dict(keys)).owner.brought)[1]


def test_an_old_ledger_is_told_of_and_imported_once(call, here):
    old = old_ledger(here / "runs" / "ledger.sqlite", exact(here))
    content = old.read_bytes()
    assert fine(again(call, "one")).stderr == ""  # redirected
    told = (here / "runs" / "one" / "private" / "notes.txt").read_text()
    assert "1 charges of an earlier version" in told and f"ledger import {old.relative_to(here)}" in told
    done = fine(call("ledger", "import", old))
    assert "1 charges" in done.stdout and "its budget of epsilon 1.5" in done.stderr
    before = entries()
    assert "0 charges" in fine(call("ledger", "import", old)).stdout and entries() == before
    assert old.read_bytes() == content
    fine(call("ledger", "budget", "--epsilon", 2.5, "--delta", 1e-3))
    refused(again(call), "BudgetError", "left: epsilon 0.5", "long-ago")  # exactly these data, and the run of today
    people(3).drop(columns="who").to_csv(here / "people.csv", index=False)
    folder = here / json.loads(fine(again(call)).stdout)["folder"]
    told = (folder / "private" / "notes.txt").read_text()
    assert "earlier version" in told and "by their exact content" in told and "ledger import" not in told
    fine(call("ledger", "show"))
    fine(call("ledger", "verify"))


def test_an_old_ledger_may_be_given_the_name_of_its_data(call, here):
    old = old_ledger(here / "old.sqlite", "ab" * 16)
    fine(call("ledger", "import", old, "--data-name", "study"))
    fine(call("ledger", "budget", "--epsilon", 1.5, "--delta", 1e-3))
    refused(call("run", "it.toml", "--data-name", "study"), "BudgetError", "left: epsilon 0.5")
    fine(call("run", "it.toml", "--json"))


def test_what_cannot_be_imported_is_one_line(ran, here):
    old = old_ledger(here / "old.sqlite", "ab" * 16)
    refused(ran("ledger", "show", "--ledger", old), "RunError", "earlier version", "ledger import")
    refused(ran("run", "it.toml", "--ledger", old), "RunError", "ledger import")
    db = sqlite3.connect(old)
    db.execute("UPDATE entry SET epsilon = 0.1 WHERE id = 2")
    db.commit()
    db.close()
    before = entries()
    refused(ran("ledger", "import", old), "RunError", "edited at row 2", "nothing was imported")
    refused(ran("ledger", "import", registry()), "RunError", "not a ledger of an earlier version")
    refused(ran("ledger", "import", "it.toml"), "RunError", "cannot read the ledger")
    refused(ran("ledger", "import", "none"), "RunError", "there is no ledger none")
    refused(ran("ledger", "import", old, "--data-name", "a b"), "SpecError", "data name")
    assert entries() == before
