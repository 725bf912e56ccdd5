"""Callbacks, methods and channels of someone else's that are wrong: one line, before anything is paid."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
import torch

import sordino
from sordino.contract.method import Method, Release
from sordino.core import plugin
from sordino.core.errors import RunError, SordinoError, SpecError
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.runs.loop import FAILED
from sordino.runs.rehearse import rehearse
from support import brought
from support.problems import federation, linear, registry


def train(out, **keys):
    usual = {"method": "dp-fedavg", "rounds": 3, "seed": 0, "out": str(out), "name": "it", "device": "cpu"}
    return sordino.train(linear(), federation(), **(usual | keys))


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# --- callbacks


@pytest.mark.parametrize("name", ["watch", "observe", "owner"])
@pytest.mark.parametrize("wrong", [3, "text", lambda: None, lambda a, b: None])
def test_what_cannot_be_called_with_one_thing_is_refused_before_planning(tmp_path, name, wrong):
    with pytest.raises(SpecError, match=f"{name} must be a function of one argument") as told:
        train(tmp_path, **{name: wrong})
    assert "\n" not in str(told.value)
    assert not (tmp_path / "it").exists() and not registry().exists()


def test_functions_without_a_signature_pass(tmp_path):
    assert len(train(tmp_path, watch=type, observe=[].append, rounds=1).history) == 1


@pytest.mark.parametrize("name", ["watch", "observe"])
def test_a_callback_that_fails_is_told_of_in_the_folder(tmp_path, name):
    def fails(what):
        if what.round == 2:
            raise ZeroDivisionError("oh")

    with pytest.raises(ZeroDivisionError, match="oh"):
        train(tmp_path, **{name: fails})
    told = json.loads((tmp_path / "it" / "private" / FAILED).read_text())
    assert told["error"] == "ZeroDivisionError: oh"
    done = sordino.train(linear(), federation(), resume=tmp_path / "it")
    assert len(done.history) == 3 and not (tmp_path / "it" / "private" / FAILED).exists()


def test_observers_cannot_change_a_run(tmp_path):
    spoilt = []

    def spoil(view):
        tensors = [view.state.params, view.state.average, *vars(view.state.algorithm).values()]
        if view.seen is not None:
            tensors += view.seen.fields.values()
            view.seen.ids.fill(0)
        for tensor in tensors:
            spoilt.append(tensor.fill_(9.0))

    keys = {"algorithm": "fedavgm", "server_momentum": 0.5, "averaging": "tail:0.5"}
    clean, other = train(tmp_path / "a", **keys), train(tmp_path / "b", observe=spoil, **keys)
    assert torch.equal(flat(clean.model), flat(other.model)) and len(spoilt) == 3 * (4 + 3)


# --- methods


@dataclass(frozen=True)
class Held:
    count: int = 0
    mean: torch.Tensor | None = None


@dataclass
class Loose:
    count: int = 0


@dataclass(frozen=True)
class Odd(brought.Odd):
    """Sound as it stands, with variables of its own; the tests spoil one verb of it."""

    def variables(self, state, layout, plan):
        return Held(0, torch.zeros(2))


@pytest.fixture
def odd(monkeypatch):
    return brought.odd_jobs(monkeypatch, Odd)


def starting(**fields):
    return {"variables": lambda self, *args: Held(**fields)}


def merging(change):
    return {"merge": lambda self, state, seen, plan: change(Method.merge(self, state, seen, plan))}


def holding(**fields):
    return merging(lambda state: replace(state, method=replace(state.method, **fields)))


def weighing(weight):
    def train(self, state, site):
        message, own = Odd.train(self, state, site)
        return replace(message, weight=torch.tensor([1.0, 1.0, 1.0, weight])), own

    return {"train": train}


def fails(self, *args):
    raise KeyError("no\nluck")


TWICE = (Release("update", Gaussian(1.0), "client", 1.0), Release("update", Gaussian(1.0), "client", 1.0))


@pytest.mark.parametrize(
    ("verbs", "words"),
    [
        (starting(count="many"), "odd.variables must return a tensor, a number or None as the field count, not a str"),
        (starting(mean=[1.0]), "a tensor, a number or None as the field mean, not 1 things"),
        ({"variables": lambda self, *args: {"a": 1}}, "a frozen dataclass of tensors and numbers, or None, not a dict"),
        ({"variables": lambda self, *args: Loose()}, "a frozen dataclass of tensors and numbers, or None, not a Loose"),
        (holding(count="many"), "odd.merge must return a tensor, a number or None as the field count, not a str"),
        (holding(count=torch.ones(())), "odd.merge must return a number or None as the field count, as it was, not []"),
        (holding(mean=2.0), "odd.merge must return a tensor or None as the field mean, as it was, not a float"),
        (merging(lambda state: replace(state, params=state.params.double())), "params of torch.float32, as they were"),
        (merging(lambda state: replace(state, params=state.params.long())), "not of torch.int64"),
        ({"keeps": lambda self, state, n, plan: {3: torch.zeros(n, 2)}}, "a dict whose keys are text, not a int"),
        ({"keeps": lambda self, state, n, plan: {"a": torch.zeros(n, 2).to_sparse()}}, "which is not dense"),
        (weighing(float("nan")), "odd.train must return weights that are finite and not negative"),
        (weighing(-1.0), "odd.train must return weights that are finite and not negative"),
        (weighing(float("inf")), "odd.train must return weights that are finite and not negative"),
        ({"releases": lambda self, *args: TWICE}, "releases of different names, not update, update"),
        ({"releases": lambda self, *args: ()}, "a tuple of Release, not an empty tuple"),
        ({"releases": Method.releases}, "odd does not declare `releases`. Methods of the earlier contract"),
        ({"require": fails}, "odd.require fails: KeyError: 'no\\nluck'"),
    ],
)
def test_what_a_method_gets_wrong_is_one_line_before_the_run(odd, verbs, words):
    with pytest.raises(SordinoError) as told:
        rehearse(odd(**verbs))
    assert words in str(told.value) and "\n" not in str(told.value)


def test_what_is_right_passes_and_fields_may_become_none(odd):
    rehearse(odd())
    rehearse(odd(**holding(count=3)))
    rehearse(odd(**holding(count=None, mean=None)))
    rehearse(odd(**weighing(0.0)))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('phases = "train"', "phases must be a tuple of text"),
        ("phases = ()", "phases must name at least one"),
        ('phases = ("train", 3)', "phases must be a tuple of text"),
        ('reads = "all"', "reads must be one of sums, rows, not 'all'"),
        ("reads = None", "reads must be one of sums, rows, not None"),
    ],
)
def test_class_variables_are_looked_at(tmp_path, monkeypatch, line, words):
    (tmp_path / "methods").mkdir()
    head = "from dataclasses import dataclass\nfrom sordino.contract.method import Method\n__all__ = ['Mine']\n"
    text = f"{head}@dataclass(frozen=True)\nclass Mine(Method):\n    {line}\n"
    (tmp_path / "methods" / "mine.py").write_text(text)
    monkeypatch.setenv(plugin.VARIABLE, str(tmp_path))
    monkeypatch.delitem(plugin.sys.modules, f"{plugin.PREFIX}methods.mine", raising=False)
    with pytest.raises(SpecError, match=f"the plug-in mine: {words}"):
        plugin.load("methods", "mine")
    monkeypatch.delitem(plugin.sys.modules, f"{plugin.PREFIX}methods.mine", raising=False)


def test_a_refusal_of_its_own_is_left_as_it_is(odd):
    def require(self, plan):
        raise RunError("not on Sundays.")

    with pytest.raises(RunError, match=r"^not on Sundays\.$"):
        odd(require=require)
