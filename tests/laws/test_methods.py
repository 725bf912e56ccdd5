"""True of every method, found by walking the plug-ins."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from problems import CLASSES, FEATURES, federation, job, linear, mlp
from sordino.algorithms.fedavgm import FedAvgM
from sordino.core import plugin
from sordino.core.rng import Stream
from sordino.core.types import State
from sordino.engines.simulator import Simulator
from sordino.methods.base import Plan
from sordino.privacy.samplers import Poisson
from sordino.runs import loop

METHODS = plugin.available("methods")
PRIVATE = [m for m in METHODS if plugin.load("methods", m).private]
PRINTED = [m for m in METHODS if m.endswith("-paper")]  # whose noise may follow the weights
SOUND = [m for m in METHODS if m not in PRINTED]
FILTERED = [m for m in PRIVATE if plugin.load("methods", m)().whole(Plan(1, 1, Poisson(1.0), noise_multiplier=1.0))]
EVEN = [m for m in PRIVATE if m not in FILTERED]  # whose noise is set before the first round
CPU = torch.device("cpu")
RNG = Stream.research(11)
SIZES = (12, 5, 30, 8, 12, 20)
LOCAL = {"local_steps": 3, "batch_rate": 0.5}  # batches are drawn, so the randomness of a client matters too


def goes_with(method, algorithm):
    named = plugin.load("methods", method).algorithms
    return not named or algorithm in named


def rows_of(job, cohort, engine=None, state=None):
    """What leaves the clients of a cohort."""
    state = state or loop.begin(job)
    engine = engine or Simulator(CPU)
    return engine.clients(job.method, state, cohort, job.federation.data, job.model, job.plan, RNG.at("clients"))


def uncalibrated(method, z=0.7, **keys):
    """A job with a noise multiplier of our choice: plans with sampling take seconds to calibrate."""
    local = {k: keys.pop(k) for k in ("local_steps", "batch_rate", "batch_size", "optimizer") if k in keys}
    if method in PRINTED:
        keys.setdefault("epsilon", 1e7)  # their noise follows the claim, not z: next to none
    made = job(method=method, **keys)
    local = {"steps": local.pop("local_steps", 1)} | local
    own = (z,) * len(made.plan.multipliers)
    plan = replace(made.plan, noise_multiplier=z, multipliers=own, local=replace(made.plan.local, **local))
    return replace(made, plan=plan)


@pytest.mark.parametrize("method", METHODS)
def test_row_i_depends_on_client_i_alone(method):
    clients = federation(SIZES)
    before = rows_of(uncalibrated(method, clients=clients, **LOCAL), range(6))
    others = [(-3 * x, (y + 1) % CLASSES) for x, y in clients]
    others[2] = clients[2]
    after = rows_of(uncalibrated(method, clients=others, **LOCAL), range(6))
    assert torch.allclose(before[2], after[2], atol=1e-6, rtol=1e-6)
    for i in (0, 1, 3, 4, 5):  # the test would see a row that did change
        assert not torch.allclose(before[i], after[i], atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_the_cohort_is_every_client_by_itself(method):
    """Both the simulator's whole cohort and one client at a time, the naive second implementation."""
    made = uncalibrated(method, clients=federation(SIZES), **LOCAL)
    together = rows_of(made, [0, 1, 2, 4, 5])
    alone = torch.cat([rows_of(made, [i]) for i in (0, 1, 2, 4, 5)])
    assert torch.allclose(together, alone, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(together, alone.roll(1, 0), atol=1e-3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("memory_gb", [1e-9, 2e-5, 2.0])
def test_chunks_change_nothing(method, memory_gb):
    made = uncalibrated(method, clients=federation(SIZES), **LOCAL)
    rows = rows_of(made, range(6), Simulator(CPU, memory_gb))
    assert torch.equal(rows, rows_of(made, range(6), Simulator(CPU, memory_gb)))  # bit for bit in the same chunks
    assert torch.allclose(rows, rows_of(made, range(6)), atol=1e-5, rtol=1e-5)


def test_a_tiny_memory_takes_one_client_at_a_time():
    made = uncalibrated("none")
    assert [len(c) for c in Simulator(CPU, 1e-9)._chunks(range(5), made.model)] == [1] * 5
    assert [len(c) for c in Simulator(CPU, 2.0)._chunks(range(5), made.model)] == [5]
    assert [len(c) for c in Simulator(CPU, 2.0)._chunks([], made.model)] == [0]


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_cohort_is_a_round_like_any_other(method):
    made = uncalibrated(method, **LOCAL)
    state = loop.begin(made)
    rows = rows_of(made, [], state=state)
    assert rows.shape[0] == 0
    after = made.method.merge(state, rows, made.plan, RNG.at("merge"))
    assert after.params.shape == state.params.shape and torch.isfinite(after.params).all()


def bounded_methods():
    return [m for m in PRIVATE if m == "dp-fedavg"]


@pytest.mark.parametrize("method", bounded_methods())
@pytest.mark.parametrize("clip", [0.01, 1.0, 50.0])
def test_what_leaves_a_client_keeps_its_bound(method, clip):
    wild = [(x * 10.0**k, y) for k, (x, y) in enumerate(federation(SIZES))]
    made = uncalibrated(method, module=linear(), clients=wild, clip=clip, learning_rate=5.0)
    norms = rows_of(made, range(6)).double().norm(dim=1)
    assert bool((norms <= clip).all()) and float(norms.max()) > 0.9 * clip


@pytest.mark.parametrize("method", METHODS)
def test_all_zero_updates_survive(method):
    """No data in the gradient: nothing is nan, nothing is lost, and a row is not made longer than it was."""
    zeros = [(torch.zeros(n, FEATURES), torch.zeros(n)) for n in SIZES]
    made = uncalibrated(method, z=1e-6, module=silent(), clients=zeros, loss="squared_error", **LOCAL)
    state = loop.begin(made)
    rows = rows_of(made, range(6), state=state)
    assert torch.isfinite(rows).all()
    after = made.method.merge(state, rows, made.plan, RNG.at("merge"))
    assert torch.isfinite(after.params).all() and torch.allclose(after.params, state.params, atol=1e-4)


def silent():
    """A model whose gradient is exactly zero on zero inputs with zero targets."""
    layer = torch.nn.Linear(FEATURES, 1)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    return layer


@pytest.mark.parametrize("method", SOUND)
def test_the_new_model_is_the_old_one_plus_the_update(method):
    """Not the update alone, nor the noise alone: far from zero, the model stays where it was."""
    module = linear()
    with torch.no_grad():
        module.weight += 100.0
    made = uncalibrated(method, z=1e-3, module=module, learning_rate=0.01)
    state = loop.begin(made)
    after = made.method.merge(state, rows_of(made, range(8), state=state), made.plan, RNG.at("merge"))
    moved = after.params - state.params
    assert float(moved.abs().max()) < 1.0 and bool(moved.any())
    assert float(made.model.layout.views(after.params)["weight"].min()) > 90


@pytest.mark.parametrize("method", [m for m in METHODS if goes_with(m, "fedavgm")])
def test_the_server_learning_rate_and_momentum_act_on_the_update(method):
    made = uncalibrated(method, learning_rate=0.01)
    heavy = replace(made, plan=replace(made.plan, server_lr=0.5, algorithm=FedAvgM(0.9)))
    start, rows = loop.begin(made), rows_of(made, range(8))
    update = made.method.merge(start, rows, made.plan, RNG.at("m")).params - start.params
    one = heavy.method.merge(loop.begin(heavy), rows, heavy.plan, RNG.at("m"))
    assert torch.allclose(one.params - start.params, 0.5 * update, atol=1e-6)
    two = heavy.method.merge(one, rows, heavy.plan, RNG.at("m"))
    assert torch.allclose(two.params - one.params, 0.5 * 1.9 * update, atol=2e-6)


@pytest.mark.parametrize("method", PRIVATE)
def test_no_coordinate_leaves_without_noise(method):
    """On data whose gradients are zero, what the viewer sees is noise in every coordinate."""
    zeros = [(torch.zeros(12, FEATURES), torch.zeros(12)) for _ in range(8)]
    made = uncalibrated(method, module=silent(), clients=zeros, loss="squared_error")
    state = loop.begin(made)
    rows = rows_of(made, range(8), state=state)
    if made.method.viewer == "server":  # the server sees the rows themselves
        assert not (rows == 0).any()
        assert len({r.numpy().tobytes() for r in rows}) == 8  # every client its own noise
    after = made.method.merge(state, rows, made.plan, RNG.at("merge"))
    assert not (after.params == state.params).any()


@pytest.mark.parametrize("method", PRIVATE)
def test_a_round_draws_fresh_noise(method):
    made = uncalibrated(method)
    state = loop.begin(made)

    def round_at(number):
        rng = RNG.at("round", number)
        who, plan = range(8), made.plan
        rows = Simulator(CPU).clients(made.method, state, who, made.federation.data, made.model, plan, rng.at("c"))
        return made.method.merge(state, rows, made.plan, rng.at("merge")).params

    assert torch.equal(round_at(0), round_at(0))
    assert not (round_at(0) == round_at(1)).any()


@pytest.mark.parametrize("method", PRIVATE)
def test_a_smaller_epsilon_or_delta_or_more_rounds_mean_more_noise(method):
    def z(**keys):
        return job(method=method, **keys).plan.z

    assert z(epsilon=0.5) > z(epsilon=1.0) > z(epsilon=8.0) > 0
    assert z(delta=1e-8) > z(delta=1e-5) > z(delta=1e-3)
    assert z(rounds=100) > z(rounds=10) or method in FILTERED  # there z is that of the whole run
    assert job(method=method, epsilon=1.0).promise.epsilon <= 1.0


@pytest.mark.parametrize("method", PRIVATE)
def test_the_promise_is_kept_and_used(method):
    made = job(method=method, epsilon=3.0, rounds=7)
    assert 0.995 * 3.0 < made.promise.epsilon <= 3.0


@pytest.mark.parametrize("method", EVEN)
def test_epsilon_grows_with_every_round(method):
    made = job(method=method, epsilon=3.0, rounds=7)
    spent = [made.guarantee(made.viewer, r, r).epsilon for r in range(8)]
    assert spent[0] == 0 and all(a < b for a, b in itertools.pairwise(spent)) and spent[-1] <= 3.0


@pytest.mark.parametrize("method", FILTERED)
def test_what_is_chosen_on_the_way_is_charged_from_the_first_round_on(method):
    made = job(method=method, epsilon=3.0, rounds=7)
    spent = [made.guarantee(made.viewer, r, r).epsilon for r in range(8)]
    assert spent[0] == 0 and len(set(spent[1:])) == 1 and spent[-1] <= 3.0


@pytest.mark.parametrize("method", METHODS)
def test_costs_can_be_asked_for_under_every_documented_plan(method):
    for keys in (
        {"client_rate": 1.0},
        {"client_sampling": "fixed", "client_rate": 1.0},
        {"local_steps": 5},
        {"local_epochs": 2.0},
        {"batch_rate": 1.0, "optimizer": "adam"},
    ):
        if keys.get("optimizer") and plugin.load("algorithms", plugin.load("methods", method).algorithm).plain_sgd:
            continue
        made = job(method=method, **keys)
        assert made.method.costs(made.plan)


@pytest.mark.parametrize("method", METHODS)
def test_local_training_learns(method):
    """With next to no noise the loss goes down: the signs are right."""
    made = uncalibrated(method, z=1e-4, module=mlp(), clients=federation((40,) * 4), learning_rate=0.5)
    x, y = made.federation.data.x, made.federation.data.y
    state, losses = loop.begin(made), []
    for r in range(12):
        losses.append(float(made.model.loss(loop.trained(made, state.params)(x), y).mean().detach()))
        rows = rows_of(made, range(4), state=state)
        state = made.method.merge(state, rows, made.plan, RNG.at("merge", r))
    assert losses[-1] < 0.8 * losses[0]
    assert isinstance(state, State) and np.isfinite(losses).all()
