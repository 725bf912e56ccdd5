"""Runs that are looked at again and again: growth, resumption, death, copies, damage, long files, many folders."""

from __future__ import annotations

import json
import math
import os
import shutil

import numpy as np
import pytest

from sordino.core.errors import RunError
from sordino.report import live
from sordino.report.live import LiveRun, LiveRuns, runs_in
from support.views import line, locked, make_run


def grow(run, numbers, **keys):
    with (run / "public" / "records.jsonl").open("a") as file:
        file.writelines(line(k, **keys) for k in numbers)


def looked(run):
    seen = LiveRun(run)
    seen.refresh()
    return seen


def test_a_finished_run_says_what_its_result_says(tmp_path):
    row = looked(make_run(tmp_path, "done")).row(now=2e9)
    assert (row.name, row.state, row.method, row.data) == ("done", "finished", "dp-sgd", "breast-cancer")
    assert (row.round, row.planned, row.total, row.unit, row.viewer) == (20, 20, 2.0, "record", "server")
    assert (row.measure, row.value) == ("accuracy", 0.82)  # of the result, not of the last round
    assert row.since is row.per_minute is row.left is None and row.damage == ()


def test_only_what_was_appended_is_read_and_the_curve_grows(tmp_path, monkeypatch):
    run = make_run(tmp_path, "going", done=4)
    with locked(run):
        seen = looked(run)
        assert (seen.state, seen.row().round, seen.row().epsilon) == ("running", 4, pytest.approx(0.8))
        parsed = []
        monkeypatch.setattr(
            seen._file, "_parse", lambda text, parse=seen._file._parse: parsed.append(text) or parse(text)
        )
        grow(run, range(5, 10))
        seen.refresh()
        rounds, epsilon = seen.curve("epsilon")
    assert len(parsed) == 5 and rounds.tolist() == list(range(1, 10))
    assert epsilon == pytest.approx(0.4 * np.sqrt(rounds)) and seen.curve()[1][-1] == seen.row().value


def test_a_run_that_was_killed_has_stopped_and_a_copy_says_nothing_about_it(tmp_path):
    run = make_run(tmp_path, "dead", done=3)
    assert looked(run).row().state == "stopped"
    copy = shutil.copytree(run / "public", tmp_path / "copy")
    assert looked(copy).row().state == "unknown"


def test_a_resumed_run_replaces_its_records(tmp_path):
    run = make_run(tmp_path, "resumed", done=9)
    seen = looked(run)
    path = run / "public" / "records.jsonl"
    path.with_suffix(".new").write_text("".join(line(k, accuracy=0.25) for k in range(1, 6)))
    path.with_suffix(".new").replace(path)
    seen.refresh()
    assert seen.row().round == 5 and seen.curve()[1].tolist() == [0.25] * 5


def test_times_are_told_only_if_they_are_asked_for(tmp_path):
    run = make_run(tmp_path, "going", done=10)
    os.utime(run / "public" / "plan.json", (1000, 1000))
    os.utime(run / "public" / "records.jsonl", (1020, 1020))
    with locked(run):
        seen = looked(run)
        silent, row = seen.row(), seen.row(now=1025.0)
        assert silent.since is silent.per_minute is silent.left is None
        assert row.since == 5.0 and row.per_minute == pytest.approx(30.0) and row.left == pytest.approx(20.0)
        grow(run, [11, 12])  # and now as seen: two rounds in ten seconds
        os.utime(run / "public" / "records.jsonl", (1030, 1030))
        seen.refresh()
        assert seen.row(now=1030.0).per_minute == pytest.approx(12.0)


def test_damage_is_told_and_everything_before_it_is_shown(tmp_path):
    run = make_run(tmp_path, "damaged", done=6)
    with (run / "public" / "records.jsonl").open("a") as file:
        file.write("{broken\n" + line(8))
    (run / "public" / "spec.toml").write_text("rounds = = 3")
    seen = looked(run)
    told = " ".join(seen.damage())
    assert seen.row().round == 6 and "damaged or cannot be read after 6 rounds" in told and "spec.toml" in told
    short = make_run(tmp_path, "short")
    path = short / "public" / "records.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:5]))
    assert looked(short).damage() == ("records.jsonl holds 5 of 20 rounds.",)


