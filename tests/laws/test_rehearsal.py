"""Every method passes its rehearsal, in whatever setting it may run; every bad one is refused for the right reason."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import sordino
from laws.bad_methods import REFUSED, NoBound, RawInstead, Sound, Steps, WrongDraw
from sordino.contract import local_sgd
from sordino.contract.method import Local, Method, Release
from sordino.core import plugin
from sordino.core.errors import RunError, SpecError
from sordino.core.message import Message
from sordino.data.clients import ArrayClients
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.runs.rehearse import CLIENTS, prepared, promising, rehearse
from sordino.spec import legal
from support.brought import bring
from support.problems import CLASSES, FEATURES, federation, job, marked, registry

METHODS = plugin.available("methods")
ALGORITHMS = plugin.available("algorithms")
SIZES = (12,) * 4
LOCALS = {  # beside one step with all records
    "steps": {"steps": 3},
    "batches": {"steps": 3, "batch_rate": 0.2},
    "epochs": {"steps": None, "epochs": 2.0, "batch_rate": None, "batch_size": 4},
    "adam": {"steps": 2, "optimizer": "adam"},
}


def dealt():
    """Clients with three users each, and some records with private attributes."""
    x, y = (torch.cat(t) for t in zip(*federation(SIZES), strict=True))
    owners = np.concatenate([100 * k + np.arange(n) * 3 // n for k, n in enumerate(SIZES)])
    return ArrayClients(x, y, SIZES, owners, marked(federation(SIZES)).tags)


def usual(method, **keys):
    """A job as everyone would run it, with some of its plan set without a calibration, which takes long."""
    plan = {k: keys.pop(k) for k in ("local",) if k in keys}
    made = job(method=method, clients=dealt(), **keys)
    changed = replace(made.plan, local=replace(made.plan.local, **plan.get("local", {})))
    made.method.require(changed)
    return replace(made, plan=changed)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_passes_in_its_usual_setting(method):
    rehearse(usual(method))


@pytest.mark.parametrize(
    ("method", "algorithm"),
    [(m, a) for m in METHODS for a in ALGORITHMS if legal.verdict(m, a, plugin.load("methods", m).units[0]).allowed],
)
def test_every_method_passes_with_every_algorithm(method, algorithm):
    rehearse(usual(method, algorithm=algorithm, local_steps=1 if algorithm == "fedsgd" else 3))


def test_steps_are_few_but_enough_for_the_algorithm():
    keys = {"method": "dp-sgd", "clients": dealt(), "local_steps": 9}
    assert prepared(job(**keys)).work.plan.local.steps == 2
    assert prepared(job(algorithm="fedrep", head_steps=4, **keys)).work.plan.local.steps == 5
    assert prepared(job(**(keys | {"local_steps": 1}))).work.plan.local.steps == 1


@pytest.mark.parametrize("method", [m for m in METHODS if "user" in plugin.load("methods", m).units])
@pytest.mark.parametrize("clients", [1, 2])
def test_every_method_passes_with_users(method, clients):
    rehearse(usual(method, unit="user", clients_per_user=clients, local={"steps": 2}))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", LOCALS)
def test_every_method_passes_however_clients_train(method, way):
    try:
        made = usual(method, local=LOCALS[way])
    except SpecError:
        assert way != "steps"  # a method may ask for full batches or plain SGD, not for one step
        return
    rehearse(made)


def takes_fixed_batches(method):
    """Whether batches of a fixed size are an option of a method, which it may refuse for reasons of its own."""
    found = plugin.load("methods", method)
    if "batch_sampling" not in {f.name for f in fields(found)}:
        return False
    try:
        made = found(batch_sampling="fixed")
        made.require(replace(job(method="dp-sgd").plan, local=Local(steps=2, batch_rate=0.4)))
    except SpecError:
        return False
    return True


FIXED = [m for m in METHODS if takes_fixed_batches(m)]


@pytest.mark.parametrize("method", FIXED)
def test_batches_of_a_fixed_size_pass(method):
    rehearse(usual(method, batch_sampling="fixed", local={"steps": 2, "batch_rate": 0.4}))


def test_batches_of_a_fixed_size_are_looked_at():
    assert {"dp-sgd", "fed-cdp", "geodp", "dp-scaffold"} <= {*FIXED}


@pytest.mark.parametrize("method", [m for m in METHODS if "secure-sum" in plugin.load("methods", m).channels])
def test_a_secure_sum_passes(method):
    rehearse(usual(method, channel="secure-sum"))


def brought(monkeypatch, found, **keys):
    bring(monkeypatch, "brought", found)
    return job(**({"method": "brought", "local_steps": 3} | keys))


@pytest.mark.parametrize(("found", "words"), REFUSED, ids=[found.__name__ for found, _ in REFUSED])
def test_a_bad_method_is_refused_for_its_fault(monkeypatch, found, words):
    with pytest.raises(RunError) as told:
        rehearse(brought(monkeypatch, found))
    assert words in str(told.value) and str(told.value).startswith("brought: ") and "\n" not in str(told.value)


def test_a_release_without_a_bound_is_refused_while_the_plan_is_made(monkeypatch):
    with pytest.raises(SpecError, match=r"brought\.releases: the release update needs a bound"):
        brought(monkeypatch, NoBound)


@pytest.mark.parametrize("found", [Sound, Steps])
@pytest.mark.parametrize("keys", [{}, {"rounds": 1}, {"max_participations": 1}, {"dropout": "0.3", "slow": 0.5}])
def test_the_methods_that_bad_ones_are_made_of_pass(monkeypatch, found, keys):
    rehearse(brought(monkeypatch, found, **keys))


# --- what it looks at, and what it cannot see


def test_a_draw_that_is_claimed_and_not_made_is_not_seen(monkeypatch):
    """Known: what a rehearsal compares are bounds, not how likely a record is in a sum. docs/methods.md says so."""
    rehearse(brought(monkeypatch, WrongDraw))


@pytest.mark.parametrize(
    "keys", [{}, {"local_steps": 3}, {"batch_rate": 0.3}, {"batch_rate": 0.4, "batch_sampling": "fixed"}]
)
@pytest.mark.parametrize("unit", ["record", "user"])
def test_the_unit_that_is_replaced_or_removed_does_move_what_goes_in(monkeypatch, keys, unit):
    """Not a bound is slack: a rehearsal whose unit is never drawn would refuse nothing."""
    made = prepared(job(method="dp-sgd", clients=dealt(), unit=unit, clip=0.5, epsilon=50.0, **keys))
    farthest = dict.fromkeys(made.cast.ids, 0.0)

    def moves(first, changed, round):
        for place, before in first.items():
            for one, two in zip(before, changed[place], strict=True):
                farthest[place[1]] = max(farthest[place[1]], float((one.value - two.value).norm()))

    monkeypatch.setattr(made, "_moves", moves)
    made.run()
    assert len(made.cast.removed) == (0 if "batch_sampling" in keys else 1)
    assert all(0.4 < farthest[client] < 1.01 for client in made.cast.replaced)
    assert all(farthest[client] > 0.2 for client in made.cast.removed)
    assert all(farthest[c] < 1e-5 for c in {*made.cast.ids} - made.cast.replaced - made.cast.removed)


def test_records_are_made_up_and_the_model_stays_as_it_is(monkeypatch):
    seen = []

    class Curious(Sound):
        def train(self, state, site):
            seen.append(site.data)
            return super().train(state, site)

    made = brought(monkeypatch, Curious)
    before, ours = made.model.layout.read(made.model.module), torch.cat([x for x, _ in federation()])
    rehearse(made)
    assert torch.equal(before, made.model.layout.read(made.model.module))
    assert len(seen) == 6 and all(len(batch.sizes) == CLIENTS for batch in seen)
    for batch in seen:
        assert not (batch.x[:, None] == ours[None]).all(dim=2).any()


class Own(nn.Module):
    """Looks at a column as a number of a table, and so takes no negative ones; run one record at a time."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Parameter(torch.randn(2, 4)), nn.Linear(4, CLASSES)

    def forward(self, x):
        if bool((x < 0).any()):
            raise IndexError("no such row")
        return self.out(self.table[x[:, 0].long()])


