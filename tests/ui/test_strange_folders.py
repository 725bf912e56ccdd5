"""Folders that a stranger sent, or that are damaged: what is shown of them, and what is not followed."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from sordino.core.errors import RunError
from sordino.ui.api import ViewAnswers
from sordino.ui.shelf import Shelf
from support.views import line, make_run


def shown(folder):
    """Return the rows of the list of a folder by name."""
    return {row["name"]: row for row in ViewAnswers([folder]).answer(["runs"], {})["rows"]}


@pytest.mark.parametrize("part", ["public", "cells"])
def test_no_part_of_a_run_or_a_comparison_may_be_a_link_out_of_it(tmp_path, part):
    mine = make_run(tmp_path / "mine", "secret")
    make_run(tmp_path / "sent", "honest")
    (tmp_path / "sent" / "trap").mkdir()
    (tmp_path / "sent" / "trap" / part).symlink_to(mine / "public" if part == "public" else tmp_path / "mine")
    assert list(shown(tmp_path / "sent")) == ["honest"]
    with pytest.raises(RunError, match="holds no runs"):
        Shelf([tmp_path / "sent" / "trap"])


def test_what_is_no_plain_file_makes_no_run_and_no_comparison(tmp_path):
    make_run(tmp_path, "honest")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "cells").write_text("a file")
    (tmp_path / "pipe" / "public").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe" / "public" / "plan.json")
    assert list(shown(tmp_path)) == ["honest"]


def test_a_folder_that_may_not_be_entered_is_one_clear_error(tmp_path, monkeypatch):
    make_run(tmp_path / "runs", "first")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # whoever may do everything may run this test, too
    with pytest.raises(RunError, match=r"the folder .*runs cannot be read \(it may be listed, and not entered\)"):
        Shelf([tmp_path / "runs"])


def test_a_file_of_a_far_future_does_not_hide_the_list(tmp_path):
    run = make_run(tmp_path, "far")
    os.utime(run / "public" / "records.jsonl", (9e14, 9e14))
    assert 0 < shown(tmp_path)["far"]["changed"] <= 253_402_300_799  # which a browser can show as a date


def test_damage_in_the_middle_of_a_large_file_ends_what_the_run_shows(tmp_path):
    run = make_run(tmp_path, "long", rounds=3000, done=2000)
    path = run / "public" / "records.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    assert path.stat().st_size > 2**17  # of which the list reads the end alone
    lines[999] = "{damaged\n"
    path.write_text("".join(lines))
    make_run(tmp_path, "other", rounds=3000, done=5)
    answers = ViewAnswers([tmp_path])
    known = {item.name: item.id for item in answers.shelf.items()}
    live = answers.answer(["run", known["long"], "live"], {})
    assert "the 999 rounds before it are shown" in live["damage"][0]
    assert (live["rounds"], live["line"]["rounds"]) == (999, 999) and live["line"]["damaged"]
    assert live["line"]["epsilon"] == pytest.approx(0.4 * 999**0.5)
    beside = answers.answer(["compare"], {"runs": f"{known['long']},{known['other']}"})
    (table,) = (b for s in beside["sections"] for b in s["blocks"] if b["block"] == "DataTable")
    assert table["rows"][0][-1] == "999" and "long: records.jsonl is damaged in line 1000" in beside["damage"][0]


@pytest.mark.parametrize("wrong", [-1e308, -1, 10**400, float("nan")])
def test_numbers_that_cannot_be_stop_no_page(tmp_path, wrong):
    make_run(tmp_path, "honest")
    run = make_run(tmp_path, "odd", done=2)
    record = json.loads(line(3)) | {"epsilon": {"server": wrong}, "accuracy": wrong}
    with (run / "public" / "records.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    plan = json.loads((run / "public" / "plan.json").read_text())
    plan["promise"] |= {"epsilon": wrong, "delta": wrong}
    plan["claim"] = {"epsilon": wrong}
    (run / "public" / "plan.json").write_text(json.dumps(plan))
    (run / "public" / "audit.json").write_text(json.dumps({"least": wrong}))
    answers = ViewAnswers([tmp_path])
    known = {item.name: item.id for item in answers.shelf.items()}
    for parts, query in (
        (["runs"], {}),
        (["run", known["odd"], "live"], {}),
        (["compare"], {"runs": ",".join(known.values())}),
    ):
        answer = answers.answer(parts, query)
        assert "error" not in answer, answer
        json.dumps(answer, allow_nan=False)
    assert shown(tmp_path)["odd"]["damaged"] and shown(tmp_path)["odd"]["total"] is None


def test_a_run_that_vanishes_between_two_looks_is_told_and_the_rest_stays(tmp_path):
    make_run(tmp_path, "stays")
    gone = make_run(tmp_path, "goes")
    answers = ViewAnswers([tmp_path])
    known = {item.name: item.id for item in answers.shelf.items()}
    shutil.rmtree(gone)
    assert "stays" in {row["name"] for row in answers.answer(["runs"], {})["rows"]}
    assert "no longer there" in answers.answer(["run", known["goes"], "live"], {})["error"]


def test_letters_that_turn_a_sentence_around_are_not_sent(tmp_path):
    make_run(tmp_path, "turned", done=2, viewer="server\u202e", sentence="epsilon = \u202e001\x1b[2J")
    answers = ViewAnswers([tmp_path])
    live = answers.answer(["run", answers.shelf.items()[0].id, "live"], {})
    assert live["sentence"] == "epsilon = \ufffd001\ufffd[2J" and set(live["spent"]) == {"server\ufffd", "public"}
    assert not {"\u202e", "\x1b"} & set(json.dumps(live, ensure_ascii=False))