@pytest.mark.parametrize("plan", ["", "[]", "{", '{"promise": 3}', '{"promise": {"epsilon": "x", "viewer": 1}}', "\0"])
def test_a_plan_of_any_contents_gives_a_row(tmp_path, plan):
    run = make_run(tmp_path, "odd", done=2)
    (run / "public" / "plan.json").write_text(plan)
    row = looked(run).row()
    assert row.round == 2 and row.total is None


def test_the_end_of_a_long_file_is_looked_at_first(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "LARGE", 1000)
    monkeypatch.setattr(live, "END", 700)
    run = make_run(tmp_path, "long", rounds=50, done=40)
    seen = LiveRun(run)
    seen.glance()
    row = seen.row()
    assert row.loading and row.round == 40 and row.value == pytest.approx(0.5 + 0.4 * 40 / 45)
    seen.refresh()
    assert not seen.row().loading and len(seen.curve()[0]) == 40


def test_a_run_without_a_guarantee_is_infinite(tmp_path):
    row = looked(make_run(tmp_path, "none", epsilon=None, infinite=True)).row()
    assert row.total == math.inf == row.epsilon


def test_runs_are_found_in_folders_comparisons_and_copies_and_no_link_leads_out(tmp_path):
    runs = tmp_path / "runs"
    make_run(runs, "one")
    make_run(runs / "trial" / "cells", "a")
    outside = make_run(tmp_path / "elsewhere", "other")
    (runs / "link").symlink_to(outside)
    (runs / "notes").mkdir()
    assert sorted(runs_in(runs).values()) == ["one", "trial/a"]
    assert list(runs_in(runs / "trial").values()) == ["a"]
    assert runs_in(runs / "one") == runs_in(runs / "one" / "public") == {runs / "one": ""}
    assert runs_in(tmp_path / "nothing") == {}


def test_new_runs_appear_and_running_ones_come_first(tmp_path):
    for k, name in enumerate(("old", "new")):
        run = make_run(tmp_path, name)
        os.utime(run / "public" / "records.jsonl", (1000 + k, 1000 + k))
    going = make_run(tmp_path, "going", done=1)
    os.utime(going / "public" / "records.jsonl", (10, 10))
    shelf = LiveRuns([tmp_path])
    with locked(going):
        assert [run.name for run in shelf.ordered()] == ["going", "new", "old"]
        assert shelf.counts() == {"running": 1, "finished": 2}
        make_run(tmp_path, "later")
        shelf.search()
        assert {run.name for run in shelf.ordered()} == {"going", "new", "old", "later"}
        shutil.rmtree(tmp_path / "old")
        shelf.search()
        assert "old" not in {run.name for run in shelf.ordered()}


def test_a_folder_without_runs_is_one_clear_error_unless_one_is_waited_for(tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "file").write_text("x")
    for place, said in (("nothing", "no run folder"), ("letters", "is not a run folder"), ("file", "is a file")):
        with pytest.raises(RunError, match=said):
            LiveRuns([tmp_path / place])
    assert LiveRuns([tmp_path / "letters"], follow=True).ordered() == []
    with pytest.raises(RunError, match="no run folder"):
        LiveRuns([tmp_path / "nothing"], follow=True)


def test_a_hostile_name_is_harmless_on_a_terminal(tmp_path):
    run = make_run(tmp_path, "e\x1b[2Jvil", method="x\x1b]0;y\x07", dataset="\n\n")
    row = looked(run).row()
    assert all(text.isprintable() for text in (row.name, row.method, row.data))


def test_numbers_that_no_record_has_are_unknown(tmp_path):
    run = make_run(tmp_path, "odd", done=0)
    record = json.loads(line(1)) | {"accuracy": 10**400}
    (run / "public" / "records.jsonl").write_text(json.dumps(record) + "\n")
    row = looked(run).row()
    assert row.round == 1 and row.measure == "loss"