class Words(nn.Module):
    """One class a position."""

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(7, 4), nn.Linear(4, 7)

    def forward(self, x):
        return self.out(self.words(x))


def pairs(x, y, clients=5):
    return [(x, y) for _ in range(clients)]


def linear_with(*layers):
    return nn.Sequential(nn.Linear(FEATURES, 6), *layers, nn.Linear(6, CLASSES))


KINDS = {
    "dropout": (linear_with(nn.Dropout(0.5), nn.Tanh()), None, {}),
    "own": (Own(), pairs(torch.ones(6, FEATURES), torch.arange(6) % CLASSES), {}),
    "words": (Words(), pairs(torch.arange(18).reshape(6, 3) % 7, torch.arange(18).reshape(6, 3) % 7), {}),
    "regression": (nn.Linear(FEATURES, 2), pairs(torch.rand(6, FEATURES), torch.rand(6, 2)), {"loss": "squared_error"}),
    "picture": (nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, CLASSES)),
                pairs(torch.rand(6, 1, 4, 4), torch.arange(6) % CLASSES), {"augment": "flip", "views": 2}),
    "one record": (nn.Linear(FEATURES, CLASSES), pairs(torch.rand(1, FEATURES), torch.tensor([1]), 2), {}),
    "lazy": (nn.Linear(FEATURES, CLASSES),
             sordino.LazyClients(6, 4, lambda k: (torch.rand(4, FEATURES), torch.arange(4) % CLASSES), CLASSES), {}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["dp-sgd", "dp-fedavg", "nbafl"])
