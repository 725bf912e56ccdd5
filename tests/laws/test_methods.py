"""True of every method, found by walking the plug-ins."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from sordino.algorithms.fedavgm import FedAvgM
from sordino.contract.method import Plan
from sordino.core import plugin
from sordino.core.rng import Stream
from sordino.core.types import State
from sordino.federations.simulator import chunks
from sordino.privacy.samplers import Poisson
from sordino.runs import loop
from support.methods import federation_of, play, price, rows, whole
from support.problems import CLASSES, FEATURES, federation, job, linear, mlp
from support.silent import zero_layer

METHODS = plugin.available("methods")
PRIVATE = [m for m in METHODS if plugin.load("methods", m).private]
PRINTED = [m for m in METHODS if m.endswith("-paper")]  # whose noise may follow the weights
SOUND = [m for m in METHODS if m not in PRINTED]
FILTERED = [m for m in PRIVATE if whole(plugin.load("methods", m)(), Plan(1, 1, Poisson(1.0), noise_multiplier=1.0))]
EVEN = [m for m in PRIVATE if m not in FILTERED]  # whose noise is set before the first round
RNG = Stream.research(11)
SIZES = (12, 5, 30, 8, 12, 20)
LOCAL = {"local_steps": 3, "batch_rate": 0.5}  # batches are drawn, so the randomness of a client matters too


def goes_with(method, algorithm):
    named = plugin.load("methods", method).algorithms
    return not named or algorithm in named


def fields(message):
    """What leaves the clients of a cohort, weighed as in a sum, all fields side by side; public remarks included."""
    values = [message.fields[name].double().flatten(1) if message.fields[name].ndim > 1 else
              message.fields[name].double()[:, None] for name in sorted(message.fields)]  # fmt: skip
    weight = torch.ones(len(message)) if message.weight is None else message.weight
    return torch.cat([*values, weight.double()[:, None]], dim=1)


def sent(made, cohort, memory_gb=2.0):
    federation = federation_of(made, rng=RNG, memory_gb=memory_gb)
    return fields(play(made, cohort, federation=federation, rng=RNG).sent)


def uncalibrated(method, z=0.7, **keys):
    """A job with a noise multiplier of our choice: plans with sampling take seconds to calibrate."""
    local = {k: keys.pop(k) for k in ("local_steps", "batch_rate", "batch_size", "optimizer") if k in keys}
    if method in PRINTED:
        keys.setdefault("epsilon", 1e5)  # their noise follows the claim, not z: next to none
    made = job(method=method, **keys)
    local = {"steps": local.pop("local_steps", 1)} | local
    own = (z,) * len(made.plan.multipliers)
    plan = replace(made.plan, noise_multiplier=z, multipliers=own, local=replace(made.plan.local, **local))
    return replace(made, plan=plan)


@pytest.mark.parametrize("method", METHODS)
def test_row_i_depends_on_client_i_alone(method):
    clients = federation(SIZES)
    before = sent(uncalibrated(method, clients=clients, **LOCAL), range(6))
    others = [(-3 * x, (y + 1) % CLASSES) for x, y in clients]
    others[2] = clients[2]
    after = sent(uncalibrated(method, clients=others, **LOCAL), range(6))
    assert torch.allclose(before[2], after[2], atol=1e-6, rtol=1e-6)
    for i in (0, 1, 3, 4, 5):  # the test would see a row that did change
        assert not torch.allclose(before[i], after[i], atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_the_cohort_is_every_client_by_itself(method):
    """Both the simulator's whole cohort and one client at a time, the naive second implementation."""
    made = uncalibrated(method, clients=federation(SIZES), **LOCAL)
    together = sent(made, [0, 1, 2, 4, 5])
    alone = torch.cat([sent(made, [i]) for i in (0, 1, 2, 4, 5)])
    assert torch.allclose(together, alone, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(together, alone.roll(1, 0), atol=1e-3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("memory_gb", [1e-9, 2e-5, 2.0])
def test_chunks_change_nothing(method, memory_gb):
    made = uncalibrated(method, clients=federation(SIZES), **LOCAL)
    found = sent(made, range(6), memory_gb)
    assert torch.equal(found, sent(made, range(6), memory_gb))  # bit for bit in the same chunks
    assert torch.allclose(found, sent(made, range(6)), atol=1e-5, rtol=1e-5)


def test_a_tiny_memory_takes_one_client_at_a_time():
    made = uncalibrated("none")
    five, gb = np.arange(5), 2.0**30
    assert [len(c) for c in chunks(five, made.model, 1e-9 * gb)] == [1] * 5
    assert [len(c) for c in chunks(five, made.model, 2 * gb)] == [5]
    assert [len(c) for c in chunks(five[:0], made.model, 2 * gb)] == [0]


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_cohort_is_a_round_like_any_other(method):
    made = uncalibrated(method, **LOCAL)
    done = play(made, [], rng=RNG)
    assert len(done.sent) == 0 and done.after.round == 1
    assert done.after.params.shape == (made.plan.dim,) and torch.isfinite(done.after.params).all()


def bounded_methods():
    return [m for m in PRIVATE if m == "dp-fedavg"]


@pytest.mark.parametrize("method", bounded_methods())
@pytest.mark.parametrize("clip", [0.01, 1.0, 50.0])
def test_what_leaves_a_client_keeps_its_bound(method, clip):
    wild = [(x * 10.0**k, y) for k, (x, y) in enumerate(federation(SIZES))]
    made = uncalibrated(method, module=linear(), clients=wild, clip=clip, learning_rate=5.0)
    norms = rows(made, rng=RNG).double().norm(dim=1)
    assert bool((norms <= clip).all()) and float(norms.max()) > 0.9 * clip


@pytest.mark.parametrize("method", METHODS)
def test_all_zero_updates_survive(method):
    """No data in the gradient: nothing is nan, nothing is lost, and a row is not made longer than it was."""
    zeros = [(torch.zeros(n, FEATURES), torch.zeros(n)) for n in SIZES]
    # all records are alike: of those whose noise follows the claim none is drawn, and the noise is found at once
    keys = {"local_steps": 3, "epsilon": 1e7} if method in PRINTED else LOCAL
    made = uncalibrated(method, z=1e-6, module=zero_layer(FEATURES), clients=zeros, loss="squared_error", **keys)
    done, before = play(made, rng=RNG), loop.begin(made).params
    assert torch.isfinite(fields(done.sent)).all()
    assert torch.isfinite(done.after.params).all() and torch.allclose(done.after.params, before, atol=1e-4)


@pytest.mark.parametrize("method", SOUND)
def test_the_new_model_is_the_old_one_plus_the_update(method):
    """Not the update alone, nor the noise alone: far from zero, the model stays where it was."""
    module = linear()
    with torch.no_grad():
        module.weight += 100.0
    made = uncalibrated(method, z=1e-3, module=module, learning_rate=0.01)
    after = play(made, rng=RNG).after
    moved = after.params - loop.begin(made).params
    assert float(moved.abs().max()) < 1.0 and bool(moved.any())
    assert float(made.model.layout.views(after.params)["weight"].min()) > 90


@pytest.mark.parametrize("method", [m for m in METHODS if goes_with(m, "fedavgm")])
def test_the_server_learning_rate_and_momentum_act_on_the_update(method):
    made = uncalibrated(method, learning_rate=0.01)
    heavy = replace(made, plan=replace(made.plan, server_lr=0.5, algorithm=FedAvgM(0.9)))
    start, done = loop.begin(made), play(made, rng=RNG)
    update = done.after.params - start.params
    one = heavy.method.merge(loop.begin(heavy), done.seen, heavy.plan)
    assert torch.allclose(one.params - start.params, 0.5 * update, atol=1e-6)
    two = heavy.method.merge(one, done.seen, heavy.plan)
    assert torch.allclose(two.params - one.params, 0.5 * 1.9 * update, atol=2e-6)


@pytest.mark.parametrize("method", PRIVATE)
def test_no_coordinate_leaves_without_noise(method):
    """On data whose gradients are zero, what the viewer sees is noise in every coordinate."""
    zeros = [(torch.zeros(12, FEATURES), torch.zeros(12)) for _ in range(8)]
    made = uncalibrated(method, module=zero_layer(FEATURES), clients=zeros, loss="squared_error")
    done = play(made, rng=RNG)
    if made.method.viewer == "server":  # the server sees the rows themselves
        noise = done.sent["update"]
        if noise.is_floating_point():
            assert not (noise == 0).any()
        assert (noise != 0).any(dim=0).all()  # a whole number may be zero by chance, but not those of eight clients
        assert len({r.numpy().tobytes() for r in noise}) == 8  # every client its own noise
    assert not (done.after.params == loop.begin(made).params).any()


@pytest.mark.parametrize("method", PRIVATE)
def test_a_round_draws_fresh_noise(method):
    made = uncalibrated(method)
    state = loop.begin(made)

    def round_at(number):
        return play(made, state=replace(state, round=number), rng=RNG).after.params

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
        assert price(made.method, made.plan)


@pytest.mark.parametrize("method", METHODS)
def test_local_training_learns(method):
    """With next to no noise the loss goes down: the signs are right."""
    made = uncalibrated(method, z=1e-4, module=mlp(), clients=federation((40,) * 4), learning_rate=0.5)
    x, y = made.federation.data.x, made.federation.data.y
    state, losses = loop.begin(made), []
    for _ in range(12):
        losses.append(float(made.model.loss(loop.trained(made, state.params)(x), y).mean().detach()))
        state = replace(play(made, state=state, rng=RNG).after, round=0)  # the first round again and again
    assert losses[-1] < 0.8 * losses[0]
    assert isinstance(state, State) and np.isfinite(losses).all()
