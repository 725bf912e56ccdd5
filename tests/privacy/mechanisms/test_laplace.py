from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.stats import kstest, laplace

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy import pairs
from sordino.privacy.algebra import grouped
from sordino.privacy.clip import Bounded, clip_rows
from sordino.privacy.mechanisms.laplace import Laplace, LaplaceEvent, LaplaceL2Event, LaplacePair
from sordino.privacy.written import from_json, to_json

ORDERS = np.array([1.01, 1.5, 2.0, 3.7, 8.0, 32.0, 256.0])


def hockey_stick(event_scale: float, shift: float, epsilon: float) -> float:
    """By quadrature, piece by piece between the kinks."""
    b = event_scale

    def over(x: float) -> float:
        p, q = laplace.pdf(x, 0, b), laplace.pdf(x, shift, b)
        return max(0.0, p - np.exp(epsilon) * q)

    cut = (shift - b * epsilon) / 2  # where the two sides cross
    ends = sorted({-50 * b, 0.0, min(max(cut, 0.0), shift), shift, shift + 50 * b})
    return sum(quad(over, lo, hi, epsabs=1e-13)[0] for lo, hi in pairwise(ends))


@pytest.mark.parametrize("rng", [Stream.research(7), Stream(bytes(range(32)), True)], ids=["research", "secure"])
@pytest.mark.parametrize(("norm", "bound"), [(1, 1.0), (2, 0.25)])
def test_noise_has_the_promised_scale_and_no_other(rng, norm, bound):
    rows = Bounded(torch.full((2, 20_000), 3.0, dtype=torch.float64), bound, norm)
    x = (Laplace(1.3, norm).add(rows, rng.rows([4, 9])) - 3.0).flatten().numpy()
    assert kstest(x, lambda t: Laplace(1.3).cdf(t, bound)).pvalue > 1e-3
    assert kstest(x, laplace(scale=1.3 * bound).cdf).pvalue > 1e-3
    assert kstest(x, laplace(scale=1.3 * bound * 1.05).cdf).pvalue < 1e-3
    assert kstest(x, laplace(scale=1.3 * bound * 0.95).cdf).pvalue < 1e-3


def test_density_cdf_and_variance_belong_together():
    m = Laplace(0.7)
    assert_allclose(quad(lambda x: m.density(x, 2.0), -60, 60, points=[0], limit=200)[0], 1, rtol=1e-9)
    assert_allclose(quad(lambda x: m.density(x, 2.0), -60, 0.4, points=[0], limit=200)[0], m.cdf(0.4, 2.0), rtol=1e-9)
    assert_allclose(quad(lambda x: x * x * m.density(x, 2.0), -90, 90, points=[0], limit=200)[0], m.variance(2.0))
    assert 0 < m.cdf(-300.0, 1.0) < 1e-180  # the lower tail keeps its digits


@pytest.mark.parametrize(
    ("order", "b", "golden"),
    [
        (2, 1, 0.619123629999),
        (4, 2, 0.320926530179),
        (8, 20, 0.0096190580346),
        (1.5, 1, 0.512883511295),
        (32, 10, 0.0782057585889),
    ],
)
def test_renyi_golden_values(order, b, golden):
    assert_allclose(LaplaceEvent(b).renyi(np.array([float(order)]))[0], golden, rtol=1e-9)


@pytest.mark.parametrize("b", [0.3, 1.0, 6.0])
@pytest.mark.parametrize("order", [1.2, 2.0, 7.5])
def test_renyi_is_the_integral(b, order):
    def tilted(x: float) -> float:
        return np.exp(order * laplace.logpdf(x, 0, b) + (1 - order) * laplace.logpdf(x, 1, b))

    whole = sum(quad(tilted, *ends, epsabs=1e-14)[0] for ends in [(-60 * b, 0), (0, 1), (1, 1 + 60 * b)])
    assert_allclose(LaplaceEvent(b).renyi(np.array([order]))[0], np.log(whole) / (order - 1), rtol=1e-8)


