"""Whose data, in how many clients, drawn how: what is charged beside the exact cost of tiny mechanisms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from sordino.contract.method import Local
from sordino.methods.dp_fedavg import DpFedAvg
from sordino.methods.dp_sgd import DpSgd
from sordino.privacy import algebra, price, tightest
from sordino.privacy.events import Composed, Cost, FixedSize, GaussianEvent, Repeated, Sampled, Visible
from sordino.privacy.samplers import FixedSizeSampler as FixedCohort
from sordino.privacy.samplers import Poisson
from support.gaussian import gaussian_delta
from support.methods import price as cost_of
from support.problems import plan

EPSILONS = (0.1, 0.5, 1.0, 2.0)
STEP = 0.02


def user_plan(m, **keys):
    return plan(unit="user", clients_per_user=m, sizes=(3,), mean_client=3.0, **keys)


def charged(cost, viewer, sampler, rounds=1, population=8, participations=None, once=()):
    participations = rounds if participations is None else participations
    return price.total(cost, viewer, sampler, population, rounds, participations, once)


# --- users whose data lie in m clients, noise at the server


def mixture(moves, rate, z, line):
    """The density of noise plus the messages of those clients that are drawn."""
    total = np.zeros_like(line)
    for drawn in itertools.product((0, 1), repeat=len(moves)):
        p = math.prod(rate if d else 1 - rate for d in drawn)
        total += p * norm.pdf(line, sum(d * a for d, a in zip(drawn, moves, strict=True)), z)
    return total


def hockey_stick(p, q, epsilon, cell):
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * cell)


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("z", [0.8, 2.0])
def test_a_user_in_m_hidden_clients_costs_no_more_than_is_charged(m, rate, z):
    """Every way in which m messages of norm at most one can be there in one world and others in the other."""
    made = user_plan(m, sampler=Poisson(rate), noise_multiplier=z)
    cost = price.cost_to("public", cost_of(DpFedAvg(), made))
    (event,) = charged(cost, "public", made.sampler)
    assert event == Repeated(algebra.grouped(Sampled(GaussianEvent(z), rate, "replace"), m), 1)
    line = np.arange(-m - 8 * z, m + 8 * z, STEP)
    worlds = {moves: mixture(moves, rate, z, line) for moves in itertools.product((-1.0, 0.0, 0.4, 1.0), repeat=m)}
    for epsilon in EPSILONS:
        exact = max(hockey_stick(p, q, epsilon, STEP) for p, q in itertools.permutations(worlds.values(), 2))
        bound = tightest.delta(event, epsilon)
        assert exact <= bound * (1 + 1e-3) + 1e-9
        if m == 1:
            assert bound <= exact * (1 + 1e-2) + 1e-9  # and no more than needed
    added = Repeated(Sampled(GaussianEvent(z), rate), 1)  # as if the client itself came and went
    assert any(
        max(hockey_stick(p, q, e, STEP) for p, q in itertools.permutations(worlds.values(), 2))
        > tightest.delta(added, e) * 1.001
        for e in EPSILONS
    )


@pytest.mark.parametrize("m", [1, 2])
def test_two_hidden_rounds_of_a_user_cost_no_more_than_is_charged(m):
    z, rate, step = 1.0, 0.4, 0.1
    made = user_plan(m, sampler=Poisson(rate), noise_multiplier=z)
    (event,) = charged(price.cost_to("public", cost_of(DpFedAvg(), made)), "public", made.sampler, rounds=2)
    line = np.arange(-m - 7, m + 7, step)
    one, other = mixture((1.0,) * m, rate, z, line), mixture((-1.0,) * m, rate, z, line)
    p, q = np.multiply.outer(one, one), np.multiply.outer(other, other)
    for epsilon in EPSILONS:
        exact = hockey_stick(p, q, epsilon, step**2)
        assert exact <= tightest.delta(event, epsilon) * (1 + 2e-3)
        if m == 1:
            assert exact > tightest.delta(Repeated(event.event, 1), epsilon)  # one round alone would not do


def test_messages_in_any_direction_cost_no_more_than_opposite_ones():
    """Two dimensions: the same client sends a in one world and b, turned by any angle and shorter, in the other."""
    z, rate, step = 0.8, 0.3, 0.08
    event = Sampled(GaussianEvent(z), rate, "replace")
    line = np.arange(-1 - 7 * z, 1 + 7 * z, step)
    x, y = np.meshgrid(line, line, indexing="ij", sparse=True)

    def world(a, b):
        def at(u, v):
            return norm.pdf(x, u, z) * norm.pdf(y, v, z)

        return (1 - rate) * at(0, 0) + rate * at(a, b)

    p = world(1, 0)
    for angle, length in itertools.product((0.3, 1.0, 2.0, 2.8, math.pi), (0.2, 1.0)):
        q = world(length * math.cos(angle), length * math.sin(angle))
        for epsilon in EPSILONS:
            both = max(hockey_stick(p, q, epsilon, step**2), hockey_stick(q, p, epsilon, step**2))
            assert both <= tightest.delta(event, epsilon) * (1 + 5e-3) + 1e-9


@pytest.mark.parametrize("m", [1, 2, 3])
def test_where_all_clients_take_part_m_messages_move_by_two_clips_each(m):
    made = user_plan(m, noise_multiplier=4.0)
    cost = price.cost_to("public", cost_of(DpFedAvg(), made))
    assert (cost.unit, cost.relation, cost.draw, cost.copies) == ("user", "add/remove", "changed", m)
    (event,) = charged(cost, "public", Poisson(1.0), rounds=5)
    assert event == Repeated(GaussianEvent(4.0 / (2 * m)), 5)
    for epsilon in EPSILONS:
        exact = gaussian_delta(2 * m * math.sqrt(5) / 4.0, epsilon)
        assert tightest.delta(event, epsilon) == pytest.approx(exact, rel=1e-6)


def test_capped_participations_of_a_user_s_clients_are_all_paid_for():
    """p rounds for each of m clients, in one round together or apart: mu^2 of any such plan is at most the charge's."""
    m, cap, z = 2, 3, 4.0
    made = user_plan(m, sampler=Poisson(0.9), noise_multiplier=z)
    cost = price.cost_to("public", cost_of(DpFedAvg(), made))
    _, each = charged(cost, "public", made.sampler, rounds=20, participations=cap)
    paid = algebra.gdp_mu_squared(each)
    for together in range(cap + 1):  # rounds in which both take part; the others apart
        assert together * (2 * m / z) ** 2 + m * (cap - together) * (2 / z) ** 2 <= paid * (1 + 1e-12)
    assert paid == pytest.approx(cap * (2 * m / z) ** 2)


