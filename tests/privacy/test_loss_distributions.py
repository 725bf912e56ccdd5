"""Sums of losses, where they could go wrong: ties, windows, tails, rounding, extremes."""

import math

import numpy as np
import pytest
from scipy.special import expit

from peers import direct
from sordino.core.errors import UnsupportedEvent
from sordino.privacy import loss_distributions, pairs
from sordino.privacy.accountants import gdp, pld, rdp
from sordino.privacy.algebra import parts
from sordino.privacy.events import Approximate, Composed, Pure, Repeated, Sampled, Visible
from sordino.privacy.events import GaussianEvent as Gaussian
from sordino.privacy.mechanisms.laplace import LaplaceEvent
from sordino.privacy.pairs import Shift, diluted, randomized_response

GRIDS = (pld.FINE, pld.ROUGH, pld.SLOPPY)
ABOVE = {pld.FINE: 1e-4, pld.ROUGH: 2e-2, pld.SLOPPY: 0.3}  # how far a grid may lie above the truth, relatively


def response(epsilon):
    keep = float(expit(epsilon))
    return np.array([keep, 1 - keep]), np.array([1 - keep, keep])


def assert_just_above(found, exact, cells, slack=1.0):
    assert found >= exact * (1 - 1e-9) - 1e-12, (found, exact)
    assert found <= exact * (1 + slack * ABOVE[cells]) + 1e-3 * slack * ABOVE[cells], (found, exact)


# --- rounding one loss -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", [Shift(0.7), diluted(Shift(2.0), 0.1), diluted(Shift(2.0), 0.1).reversed(),
                                  randomized_response(0.5, 0.01), LaplaceEvent(2.0).pair()], ids=repr)  # fmt: skip
def test_rounding_keeps_both_masses_and_never_helps_privacy(pair):
    edges = np.linspace(-8, 8, 161)
    one = loss_distributions.rounded(pair, edges)
    assert one.probs.sum() + one.infinite == pytest.approx(1, abs=1e-12)
    under = float(pair.below(edges[:1])[1][0])
    assert (one.probs * np.exp(-edges)).sum() == pytest.approx(
        1 - under - float(pair.above(edges[-1:])[1][0]), abs=2e-3
    )
    for epsilon in (0.0, 0.033, 0.1, 1.0, 3.0):
        rounded = one.infinite - float(one.probs @ np.expm1(np.minimum(epsilon - edges, 0.0)))
        exact = pairs.delta(pair, epsilon)
        assert exact * (1 - 1e-12) <= rounded <= exact + 0.1**2
        if abs(epsilon * 10 - round(epsilon * 10)) < 1e-9:  # a place of the grid: the dots lie on the curve
            assert rounded == pytest.approx(exact, abs=3e-8)  # but for what lies beyond the last


def test_losses_beyond_the_range_of_floats_are_rounded_up():
    """e^loss overflows from 709 on; a cell's mass must then go to its right edge, not to its left one."""
    for z, count in ((0.01, 3), (0.02, 3), (0.0277, 2), (0.005, 3)):
        for cells in GRIDS:
            exact = gdp.epsilon(Repeated(Gaussian(z), count), 1e-5)
            assert_just_above(pld.epsilon(Repeated(Gaussian(z), count), 1e-5, cells), exact, cells)


def test_a_mass_in_the_upper_tail_of_q_keeps_its_digits():
    """P sits at +29.9 where Q has 1e-13: as 1 - (1 - 1e-13) that would be three digits."""
    for epsilon, count, delta in ((29.86605188, 5, 3.768217e-8), (26.66, 286, 0.38), (21.3, 233, 0.16)):
        exact = (
            direct.epsilon(*response(epsilon), count, delta)
            if count < 100
            else count * epsilon + many(epsilon, count, delta)
        )
        for cells in GRIDS:
            assert_just_above(
                loss_distributions.epsilon([randomized_response(epsilon)], [count], delta, cells), exact, cells
            )


def many(epsilon, count, delta):
    """ln(1 - delta/p), for the largest sum alone: the next one is e^-2 epsilon rarer than matters."""
    return math.log1p(-delta / float(expit(epsilon)) ** count)