def test_renyi_neither_overflows_nor_loses_its_digits():
    assert_allclose(LaplaceEvent(1e-6).renyi(ORDERS), 1e6, rtol=1e-4)
    assert np.isfinite(LaplaceEvent(1e-300).renyi(np.array([1.5, 1e6]))).all()
    assert_allclose(LaplaceEvent(1e5).renyi(ORDERS[:6]), ORDERS[:6] * 0.5e-10, rtol=1e-3)  # a s^2/2 to first order
    near = LaplaceEvent(2.0).renyi(np.array([1 + 1e-7]))[0]
    assert_allclose(near, 0.5 + np.expm1(-0.5), rtol=1e-6)


def test_the_pair_has_the_golden_delta_and_its_atoms():
    pair = LaplaceEvent(1.0).pair()
    assert_allclose(pairs.delta(pair, 0.5), 0.221199216929, rtol=1e-9)
    at = np.array([1.0, np.nextafter(1.0, 0), -1.0, np.nextafter(-1.0, -2)])
    p, q = pair.above(at)
    assert_allclose(p, [0, 0.5, 1 - np.exp(-1) / 2, 1], rtol=1e-12)
    assert_allclose(q, [0, np.exp(-1) / 2, 0.5, 1], rtol=1e-12)
    assert_allclose(np.add(pair.above(at), pair.below(at)), 1)
    assert pair.reversed() is pair and pair.symmetric


@pytest.mark.parametrize("b", [0.4, 1.0, 5.0])
def test_the_pair_is_the_hockey_stick_and_half_the_noise_is_not(b):
    pair = LaplaceEvent(b).pair()
    for epsilon in np.array([-0.7, 0.0, 0.3, 0.9, 1.2]) / b:
        assert_allclose(pairs.delta(pair, epsilon), hockey_stick(b, 1.0, epsilon), atol=1e-8)
    assert hockey_stick(b / 2, 1.0, 0.3 / b) > pairs.delta(pair, 0.3 / b) + 0.01


def test_losses_agree_with_draws():
    b, loss = 0.8, np.linspace(-1.3, 1.3, 27)
    x = laplace(scale=b).rvs(200_000, random_state=1)
    drawn = (np.abs(x - 1) - np.abs(x)) / b
    empirical = (drawn[:, None] > loss + 1e-12).mean(axis=0)
    assert_allclose(LaplacePair(1 / b).above(loss)[0], empirical, atol=0.006)


def test_one_coordinate_dominates_two():
    """The two formulas of the docstring, by another road: the product's hockey stick integrated over one loss."""
    for h1, h2 in [(0.5, 0.5), (0.9, 0.1), (2.0, 1.0)]:
        second, whole = LaplacePair(h2), LaplacePair(h1 + h2)
        grid = np.linspace(-h1, h1, 20_001)
        middle = (grid[1:] + grid[:-1]) / 2
        weight = np.exp((grid - h1) / 2) / 2  # P(L <= grid), atoms apart
        for loss in np.linspace(-(h1 + h2) * 0.95, (h1 + h2) * 0.95, 9):
            inner = np.array([pairs.delta(second, loss - m) for m in (h1, -h1)])
            p, q = second.above(loss - middle)
            sticks = p - np.exp(loss - middle) * q
            product = inner[0] / 2 + inner[1] * np.exp(-h1) / 2 + sticks @ np.diff(weight)
            one = pairs.delta(whole, loss)
            assert product <= one + 1e-7
            if abs(loss) <= h1 - h2:
                assert_allclose(product, 1 - np.exp((loss - h1 - h2) / 2) * (1 + h2 / 2), atol=1e-6)
            elif loss > 0:
                assert_allclose(product, 1 - np.exp((loss - h1 - h2) / 2) * (1 + (h1 + h2 - loss) / 4), atol=1e-6)


