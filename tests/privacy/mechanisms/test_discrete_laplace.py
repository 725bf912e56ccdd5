import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy import pairs
from sordino.privacy.mechanisms.discrete_laplace import DiscreteLaplace, DiscreteLaplaceEvent
from sordino.privacy.quantise import Bounds, Integers
from sordino.privacy.written import from_json, to_json
from support.integer_laws import chi_square, shifted

ORDERS = np.array([1.001, 1.5, 2.0, 3.3, 8.0, 32.0, 300.0])
FOUR = Bounds(dim=500, l1=4, l2_squared=16, linf=4)


def law(t: float, far: int) -> np.ndarray:
    weight = np.exp(-t * np.abs(np.arange(-far, far + 1)))
    return weight / weight.sum()


def renyi(mass: np.ndarray, by: int) -> np.ndarray:
    p, q = (np.log(m[by : len(mass)]) for m in shifted(mass, by))
    a = ORDERS[:, None]
    return np.logaddexp.reduce(a * p + (1 - a) * q, axis=1) / (ORDERS - 1)


def p_value(x: np.ndarray, t: float) -> float:
    far = int(12 / t)
    return chi_square(x, np.arange(-far, far + 1), law(t, far))


@pytest.mark.parametrize("rng", [Stream.research(7), Stream(bytes(range(32)), True)], ids=["research", "secure"])
def test_noise_has_the_promised_scale_and_no_other(rng):
    rows = Integers(torch.full((200, 500), 0), FOUR)
    rows.value[:, 3] = -4
    noise = (DiscreteLaplace(0.8).add(rows, rng.rows(range(200))) - rows.value).flatten().numpy()
    assert p_value(noise, 0.2) > 1e-3  # follows the bound
    for wrong in (1.05, 1 / 1.05, 2.0):
        assert p_value(noise, 0.2 * wrong) < 1e-3
    assert p_value(noise + 1, 0.2) < 1e-3
    assert float(noise.astype(float).var()) == pytest.approx(DiscreteLaplace(0.8).variance(FOUR), rel=0.03)


@pytest.mark.parametrize(("epsilon", "l1"), [(0.5, 1), (1.0, 3), (4.0, 2), (2.0, 50)])
def test_the_curve_and_the_pair_are_exact(epsilon, l1):
    event, mass = DiscreteLaplaceEvent(epsilon, l1), law(epsilon / l1, int(60 * l1 / epsilon) + l1)
    assert event.renyi(ORDERS) == pytest.approx(renyi(mass, l1), rel=1e-8)
    assert event.pure() == epsilon and (event.renyi(ORDERS) <= epsilon).all()
    p, q = shifted(mass, l1)
    for e in np.linspace(-0.3, 1.1 * epsilon, 23):
        assert pairs.delta(event.pair(), e) == pytest.approx(np.maximum(p - np.exp(e) * q, 0).sum(), abs=1e-12)
    wrong = law(2 * epsilon / l1, 60 * l1)  # half the noise
    assert (renyi(wrong, l1) > event.renyi(ORDERS) * 1.3).all() or epsilon > 3
    assert (renyi(mass, l1 + 1) > event.renyi(ORDERS)).all()  # a shift that is one too far


def test_one_coordinate_is_the_worst_way_to_spend_an_l1_budget():
    """Against the sum over the plane: hockey sticks and Renyi divergences of (3, 2), (4, 1), ... below those of (5)."""
    t, far = 0.3, 90
    mass = law(t, far)
    event = DiscreteLaplaceEvent(5 * t, 5)
    for a, b in ((4, 1), (3, 2)):
        (p1, q1), (p2, q2) = shifted(mass, a), shifted(mass, b)
        p, q = np.outer(p1, p2).ravel(), np.outer(q1, q2).ravel()
        both = [float(np.maximum(p - np.exp(e) * q, 0).sum()) for e in np.linspace(-1.4, 1.4, 15)]
        one = [pairs.delta(event.pair(), e) for e in np.linspace(-1.4, 1.4, 15)]
        assert all(x <= y + 1e-11 for x, y in zip(both, one, strict=True)) and both[7] < 0.95 * one[7]
        # the closed form of the docstring at a corner: l = t(a + b - 2j), j = 1
        corner = float(np.maximum(p - np.exp(3 * t) * q, 0).sum())
        assert corner == pytest.approx(1 - math.exp(-t) * (1 + math.tanh(t / 2)), abs=1e-10)
        assert (renyi(mass, a) + renyi(mass, b) < event.renyi(ORDERS)).all()


def test_a_larger_shift_costs_more():
    curves = [DiscreteLaplaceEvent(0.2 * j, j).renyi(ORDERS) for j in range(1, 9)]
    assert all((a < b).all() for a, b in pairwise(curves))


def test_extreme_settings_give_numbers():
    for epsilon, l1 in ((1e-9, 1), (900.0, 1), (5.0, 10**9), (1e-6, 10**7)):
        curve = DiscreteLaplaceEvent(epsilon, l1).renyi(ORDERS)
        assert np.isfinite(curve).all() and (curve >= 0).all() and (curve <= epsilon).all()
        assert (curve <= ORDERS * epsilon**2 / 2 * (1 + 1e-6) + 1e-12).all()  # eps-DP is eps^2/2-zCDP
        assert 0 <= pairs.delta(DiscreteLaplaceEvent(epsilon, l1).pair(), epsilon / 2) <= 1


def test_events_say_what_was_added_and_travel():
    event = DiscreteLaplace(0.8).event(FOUR)
    assert (event.epsilon, event.l1) == (0.8, 4) and 0 < event.distance < 1e-30
    assert from_json(to_json(event)) == event
    assert event.grouped(3) == DiscreteLaplaceEvent(3 * 0.8, 12, event.distance)


@pytest.mark.parametrize("epsilon", [0, -1, float("nan"), float("inf"), True, "1"])
def test_no_noise_is_not_a_mechanism(epsilon):
    with pytest.raises(SpecError, match="epsilon"):
        DiscreteLaplace(epsilon)
    with pytest.raises(SpecError, match="whole number"):
        DiscreteLaplaceEvent(1.0, 1.5)
