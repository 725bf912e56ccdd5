import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import logsumexp
from scipy.stats import chisquare

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy import pairs
from sordino.privacy.algebra import grouped
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.exponential import BoundedRange, Exponential, ExponentialEvent
from sordino.privacy.mechanisms.noisy_max import NoisyMax
from sordino.privacy.written import from_json, to_json
from support.reports import bulk

UTILITIES = np.array([0.0, 0.6, 1.5, -0.4, 1.1])
ORDERS = np.array([1.01, 1.5, 2.0, 5.0, 20.0, 300.0])
BOTH = pytest.mark.parametrize("kind", [Exponential, NoisyMax])


def counts(m: Exponential, utilities: np.ndarray, bound: float, n: int = 400_000) -> np.ndarray:
    rows = Bounded(torch.from_numpy(utilities).expand(n, -1), bound, math.inf)
    return np.bincount(m.select(rows, bulk(n, seed=11)).numpy(), minlength=len(utilities))


def sums(monotone: bool, bound: float, seed: int = 0):
    """Sums of units' rows, with and without one more unit that says the most it may: [pairs, 2, candidates]."""
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(4000, 4)) * 10 ** rng.uniform(-1, 1, (4000, 1))
    base = np.abs(base) if monotone else base
    unit = rng.choice([0.0, bound] if monotone else [-bound, bound], size=(4000, 4))
    return np.stack([base, base + unit], axis=1)


def worst(m: Exponential, moved: np.ndarray, bound: float) -> tuple[float, float]:
    """The largest log-ratio and the widest range of log-ratios."""
    loss = np.diff(np.log(m.probabilities(moved, bound)), axis=1)[:, 0]
    return float(np.abs(loss).max()), float(np.ptp(loss, axis=1).max())


@BOTH
@pytest.mark.parametrize(("monotone", "bound"), [(False, 1.0), (False, 0.5), (True, 2.0)])
def test_choices_have_the_promised_law_and_no_other(kind, monotone, bound):
    utilities = UTILITIES + 0.4 if monotone else UTILITIES
    m = kind(2.0, monotone)
    found = counts(m, utilities, bound)
    weights = np.exp(2.0 * utilities / (bound if monotone else 2 * bound))
    right = weights / weights.sum()
    assert_allclose(m.probabilities(utilities, bound), right, rtol=1e-12)
    assert chisquare(found, right * found.sum()).pvalue > 1e-3
    for factor in (0.95, 1.05):
        wrong = weights**factor / (weights**factor).sum()
        assert chisquare(found, wrong * found.sum()).pvalue < 1e-3


def test_extreme_utilities_neither_overflow_nor_surprise():
    m = Exponential(1e3)
    assert_allclose(m.probabilities([1e6, -1e6, 1e6], 1.0), [0.5, 0, 0.5])
    assert (counts(m, np.array([5e5, -5e5, 0.0]), 1.0, 100) == [100, 0, 0]).all()
    assert (counts(Exponential(1.0), np.array([0.0]), 1.0, 10) == [10]).all()


@BOTH
@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_audit_by_probabilities(kind, monotone, epsilon):
    m, bound = kind(epsilon, monotone), 0.7
    claim = m.event().pure()
    ratio, width = worst(m, sums(monotone, bound), bound)
    assert 0.8 * claim < ratio <= claim + 1e-9
    assert 0.99 * claim < width <= claim + 1e-9  # bounded range, and reached
    assert worst(kind(2 * epsilon, monotone), sums(monotone, bound), bound)[0] > 1.5 * claim  # half the noise
    assert worst(m, sums(monotone, 3 * bound), bound)[0] > 2 * claim  # clip not applied
    if monotone:  # signed rows with the factor of monotone ones
        assert worst(m, sums(False, bound), bound)[1] > 1.9 * claim


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_the_pair_dominates_every_bounded_range_and_is_reached(epsilon):
    pair = ExponentialEvent(epsilon).pair()
    levels = np.linspace(-1.1, 1.1, 45) * epsilon
    found = np.array([pairs.delta(pair, level) for level in levels])
    best = np.zeros_like(found)
    for t in np.linspace(0.001, 0.999, 999) * epsilon:  # losses t and t - epsilon
        q = -math.expm1(t - epsilon) / (math.exp(t) - math.exp(t - epsilon))
        best = np.maximum(
            best,
            q * np.maximum(np.exp(t) - np.exp(levels), 0)
            + (1 - q) * np.maximum(np.exp(t - epsilon) - np.exp(levels), 0),
        )
    assert_allclose(found, best, atol=2e-6 * epsilon)
    assert (found >= best - 1e-12).all()
    response = pairs.randomized_response(epsilon)
    assert pairs.delta(response, 0.0) > 1.2 * pairs.delta(pair, 0.0)  # far better than plain epsilon-DP


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_the_pair_dominates_the_mechanism(epsilon):
    m, pair = Exponential(epsilon), ExponentialEvent(epsilon).pair()
    p, q = np.moveaxis(m.probabilities(sums(False, 1.0), 1.0), 1, 0)
    half = np.moveaxis(Exponential(2 * epsilon).probabilities(sums(False, 1.0), 1.0), 1, 0)
    caught = False
    for level in np.linspace(-1, 1, 21) * epsilon:
        top = pairs.delta(pair, level)
        for first, second in ((p, q), (q, p)):
            assert np.maximum(first - np.exp(level) * second, 0).sum(axis=-1).max() <= top + 1e-12
        caught |= bool(np.maximum(half[0] - np.exp(level) * half[1], 0).sum(axis=-1).max() > top + 0.01)
    assert caught


