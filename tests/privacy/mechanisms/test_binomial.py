import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import binom

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy import pairs
from sordino.privacy.mechanisms.binomial import Binomial, BinomialEvent, probabilities
from sordino.privacy.quantise import Bounds, Integers
from sordino.privacy.written import from_json, to_json
from support.integer_laws import chi_square, shifted

TWO = Bounds(dim=500, l1=4, l2_squared=4, linf=2)


def p_value(x: np.ndarray, trials: int) -> float:
    k = np.arange(trials + 1)
    return chi_square(x, k - trials // 2, binom.pmf(k, trials, 0.5))


@pytest.mark.parametrize("rng", [Stream.research(7), Stream(bytes(range(32)), True)], ids=["research", "secure"])
def test_noise_has_the_promised_scale_and_no_other(rng):
    rows = Integers(torch.full((200, 500), 0), TWO)
    rows.value[:, 3] = -2
    mechanism = Binomial(4.0)
    noise = (mechanism.add(rows, rng.rows(range(200))) - rows.value).flatten().numpy()
    assert mechanism.trials(TWO) == 256 and mechanism.variance(TWO) == 64.0 == (4.0 * 2) ** 2
    assert p_value(noise, 256) > 1e-3  # follows the bound
    assert p_value(noise, 282) < 1e-3 and p_value(noise, 232) < 1e-3  # five per cent of the deviation
    assert p_value(noise, 64) < 1e-3 and p_value(noise + 1, 256) < 1e-3


@pytest.mark.parametrize(("trials", "shift"), [(40, 1), (40, 7), (1000, 3), (6, 9)])
def test_the_pair_of_one_coordinate_is_exact_with_its_ends(trials, shift):
    event = BinomialEvent(trials, 1, shift, shift, shift, 1e-6)
    p, q = shifted(binom.pmf(np.arange(trials + 1), trials, 0.5), shift)
    for epsilon in (-0.5, 0.0, 0.3, 1.0, 3.0, 30.0):
        right = np.maximum(p - np.exp(epsilon) * q, 0).sum()
        assert pairs.delta(event.pair(), epsilon) == pytest.approx(right, rel=1e-9, abs=1e-14)
    ends = binom.cdf(shift - 1, trials, 0.5)  # no epsilon hides the outcomes that only one side has
    assert pairs.delta(event.pair(), 700.0) == pytest.approx(ends, rel=1e-6)
    assert event.renyi(np.array([2.0])) is None and event.pure() is None
    smaller = BinomialEvent(trials, 1, shift, shift, max(1, shift - 1), 1e-6)
    assert pairs.delta(smaller.pair(), 0.3) <= pairs.delta(event.pair(), 0.3) + 1e-15


def test_probabilities_are_those_of_scipy_at_any_size():
    for trials in (2, 10, 10_000, 1_000_000):
        k, mass = probabilities(trials)
        some = mass > 1e-250
        assert mass[some] == pytest.approx(binom.pmf(trials // 2 + k[some], trials, 0.5), rel=1e-7)


@pytest.mark.parametrize(("trials", "shift"), [(4_000, 1), (40_000, 10), (400_000, 30)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_both_bounds_lie_above_the_exact_epsilon(trials, shift, delta):
    event = BinomialEvent(trials, 1, shift, shift, shift, delta)
    assert event.ours() <= event.published() < math.inf
    assert pairs.delta(event.pair(), event.published()) <= delta
    assert pairs.delta(event.pair(), event.ours()) <= delta
    assert pairs.delta(event.pair(), event.ours() / 1.5) > delta  # and two thirds would be too little
    half = BinomialEvent(trials // 4, 1, shift, shift, shift, delta)
    assert pairs.delta(half.pair(), event.ours()) > delta  # half the noise is caught


def test_two_coordinates_are_bounded_too():
    trials, delta = 2_000, 1e-3
    event = BinomialEvent(trials, 2, 6, math.hypot(4, 2), 4, delta)
    mass = binom.pmf(np.arange(trials // 2 - 160, trials // 2 + 161), trials, 0.5)
    (p1, q1), (p2, q2) = shifted(mass, 4), shifted(mass, 2)
    p, q = np.outer(p1, p2), np.outer(q1, q2)
    assert np.maximum(p - math.exp(event.epsilon()) * q, 0).sum() <= delta and event.epsilon() == event.ours()
    assert np.maximum(p - math.exp(event.epsilon() / 1.5) * q, 0).sum() > delta
    assert pairs.delta(event.pair(), event.epsilon()) == pytest.approx(delta, rel=1e-9)


def test_the_price_is_the_formula_of_the_paper():
    """Equation (7) with b = 1/3, c = 7 sqrt(2)/4, d = 2/3 written out once more."""
    n, d, l1, l2, linf, delta = 4000, 20, 9.0, 5.0, 3, 1e-5
    v = n / 4
    right = (
        l2 * math.sqrt(2 * math.log(1.25 / delta)) / math.sqrt(v)
        + (l2 * 1.75 * math.sqrt(2) * math.sqrt(math.log(10 / delta)) + l1 / 3) / (v * (1 - delta / 10))
        + (2 / 3 * linf * math.log(1.25 / delta) + linf * 2 / 3 * math.log(20 * d / delta) * math.log(10 / delta)) / v
    )
    assert BinomialEvent(n, d, l1, l2, linf, delta).published() == pytest.approx(right, rel=1e-13)


def test_our_price_is_the_formula_of_the_docstring():
    n, d, l1, l2, linf, delta = 4000, 20, 90.0, 5.0, 3, 1e-5
    far = math.sqrt(n / 2 * math.log(2 * d / (delta / 10)))
    assert 2 * d * math.exp(-2 * far**2 / n) == pytest.approx(delta / 10)
    t = (far + linf) / 2000.5
    extra = l1 * 2 / 3 * t**3 / (1 - t**2)
    assert math.atanh(t) - t <= t**3 / (3 * (1 - t**2)) and 0.04 < extra < 1

    def cost(a: float) -> float:
        return a * l2**2 / (2 * n / 4) + extra + math.log1p(-1 / a) - math.log(0.9 * delta * a) / (a - 1)

    best = minimize_scalar(cost, bounds=(1.01, 1000), method="bounded", options={"xatol": 1e-9})
    ours = BinomialEvent(n, d, l1, l2, linf, delta).ours()
    assert best.fun <= ours * (1 + 1e-12) and ours == pytest.approx(best.fun, rel=1e-4)  # a grid of orders


def test_events_say_what_was_added_and_travel():
    event = Binomial(20.0, delta=1e-5).event(TWO)
    assert (event.trials, event.dim, event.linf, event.delta) == (6400, 500, 2, 1e-5)
    assert 0 < event.distance < 1e-30 and from_json(to_json(event)) == event
    assert event.grouped(2).epsilon() > 2 * event.epsilon() > 0 and event.grouped(2).linf == 4


@pytest.mark.parametrize("spread", [1, 4, 9, 36])
def test_a_budget_spread_over_many_coordinates_is_covered(spread):
    """d coordinates moved by 12/sqrt(d) each: their losses add up, by convolution of the exact ones."""
    trials, delta, shift = 40_000, 1e-5, 12 // math.isqrt(spread)
    event = BinomialEvent(trials, max(2, spread), spread * shift, 12.0, shift, delta)
    _, mass = probabilities(trials)
    p, q = shifted(mass[mass > 1e-40], shift)
    some = (p > 0) & (q > 0)
    step = 1e-3  # losses rounded down to a grid: a delta below the true one
    at = np.floor((np.log(p[some]) - np.log(q[some])) / step).astype(int)
    one = np.bincount(at - at.min(), weights=p[some])
    total, low = np.ones(1), spread * at.min()
    for _ in range(spread):
        total = np.convolve(total, one)
    loss = step * (low + np.arange(len(total)))
    found = float((total * np.maximum(-np.expm1(event.epsilon() - loss), 0)).sum())
    assert found <= delta
    two_thirds = float((total * np.maximum(-np.expm1(event.epsilon() / 1.5 - loss), 0)).sum())
    assert two_thirds > delta


def test_what_no_bound_covers_is_refused():
    with pytest.raises(SpecError, match="Add more noise"):
        Binomial(1.0).event(TWO)
    with pytest.raises(SpecError, match="even"):
        BinomialEvent(101, 1, 1, 1, 1, 1e-5)
    with pytest.raises(SpecError, match="whole number"):
        BinomialEvent(100.0, 1, 1, 1, 1, 1e-5)


@pytest.mark.parametrize("bad", [0, -1, float("nan"), True, "1", 1.0])
def test_nonsense_is_refused(bad):
    if bad != 1.0 or bad is True:
        with pytest.raises(SpecError, match="noise_multiplier"):
            Binomial(bad)
    with pytest.raises(SpecError, match="delta"):
        Binomial(1.0, delta=bad)