def test_a_user_in_cohorts_of_a_fixed_size():
    made = user_plan(2, sampler=FixedCohort(2), noise_multiplier=3.0)
    (event,) = charged(price.cost_to("public", cost_of(DpFedAvg(), made)), "public", made.sampler, rounds=4)
    assert event == Repeated(FixedSize(GaussianEvent(3.0 / 4), 4, 8), 4)  # any of both drawn: 4 of 8; 2C each


# --- users, noise inside the clients


@pytest.mark.parametrize("m", [1, 2, 4])
def test_a_user_pays_in_each_of_its_clients(m):
    made = user_plan(m, sampler=Poisson(0.5), local=Local(steps=2, batch_rate=0.25), noise_multiplier=2.0)
    (cost,) = cost_of(DpSgd(), made)
    step = Repeated(Sampled(GaussianEvent(2.0), 0.25), 2)
    assert cost == Cost("user", "add/remove", "server", step, copies=m)
    (seen,) = charged(cost, "server", made.sampler, rounds=30, participations=11)
    assert algebra.parts(seen) == {Sampled(GaussianEvent(2.0), 0.25): 2 * m * 11}
    (hidden,) = charged(cost, "public", made.sampler, rounds=30)
    assert algebra.parts(hidden) == {Visible(step, 0.5): m * 30}


@pytest.mark.parametrize("m", [1, 2, 3])
def test_what_a_user_pays_by_hand(m):
    """Full batches, all clients: m T steps of Gaussian noise are one with mu^2 = m T / z^2; what is beside joins."""
    made = user_plan(m, noise_multiplier=5.0)
    (cost,) = cost_of(DpSgd(), made)
    once = (Repeated(GaussianEvent(7.0), m), Repeated(Repeated(GaussianEvent(9.0), m), 3))
    (event,) = charged(cost, "server", Poisson(1.0), rounds=10, once=once)
    mu = math.sqrt(m * (10 / 25 + 1 / 49 + 3 / 81))
    for epsilon in EPSILONS:
        assert tightest.delta(event, epsilon) == pytest.approx(gaussian_delta(mu, epsilon), rel=1e-6)
    assert charged(cost, "public", Poisson(1.0), rounds=10, once=once) == (event,)


def drawn_of(m, sampler, population):
    """{how many of a user's m clients are drawn: probability}."""
    if isinstance(sampler, Poisson):
        q = sampler.rate
        return {j: math.comb(m, j) * q**j * (1 - q) ** (m - j) for j in range(m + 1)}
    s = sampler.size
    whole = math.comb(population, s)
    return {j: math.comb(m, j) * math.comb(population - m, s - j) / whole for j in range(min(m, s) + 1)}


@pytest.mark.parametrize(
    ("sampler", "population"),
    [
        (Poisson(0.3), 8),
        (Poisson(0.8), 8),
        (FixedCohort(1), 2),
        (FixedCohort(2), 8),
    ],
)
def test_a_user_in_two_hidden_clients_with_noise_of_their_own(sampler, population):
    """Who sees which clients were drawn sees j of the user's messages: delta is the mean over j."""
    m, z = 2, 1.0
    cost = Cost("user", "add/remove", "server", GaussianEvent(z), copies=m)
    (event,) = charged(cost, "public", sampler, population=population)
    law = drawn_of(m, sampler, population)
    assert math.fsum(law.values()) == pytest.approx(1)
    for epsilon in (0.05, 0.2, 0.5, 1.0, 2.0, 4.0):
        exact = sum(p * gaussian_delta(math.sqrt(j) / z, epsilon) for j, p in law.items() if j)
        assert exact <= tightest.delta(event, epsilon) * (1 + 1e-4)
    assert exact > tightest.delta(Visible(GaussianEvent(z), 0.5 * sampler.probability(population)), epsilon)


def test_releases_beside_the_rounds_are_in_every_alternative():
    cost, once = Cost("client", "add/remove", "public", GaussianEvent(3.0)), (GaussianEvent(8.0),)
    found = charged(cost, "public", Poisson(0.2), rounds=10, participations=2, once=once)
    assert found == (
        Composed((Repeated(Sampled(GaussianEvent(3.0), 0.2), 10), GaussianEvent(8.0))),
        Composed((Repeated(GaussianEvent(3.0), 2), GaussianEvent(8.0))),
    )
    for event, bare in zip(found, charged(cost, "public", Poisson(0.2), rounds=10, participations=2), strict=True):
        assert tightest.epsilon(event, 1e-5) > tightest.epsilon(bare, 1e-5)
    guarantee = price.guarantee((cost,), "public", Poisson(0.2), 8, 10, 2, 1e-5, "secure", once=once)
    assert guarantee.epsilon == min(tightest.epsilon(e, 1e-5) for e in found)