# --- ties and windows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "epsilon", [0.1, 1.0, 10.0, float(loss_distributions.SIZES[np.searchsorted(loss_distributions.SIZES, 0.2)]), 0.0093]
)
@pytest.mark.parametrize("count", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 11, 30))])
def test_few_responses_whatever_delta(epsilon, count):
    """delta around the chance of the largest sum: the answer may lie far below it, outside of a window around it."""
    top = float(expit(epsilon)) ** count
    for i, share in enumerate((1.05, 0.9999, 0.9, 0.83, 0.5, 0.01, 1e-6)):
        delta, cells = min(share * top, 0.99), GRIDS[(i + count) % 3]
        exact = direct.epsilon(*response(epsilon), count, delta)
        assert_just_above(
            loss_distributions.epsilon([randomized_response(epsilon)], [count], delta, cells), exact, cells, 3.0
        )


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_few_releases_of_laplace_noise(scale):
    """Half of the mass at a loss that is a round number."""
    for count, delta in ((16, 1e-5), (13, 1e-5), (3, 0.1), (20, 1e-6)):
        event = Repeated(LaplaceEvent(scale), count)
        assert 0.8 * rdp.epsilon(event, delta) - 1e-3 <= pld.epsilon(event, delta) <= rdp.epsilon(event, delta)


@pytest.mark.parametrize("seed", range(4))
def test_random_responses(seed):
    rng = np.random.default_rng(seed)
    for _ in range(25):
        epsilon, count = float(10 ** rng.uniform(-3, 1)), int(10 ** rng.uniform(0.31, 1.9))
        p, q = response(epsilon)
        if rng.random() < 0.5:
            rate = float(10 ** rng.uniform(-2, 0))
            p = rate * p + (1 - rate) * q
        pair = pairs.Atoms.of(p, q)
        delta = (
            float(10 ** rng.uniform(-8, -0.5))
            if rng.random() < 0.5
            else min(0.9, p[0] ** count * rng.uniform(0.1, 1.2))
        )
        if delta < 1e-11:
            continue
        exact = direct.epsilon(p, q, count, delta)
        assert_just_above(loss_distributions.epsilon([pair], [count], delta), exact, pld.FINE, 3.0)
        back = direct.delta(p, q, count, exact * 0.9)
        assert loss_distributions.delta([pair], [count], exact * 0.9) >= back * (1 - 1e-8) - 1e-14


def test_a_large_delta_means_no_epsilon():
    for pair in (Shift(0.1), diluted(Shift(1.0), 0.01), randomized_response(0.01)):
        for delta in (0.5, 0.99, 1 - 1e-12):
            assert loss_distributions.epsilon([pair], [5], delta) == 0.0
    assert loss_distributions.epsilon([Shift(3.0)], [4], 0.999) == pytest.approx(
        gdp.epsilon_of_mu(6.0, 0.999), rel=1e-4
    )


# --- tails -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.3, 1e-6, 1e-20, 1e-60, 1e-150])
@pytest.mark.parametrize(
    ("mu", "count"), [(1e-4, 100), (0.02, 10**5), (0.9, 10), (0.9, 7 * 10**6), (30.0, 400), (300.0, 50)]
)
def test_gaussians_add_up_to_gaussians(mu, count, delta):
    exact = gdp.epsilon_of_mu(mu, delta)
    for cells in GRIDS[:2]:
        found = loss_distributions.epsilon([Shift(mu / math.sqrt(count))], [count], delta, cells)
        assert exact * (1 - 1e-9) <= found <= exact * (1 + 20 * ABOVE[cells]) + 1e-9
    if exact > 0:
        there = loss_distributions.delta([Shift(mu / math.sqrt(count))], [count], exact)
        assert delta * (1 - 1e-6) <= there and (there <= 1.3 * delta or mu > 100)


def test_infinite_losses_near_delta():
    """Approximate DP: of k releases one is a disaster with 1 - (1 - d)^k; a delta below that cannot be had."""
    for share in (1.001, 1.2, 3.0):
        sure = -math.expm1(4 * math.log1p(-1e-6))
        exact = direct.epsilon(
            [*(1 - 1e-6) * response(0.5)[0], 1e-6, 0], [*(1 - 1e-6) * response(0.5)[1], 0, 1e-6], 4, share * sure
        )
        for cells in GRIDS:
            assert_just_above(
                loss_distributions.epsilon([randomized_response(0.5, 1e-6)], [4], share * sure, cells), exact, cells
            )
        assert math.isinf(loss_distributions.epsilon([randomized_response(0.5, 1e-6)], [4], sure / share))
    assert loss_distributions.delta([randomized_response(0.5, 1e-6)], [4], 50.0) == pytest.approx(sure, rel=1e-6)


def test_one_disaster_in_a_long_schedule_is_seen():
    many = [randomized_response(0.1 + 0.001 * i) for i in range(99)]
    for place in (0, 1, 2, 50, 99):
        mixed = [*many[:place], randomized_response(0.1, 0.1), *many[place:]]
        assert loss_distributions.delta(mixed, [1] * 100, 30.0) == pytest.approx(0.1, rel=1e-6)
        assert (
            math.isinf(loss_distributions.epsilon(mixed, [1] * 100, 0.09))
            and loss_distributions.epsilon(mixed, [1] * 100, 0.2) < 5
        )