def test_an_l2_clip_costs_the_gaussian_curve_in_every_dimension():
    event, order = LaplaceL2Event(4.0), np.array([32.0])
    one = [d * LaplaceEvent(4.0 * np.sqrt(d)).renyi(order)[0] for d in (1, 4, 16, 256, 26_010)]  # an even shift
    assert_allclose(one, [0.2281, 0.4126, 0.6600, 0.9573, 0.99909], atol=6e-5)
    assert_allclose(event.renyi(order), 1.0, rtol=1e-12)
    assert max(one) <= event.renyi(order)[0]
    assert event.pure() is None and event.pair() is None and event.rho() == 1 / 32


def test_audit_by_densities():
    """Log-ratios of the released laws over clipped neighbours never pass the claim; without the clip they do."""
    m, x = Laplace(0.8), np.linspace(-9, 9, 3601)
    for scale, fine in [(1.0, True), (3.0, False)]:
        raw = torch.tensor([[0.3 * scale, -1.1 * scale]], dtype=torch.float64)
        row = clip_rows(raw, 0.5, 1).value if fine else raw
        ratio = sum(np.abs(np.log(m.density(x, 0.5)) - np.log(m.density(x - h, 0.5))).max() for h in row[0].tolist())
        assert (ratio <= m.event().pure() * (1 + 1e-9)) == fine
    half = np.abs(np.log(Laplace(0.4).density(x, 0.5)) - np.log(Laplace(0.4).density(x - 0.5, 0.5))).max()
    assert half > m.event().pure() * 1.9


def test_events_travel_and_group():
    assert Laplace(1.3).event() == LaplaceEvent(1.3) and Laplace(1.3, norm=2).event() == LaplaceL2Event(1.3)
    for event in (Laplace(1.3).event(), Laplace(1.3, norm=2).event()):
        assert from_json(to_json(event)) == event
        assert grouped(event, 2) == type(event)(0.65)
    assert LaplaceEvent(0.5).grouped(4).pure() == 8


def test_every_row_has_its_own_noise_keyed_by_its_client():
    zero, rng = torch.zeros(3, 50), Stream.research(1)
    noisy = Laplace(1.0).add(Bounded(zero, 1.0, 1), rng.rows([1, 2, 3]))
    assert noisy.dtype == torch.float32
    assert len({row.numpy().tobytes() for row in noisy}) == 3 and not (noisy == 0).any()
    assert torch.equal(noisy[1], Laplace(1.0).add(Bounded(zero[:1], 1.0, 1), rng.rows([2]))[0])
    assert not zero.any()


def test_noise_of_one_norm_refuses_rows_of_another():
    rng = Stream.research(1).rows([0])
    for made, found in [(1, 2), (2, 1), (1, float("inf"))]:
        with pytest.raises(SpecError, match=f"L{made}"):
            Laplace(1.0, made).add(Bounded(torch.zeros(1, 2), 1.0, found), rng)
    with pytest.raises(SpecError, match="floating"):
        Laplace(1.0).add(Bounded(torch.zeros(1, 2, dtype=torch.int64), 1.0, 1), rng)
    with pytest.raises(SpecError, match="bound"):
        Laplace(1.0).add(Bounded(torch.zeros(1, 2), float("nan"), 1), rng)


@pytest.mark.parametrize("z", [0, -1, float("nan"), float("inf"), True, None, "1", 10**400])
def test_no_noise_is_not_a_mechanism(z):
    for kind in (Laplace, LaplaceEvent, LaplaceL2Event):
        with pytest.raises(SpecError, match="noise_multiplier"):
            kind(z)


@pytest.mark.parametrize("norm", [0, 3, float("inf"), True, "1", None])
def test_only_two_norms(norm):
    with pytest.raises(SpecError, match="norm"):
        Laplace(1.0, norm)