def test_whatever_clients_and_models_look_like(kind, method):
    module, clients, keys = KINDS[kind]
    rehearse(job(module, clients, method=method, **keys))


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "own"])  # whose gradients are the same for any record
def test_faults_show_with_every_kind_of_records(monkeypatch, kind):
    module, clients, keys = KINDS[kind]
    bring(monkeypatch, "brought", RawInstead)
    with pytest.raises(RunError, match="the field update depends on"):
        rehearse(job(module, clients, method="brought", **keys))


@dataclass(frozen=True)
class Many(Method):
    """Two phases, whole numbers, truth values, an empty field, and clients that keep something of every type."""

    phases: ClassVar[tuple[str, ...]] = ("count", "train")
    units: ClassVar[tuple[str, ...]] = ("client",)
    reads: ClassVar[str] = "rows"

    def releases(self, plan, round=0, state=None):
        return (
            Release("share", Gaussian(2 * plan.z), "client", 1.0, swing=1, phase="count"),
            Release("update", Gaussian(2 * plan.z), "client", 0.5, phase="train"),
        )

    def keeps(self, state, clients, plan):
        return {"rounds": torch.zeros(clients, dtype=torch.int64), "seen": torch.zeros(clients, dtype=torch.bool)}

    def train(self, state, site):
        n = len(site.data.sizes)
        if site.phase == "count":
            share = torch.tensor([[float((y == 0).double().mean())] for y in site.data.y.split(list(site.data.sizes))])
            noisy = site.out["share"](Bounded(share, 1.0))
            return Message({"large": noisy > 0.5, "steps": (10 * noisy).long()}), site.kept()
        update, mine = local_sgd.sgd(state, site)
        fields = {"update": site.out["update"](update), "nothing": update.new_zeros(n, 0)}
        return Message(fields), site.kept(mine, rounds=site.own["rounds"] + 1, seen=~site.own["seen"])

    def merge(self, state, seen, plan):
        return replace(state, params=state.params + seen["update"].mean(dim=0))


def test_phases_and_fields_of_any_type_pass(monkeypatch):
    rehearse(brought(monkeypatch, Many))


class Ends(Sound):
    """Is over before it begins."""

    def over(self, state, plan):
        return True


def test_a_method_that_ends_at_once_has_nothing_to_show(monkeypatch):
    rehearse(brought(monkeypatch, Ends))


def test_what_promises_nothing_is_not_rehearsed(monkeypatch):
    made = job(method="none")
    monkeypatch.setattr(type(made.method), "train", lambda *args: 1 / 0)
    assert not promising(made.method.releases(made.plan))
    rehearse(made)


def test_a_method_of_ours_is_rehearsed_before_every_run(monkeypatch, tmp_path):
    """A fault that someone puts into one of ours is refused before there is a folder or a charge."""
    bad = lambda self, state, site: RawInstead().train(state, site)  # noqa: E731
    monkeypatch.setattr(plugin.load("methods", "nbafl"), "train", bad)
    with pytest.raises(RunError, match="nbafl: the release update is declared as additive: send what its outlet"):
        sordino.train(nn.Linear(FEATURES, CLASSES), federation(), method="nbafl", rounds=1, out=str(tmp_path / "o"))
    assert not (tmp_path / "o").exists() and not registry().exists()


@pytest.mark.parametrize("method", [m for m in METHODS if plugin.load("methods", m).own_noise])
def test_clients_with_budgets_of_their_own_pass(method):
    rehearse(usual(method, budgets="0.5:0.5,8:0.5", epsilon=8.0))


def test_on_a_gpu_it_is_played_on_the_cpu(monkeypatch):
    made = replace(job(method="dp-sgd"), device=torch.device("cuda"))
    found = prepared(made)
    assert found.work.model is not made.model
    found.run()
    bring(monkeypatch, "brought", RawInstead)
    with pytest.raises(RunError, match="the field update depends on"):
        rehearse(replace(job(method="brought"), device=torch.device("cuda")))


class Picky(nn.Module):
    """Takes nothing but sevens."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        if not bool((x == 7).all()):
            raise ValueError("no sevens")
        return self.out(x)


def test_a_model_that_takes_no_made_up_records_is_told_so():
    with pytest.raises(SpecError, match="accepts no made-up records, not even zeros"):
        rehearse(job(Picky(), pairs(torch.full((6, FEATURES), 7.0), torch.arange(6) % CLASSES), method="dp-sgd"))


def test_a_loss_of_ones_own_that_takes_few_labels_is_served():
    def even(predictions, targets):
        if bool((targets % 2).any()):
            raise ValueError("odd")
        return nn.functional.cross_entropy(predictions, targets, reduction="none")

    rehearse(job(clients=pairs(torch.rand(6, FEATURES), torch.zeros(6).long()), loss=even, method="dp-sgd"))