@pytest.mark.parametrize("place", [0, 37, 50, 99])
def test_one_costly_step_in_a_long_schedule(place):
    """Pairs that stand for their neighbours must not hide it, nor may it spoil the window."""
    steps = [Shift(0.1 - 1e-4 * i) for i in range(100)]
    steps[place] = Shift(2.0)
    exact = gdp.epsilon_of_mu(math.sqrt(sum(s.mu**2 for s in steps)), 1e-5)
    for cells in GRIDS[:2]:
        assert_just_above(loss_distributions.epsilon(steps, [1] * 100, 1e-5, cells), exact, cells)


# --- whatever is asked -----------------------------------------------------------------------------------------------


EXTREMES = [
    (Repeated(Gaussian(1e-3), 3), 1e-5), (Repeated(Gaussian(4e-4), 3), 1e-5), (Repeated(Gaussian(1e5), 10**7), 1e-9),
    (Repeated(Sampled(Gaussian(4e-4), 0.5), 3), 1e-5), (Repeated(Sampled(Gaussian(1e5), 1e-6), 10**7), 1e-12),
    (Repeated(Sampled(Gaussian(1.0), 1 - 1e-15), 100), 1e-5), (Repeated(Sampled(Gaussian(1.0), 1e-300), 9), 1e-5),
    (Repeated(Sampled(Repeated(Gaussian(0.01), 3), 0.5), 3), 1e-5),
    (Repeated(Visible(Gaussian(1.0), 1e-12), 100), 1e-5),
    (Repeated(Pure(100.0), 4), 1e-5), (Repeated(Pure(600.0), 4), 1e-5), (Repeated(Pure(1000.0), 4), 1e-5),
    (Repeated(Sampled(Pure(1000.0), 0.01), 4), 1e-5), (Repeated(Pure(0.0), 7), 1e-5), (Repeated(Pure(1e-12), 7), 1e-15),
    (Repeated(Sampled(Gaussian(1.0), 0.01), 100), 1e-25), (Repeated(Sampled(Gaussian(1.0), 0.01, "replace"), 100), 0.5),
    (Repeated(Sampled(Sampled(Repeated(Sampled(Gaussian(1.0), 0.1), 3), 0.1), 0.1), 100), 1e-7),
    (Composed((Repeated(Gaussian(1000.0), 10**5), Gaussian(0.3))), 1e-6),
    (Composed((Repeated(Sampled(Gaussian(1e4), 1e-3), 10**6), Repeated(Sampled(Gaussian(0.5), 0.5), 2))), 1e-6),
    (Composed((Approximate(0.0, 1e-7), Repeated(Sampled(Gaussian(0.05), 1e-3), 2), Repeated(Pure(1e-4), 10**6))), 1e-5),
    (Repeated(Sampled(Gaussian(2.0), 1e-4), 10**7), 1e-8),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("event", "delta"), EXTREMES, ids=lambda x: str(x)[:70])
def test_extremes_give_a_number_between_two_bounds(event, delta):
    """No exception, no warning, no nan; at least what one of the releases costs; at most RDP, but for the grid."""
    one = max(loss_distributions.epsilon([pld.pair_of(part)], [1], delta) for part in parts(event))
    for cells in GRIDS[:2]:
        found = pld.epsilon(event, delta, cells)
        assert not math.isnan(found) and found >= one * (1 - 1e-9)
        try:
            most = rdp.epsilon(event, delta)
        except UnsupportedEvent:
            continue
        assert found <= most * (1 + ABOVE[cells]) + 1e-6 or most > 1000  # where nobody needs digits
    gaussian = gdp.mu_of(event) if all(isinstance(part, Gaussian) for part in parts(event)) else None
    if gaussian is not None:
        assert found >= gdp.epsilon_of_mu(gaussian, delta) * (1 - 1e-9)


@pytest.mark.parametrize("delta", [1e-310, 1e-300, 1e-220])
def test_a_delta_too_small_to_add_up_is_refused_or_safe(delta):
    event = Repeated(Sampled(Gaussian(1.0), 0.01), 100)
    try:
        assert pld.epsilon(event, delta) >= pld.epsilon(event, 1e-100)
    except UnsupportedEvent as error:
        assert "delta" in str(error)


def test_a_coarser_grid_never_lies_below_a_finer_one_by_more_than_its_own_error():
    for event in (Repeated(Sampled(Gaussian(1.0), 0.05), 20), Repeated(Visible(Gaussian(4.0), 0.3), 20),
                  Repeated(LaplaceEvent(3.0), 50), Repeated(Sampled(Gaussian(3.0), 0.2, "replace"), 30)):  # fmt: skip
        fine, rough, sloppy = (pld.epsilon(event, 1e-6, cells) for cells in GRIDS)
        assert fine * (1 - 1e-5) <= rough <= fine * 1.002 and fine * (1 - 1e-5) <= sloppy <= fine * 1.05
