"""`sordino reproduce` as it is typed: what is listed, what is refused, before anything runs; which pages are kept."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from sordino.cli.reproduce import reproduce
from sordino.core.errors import DataError, RunError, SpecError
from sordino.papers import run as running

PROMISED = {"epsilon": 0.5, "unit": "record", "viewer": "server"}
RESULT = {"accuracy": 0.9, "rounds": 2, "guarantee": PROMISED, "claim": None, "metrics": {}}
RECORD = {"round": 1, "accuracy": 0.9, "loss": 0.1, "evaluated_on": "test"}
OWNERS = {"round": 1, "seconds": 1.0, "bytes_up": 5}


def finish(out, name, count=None, scale=1.0, accuracy=0.9):
    """The folder of an experiment whose first runs are finished, as far as their files go."""
    experiment = running.find(name)
    trials = running.cells(experiment, scale, {})
    running.open_folder(Path(out), experiment, scale, trials).close()
    cells = [running.place(Path(out), experiment) / "cells" / c.name for _, c in trials[:count]]
    for at in cells:
        for part in ("public", "private"):
            (at / part).mkdir(parents=True, exist_ok=True)
        (at / "public" / "plan.json").write_text("{}")
        (at / "public" / "result.json").write_text(json.dumps(RESULT | {"accuracy": accuracy}))
        (at / "public" / "records.jsonl").write_text(json.dumps(RECORD) + "\n")
        (at / "private" / "records.jsonl").write_text(json.dumps(OWNERS) + "\n")
    return cells


def call(*args, minutes="1e-9"):
    """So few minutes that nothing is run which is not finished."""
    return CliRunner().invoke(reproduce, [*args, "--minutes", minutes])


def files(folder):
    return {str(p): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file() and p.name != "lock"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_paper_alone_lists_its_items():
    listed = CliRunner().invoke(reproduce, ["003"]).output.splitlines()
    assert [line.split()[0] for line in listed] == [n for n in running.EXPERIMENTS if n.startswith("003/")]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--scale", "0.1"], "name the one to reproduce: 002/"),
        (["002", "--set", "rounds=2"], "name the one to reproduce: 002/"),
        (["002/fig4d", "--minutes", "-3"], "minutes must be a number above 0, not -3"),
        (["002/fig4d", "--minutes", "nan"], "minutes must be a number above 0"),
        (["002/fig4d", "--set", "round=3"], "unknown key 'round'. Did you mean 'rounds'?"),
        (["002/fig4d", "--set", "rounds"], "set takes KEY=VALUE"),
        (["002/fig4d", "--set", "batch_size=8"], "not both (set by you: batch_size=8; the rest by 002/fig4d)"),
    ],
)
def test_what_makes_no_sense_is_one_error_and_leaves_nothing(tmp_path, args, words):
    found = CliRunner().invoke(reproduce, [*args, "--out", str(tmp_path / "o")])
    assert isinstance(found.exception, SpecError) and words in str(found.exception)
    assert not (tmp_path / "o").exists()


def test_a_page_of_more_runs_stays_until_there_are_as_many(here):
    finish("one", "004/sound")
    assert "40 of 40 runs are finished. Page: docs/results/004.md" in call("004/sound", "--out", "one").output
    before = files("docs")
    assert {Path(p).name for p in before} == {"004.md", "sound.csv", "sound.png"}
    finish("two", "004/sound", 3, accuracy=0.7)
    fewer = call("004/sound", "--out", "two")
    assert fewer.exit_code == 3 and files("docs") == before
    said = "3 of 40 runs are finished. Kept docs/results/004.md, which has 40 finished runs. Page: two/004-sound/004.md"
    assert said in fewer.output
    assert "So far 3 of 40 runs." in Path("two/004-sound/004.md").read_text()
    finish("two", "004/sound", accuracy=0.7)
    assert "Kept" not in call("004/sound", "--out", "two").output
    after = files("docs")
    assert after.keys() == before.keys() and all(after[p] != before[p] for p in before)


def test_a_page_at_another_scale_never_replaces_one_at_full_scale(here):
    for scale, out in ((1.0, "one"), (0.1, "two")):
        finish(out, "004/sound", scale=scale)
    assert call("004/sound", "--scale", "0.1", "--out", "two", "--pages", "docs/results").exit_code == 0
    assert "--scale 0.1" in Path("docs/results/004.md").read_text()  # there was none
    call("004/sound", "--out", "one")
    before = files("docs")
    assert b"--scale" not in before["docs/results/004.md"]
    kept = call("004/sound", "--scale", "0.1", "--out", "two", "--pages", "docs/results")
    assert files("docs") == before
    assert "Kept docs/results/004.md, which has 40 runs at full scale. Page: two/004-sound/004.md" in kept.output


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cells/FedSDP-0.3-sound-seed0/public/result.json", "{"),
        ("cells/FedSDP-0.3-sound-seed0/public/result.json", "{}"),
        ("cells/FedSDP-0.3-sound-seed0/public/result.json", "[]"),
        ("cells/FedSDP-0.3-sound-seed0/private/records.jsonl", "garbage\n"),
        ("cells/FedSDP-0.3-sound-seed0/private/records.jsonl", "{}\n"),
        ("cells/FedSDP-0.3-sound-seed0/private/records.jsonl", None),
        ("private/experiment.json", "[]"),
        ("private/experiment.json", "{"),
        ("private/experiment.json", "{}"),
        ("private/experiment.json", '{"scale": 1.0, "trials": {"FedSDP-0.3-sound-seed0": 3}}'),
    ],
)
def test_a_damaged_file_is_one_line_and_changes_nothing(here, name, text):
    finish("o", "004/sound", 2)
    file = Path("o/004-sound") / name
    file.unlink() if text is None else file.write_text(text)
    before = files(".")
    found = call("004/sound", "--out", "o")
    assert isinstance(found.exception, RunError) and str(file) in str(found.exception)
    assert "\n" not in str(found.exception)
    assert ("Remove " if "cells" in name else "Choose another --out") in str(found.exception)
    assert files(".") == before and not Path("docs").exists()


def test_a_dataset_that_is_not_there_is_said_before_there_is_a_folder(here):
    found = call("002/fig4d", "--scale", "0.01", "--set", "dataset=nothere", "--out", "o")
    assert isinstance(found.exception, DataError) and "no dataset 'nothere'" in str(found.exception)
    assert not Path("o").exists()


def test_only_runs_that_have_begun_bind_a_folder(here):
    experiment = running.find("004/sound")
    wrong = running.cells(experiment, 0.1, {"dataset": "nothere"})
    running.open_folder(Path("o"), experiment, 0.1, wrong).close()
    cells = finish("o", "004/sound", 1)  # another scale, other settings
    for scale, overrides in ((0.1, {}), (1.0, {"rounds": 7})):
        with pytest.raises(RunError, match="made with another scale or other settings"):
            running.open_folder(Path("o"), experiment, scale, running.cells(experiment, scale, overrides))
    shutil.rmtree(cells[0])
    running.open_folder(Path("o"), experiment, 0.1, wrong).close()


@pytest.mark.parametrize("pages", ["file", "file/in", "pages"])
def test_pages_that_cannot_be_written_are_said_before_anything_runs(here, monkeypatch, pages):
    Path("file").write_text("")
    Path("pages").mkdir()
    real = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: Path(p).name != "pages" and real(p, mode))
    found = call("004/sound", "--out", "o", "--pages", pages)
    assert isinstance(found.exception, RunError) and f"cannot write pages into {pages}: " in str(found.exception)
    assert not Path("o").exists()


def test_a_table_without_runs_is_shown_and_leaves_no_folder(here):
    found = call("003/table2", "--out", "o")
    assert found.exit_code == 0 and "| dense | high | 2 | standard | gaussian |" in found.output
    assert found.output.endswith("Page: docs/results/003.md\n") and "0 of 0" not in found.output
    assert not Path("o").exists() and "| dense | high | 2 |" in Path("docs/results/003.md").read_text()
