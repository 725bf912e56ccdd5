"""A run that is looked at again and again: growth, resumption, death, copies, damage, long files."""

from __future__ import annotations

import json
import math
import os
import shutil
from itertools import pairwise

import numpy as np
import pytest

from sordino.report import live
from sordino.report.live import LiveRun
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
    assert (row.epsilon, row.delta, row.relation) == (2.0, 1e-5, "add/remove")
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


def test_a_resumed_run_that_has_no_round_yet_shows_none(tmp_path):
    run = make_run(tmp_path, "resumed", done=9)
    seen = looked(run)
    (run / "public" / "records.jsonl").write_text("")
    seen.refresh()
    row = seen.row()
    assert (row.round, row.epsilon, row.value) == (0, None, None) and seen.curve("epsilon")[1].size == 0


def test_a_run_that_is_made_anew_under_the_same_name_is_no_longer_finished(tmp_path):
    seen = looked(make_run(tmp_path, "again"))
    assert seen.row().state == "finished"
    shutil.rmtree(tmp_path / "again")
    run = make_run(tmp_path, "again", done=3)
    with locked(run):
        seen.refresh()
        assert (seen.row().state, seen.row().round, seen.row().damage) == ("running", 3, ())


@pytest.mark.parametrize("wrong", [-1, -1e308, 10**400, math.nan])
def test_an_epsilon_that_cannot_be_is_damage_and_no_number(tmp_path, wrong):
    run = make_run(tmp_path, "odd", done=3)
    path = run / "public" / "records.jsonl"
    path.write_text(line(1) + json.dumps(json.loads(line(2)) | {"epsilon": {"server": wrong}}) + "\n" + line(3))
    row = looked(run).row()
    assert row.round == 1 and "damaged in line 2" in row.damage[0]
    done = make_run(tmp_path, "done")
    result = json.loads((done / "public" / "result.json").read_text())
    result["guarantee"]["epsilon"] = wrong
    (done / "public" / "result.json").write_text(json.dumps(result))
    row = looked(done).row()
    assert row.total is None
    assert row.damage == ("public/result.json: guarantee.epsilon is not a number of at least 0; it is left out.",)


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
    assert seen.row().round == 6 and "damaged in line 7: the 6 rounds before it" in told and "spec.toml" in told
    short = make_run(tmp_path, "short")
    path = short / "public" / "records.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:5]))
    assert looked(short).damage() == ("records.jsonl holds 5 of the 20 rounds of the run.",)


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


def test_the_damaged_end_of_a_long_file_is_told_before_its_beginning_was_read(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "LARGE", 1000)
    run = make_run(tmp_path, "long", done=15)
    with (run / "public" / "records.jsonl").open("a") as file:
        file.write("{damaged\n")
    seen = LiveRun(run)
    seen.glance()
    assert seen.row().round == 15 and seen.damage() == ("records.jsonl is damaged at its end.",)


def test_a_long_curve_keeps_its_extremes_its_ends_and_its_gaps(tmp_path):
    run = make_run(tmp_path, "long", done=0)
    values = {k: math.sin(k / 1000) for k in range(1, 20_001)} | {7_777: 100.0, 12_345: -5.0}
    with (run / "public" / "records.jsonl").open("w") as file:
        for k, value in values.items():
            file.write(
                line(k, accuracy=value) if not 15_000 < k < 18_000 else line(k).replace('"accuracy": 0', '"_": 0')
            )
    points = looked(run).points(most=500)
    assert len(points) <= 500 and points[0][0] == 1 and points[-1][0] == 20_000
    known = [p for p in points if math.isfinite(p[1])]
    assert max(known, key=lambda p: p[1]) == (7_777, 100.0) and min(known, key=lambda p: p[1]) == (12_345, -5.0)
    assert any(15_000 < x < 18_000 and math.isnan(y) for x, y in points)
    xs = [x for x, _ in points]
    assert xs == sorted(set(xs)) and max(b - a for a, b in pairwise(xs)) < 200


def test_every_viewer_has_a_curve_also_one_who_appears_later(tmp_path):
    run = make_run(tmp_path, "going", done=2)
    with (run / "public" / "records.jsonl").open("a") as file:
        file.write(json.dumps(json.loads(line(3)) | {"epsilon": {"server": 0.7, "late": None}}) + "\n")
    seen = looked(run)
    assert seen.viewers == ("server", "public", "late")
    assert [len(seen.curve("epsilon", viewer)[1]) for viewer in seen.viewers] == [3, 3, 3]
    assert math.isinf(seen.curve("epsilon", "late")[1][-1]) and math.isnan(seen.curve("epsilon", "public")[1][-1])


def test_the_score_of_a_regression_is_its_error(tmp_path):
    run = make_run(tmp_path, "wind", done=0)
    record = json.loads(line(1)) | {"accuracy": None, "metrics": {"rmse": 0.25, "mae": 0.2}}
    (run / "public" / "records.jsonl").write_text(json.dumps(record) + "\n")
    row = looked(run).row()
    assert (row.measure, row.value) == ("rmse", 0.25)


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
