"""A method of someone else's that returns the wrong thing, or fails: one line, no charge or a word in the folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
import torch

import sordino
from problems import federation, job, linear, mlp
from sordino.core import plugin
from sordino.core.errors import RunError, SordinoError, SpecError
from sordino.core.rng import Stream
from sordino.core.types import State
from sordino.methods import local
from sordino.methods.base import Method
from sordino.privacy.events import Cost, Gaussian
from sordino.runs import returned
from sordino.runs.loop import FAILED

PARAMETERS = 20 * 6 + 6 + 6 * 3 + 3  # of problems.mlp


@dataclass(frozen=True)
class Odd(Method):
    """Sound as it stands; the tests spoil one verb of it."""

    def costs(self, plan, round=0):
        return (Cost("record", "add/remove", "server", Gaussian(plan.z)),)

    def train(self, state, data, own, model, plan, rng):
        return local.sgd(state, data, own, model, plan, rng)


@pytest.fixture
def odd(monkeypatch):
    """odd(verb=function) is a job whose method has these verbs."""
    load, ours = plugin.load, plugin.ours
    classes = {"odd": Odd}
    monkeypatch.setattr(plugin, "load", lambda kind, name: classes.get(name) or load(kind, name))
    monkeypatch.setattr(plugin, "ours", lambda kind, name: name != "odd" and ours(kind, name))
    available = plugin.available
    monkeypatch.setattr(
        plugin, "available", lambda kind: [*available(kind), "odd"] if kind == "methods" else available(kind)
    )

    def make(**verbs):
        classes["odd"] = dataclass(frozen=True)(type("Odd", (Odd,), verbs))
        return job(method="odd")

    make.classes = classes
    return make


def changed(change):
    def train(self, *args):
        return change(*Odd.train(self, *args))

    return train


def broken(self, *args):
    raise ValueError("no\nluck")


CASES = [
    ({"train": changed(lambda rows, own: rows)}, "odd.train must return two things, rows [4, ...] and own [4, 0]"),
    ({"train": changed(lambda rows, own: None)}, "odd.train must return two things, rows [4, ...]"),
    ({"train": changed(lambda rows, own: (rows[:3], own))}, f"rows [4, ...], not [3, {PARAMETERS}]"),
    ({"train": changed(lambda rows, own: (rows[0], own))}, f"rows [4, ...], not [{PARAMETERS}]"),
    ({"train": changed(lambda rows, own: (rows.numpy(), own))}, "not a ndarray"),
    ({"train": changed(lambda rows, own: (rows.long(), own))}, "of torch.int64"),
    ({"train": changed(lambda rows, own: (rows, rows))}, "what clients keep, own [4, 0]"),
    ({"train": changed(lambda rows, own: (rows[:, :5], own))}, "not [4, 5] (it was given [4, 5] by train)"),
    ({"train": broken}, "odd.train fails: ValueError: no luck"),
    ({"release": lambda self, rows, *args: rows[1:]}, "odd.release must return rows"),
    ({"release": lambda self, rows, *args: None}, "not nothing (None)"),
    ({"release": broken}, "odd.release fails"),
    ({"merge": lambda self, state, *args: None}, "odd.merge must return a State"),
    ({"merge": lambda self, state, *args: replace(state, params=state.params[:4])}, "a State with params"),
    ({"merge": broken}, "odd.merge fails"),
    ({"noise": broken}, "odd.noise fails"),
    ({"decided": broken}, "odd.decided fails"),
    ({"noise": lambda self, *args: "loud"}, "odd.noise must return a number or None, not a str"),
    ({"noise": lambda self, *args: torch.ones(2)}, "a number or None, not [2]"),
    ({"decided": lambda self, *args: 3}, "odd.decided must return a dict of plain numbers and text, or None,"),
    ({"decided": lambda self, *args: {"a": 1, "b": torch.ones(2)}}, "not a dict with 'b': [2]"),
    ({"over": lambda self, *args: None}, "odd.over must return True or False, not nothing (None)"),
    ({"now_costs": lambda self, *args: 3}, "odd.now_costs must return a tuple of Cost, not a int"),
    ({"now_costs": broken}, "odd.now_costs fails"),
]  # fmt: skip


@pytest.mark.parametrize(("verbs", "words"), CASES)
def test_what_is_wrong_is_known_before_the_run_begins(odd, verbs, words):
    with pytest.raises(RunError) as told:
        returned.rehearse(odd(**verbs))
    assert words in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("verbs", "words"),
    [
        ({"costs": lambda self, *args: 3}, "odd.costs must return a tuple of Cost, not 3"),
        ({"whole": lambda self, *args: 3}, "odd.whole must return a tuple of Cost, not 3"),
        ({"whole": broken}, "odd.whole fails: ValueError: no luck"),
        ({"claim": lambda self, *args: 8.0}, "odd.claim must return a Claim or None, not 8.0"),
    ],
)
def test_what_a_plan_asks_is_checked_while_it_is_made(odd, verbs, words):
    with pytest.raises(SpecError) as told:
        odd(**verbs)
    assert words in str(told.value) and "\n" not in str(told.value)


def test_a_rehearsal_changes_nothing_and_what_is_right_passes(odd):
    made = odd()
    before = made.model.layout.read(made.model.module)
    returned.rehearse(made)
    assert torch.equal(before, made.model.layout.read(made.model.module))
    returned.rehearse(
        odd(release=lambda self, rows, *a: rows[:, :5], merge=lambda self, s, rows, *a: s)
    )  # its own merge


def test_a_rehearsal_sees_no_record_of_anyone(odd):
    seen = []

    def train(self, state, data, *args):
        seen.append(data)
        return Odd.train(self, state, data, *args)

    returned.rehearse(odd(train=train))
    (batch,) = seen
    assert not batch.x.any() and not batch.y.any() and batch.sizes == (12,) * 4


def test_ours_are_not_rehearsed_and_their_faults_are_not_hidden(monkeypatch):
    made = job(method="dp-sgd")
    monkeypatch.setattr(type(made.method), "train", broken)
    returned.rehearse(made)
    with pytest.raises(ValueError, match="no"):
        returned.checked(made).train(State(torch.zeros(3)), None, None, None, None, None)


def test_shapes_of_ours_are_checked_too(monkeypatch):
    made = job(method="dp-sgd", module=mlp())
    method, state = returned.checked(made), State(made.model.layout.read(made.model.module))
    with pytest.raises(RunError, match=r"dp-sgd.release must return rows \[3, \d+\], not \[2, 7\]"):
        method.release(torch.zeros(2, 7), (1, 1, 1), state, made.plan, Stream.research(0).rows([0, 1, 2]))


def test_a_failure_on_the_way_is_written_into_the_folder(odd, tmp_path):
    def merge(self, state, rows, plan, rng):
        if state.round == 1:
            raise ValueError("late")
        return Odd.merge(self, state, rows, plan, rng)

    odd(merge=merge)  # the first round is right: no rehearsal would have seen it
    keys = {"method": "odd", "rounds": 3, "out": str(tmp_path), "name": "it", "device": "cpu"}
    with pytest.raises(SordinoError, match=r"odd\.merge fails: ValueError: late"):
        sordino.train(linear(), federation(), **keys)
    told = json.loads((tmp_path / "it" / FAILED).read_text())
    assert told["error"] == "RunError: odd.merge fails: ValueError: late"
    odd.classes["odd"] = Odd  # repaired: the same run goes on, and nothing is said of it any more
    done = sordino.train(linear(), federation(), resume=tmp_path / "it")
    assert len(done.history) == 3 and not (tmp_path / "it" / FAILED).exists()