def test_the_pair_is_a_pair():
    pair, loss = BoundedRange(1.3), np.linspace(-2, 2, 401)
    p, q = pair.above(loss)
    assert_allclose(np.add(pair.above(loss), pair.below(loss)), 1, atol=1e-12)
    assert (np.diff(p) <= 1e-15).all() and (np.diff(q) <= 1e-15).all()
    inside = np.abs(loss) < 1.29
    slope = np.gradient(p, loss)[inside] / np.gradient(q, loss)[inside]
    assert_allclose(np.log(slope), loss[inside], atol=1e-3)  # L is the loss: dP = e^L dQ
    assert_allclose(pair.below(-loss), [q, p], atol=1e-12)  # symmetric
    assert_allclose(pair.above(np.array([1.3 - 1e-9]))[0], 0.5e-9 / -math.expm1(-1.3), rtol=1e-6)  # small and precise


@pytest.mark.parametrize("epsilon", [0.02, 0.5, 2.0, 9.0])
def test_renyi_is_the_worst_of_two_points(epsilon):
    event, t = ExponentialEvent(epsilon), np.linspace(0, 1, 20_001)[1:-1, None] * epsilon
    q = -np.expm1(t - epsilon) / (np.exp(t) - np.exp(t - epsilon))
    terms = np.logaddexp(np.log(q) + ORDERS * t, np.log1p(-q) + ORDERS * (t - epsilon))
    worst_case = (terms / (ORDERS - 1)).max(axis=0)
    curve = event.renyi(ORDERS)
    assert_allclose(curve, worst_case, rtol=1e-5, atol=1e-9)
    assert (curve >= worst_case * (1 - 1e-9) - 1e-12).all()
    assert event.rho() == epsilon**2 / 8 and (curve <= event.rho() * ORDERS).all()
    if epsilon <= 0.5:
        assert_allclose(curve[:3], event.rho() * ORDERS[:3], rtol=0.02)


@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_renyi_bounds_the_mechanism(epsilon):
    moved = sums(False, 1.0)
    p, q = np.moveaxis(np.log(Exponential(epsilon).probabilities(moved, 1.0)), 1, 0)
    curve = ExponentialEvent(epsilon).renyi(ORDERS)
    half = np.moveaxis(np.log(Exponential(2 * epsilon).probabilities(moved, 1.0)), 1, 0)
    for order, top in zip(ORDERS, curve, strict=True):

        def largest(first, second, a=order):
            return (logsumexp(a * first + (1 - a) * second, axis=-1) / (a - 1)).max()

        assert max(largest(p, q), largest(q, p)) <= top * (1 + 1e-6) + 1e-12
        assert largest(half[0], half[1]) > top


def test_small_and_large_epsilons():
    assert_allclose(ExponentialEvent(1e-5).renyi(ORDERS), ORDERS * 1.25e-11)
    assert_allclose(ExponentialEvent(1e4).renyi(ORDERS[1:]), 1e4, rtol=1e-2)


@pytest.mark.parametrize("monotone", [False, True])
def test_clip_bounds_what_one_unit_says(monotone):
    m = Exponential(1.0, monotone)
    raw = torch.tensor([[3.0, -6.0, 1.0], [0.1, -0.2, 0.0], [float("nan"), 1.0, 1.0]])
    rows = m.clip(raw, 2.0)
    assert rows.norm == math.inf and rows.bound == 2.0
    assert float(rows.value.abs().max()) <= 2.0 and not rows.value[2].any()
    assert bool((rows.value < 0).any()) != monotone


@BOTH
def test_rows_are_keyed_by_client(kind):
    value, rng, m = torch.zeros(40, 50), Stream.research(1), kind(1.0)
    chosen = m.select(Bounded(value, 1.0, math.inf), rng.rows(range(40)))
    assert len(set(chosen.tolist())) > 10
    assert chosen[7] == m.select(Bounded(value[:1], 1.0, math.inf), rng.rows([7]))[0]


@BOTH
def test_events_travel_and_group(kind):
    event = kind(1.3).event()
    assert from_json(to_json(event)) == event
    assert grouped(event, 2) == type(event)(2.6)
    assert event.pure() == 1.3 and not event.mirrored


@BOTH
def test_what_is_refused(kind):
    rng, name = Stream.research(1).rows([0]), {Exponential: "exponential", NoisyMax: "noisy-max"}[kind]
    for norm in (1, 2):
        with pytest.raises(SpecError, match=f"{name} needs rows clipped in the Linf"):
            kind(1.0).select(Bounded(torch.zeros(1, 2), 1.0, norm), rng)
    with pytest.raises(SpecError, match="finite"):
        kind(1.0).select(Bounded(torch.tensor([[float("nan"), 0.0]]), 1.0, math.inf), rng)
    with pytest.raises(SpecError, match="column"):
        kind(1.0).select(Bounded(torch.zeros(1, 0), 1.0, math.inf), rng)
    with pytest.raises(SpecError, match="negative"):
        kind(1.0, True).select(Bounded(torch.tensor([[-1.0, 0.0]]), 1.0, math.inf), rng)
    for epsilon in (0, -1, float("nan"), float("inf"), True, None):
        with pytest.raises(SpecError, match="epsilon"):
            kind(epsilon)
        with pytest.raises(SpecError, match="epsilon"):
            ExponentialEvent(epsilon)
    with pytest.raises(SpecError, match="monotone"):
        kind(1.0, 1)
    with pytest.raises(SpecError, match="bound"):
        kind(1.0).probabilities([0.0, 1.0], 0.0)
