"""A method of someone else's that returns the wrong thing, or fails: one line, no charge or a word in the folder."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import sordino
from sordino.contract.method import Release
from sordino.core.errors import RunError, SordinoError, SpecError
from sordino.core.message import Message
from sordino.privacy.events import Composed, GaussianEvent, Pure, Repeated
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.runs import returned
from sordino.runs.loop import FAILED
from sordino.runs.rehearse import rehearse
from support.brought import Odd, odd_jobs
from support.problems import federation, job, linear

PARAMETERS = 20 * 6 + 6 + 6 * 3 + 3  # of problems.mlp


@pytest.fixture
def odd(monkeypatch):
    """odd(verb=function) is a job whose method has these verbs."""
    return odd_jobs(monkeypatch)


def changed(change):
    """A train that does something else to what would be sent and kept."""

    def train(self, state, site):
        return change(*Odd.train(self, state, site))

    return train


def field(change):
    return changed(lambda message, own: (Message({"update": change(message["update"])}), own))


def broken(self, *args):
    raise ValueError("no\nluck")


def releasing(event=None, **parts):
    """A verb that declares one release, with these parts of it spoilt; of a mechanism with that event, if any."""
    right = {"name": "update", "mechanism": Gaussian(1.0), "unit": "client", "bound": 1.0}
    if event is not None:
        right["mechanism"] = with_event(event)
    return lambda self, *args: (Release(**(right | parts)),)


def with_event(event):
    kind = type("Strange", (Gaussian,), {"event": lambda self, split=1: event})
    return kind(1.0)


def later(verb):
    """Declares what it should by the plan, and something else in a round."""
    return lambda self, plan, round=0, state=None: Odd.releases(self, plan) if state is None else verb(self)


CASES = [
    ({"train": changed(lambda message, own: message)}, "odd.train must return two things, a Message and what clients"),
    ({"train": changed(lambda message, own: None)}, "odd.train must return two things, a Message and what clients"),
    ({"train": changed(lambda m, own: (m["update"], own))}, "a Message with one field at least, first, not [4, 147]"),
    ({"train": changed(lambda message, own: (Message({}), own))}, "odd.train must return a Message with one field"),
    ({"train": field(lambda rows: rows[:3])}, f"rows [4, ...] as the field update, not [3, {PARAMETERS}]"),
    ({"train": field(lambda rows: rows[0])}, f"rows [4, ...] as the field update, not [{PARAMETERS}]"),
    ({"train": field(lambda rows: rows.sum())}, "rows [4, ...] as the field update, not []"),
    ({"train": field(lambda rows: rows.numpy())}, "rows [4, ...] as the field update, not a ndarray"),
    ({"train": field(lambda rows: rows[:, :5])}, f"a field update [4, {PARAMETERS}], not [4, 5]"),
    ({"train": changed(lambda m, own: (Message({"other": m["update"]}), own))}, "a field update [4, 147], not nothing"),
    ({"train": changed(lambda m, own: (replace(m, weight=torch.ones(3)), own))}, "weights [4], not [3]"),
    ({"train": changed(lambda m, own: (replace(m, weight=torch.ones(4, 1)), own))}, "weights [4], not [4, 1]"),
    ({"train": changed(lambda m, own: (m, None))}, "what clients keep as it came, by site.kept(...), second, not"),
    ({"train": changed(lambda m, own: (m, {"more": m["update"]}))}, "what clients keep as it came, by site.kept(...)"),
    ({"train": changed(lambda m, own: (m, {"more": 3}))}, "what clients keep as it came, by site.kept(...)"),
    ({"keeps": lambda self, state, n, plan: {"a": torch.zeros(n, 2)}, "train": changed(lambda m, own: (m, {}))},
     "what clients keep as it came, by site.kept(...), second, not an empty dict"),
    ({"train": broken}, "odd.train fails: ValueError: no luck"),
    ({"merge": lambda self, state, *args: None}, "odd.merge must return a State, not nothing (None)"),
    ({"merge": lambda self, state, *args: state.params}, f"odd.merge must return a State, not [{PARAMETERS}]"),
    ({"merge": lambda self, state, *args: replace(state, params=state.params[:4])}, "a State with params"),
    ({"merge": broken}, "odd.merge fails"),
    ({"between": broken, "phases": ("look", "train"), "releases": lambda self, plan, *args: (
        Release("update", Gaussian(plan.z), "client", 1.0),
        Release("more", Gaussian(plan.z), "client", 1.0, phase="train"),
    ), "train": lambda self, state, site: (Message({"update": site.out[next(iter(site.out))](
        torch.zeros(len(site.data.sizes), PARAMETERS))}), site.kept())}, "odd.between fails: ValueError: no luck"),
    ({"noise": broken}, "odd.noise fails"),
    ({"decided": broken}, "odd.decided fails"),
    ({"noise": lambda self, *args: "loud"}, "odd.noise must return a number or None, not a str"),
    ({"noise": lambda self, *args: torch.ones(2)}, "a number or None, not [2]"),
    ({"decided": lambda self, *args: 3}, "odd.decided must return a dict of plain numbers and text, or None,"),
    ({"decided": lambda self, *args: {"a": 1, "b": torch.ones(2)}}, "not a dict with 'b': [2]"),
    ({"decided": lambda self, *args: {"clients": 5}}, "odd.decided must return as `clients` a dict by client, not"),
    ({"over": lambda self, *args: None}, "odd.over must return True or False, not nothing (None)"),
    ({"releases": later(lambda self: 3)}, "odd.releases must return a tuple of Release, not a int"),
    ({"releases": later(broken)}, "odd.releases fails"),
    ({"releases": later(releasing(unit="house"))}, "odd.releases: unit 'house' is not known"),
    ({"releases": later(releasing(event=7))}, "odd.releases: the mechanism of update must have an Event"),
    ({"releases": later(releasing(phase="never"))}, "odd.releases: 'never' is not a phase of the method"),
    ({"releases": later(releasing(name="else"))}, "odd: what a round costs depends on the state"),
    ({"keeps": lambda self, *args: None}, "odd.keeps must return a dict of tensors [4, ...], not nothing (None)"),
    ({"keeps": lambda self, *args: {"a": torch.zeros(())}}, "odd.keeps must return a dict of tensors [4, ...]"),
    ({"keeps": lambda self, *args: {"a": torch.zeros(1, 2)}}, "of tensors [4, ...], not a dict with 'a': [1, 2]"),
    ({"keeps": broken}, "odd.keeps fails"),
]  # fmt: skip


@pytest.mark.parametrize(("verbs", "words"), CASES)
def test_what_is_wrong_is_known_before_the_run_begins(odd, verbs, words):
    with pytest.raises(RunError) as told:
        rehearse(odd(**verbs))
    assert words in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("verbs", "words"),
    [
        ({"releases": lambda self, *args: 3}, "odd.releases must return a tuple of Release, not a int"),
        ({"releases": lambda self, *args: ()}, "odd.releases must return a tuple of Release, not an empty tuple"),
        ({"releases": lambda self, *args: (1,)}, "odd.releases must return a tuple of Release, not 1 things: a int"),
        ({"releases": broken}, "odd.releases fails: ValueError: no luck"),
        (
            {"releases": lambda self, *args: 2 * releasing()(self)},
            "odd.releases must return releases of different names",
        ),
        ({"releases": releasing(unit="house")}, "odd.releases: unit 'house' is not known"),
        ({"releases": releasing(bound=None)}, "odd.releases: the release update needs a bound"),
        ({"releases": releasing(bound=-1.0)}, "odd.releases: bound must be"),
        ({"releases": releasing(times=0)}, "odd.releases: times must be"),
        ({"releases": releasing(where="nowhere")}, "odd.releases: where must be one of client, server"),
        ({"releases": releasing(mechanism=7)}, "odd.releases: the mechanism of update must have `apply` and `event`"),
        ({"releases": releasing(event=7)}, "odd.releases: the mechanism of update must have an Event"),
        ({"claim": lambda self, *args: 8.0}, "odd.claim must return a Claim or None, not 8.0"),
        (
            {"variables": lambda self, *args: 3},
            "odd.variables must return a frozen dataclass of tensors and numbers, or",
        ),
        ({"variables": lambda self, state, *args: state.params}, f"or None, not [{PARAMETERS}]"),
        ({"variables": broken}, "odd.variables fails: ValueError: no luck"),
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
    event = Composed((Repeated(GaussianEvent(40.0), 2), Pure(0.01)))
    verbs = {"releases": lambda self, plan, *args: (
        Release("update", with_event(Composed((GaussianEvent(plan.z), event))), "client", 1.0),
    )}  # fmt: skip
    made = odd(**verbs, remarks=lambda self, plan: ["look"])
    rehearse(made)
    assert "look" in made.notes


@pytest.mark.parametrize("wrong", [None, "words", ("words",), [1]])
def test_what_is_explained_is_a_list_of_text(odd, wrong):
    method = returned.checked(odd(explain=lambda self, rounds: wrong))
    with pytest.raises(RunError, match=r"odd\.explain must return a list of text, not"):
        method.explain([])
    assert returned.checked(odd(explain=lambda self, rounds: ["words"])).explain([]) == ["words"]


def test_what_clients_keep_is_checked_in_every_round(odd, tmp_path):
    """A rehearsal has four clients: who answers rightly for those is still looked at for eight."""
    odd(keeps=lambda self, state, clients, plan: {"a": torch.zeros(min(clients, 4), 2)})
    keys = {"method": "odd", "rounds": 1, "out": str(tmp_path), "name": "it", "device": "cpu"}
    with pytest.raises(RunError, match=r"odd\.keeps must return a dict of tensors \[8, \.\.\.\], not .* \[4, 2\]"):
        sordino.train(linear(), federation(), **keys)
    odd(keeps=lambda self, state, clients, plan: {"a": torch.zeros(clients, 2)} if clients == 4 else None)
    with pytest.raises(RunError, match=r"odd\.keeps must return a dict of tensors \[1, \.\.\.\], not nothing"):
        sordino.train(linear(), federation(), **(keys | {"name": "other"}))


def test_what_a_later_round_releases_is_looked_at_before_it_is_charged(odd, tmp_path):
    """The second of three rounds, which no rehearsal plays."""
    bad = releasing(unit="house")

    def releases(self, plan, round=0, state=None):
        return bad(self) if state is not None and state.round == 1 else Odd.releases(self, plan)

    odd(releases=releases)
    keys = {"method": "odd", "rounds": 3, "out": str(tmp_path), "name": "it", "device": "cpu"}
    with pytest.raises(RunError, match=r"odd\.releases: unit 'house'"):
        sordino.train(linear(), federation(), **keys)
    assert len((tmp_path / "it" / "public" / "records.jsonl").read_text().splitlines()) == 1


def test_a_rehearsal_changes_nothing_and_what_is_right_passes(odd):
    made = odd()
    before = made.model.layout.read(made.model.module)
    rehearse(made)
    assert torch.equal(before, made.model.layout.read(made.model.module))
    rehearse(odd(train=field(lambda rows: rows[:, :5]), merge=lambda self, state, *args: state))  # its own merge


def test_faults_of_ours_are_not_hidden(monkeypatch):
    made = job(method="dp-sgd")
    monkeypatch.setattr(type(made.method), "train", broken)
    with pytest.raises(ValueError, match="no"):
        rehearse(made)


def test_shapes_of_ours_are_checked_too(monkeypatch):
    made = job(method="nbafl")
    train = type(made.method).train

    def short(self, state, site):
        message, own = train(self, state, site)
        return Message({"update": message["update"][1:, :7]}), own

    monkeypatch.setattr(type(made.method), "train", short)
    with pytest.raises(
        RunError, match=r"nbafl\.train must return rows \[4, \.\.\.\] as the field update, not \[3, 7\]"
    ):
        rehearse(made)


def test_a_failure_on_the_way_is_written_into_the_folder(odd, tmp_path):
    def merge(self, state, seen, plan):
        if state.round == 1:
            raise ValueError("late")
        return Odd.merge(self, state, seen, plan)

    odd(merge=merge)  # the first and the last round are right: no rehearsal would have seen it
    keys = {"method": "odd", "rounds": 3, "out": str(tmp_path), "name": "it", "device": "cpu", "seed": 0}
    with pytest.raises(SordinoError, match=r"odd\.merge fails: ValueError: late"):
        sordino.train(linear(), federation(), **keys)
    told = json.loads((tmp_path / "it" / "private" / FAILED).read_text())
    assert told["error"] == "RunError: odd.merge fails: ValueError: late"
    odd.classes["odd"] = Odd  # repaired: the same run goes on, and nothing is said of it any more
    done = sordino.train(linear(), federation(), resume=tmp_path / "it")
    assert len(done.history) == 3 and not (tmp_path / "it" / "private" / FAILED).exists()
