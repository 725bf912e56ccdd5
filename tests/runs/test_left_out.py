"""What a run leaves out: the owner is told how much before anything is charged, everyone else only by which rule."""

import json
import re

import numpy as np
import pytest

import sordino
from sordino.ledger import home
from sordino.runs import build, run
from sordino.spec import spec
from support.problems import federation, linear

KEYS = {"rounds": 1, "device": "cpu", "epsilon": 3.0, "name": "it"}
SCHEMA = '[a]\nmin = 0\nmax = 300\nmissing = "drop"\n[y]\nvalues = ["healthy", "ill"]\n'


def table(folder, label="ill"):
    rows = [f"{'' if i % 50 == 7 else i},{label if i % 2 else 'healthy'},u{i % 30},{i % 7}" for i in range(360)]
    (folder / "it.csv").write_text("a,y,who,site\n" + "\n".join(rows) + "\n")
    (folder / "it.toml").write_text(SCHEMA)
    columns = {"label_column": "y", "user_column": "who", "client_column": "site", "schema": "it.toml"}
    return KEYS | columns | {"dataset": "it.csv", "data_dir": str(folder), "out": str(folder / "runs"), "unit": "user"}


def test_the_owner_is_told_before_the_charge_and_the_public_part_only_knows_the_rule(tmp_path):
    told, charged = [], []

    def owner(text):
        told.append(text)
        charged.append(home.registry().is_file())

    job = build.from_spec(spec.from_dict(table(tmp_path)))
    result = run.execute(job, own_model=False, owner=owner)
    rows, clamped, left = told[:3]
    assert "8 rows are left out, since a value is missing (a: 8)" in rows and "clamped (a: 57)" in clamped
    number = int(re.match(r"(\d+) of 352 records \(\d+%\) are left out.*clients_per_user = 1", left)[1])
    assert number == 352 - sum(len(set_) for set_ in _largest(job)) > 200
    assert charged[:3] == [False] * 3
    assert list(result.private.notes)[:3] == told[:3]  # and in private/notes.txt
    assert any("at most clients_per_user = 1 clients are used" in note for note in result.notes)
    text = "".join(p.read_text(errors="replace") for p in (result.folder / "public").iterdir())
    assert all(note not in text for note in told) and str(number) not in json.dumps(result.notes)
    assert "which rows lack a value of a: they are left out" in result.guarantee.sentence()


def _largest(job):
    """The records that clients hold, counted by the job's own federation."""
    return [range(int(n)) for n in job.federation.facts.records]


def test_public_notes_do_not_depend_on_how_much_is_left_out(tmp_path):
    keys, notes = table(tmp_path), []
    for text in (
        (tmp_path / "it.csv").read_text(),
        "a,y,who,site\n" + "".join(f"{i},ill,v{i},{i % 7}\n" for i in range(90)),
    ):
        (tmp_path / "it.csv").write_text(text)
        all_notes = build.from_spec(spec.from_dict(keys)).notes
        notes.append([n for n in all_notes if "evaluation" not in n and "learning rate" not in n])  # by public sizes
    assert notes[0] == notes[1]


def test_python_callers_are_told_too(tmp_path):
    told = []
    users = [np.arange(12) % 4 for _ in range(8)]  # each of four people is in all of the eight clients
    sordino.train(linear(), federation(), users=users, unit="user", owner=told.append, out=str(tmp_path), **KEYS)
    assert re.match(r"84 of 96 records \(88%\) are left out", told[0])
    with pytest.raises(sordino.SordinoError, match="are for tables"):
        sordino.train(linear(), federation(), classes=["a", "b"])
