"""Golden values (exact limits of finer and finer grids), and hockey sticks by integration."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from sordino.core.errors import UnsupportedEvent
from sordino.privacy import pairs
from sordino.privacy.accountants import gdp, kov, pld
from sordino.privacy.events import Approximate, Composed, FixedSize, GaussianEvent, Pure, Repeated, Sampled, Visible

GOLDEN = [
    (1.0, 0.01, 1000, 1e-5, 1.82823666593),
    (1.1, 0.004266666667, 14062, 1e-5, 2.38159692937),
    (2.0, 0.05, 300, 1e-5, 1.92856780804),
    (0.8, 0.02, 500, 1e-5, 4.66801175287),
    (4.0, 0.1, 1000, 1e-6, 3.86883250946),
    (0.5, 0.001, 1, 1e-6, 1.08523570956),
]
REPLACED = [(1, 0.01, 1000, 2.84344027055), (2, 0.05, 300, 3.71087788108)]
HALVED = [(1, 0.01, 1000, 13.3608256901), (2, 0.05, 300, 5.79531325134)]


@pytest.mark.parametrize(("z", "rate", "steps", "delta", "value"), GOLDEN)
def test_sampled_gaussian(z, rate, steps, delta, value):
    event = Repeated(Sampled(GaussianEvent(z), rate), steps)
    assert value - 1e-8 <= pld.epsilon(event, delta) <= value + 5e-6
    assert value <= pld.epsilon(event, delta, pld.ROUGH) <= value * 1.002 or steps == 1
    assert pld.delta(event, value) == pytest.approx(delta, rel=1e-4)


@pytest.mark.parametrize(("z", "rate", "steps", "delta"), [(0.5, 1e-4, 10, 1e-5), (0.5, 1e-6, 100, 1e-12)])
def test_a_fine_grid_is_never_above_the_rough_one_on_which_noise_is_calibrated(z, rate, steps, delta):
    event = Repeated(Sampled(GaussianEvent(z), rate), steps)
    assert 0 < pld.epsilon(event, delta) <= pld.epsilon(event, delta, pld.ROUGH)


@pytest.mark.parametrize(
    ("z", "rate", "steps", "value"), [(1, 0.01, 1000, 2.84344027055), (2, 0.05, 300, 3.71087788108)]
)
def test_a_replaced_record_of_a_poisson_sample(z, rate, steps, value):
    event = Repeated(Sampled(GaussianEvent(z), rate, "replace"), steps)
    assert value - 1e-8 <= pld.epsilon(event, 1e-5) <= value + 5e-6


@pytest.mark.parametrize(
    ("z", "rate", "steps", "value"), [(1, 0.01, 1000, 13.3608256901), (2, 0.05, 300, 5.79531325134)]
)
def test_half_the_noise_is_another_question(z, rate, steps, value):
    assert pld.epsilon(Repeated(Sampled(GaussianEvent(z / 2), rate), steps), 1e-5) == pytest.approx(value, rel=1e-5)


def local_round(z, rate, steps):
    return Repeated(Sampled(GaussianEvent(z), rate), steps)


def test_whole_rounds_are_sampled():
    """Client rate 0.1, 20 local steps at record rate 0.05, z = 1, 30 rounds: 8.29 to the server, 0.81 hidden."""
    one = local_round(1.0, 0.05, 20)
    assert round(pld.epsilon(Repeated(Sampled(one, 0.1), 30), 1e-5), 2) == 0.81
    assert round(pld.epsilon(Repeated(one, 30), 1e-5), 2) == 8.29


def test_one_sampled_round():
    assert round(pld.epsilon(Sampled(local_round(0.8, 0.1, 50), 0.05), 1e-5), 2) == 3.32


@pytest.mark.parametrize(("z", "steps", "rate"), [(3.0, 9, 0.1), (1.0, 4, 0.4), (0.3, 2, 0.1), (30.0, 9, 0.02)])
def test_a_sampled_round_of_gaussians_is_one_sampled_gaussian(z, steps, rate):
    """n Gaussians of multiplier z are one of z / sqrt(n), so the grid inside can be checked against none."""
    inside = Sampled(Repeated(GaussianEvent(z), steps), rate)
    outright = Sampled(GaussianEvent(z / steps**0.5), rate)
    for count, delta in ((1, 1e-5), (10, 1e-3), (10, 1e-9)):
        exact = pld.epsilon(Repeated(outright, count), delta)
        assert exact * (1 - 1e-7) <= pld.epsilon(Repeated(inside, count), delta) <= exact * (1 + 1e-4) + 1e-9


def hockey_stick(p, q, epsilon, low=-40.0, high=40.0):
    """Integral of max(0, p - e^eps q), numerically."""
    at = np.linspace(low, high, 400_001)
    return float(np.trapezoid(np.maximum(0.0, p(at) - np.exp(epsilon) * q(at)), at))


@pytest.mark.parametrize(("z", "rate"), [(1.0, 0.1), (0.7, 0.4)])
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0])
def test_one_sampled_release_is_the_integral_of_its_densities(z, rate, epsilon):
    without = norm(0, z).pdf
    with_unit = lambda x: (1 - rate) * norm(0, z).pdf(x) + rate * norm(1, z).pdf(x)  # noqa: E731
    other = lambda x: (1 - rate) * norm(0, z).pdf(x) + rate * norm(-1, z).pdf(x)  # noqa: E731
    exact = max(hockey_stick(with_unit, without, epsilon), hockey_stick(without, with_unit, epsilon))
    assert pld.delta(Sampled(GaussianEvent(z), rate), epsilon) == pytest.approx(exact, rel=1e-5, abs=1e-9)
    exact = hockey_stick(with_unit, other, epsilon)
    assert pld.delta(Sampled(GaussianEvent(z), rate, "replace"), epsilon) == pytest.approx(exact, rel=1e-5, abs=1e-9)


def test_without_replacement_one_release_is_the_amplified_one():
    """eps' = ln(1 + (m/n)(e^eps - 1)), delta' = (m/n) delta (Balle, Barthe, Gaboardi 2018)."""
    for epsilon in (0.1, 1.0, 3.0):
        inner = gdp.delta_of_mu(1.0, epsilon)
        found = pld.delta(FixedSize(GaussianEvent(1.0), 10, 100), float(np.log1p(0.1 * np.expm1(epsilon))))
        assert found == pytest.approx(0.1 * inner, rel=1e-9)


def test_without_replacement_bounds_what_a_sample_really_does():
    """One of two records, the other at 0, a third that is replaced from +1 to -1: exact mixtures of normals."""
    for z in (0.7, 2.0):
        p = lambda x, z=z: 0.5 * norm(0, z).pdf(x) + 0.5 * norm(1, z).pdf(x)  # noqa: E731
        q = lambda x, z=z: 0.5 * norm(0, z).pdf(x) + 0.5 * norm(-1, z).pdf(x)  # noqa: E731
        for epsilon in (0.1, 0.5, 1.5):
            bound = pld.delta(FixedSize(GaussianEvent(z / 2), 1, 2), epsilon)
            assert hockey_stick(p, q, epsilon) <= bound * (1 + 1e-9)


def test_visible_mixes_the_deltas():
    """delta(eps) = rate * delta_event(eps) for one round (joint convexity)."""
    for epsilon in (0.5, 1.0, 2.0, 3.0):
        exact = 0.1 * gdp.delta_of_mu(1.0, epsilon)
        assert pld.delta(Visible(GaussianEvent(1.0), 0.1), epsilon) == pytest.approx(exact, rel=1e-9)


def test_a_drawn_client_shows_that_it_was_drawn():
    """THE COUNTEREXAMPLE of events.Visible.

    A client is drawn with probability 0.1; its other 1000 records add up to 1000 and make its presence visible.
    With and without one more record the released sum is 0.9 N(0,1) + 0.1 N(1001,1) or 0.9 N(0,1) + 0.1 N(1000,1).
    """
    delta, rate = 1e-5, 0.1

    def exact(epsilon):
        """The two humps do not overlap, so each adds its own hockey stick; the first is the same in both."""
        near = quad(
            lambda x: max(0.0, rate * norm.pdf(x, 1001) - np.exp(epsilon) * rate * norm.pdf(x, 1000)),
            980, 1021, points=[1000.5 + epsilon], limit=500, epsabs=1e-12,
        )[0]  # fmt: skip
        return near

    assert exact(1.0) == pytest.approx(rate * gdp.delta_of_mu(1.0, 1.0), rel=1e-6)
    too_low = pld.epsilon(Sampled(GaussianEvent(1.0), rate), delta)
    right = pld.epsilon(Visible(GaussianEvent(1.0), rate), delta)
    assert exact(too_low) > 1.5 * delta  # Sampled would promise what does not hold
    assert exact(right) <= delta * (1 + 1e-3)
    assert exact(right - 0.01) > delta  # and Visible is not merely large


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-10, 1e-30, 1e-100])
@pytest.mark.parametrize("mu", [1e-4, 0.3, 3.0, 40.0])
def test_composition_is_exact_for_gaussians_however_small_delta(mu, delta):
    """The grid knows nothing of normal laws: 25 releases of mu/5 must come out as one of mu."""
    exact = gdp.epsilon_of_mu(mu, delta)
    found = pld.epsilon(Repeated(GaussianEvent(5 / mu), 25), delta)
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-4) + 1e-12


def test_ten_million_steps():
    assert 0.85 < pld.epsilon(Repeated(Sampled(GaussianEvent(2.0), 1e-4), 10**7), 1e-8) <= 0.905


def test_atoms_compose_exactly():
    """Randomized response is all atoms: the k-fold sum by hand, sampled and not, both directions."""
    for epsilon, rate, count in ((0.5, 1.0, 8), (1.0, 0.2, 6)):
        p = np.array([1.0])
        one = pairs.randomized_response(epsilon)
        one = pairs.diluted(one, rate)
        keep = (one.p > 0) & (one.q > 0)
        p1, q1 = one.p[keep], one.q[keep]
        p, q = p1, q1
        for _ in range(count - 1):
            p, q = np.outer(p, p1).ravel(), np.outer(q, q1).ravel()
        for at in (0.03, 0.4, 1.0, 1.1):  # 1.0 is itself a sum: there the curve has a corner, which rounding fills
            exact = max(np.maximum(p - np.exp(at) * q, 0).sum(), np.maximum(q - np.exp(at) * p, 0).sum())
            found = pld.delta(Repeated(Sampled(Pure(epsilon), rate), count), at)
            assert exact * (1 - 1e-9) <= found <= exact * (1 + (1e-3 if at == 1.0 else 1e-6))


@pytest.mark.parametrize(
    ("epsilon", "count", "delta"),
    [
        (1, 3, 0.39),
        (1, 50, 1e-5),
        (0.1, 16, 1e-3),
        (10, 2, 0.5),
        (100, 2, 1e-5),
        (100, 10, 1e-5),
        (29.86605188, 5, 3.768e-8),
    ],
)
def test_a_sum_that_is_often_the_largest_possible_one(epsilon, count, delta):
    """The window must not lie above the answer: kov has no grid."""
    exact = kov.epsilon(Repeated(Pure(epsilon), count), delta)
    assert exact * (1 - 1e-9) <= pld.epsilon(Repeated(Pure(epsilon), count), delta) <= exact * (1 + 1e-4)


@pytest.mark.parametrize(("epsilon", "count"), [(0.3, 20), (500.0, 2), (700.0, 10)])
@pytest.mark.parametrize("cells", [pld.FINE, pld.ROUGH, pld.SLOPPY])
def test_releases_of_which_only_epsilon_and_delta_are_known(epsilon, count, cells):
    exact = kov.of_steps(epsilon, 5e-7, count, 1e-4)
    found = pld.epsilon(Repeated(Approximate(epsilon, 5e-7), count), 1e-4, cells)
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 0.1 * cells)


@pytest.mark.parametrize("position", [0, 37, 99])
def test_one_costly_step_in_a_long_schedule(position):
    steps = [Sampled(GaussianEvent(10 + 0.01 * i), 0.05) for i in range(100)]
    steps[position] = Sampled(GaussianEvent(0.5), 0.05)
    alone, smooth = (
        pld.epsilon(steps[position], 1e-5),
        pld.epsilon(Repeated(Sampled(GaussianEvent(10), 0.05), 99), 1e-5),
    )
    assert alone < pld.epsilon(Composed(tuple(steps)), 1e-5) < alone + smooth


@pytest.mark.parametrize(("z", "count"), [(0.01, 3), (0.02, 3), (0.0277, 2)])
def test_losses_beyond_the_range_of_e_to_them(z, count):
    exact = gdp.epsilon(Repeated(GaussianEvent(z), count), 1e-5)
    assert exact * (1 - 1e-9) <= pld.epsilon(Repeated(GaussianEvent(z), count), 1e-5) <= exact * (1 + 1e-3)


def test_what_has_no_pair_is_refused():
    with pytest.raises(UnsupportedEvent, match="replaced"):
        pld.epsilon(Sampled(FixedSize(GaussianEvent(1.0), 1, 10), 0.5), 1e-5)
