"""Flags that several methods share: each says what it means for whom, and is read as the chosen method has it."""

from __future__ import annotations

import io
from functools import partial

import pytest
from rich.console import Console

from sordino.cli.progress import RunProgress
from sordino.cli.run import _hints, accounted, all_flags
from sordino.comparisons import compare
from sordino.core import plugin
from sordino.runs import run
from sordino.spec import spec
from support.problems import job


@pytest.mark.parametrize("key", ["clip", "reading", "mechanism", "decay_shape"])
def test_a_shared_key_says_what_it_means_for_each(key):
    text = all_flags()[key][1]
    for kind in spec.PLUGINS:
        for name in plugin.available(kind):
            if key in {f.name for f in spec.plugin_fields(kind, name)}:
                meaning = spec.plugin_help(kind, name)[key]
                at = text.index(f"{meaning} (") + len(meaning)
                assert name in text[at : text.index(")", at)].strip("() ").split(", ")


def test_the_usual_meaning_comes_first_and_one_meaning_is_said_once():
    text = all_flags()["clip"][1]
    assert text.startswith("C: bound on the L2 norm of one record's (or user's) gradient (")
    assert all_flags()["groups"][1].count("(") == 1


def test_a_key_is_read_as_the_chosen_method_has_it(tmp_path, monkeypatch):
    folder = tmp_path / "methods"
    folder.mkdir()
    (folder / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from sordino.methods.dp_sgd import DpSgd\n"
        '__all__ = ["Mine"]\n'
        "@dataclass(frozen=True)\n"
        "class Mine(DpSgd):\n"
        "    mechanism: float = 0.5  # a number\n"
    )
    monkeypatch.setenv(plugin.VARIABLE, str(tmp_path))
    assert _hints({"method": "mine"})["mechanism"] is float
    assert _hints({"method": "udp-fl"})["mechanism"] is str and _hints({})["mechanism"] is str
    assert "a number (mine)" in all_flags()["mechanism"][1]


def test_budgets_go_to_those_who_can_have_them():
    found = compare.cells(["none", "pfa", "geodp-paper"], [4.0], 1, {"budgets": "0.5:0.5,4:0.5"}, {})
    assert {c.method: c.spec.budgets for c in found} == {"none": None, "pfa": "0.5:0.5,4:0.5", "geodp-paper": None}


@pytest.mark.parametrize("terminal", [False, True])
def test_a_bar_is_for_terminals_and_a_log_gets_lines(tmp_path, terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, highlight=False, width=100)
    progress = RunProgress(console=console)
    made = job(method="dp-sgd", rounds=2, out=str(tmp_path))
    with progress.rounds(made):
        run.execute(made, own_model=True, watch=partial(progress.after_round, made))
    text = console.file.getvalue()
    assert ("━" in text or "-:--:--" in text) == terminal
    assert ("round 2/2: " in text) != terminal


def test_the_clip_on_record_is_the_one_a_round_used(tmp_path):
    made = job(method="dp-fedavg", rounds=3, adaptive_clip=True, clip=0.7, out=str(tmp_path))
    clips = [r.clip for r in run.execute(made, own_model=True).history]
    assert clips[0] == pytest.approx(0.7) and clips[1] != clips[0]


@pytest.mark.parametrize("channel", ["direct", "secure-sum"])
def test_the_budget_says_what_hides_the_messages(channel):
    console = Console(file=io.StringIO(), highlight=False, width=300)
    RunProgress(console=console).start(job(method="dp-sgd", channel=channel))
    assert ("against the server behind a secure sum, so noise" in console.file.getvalue()) == (channel == "secure-sum")


def test_a_reason_is_left_out_only_where_the_sentence_ends_with_it():
    """A run that ended before its first round has a finite epsilon, and a reason that nobody said."""
    assert (
        accounted("No guarantee against x: so it is.", "so it is", True) == "No guarantee against x, as stated above."
    )
    assert accounted("No guarantee against x: so it is.", "so it is", False) == "No guarantee against x: so it is."
    assert accounted("In total over 0 rounds, epsilon = 0.", "so it is", True) == "In total over 0 rounds, epsilon = 0."
