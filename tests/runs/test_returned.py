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
from sordino.privacy.events import Composed, Cost, Gaussian, Parallel, Repeated, Sampled
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


def costing(**parts):
    """A verb that returns one cost, with these parts of it spoilt."""
    right = {"unit": "record", "relation": "add/remove", "viewer": "server", "event": Gaussian(1.0)}
    return lambda self, *args: (Cost(**(right | parts)),)


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
    ({"now_costs": costing(unit="house")}, "odd.now_costs: unit 'house', relation 'add/remove' are not known"),
    ({"now_costs": costing(relation="less")}, "odd.now_costs: unit 'record', relation 'less' are not known"),
    ({"now_costs": costing(viewer="martian")}, "odd.now_costs: viewer must be one of server, public"),
    ({"now_costs": costing(viewer="public")}, "odd.now_costs: the method does not say what viewer 'server' is charged"),
    ({"now_costs": costing(event=7)}, "odd.now_costs: the event of a Cost must be an Event, not 7"),
    ({"fresh": lambda self, *args: None}, "odd.fresh must return rows [4, ...], not nothing (None)"),
    ({"fresh": lambda self, state, n, plan: torch.zeros(n)}, "odd.fresh must return rows [4, ...], not [4]"),
    ({"fresh": lambda self, *args: torch.zeros(1, 2)}, "odd.fresh must return rows [4, ...], not [1, 2]"),
    ({"fresh": broken}, "odd.fresh fails"),
    ({"decided": lambda self, *args: {"clients": 5}}, "odd.decided must return as `clients` a dict by client, not"),
    ({"merge": lambda self, state, *args: replace(state, extra={"a": 1.0})}, "whose extra is a dict of tensors"),
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
        ({"step_noise": lambda self, *args: None}, "odd.step_noise must return a number, not None"),
        ({"claim": lambda self, *args: 8.0}, "odd.claim must return a Claim or None, not 8.0"),
        ({"costs": costing(event=7)}, "odd.costs: the event of a Cost must be an Event, not 7"),
        ({"costs": costing(event=Sampled(7, 0.5))}, "odd.costs: the event of a Cost must be an Event, not Sampled("),
        ({"costs": costing(event=Composed([Gaussian(1.0)]))}, "must be an Event, not Composed("),
        ({"costs": costing(copies=-3)}, "odd.costs: copies must be a whole number of at least 1, not -3"),
        ({"costs": costing(copies=1.5)}, "odd.costs: copies must be a whole number of at least 1, not 1.5"),
        ({"costs": costing(draw="twice")}, "odd.costs: draw must be unit, inside or changed, not 'twice'"),
        ({"whole": costing(viewer="martian")}, "odd.whole: viewer must be one of"),
        ({"begin": lambda self, *args: None}, "odd.begin must return a State, not nothing (None)"),
        ({"begin": lambda self, state, *args: state.params}, f"odd.begin must return a State, not [{PARAMETERS}]"),
        ({"begin": lambda self, state, *args: replace(state, extra={"a": 1})}, "a State whose extra is a dict"),
        ({"begin": broken}, "odd.begin fails: ValueError: no luck"),
        ({"remarks": lambda self, *args: 5}, "odd.remarks must return a tuple of text, not a int"),
        ({"remarks": lambda self, *args: "five"}, "odd.remarks must return a tuple of text, not a str"),
        ({"remarks": lambda self, *args: (5,)}, "odd.remarks must return a tuple of text, not 1 things: a int"),
        ({"remarks": broken}, "odd.remarks fails: ValueError: no luck"),
    ],
)
def test_what_a_plan_asks_is_checked_while_it_is_made(odd, verbs, words):
    with pytest.raises((SpecError, RunError)) as told:
        odd(**verbs)
    assert words in str(told.value) and "\n" not in str(told.value)


def test_events_of_events_and_remarks_in_a_list_pass(odd):
    event = Composed((Repeated(Sampled(Gaussian(40.0), 0.5), 2), Parallel((Gaussian(40.0), Gaussian(80.0)))))
    verbs = {"costs": lambda self, plan, round=0: costing(event=Composed((Gaussian(plan.z), event)))(self)}
    made = odd(**verbs, remarks=lambda self, plan: ["look"])
    returned.rehearse(made)
    assert "look" in made.notes


@pytest.mark.parametrize("wrong", [None, "words", ("words",), [1]])
def test_what_is_explained_is_a_list_of_text(odd, wrong):
    method = returned.checked(odd(explain=lambda self, rounds: wrong))
    with pytest.raises(RunError, match=r"odd\.explain must return a list of text, not"):
        method.explain([])
    assert returned.checked(odd(explain=lambda self, rounds: ["words"])).explain([]) == ["words"]


def test_what_clients_keep_is_checked_in_every_round(odd, tmp_path):
    """A rehearsal begins with four clients: who answers rightly for those is still looked at for eight."""
    odd(fresh=lambda self, state, clients, plan: torch.zeros(min(clients, 4), 2))
    keys = {"method": "odd", "rounds": 1, "out": str(tmp_path), "name": "it", "device": "cpu"}
    with pytest.raises(RunError, match=r"odd\.fresh must return rows \[8, \.\.\.\], not \[4, 2\]"):
        sordino.train(linear(), federation(), **keys)
    odd(fresh=lambda self, state, clients, plan: torch.zeros(clients, 2) if clients == 4 else None)
    with pytest.raises(RunError, match=r"odd\.fresh must return rows \[1, \.\.\.\], not nothing"):
        sordino.train(linear(), federation(), **(keys | {"name": "other"}))


def test_what_a_later_round_costs_is_looked_at_before_it_is_charged(odd, tmp_path):
    bad = costing(unit="house")
    odd(now_costs=lambda self, state, plan: bad(self) if state.round else self.costs(plan))
    keys = {"method": "odd", "rounds": 2, "out": str(tmp_path), "name": "it", "device": "cpu"}
    with pytest.raises(RunError, match=r"odd\.now_costs: unit 'house'"):
        sordino.train(linear(), federation(), **keys)
    assert len((tmp_path / "it" / "public" / "records.jsonl").read_text().splitlines()) == 1


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
    keys = {"method": "odd", "rounds": 3, "out": str(tmp_path), "name": "it", "device": "cpu", "seed": 0}
    with pytest.raises(SordinoError, match=r"odd\.merge fails: ValueError: late"):
        sordino.train(linear(), federation(), **keys)
    told = json.loads((tmp_path / "it" / "private" / FAILED).read_text())
    assert told["error"] == "RunError: odd.merge fails: ValueError: late"
    odd.classes["odd"] = Odd  # repaired: the same run goes on, and nothing is said of it any more
    done = sordino.train(linear(), federation(), resume=tmp_path / "it")
    assert len(done.history) == 3 and not (tmp_path / "it" / "private" / FAILED).exists()
