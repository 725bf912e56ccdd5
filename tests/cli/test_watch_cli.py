"""`sordino watch`: what it prints where there is no terminal, in one, and for programs; what it refuses."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from sordino.cli.main import main
from sordino.cli.watch import COLUMNS, GAP, WatchedRuns, fitting
from sordino.ui import shelf
from sordino.ui.shelf import Shelf
from support.views import line, locked, make_run

COMMAND = Path(sys.executable).with_name("sordino")


@pytest.fixture
def call(monkeypatch, capsys):
    """call("watch", folder) runs the command here and returns its exit code, its output and its errors."""

    def called(*words):
        monkeypatch.setattr(sys, "argv", ["sordino", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return called


@pytest.fixture
def runs(tmp_path):
    """A finished run, one that died, one of a printed method, and one whose records are damaged."""
    folder = tmp_path / "runs"
    make_run(folder, "finished")
    make_run(folder, "died", done=7, method="dp-fedavg")
    none = make_run(folder, "none", method="none", epsilon=None, infinite=True)
    plan = none / "public" / "plan.json"
    plan.write_text(json.dumps(json.loads(plan.read_text()) | {"claim": {"epsilon": 0.5}}))
    damaged = make_run(folder, "damaged", done=5)
    with (damaged / "public" / "records.jsonl").open("a") as file:
        file.write("{no\n")
    return folder


def row_of(out, name):
    """The line of a run."""
    (found,) = [text for text in out.splitlines() if text.startswith(f"{name} ")]
    return found


def everything(folder):
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(folder.rglob("*")) if p.is_file()}


def test_without_a_terminal_the_state_is_printed_once_and_nothing_is_changed(call, runs):
    before = everything(runs)
    code, out, error = call("watch", runs)
    assert code == 0 and not error and everything(runs) == before
    assert out.splitlines()[0] == "4 runs: 2 finished, 2 stopped"
    assert row_of(out, "finished").split()[1:6] == ["finished", "dp-sgd", "20/20", "━" * 10, "2"]
    assert "82.0 %" in row_of(out, "finished")
    assert "7/20" in row_of(out, "died") and "1.059 of 2" in row_of(out, "died")  # 0.4 * sqrt(7), rounded up
    assert "infinite" in row_of(out, "none") and " 0.5 " in row_of(out, "none")  # the claim beside it
    assert "damaged: records.jsonl is damaged in line 6: the 5 rounds before it are shown" in out
    assert "\x1b" not in out


def test_times_of_a_run_on_own_data_go_to_no_file(call, runs):
    """How long rounds take tells who was drawn, so that the output of a script has them for public data only."""
    with locked(runs / "died"):
        told = json.loads(call("watch", runs, "--json")[1])
        own = next(r for r in told["runs"] if r["name"] == "died")
        assert own["state"] == "running" and own["since"] is own["per_minute"] is own["left"] is None
        assert " ago" not in call("watch", runs)[1]
        plan = runs / "died" / "public" / "plan.json"
        plan.write_text(json.dumps(json.loads(plan.read_text()) | {"public_data": True}))
        public = next(r for r in json.loads(call("watch", runs, "--json")[1])["runs"] if r["name"] == "died")
        assert public["since"] >= 0 and " ago" in call("watch", runs)[1]


def test_colours_that_are_asked_for_make_no_terminal_of_a_pipe(runs):
    """FORCE_COLOR, which jobs often set, must not put times into their logs, nor keep them waiting."""
    with locked(runs / "died"):
        done = subprocess.run(
            [COMMAND, "watch", runs],
            capture_output=True,
            text=True,
            env=os.environ | {"FORCE_COLOR": "1"},
            check=True,
            timeout=60,
        )
    assert "1 running" in done.stdout and " ago" not in done.stdout and "\x1b" not in done.stdout


def test_json_has_a_thin_curve_and_no_number_that_json_lacks(call, runs):
    long = make_run(runs, "long", rounds=1000, epsilon=14.0)
    told = json.loads(call("watch", long, "--json")[1], parse_constant=pytest.fail)
    (row,) = told["runs"]
    assert told["count"] == 1 and told["states"] == {"finished": 1}
    assert row["path"] == str(long) and row["round"] == 1000 and not row["infinite"]
    assert 50 <= len(row["curve"]) <= 102 and row["curve"][-1][0] == 1000
    none = json.loads(call("watch", runs / "none", "--json")[1])["runs"][0]
    assert none["infinite"] and none["total"] is None and none["claimed"] == 0.5


def test_a_long_list_is_paged(call, tmp_path):
    for k in range(25):
        for path in (make_run(tmp_path, f"run-{k:02d}", rounds=2) / "public").iterdir():
            os.utime(path, (k, k))
    out = call("watch", tmp_path)[1]
    assert "run-24" in out and "run-05" in out and "run-04" not in out
    assert "and 5 more runs; --all shows them" in out
    assert "run-04" in call("watch", tmp_path, "--page", 2)[1]
    everyone = call("watch", tmp_path, "--all")[1]
    assert everyone.count("run-") == 25 and "more run" not in everyone


def test_a_missing_or_foreign_folder_is_one_clear_error(call, tmp_path):
    (tmp_path / "letters" / "dear").mkdir(parents=True)
    (tmp_path / "file.txt").write_text("x")
    for name, said in (
        ("no", "there is no folder"), ("letters", "holds no runs"), ("file.txt", "is a file")
    ):  # fmt: skip
        code, out, error = call("watch", tmp_path / name, "--once")
        assert code == 2 and not out and said in error and len(error.splitlines()) == 1, error


def test_runs_of_a_comparison_are_listed_and_no_link_leads_out(call, tmp_path):
    runs = tmp_path / "runs"
    make_run(runs, "one")
    make_run(runs / "trial" / "cells", "a")
    (runs / "link").symlink_to(make_run(tmp_path / "elsewhere", "other"))
    (runs / "notes").mkdir()
    assert sorted(r["name"] for r in json.loads(call("watch", runs, "--json")[1])["runs"]) == ["one", "trial/a"]
    for place in (runs / "one", runs / "one" / "public"):
        with locked(runs / "one"):
            (row,) = json.loads(call("watch", place, "--json")[1])["runs"]
        assert (row["name"], row["state"]) == ("one", "finished")


def test_runs_that_go_on_come_first_then_the_newest(call, tmp_path):
    for k, name in enumerate(("old", "new")):
        for path in (make_run(tmp_path, name) / "public").iterdir():
            os.utime(path, (1000 + k, 1000 + k))
    for path in (make_run(tmp_path, "going", done=1) / "public").iterdir():
        os.utime(path, (10, 10))
    with locked(tmp_path / "going"):
        told = json.loads(call("watch", tmp_path, "--json")[1])
    assert [r["name"] for r in told["runs"]] == ["going", "new", "old"]
    assert told["states"] == {"running": 1, "finished": 2}


@pytest.mark.parametrize("name", ["died", "died-with-a-name-that-is-longer-than-any-terminal-" * 4])
def test_no_number_is_cut_off_however_narrow_the_terminal(runs, name):
    (runs / "died").rename(runs / name)
    shutil.rmtree(runs / "none")  # the only one with a claim: without it every field of a row holds something
    for width in range(30, 201):
        console = Console(file=io.StringIO(), width=width, height=40, color_system=None, force_terminal=True)
        view = WatchedRuns(Shelf([runs]), console)
        view.read()
        console.print(view.table(view._pairs(), width))
        head, *rows = (text.rstrip("\n") for text in console.file.getvalue().splitlines())
        assert all(len(text) <= width for text in rows) and "…" not in head
        (row,) = [text for text in rows if text.startswith("died")]
        fields = dict(zip(re.split(r" {2,}", head.strip()), re.split(r" {2,}", row.strip()), strict=True))
        fields.pop("method", None)
        assert fields.pop("run") and not any("…" in value for value in fields.values()), row
        assert fields.get("round", "7/20") == "7/20" and fields.get("epsilon", "1.059 of 2") == "1.059 of 2"
        assert fields.get("state", "stopped") == "stopped" and fields.get("score", "73.3 %") == "73.3 %"


def test_columns_go_in_order_of_their_use_and_names_are_cut_last():
    wanted = dict.fromkeys(COLUMNS, 8) | {"run": 60}
    assert list(fitting(wanted, 500)) == list(COLUMNS)
    narrow = fitting(wanted, 60)
    assert "method" not in narrow and {"run", "epsilon", "score"} <= narrow.keys() and narrow["run"] >= 16
    for width in range(20, 200):
        widths = fitting(wanted, width).values()
        assert sum(widths) + GAP * (len(widths) - 1) <= width


def test_the_curves_of_the_first_run_are_drawn_where_there_is_room(runs):
    console = Console(file=io.StringIO(), width=120, height=40, force_terminal=True, highlight=False)
    view = WatchedRuns(Shelf([runs / "finished"]), console)
    view.read()
    console.print(view)
    out = console.file.getvalue()
    assert "accuracy by round" in out and "epsilon by round" in out and "86.0" not in out.split("accuracy by round")[0]
    assert any("\u2800" < letter <= "\u28ff" for letter in out)
    assert "1.789" in out and "1.79 " not in out  # 0.4 * sqrt(20) = 1.7888, rounded up as every epsilon is


def test_a_reader_of_ascii_sees_ascii(call, runs, monkeypatch):
    done = subprocess.run(
        [COMMAND, "watch", runs, "--once"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert b"##########" in done.stdout and done.stdout.isascii()


def test_names_that_the_terminal_cannot_write_stop_nothing(runs):
    (runs / "died").rename(runs / "größer\u202e")
    for encoding, shown in (("ascii", b"gr??er?"), ("latin-1", "größer?".encode("latin-1"))):
        done = subprocess.run(
            [COMMAND, "watch", runs], capture_output=True, env=os.environ | {"PYTHONIOENCODING": encoding}
        )
        assert done.returncode == 0 and shown in done.stdout, done.stderr


def test_a_terminal_follows_a_run_until_it_ends(tmp_path):
    run = make_run(tmp_path / "runs", "going", rounds=6, done=2)
    main_end, terminal = pty.openpty()
    try:
        with locked(run):
            shown = subprocess.Popen(
                [COMMAND, "watch", tmp_path / "runs", "--every", "0.1"],
                stdin=terminal, stdout=terminal, stderr=terminal,
                env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"},
            )  # fmt: skip
            os.close(terminal)
            assert "2/6" in read_until(main_end, "2/6")
            with (run / "public" / "records.jsonl").open("a") as file:
                file.writelines(line(k) for k in (3, 4))
            assert "4/6" in read_until(main_end, "4/6")
            with (run / "public" / "records.jsonl").open("a") as file:
                file.writelines(line(k) for k in (5, 6))
            result = {"guarantee": json.loads((run / "public" / "plan.json").read_text())["promise"], "rounds": 6}
            (run / "public" / "result.json").write_text(json.dumps(result))
        assert "1 finished" in read_until(main_end, "1 finished")
        assert shown.wait(20) == 0
    finally:
        os.close(main_end)


def read_until(handle, wanted, seconds=20.0):
    """Return what a terminal shows until it has shown a text."""
    seen, end = b"", time.monotonic() + seconds
    while wanted.encode() not in seen and time.monotonic() < end:
        if select.select([handle], [], [], 0.2)[0]:
            try:
                seen += os.read(handle, 65536)
            except OSError:
                break
    return seen.decode(errors="replace")


def test_what_is_followed_may_begin_later_and_may_vanish(tmp_path, monkeypatch):
    """With --follow the view waits; a run that is removed while it is shown leaves the list."""
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(shelf, "EVERY", 0.0)
    console = Console(file=io.StringIO(), width=100, height=30, force_terminal=True, highlight=False)
    view = WatchedRuns(Shelf([tmp_path / "runs"]), console)
    view.read()
    assert view.headline() == "No run yet." and not view.shelf.missing()
    run = make_run(tmp_path / "runs", "later", done=2)
    view.read()
    assert view.headline() == "1 run: 1 stopped"
    shutil.rmtree(run)
    console.print(view)  # gone, but not yet looked for
    view.read()
    assert view.headline() == "No run yet."
    shutil.rmtree(tmp_path / "runs")
    view.read()
    console.print(view)
    words = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue()).split()
    assert "runs is no longer there" in " ".join(words)
