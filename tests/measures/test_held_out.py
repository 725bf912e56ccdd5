"""Evaluation on records of clients: how much noise, how far one unit moves it, how often it is paid for."""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2, kstest, norm
from torch import nn

import sordino
from sordino.core import faults
from sordino.core.errors import BudgetError, SpecError
from sordino.core.rng import Stream
from sordino.core.types import Model, State
from sordino.core.vector import Layout
from sordino.data.clients import ArrayClients
from sordino.federations.simulator import Simulator
from sordino.gradients import CohortGradients
from sordino.ledger.ledger import Budget, Ledger
from sordino.measures import beside, held_out, settings
from sordino.measures.figure import Figure
from sordino.measures.measure import Measure
from sordino.privacy.events import GaussianEvent, Repeated
from sordino.privacy.written import from_json
from sordino.runs import loop, run
from sordino.spec import spec
from sordino.tasks import losses
from support.gaussian import gaussian_delta as delta
from support.killed import Killed
from support.problems import CLASSES, FEATURES, federation, job, mlp, plan, registry

SIZES = (10, 14, 8, 12)
USERS = np.concatenate([100 * k + np.arange(n) * 3 // n for k, n in enumerate(SIZES)])
KEYS = {"validation": 0.4, "evaluate_on": "validation", "evaluate_every": 1, "release_noise": 20.0, "seed": 0}


def clients(users=USERS):
    x, y = (torch.cat(t) for t in zip(*federation(SIZES), strict=True))
    return ArrayClients(x, y, SIZES, users)


ALL = clients(None)


def held(method, unit=None, users=USERS, **keys):
    return parts(spec.from_dict({"method": method, "unit": unit} | KEYS | keys), clients(users))


def parts(wanted, brought):
    """Clients as they train, and what is held out."""
    method = wanted.method_object()
    found = settings.asked(wanted, method, brought, False, False)
    return held_out.split(wanted, method, brought, found)[:2]


class Says(nn.Module):
    """Answers with its first class, or with a number."""

    def __init__(self, number=None):
        super().__init__()
        self.p, self.number = nn.Parameter(torch.zeros(1)), number

    def forward(self, x):
        if self.number is not None:
            return x.new_full((len(x), 1), self.number)
        return torch.eye(CLASSES)[torch.zeros(len(x), dtype=torch.int64)]


def modelled(module):
    layout = Layout.of(module)
    return Model(module, layout, losses.cross_entropy, CohortGradients.of(module, losses.cross_entropy, layout))


REGRESSION = Measure("mae", "regression")


def figure(found, module, regression, z, rng, done=0):
    """The released mean over held-out units, by the federation that holds their records."""
    model = module if isinstance(module, Model) else modelled(module)
    holding = Simulator(torch.device("cpu"), ALL, rng, parts={held_out.HELD_OUT: found.part()})
    asked = Figure("record", z, REGRESSION if regression else Measure(), central=found.facts.holders == 1)
    state = State(model.layout.read(model.module), round=done)
    sums = beside.released(holding, asked, model, plan(), state, rng, held_out.HELD_OUT)["figure"]
    return float(sums[0, 0]) / found.facts.units


def total(found, y, regression=False, number=None):
    """The sum over units that is noised, by the released mean without noise."""
    mean = figure(replace(found, y=y), Says(number), regression, None, Stream.research(0))
    return mean * (int(found.unit.max()) + 1)


# --- what is held out


def test_records_are_held_out_or_trained_on_never_both():
    kept, found = held("dp-sgd")
    one, other = ({r.numpy().tobytes() for r in x} for x in (kept.x, found.x))
    assert not one & other and len(one) + len(other) == sum(SIZES) and kept.count == 4
    assert 0.2 < len(other) / sum(SIZES) < 0.6
    assert np.array_equal(kept.users, np.sort(kept.users))  # still by client and user


def test_where_a_record_goes_depends_on_its_place_and_the_seed_alone():
    changed = clients()
    changed.x[5], changed.y[5] = 7.0, (changed.y[5] + 1) % CLASSES
    for method in ("dp-sgd", "dp-fedavg"):
        wanted = spec.from_dict({"method": method} | KEYS)
        (_, one), (_, other) = (parts(wanted, c) for c in (clients(), changed))
        assert len(one.y) == len(other.y) and int((one.x != other.x).any(1).sum()) <= 1
    assert not np.array_equal(held("dp-sgd", seed=1)[1].x, held("dp-sgd", seed=2)[1].x[:9])


def test_tuning_and_validation_are_two_parts():
    wanted = {"tuning": 0.3, "validation": 0.3}
    kept, tuned = held("dp-sgd", **wanted | {"evaluate_on": "tuning"})
    same, checked = held("dp-sgd", **wanted)
    sets = [{r.numpy().tobytes() for r in x} for x in (kept.x, tuned.x, checked.x)]
    assert torch.equal(kept.x, same.x) and not any(a & b for a, b in itertools.combinations(sets, 2))
    assert sum(map(len, sets)) == sum(SIZES)
    assert tuned.kind == "tuning" and not tuned.holder.any() and checked.holder.max() == 3


# --- how far one unit moves it

CASES = [  # method, unit, how the held-out records of one unit are found, how far it may move the sum
    ("dp-sgd", "record", lambda found, i: [i], 1.0),
    ("dp-sgd", "user", lambda found, i: np.flatnonzero(found.unit == found.unit[i]), 1.0),
    ("dp-fedavg", "client", lambda found, i: np.flatnonzero(found.unit == found.unit[i]), 1.0),
]


@pytest.mark.parametrize(
    ("method", "unit", "records", "most"), CASES, ids=lambda v: str(v) if isinstance(v, str) else ""
)
@pytest.mark.parametrize("regression", [False, True])
def test_one_unit_moves_the_sum_by_at_most_one(method, unit, records, most, regression):
    _, found = held(method, unit)
    n, far = len(found.y), 0.0
    for i in range(n):
        right, wrong = torch.ones(n), torch.ones(n)
        index = torch.as_tensor(np.asarray(records(found, i)))
        right[index] = 0.0
        wrong[index] = 1e30 if regression else 2.0
        if regression:  # the answer is 0: everyone else is off by 0.3
            a, b = (total(found, torch.where(y == 1, 0.3, y), True, 0.0) for y in (right, wrong))
        else:
            a, b = (total(found, y.long()) for y in (right, wrong))
        assert abs(a - b) <= most + 1e-9
        far = max(far, abs(a - b))
    assert far > 0.999


def test_units_are_what_they_say():
    """Records, users of a client, clients: by their numbers."""
    _, records = held("dp-sgd", "record")
    _, users = held("dp-sgd", "user")
    _, whole = held("dp-fedavg", "client")
    _, central = held("dp-fedavg", "user")
    rows = {r.numpy().tobytes(): i for i, r in enumerate(clients().x)}
    place = np.array([rows[r.numpy().tobytes()] for r in users.x])
    owner = np.repeat(np.arange(4), SIZES)
    assert np.array_equal(users.unit, np.unique(USERS[place], return_inverse=True)[1])
    assert np.array_equal(users.holder, owner[place]) and np.array_equal(central.unit, users.unit)
    other = np.array([rows[r.numpy().tobytes()] for r in records.x])
    assert np.array_equal(records.unit, np.arange(len(other))) and np.array_equal(records.holder, owner[other])
    assert np.array_equal(whole.unit, owner[other]) and not whole.holder.any() and not central.holder.any()


def test_users_are_held_out_as_a_whole_and_by_their_own_number():
    kept, found = held("dp-sgd", "user")
    rows = {r.numpy().tobytes(): i for i, r in enumerate(clients().x)}
    out, left = ({int(USERS[rows[r.numpy().tobytes()]]) for r in x} for x in (found.x, kept.x))
    assert not out & left and out | left == set(USERS.tolist()) and 2 <= len(out) <= 8
    gone = next(iter(left))  # nobody else changes sides when a user goes
    stay = gone != USERS
    sizes = [int(s.sum()) for s in np.split(stay, np.cumsum(SIZES)[:-1])]
    fewer = ArrayClients(clients().x[torch.from_numpy(stay)], clients().y[torch.from_numpy(stay)], sizes, USERS[stay])
    _, again = parts(spec.from_dict({"method": "dp-sgd", "unit": "user"} | KEYS), fewer)
    assert torch.equal(again.x, found.x)


def test_a_client_without_users_to_train_on_is_gone():
    alone = np.repeat(np.arange(4), SIZES)  # one user a client
    for seed in range(6):
        wanted = spec.from_dict({"unit": "user"} | KEYS | {"seed": seed})
        method, brought = wanted.method_object(), clients(alone)
        found = settings.asked(wanted, method, brought, False, False)
        try:
            kept, out, left = held_out.split(wanted, method, brought, found)
        except SpecError as error:
            assert "holds out" in str(error)
            continue
        assert kept.count == len(left) and set(kept.users.tolist()) == set(left.tolist())
        assert set(out.holder.tolist()) | set(left.tolist()) == {0, 1, 2, 3} and not set(out.holder) & set(left)
        break


def test_a_user_in_two_clients_is_two_inside_and_moves_two_means_at_the_server():
    two = np.concatenate([np.arange(n) * 3 // n + (0 if k < 2 else 10) for k, n in enumerate(SIZES)])
    _, inside = held("dp-sgd", "user", two, clients_per_user=2)
    rows = {r.numpy().tobytes(): i for i, r in enumerate(clients().x)}
    names = two[[rows[r.numpy().tobytes()] for r in inside.x]]
    assert len(np.unique(inside.unit)) == len(set(zip(inside.holder, names, strict=True))) > len(set(names))
    _, central = held("dp-fedavg", "user", two, clients_per_user=2)
    n = len(central.y)
    names = two[[rows[r.numpy().tobytes()] for r in central.x]]
    far = []
    for user in set(names.tolist()):
        right, wrong = torch.ones(n).long(), torch.ones(n).long()
        right[names == user], wrong[names == user] = 0, 2
        far.append(total(central, right) - total(central, wrong))
    assert max(far) == pytest.approx(2) and min(far) > 0  # in two clients, one mean each
    made = job(clients=clients(two), method="dp-fedavg", unit="user", clients_per_user=2, **KEYS)
    assert made.apart == (Repeated(GaussianEvent(20.0 / 2), 3),) and not made.once


# --- how much noise


@pytest.mark.parametrize(("method", "unit", "holders"), [("dp-sgd", "record", 4), ("dp-fedavg", "client", 1)])
def test_every_holder_adds_z(method, unit, holders, z=20.0):
    _, found = held(method, unit)
    found = replace(found, y=torch.ones(len(found.y)).long())  # nobody is right: noise alone
    rng, units = Stream.research(3), int(found.unit.max()) + 1
    first = nn.Linear(FEATURES, CLASSES)  # always says the first class
    with torch.no_grad():
        first.weight.zero_()
        first.bias.copy_(torch.eye(CLASSES)[0])
    model, std = modelled(first), z * math.sqrt(holders)
    drawn = [figure(found, model, False, z, rng.at(i)) * units for i in range(2000)]
    assert kstest(drawn, norm(scale=std).cdf).pvalue > 1e-3
    square = float(np.sum(np.square(drawn)))
    for factor, right in ((1.0, True), (1.1, False), (0.9, False)):  # sees ten per cent in the deviation
        assert (1e-4 < chi2.cdf(square / (factor * std) ** 2, 2000) < 1 - 1e-4) == right


@pytest.mark.parametrize("method", ["dp-sgd", "dp-fedavg", "none"])
def test_a_run_shows_the_noisy_figure_or_without_privacy_the_true_one(method, tmp_path):
    keys = {"method": method, "rounds": 2, "epsilon": 8.0, "device": "cpu", "out": str(tmp_path), "seed": 0} | KEYS
    result = sordino.train(mlp(), federation(SIZES), **keys)
    wanted = spec.from_dict(keys)
    _, found = parts(wanted, clients(None))
    exact = figure(found, result.model.eval(), False, None, Stream.research(0))
    shown = result.history[-1]
    assert (shown.accuracy == exact) == (method == "none")
    assert shown.evaluated_on.startswith(
        "validation records" + ("" if method == "none" else ", with noise of deviation")
    )
    if method != "none":
        again = figure(found, result.model.eval(), False, 20.0, Stream.research(0), done=2)
        assert shown.accuracy == min(max(again, 0.0), 1.0)


def test_regression_is_the_absolute_error_with_noise():
    pairs = [(x, x[:, 0]) for x, _ in federation(SIZES)]
    made = job(nn.Linear(FEATURES, 1), pairs, "squared_error", method="dp-sgd", **KEYS)
    made = replace(made, evaluation=replace(made.evaluation, noise=1e-6))
    figures = loop.evaluate(made, loop.begin(made).params, 1)
    module = loop.trained(made, loop.begin(made).params)
    with torch.no_grad():
        held = made.federation.parts[held_out.HELD_OUT].data
        error = (module(held.x)[:, 0] - held.y).abs().clamp(max=1).mean()
    assert (
        figures["metrics"]["mae"] == pytest.approx(float(error), abs=1e-4) and "with noise" in figures["evaluated_on"]
    )


# --- how often it is paid for


@pytest.mark.parametrize(
    ("rounds", "every", "times"), [(1, 1, 1), (6, 1, 6), (6, 4, 2), (6, 6, 1), (5, 2, 3), (3, 9, 1)]
)
def test_as_many_evaluations_as_are_charged(rounds, every, times, tmp_path, monkeypatch):
    seen, real = [], beside.released
    monkeypatch.setattr(run, "try_evaluation", lambda job: None)  # on made-up records
    monkeypatch.setattr(beside, "released", lambda *a: seen.append(a) or real(*a))
    keys = KEYS | {"rounds": rounds, "evaluate_every": every, "epsilon": 8.0, "device": "cpu", "out": str(tmp_path)}
    keys |= {"seed": 0}
    result = sordino.train(mlp(), federation(SIZES), **keys)
    assert sum(r.accuracy is not None for r in result.history) == times == len(seen)
    made = job(clients=federation(SIZES), **keys)
    assert made.apart == (Repeated(Repeated(GaussianEvent(20.0), 1), times),) and not made.once
    assert made.evaluation.times == times


@pytest.mark.parametrize("method", ["dp-sgd", "dp-fedavg"])
def test_promise_guarantee_and_ledger_hold_the_evaluations(method, tmp_path):
    """Four rounds and four evaluations by hand. Of a client both are released: mu^2 = 4 / z^2 + 4 / 20^2. A record is
    trained on or evaluated on: the larger of 4 / z^2 and 4 / 20^2, so the noise is as if there were no evaluation."""
    keys = {"method": method, "rounds": 4, "epsilon": 2.0, "device": "cpu", "out": str(tmp_path), "name": "it"} | KEYS
    keys |= {"seed": 0}
    result = sordino.train(mlp(), federation(SIZES), **keys)
    made = job(clients=federation(SIZES), **keys)
    both = [4 / made.plan.z**2, 4 / 20.0**2]
    mu = math.sqrt(max(both) if method == "dp-sgd" else sum(both))
    for found in (made.promise, result.guarantee):
        assert delta(mu, found.epsilon) == pytest.approx(1e-5, rel=1e-2)
        assert found.epsilon > 1.99
    bare = job(clients=federation(SIZES), method=method, rounds=4)
    assert made.plan.z == bare.plan.z if method == "dp-sgd" else made.plan.z > bare.plan.z
    kept = sqlite3.connect(registry())
    (event,) = (from_json(json.loads(e)) for (e,) in kept.execute("SELECT event FROM entry WHERE kind = 'plan'"))
    kept.close()
    released = (*made.once, *made.apart)
    assert event == made.plan_cost().event and len(released) == 1 and str(released[0]) in str(event)
    assert result.history[0].epsilon[made.viewer] > made.guarantee(made.viewer, 0, 0).epsilon > 0


def test_evaluations_that_the_budget_cannot_pay_are_refused():
    with pytest.raises(BudgetError, match=r"alone cost epsilon.*Raise release_noise"):
        job(epsilon=0.05, rounds=50, **KEYS)


POINTS = [("merged", 3), ("stored", 2), ("saving", 3), ("saved", 3), ("noting", 2), ("recorded", 3)]


@pytest.mark.parametrize("every", [2, 6])
@pytest.mark.parametrize(("point", "number"), [*POINTS, ("merged", 5), ("saved", 5), ("recorded", 5), ("finishing", 0)])
def test_in_secure_mode_no_kill_lets_held_out_records_be_seen_twice(point, number, every, tmp_path, monkeypatch):
    """Each round is evaluated once at most, however often it is run; and its figure comes from one draw of noise.

    A run that pays for a lost round ends a round early, and is evaluated there: as often as is charged, at most."""
    seen, real = [], loop.evaluate
    monkeypatch.setattr(run, "try_evaluation", lambda job: None)  # on made-up records
    monkeypatch.setattr(
        loop, "evaluate", lambda job, params, done, *a: seen.append(done) or real(job, params, done, *a)
    )
    keys = KEYS | {"rounds": 6, "evaluate_every": every, "epsilon": 8.0, "device": "cpu", "mode": "secure"}
    keys |= {"out": str(tmp_path), "name": "it", "checkpoint_seconds": 0.0, "seed": None}
    passed = itertools.count()

    def hook(name):
        if name == point and next(passed) == number:
            raise Killed

    faults.set_hook(hook)
    with pytest.raises(Killed):
        sordino.train(mlp(), federation(SIZES), **keys)
    faults.set_hook(None)
    result = sordino.train(mlp(), federation(SIZES), resume=tmp_path / "it")
    last = result.history[-1].round
    assert len(seen) == len(set(seen)) <= 6 // every and set(seen) <= {2, 4, 6, last}
    assert bool(seen) != (point == "merged" and number == every - 1)  # with the last round its one figure is lost
    assert result.guarantee.epsilon <= 8.0
    assert [r.round for r in result.history] == sorted({r.round for r in result.history})


def test_a_kill_loses_no_record(tmp_path):
    keys = {"rounds": 3, "epsilon": 8.0, "device": "cpu", "checkpoint_seconds": 0.0, "name": "it", "seed": 0} | KEYS
    whole = sordino.train(mlp(), federation(SIZES), out=str(tmp_path / "whole"), **keys)
    passed = itertools.count()

    def hook(name):
        if name == "saved" and next(passed) == 2:
            raise Killed

    faults.set_hook(hook)
    with pytest.raises(Killed):
        sordino.train(mlp(), federation(SIZES), out=str(tmp_path / "cut"), **keys)
    faults.set_hook(None)
    cut = sordino.train(mlp(), federation(SIZES), resume=tmp_path / "cut" / "it")
    assert [(r.round, r.accuracy) for r in cut.history] == [(r.round, r.accuracy) for r in whole.history]


# --- the ledger of the data


@pytest.mark.parametrize("keys", [{"validation": 0.3}, {"tuning": 0.3}, {"validation": 0.3, "seed": 4}], ids=str)
def test_held_out_records_are_the_same_data_in_the_ledger(keys, tmp_path):
    """A budget on the data holds whatever part of them is held out."""
    common = {"rounds": 1, "device": "cpu", "out": str(tmp_path), "epsilon": 2.0}
    sordino.train(mlp(), federation(SIZES), name="first", **common)
    book = Ledger(registry())
    book.set_budget(Budget(3.0, 1e-3, "plans", None))
    book.close()
    with pytest.raises(BudgetError, match="left: epsilon 1"):
        sordino.train(mlp(), federation(SIZES), name="second", **common | keys)
    sordino.train(mlp(), federation(SIZES, seed=3), name="second", **common | keys)  # of other people


def test_a_run_is_not_resumed_with_other_held_out_records(tmp_path):
    keys = {"rounds": 3, "device": "cpu", "out": str(tmp_path), "name": "it", "epsilon": 8.0} | KEYS
    faults.set_hook(_die_at_merged)
    with pytest.raises(Killed):
        sordino.train(mlp(), federation(SIZES), **keys)
    faults.set_hook(None)
    wanted = spec.from_dict(keys)
    trained, _ = parts(wanted, clients(None))
    kept = {row.numpy().tobytes() for row in trained.x}
    other = [(torch.stack([v if v.numpy().tobytes() in kept else -v for v in x]), y) for x, y in federation(SIZES)]
    with pytest.raises(run.RunError, match="must be the same"):
        sordino.train(mlp(), other, resume=tmp_path / "it")


def _die_at_merged(name):
    if name == "merged":
        raise Killed


def test_a_printed_form_with_exact_statistics_has_no_epsilon():
    keys = {"method": "udp-fl-paper", "mechanism": "gaussian", "epsilon": 2.0}
    assert math.isfinite(job(**keys).promise.epsilon)
    made = job(**keys, standardise=True)
    assert made.promise.epsilon == math.inf and "are released without noise" in made.promise.sentence()
    assert "no noise" in job(method="none", standardise=True).promise.sentence()


def test_records_of_the_server_leave_no_client_protected():
    with pytest.raises(SpecError, match="no client is protected"):
        job(method="adaptive-noise-client", unit="client", server_data=0.3)
