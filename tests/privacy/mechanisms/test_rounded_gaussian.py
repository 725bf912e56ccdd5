import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy import tightest
from sordino.privacy.clip import Bounded
from sordino.privacy.events import GaussianEvent
from sordino.privacy.mechanisms.rounded_gaussian import RoundedGaussian
from sordino.privacy.release import Use

BOTH = pytest.mark.parametrize("rng", [Stream.research(7), Stream(bytes(range(32)), True)], ids=["research", "secure"])
RNG = Stream(bytes(range(32)), True)


@BOTH
@pytest.mark.parametrize("bound", [1.0, 0.25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_has_the_promised_scale_and_no_other(rng, bound, dtype):
    rows = Bounded(torch.full((2, 10_000), 3.0, dtype=dtype), bound)
    noisy = RoundedGaussian(1.3).add(rows, rng.rows([4, 9]))
    assert noisy.dtype == dtype
    x = (noisy - 3.0).flatten().numpy() / bound  # follows the bound
    assert kstest(x, norm(scale=1.30).cdf).pvalue > 1e-3
    assert kstest(x, norm(scale=1.43).cdf).pvalue < 1e-3  # the test can see ten per cent
    assert kstest(x, norm(scale=1.17).cdf).pvalue < 1e-3


def test_what_is_released_lies_on_the_lattice_of_the_bound():
    rows = Bounded(torch.randn(3, 1000, dtype=torch.float64) / 100, 1.0)
    lattice = RoundedGaussian(0.8).lattice(rows)
    noisy = RoundedGaussian(0.8).add(rows, RNG.rows([1, 2, 3]))
    assert torch.equal(noisy / lattice.step, (noisy / lattice.step).round())
    assert not torch.equal(rows.value / lattice.step, (rows.value / lattice.step).round())


def test_the_last_digits_of_the_value_do_not_get_out():
    """Two values that round to the same point give the same release, bit for bit; floats would not."""
    one = torch.full((1, 100), 0.25, dtype=torch.float64)
    other = one * (1 + 2.0**-40)
    a, b = (RoundedGaussian(1.0).add(Bounded(x, 1.0), RNG.rows([5])) for x in (one, other))
    assert not torch.equal(one, other) and torch.equal(a, b)


def test_noise_follows_the_sensitivity_on_the_lattice():
    """With the same words, noise for a thousand contributions is wider by what they can be off."""
    zero = Bounded(torch.zeros(1, 4000), 1.0)
    one, many = RoundedGaussian(1.0), RoundedGaussian(1.0, contributions=1000)
    further = RoundedGaussian(1.0, float_error=0.05)
    a, b, c = (m.add(zero, RNG.rows([3])) for m in (one, many, further))
    for wide, lattice in ((b, many.lattice(zero)), (c, further.lattice(zero))):
        assert float(wide.norm() / a.norm()) == pytest.approx(
            lattice.sensitivity / one.lattice(zero).sensitivity, rel=1e-4
        )
    assert many.lattice(zero).sensitivity == pytest.approx(1 + 2 * 1000 * 999 * 2.0**-24, rel=2e-3)
    doubles = Bounded(torch.zeros(1, 4000, dtype=torch.float64), 1.0)
    assert many.lattice(doubles).sensitivity < 1.001


def test_the_scale_is_never_below_the_multiplier_times_the_sensitivity():
    for z in (1.0, 0.1, 1 / 3, 7.3):
        mechanism, rows = RoundedGaussian(z), Bounded(torch.zeros(1, 17), 0.3)
        lattice = mechanism.lattice(rows)
        scale = Fraction(float(mechanism._scales(z, 1, lattice)[0]))
        assert (
            1 <= scale * Fraction(lattice.step) / (Fraction(z) * Fraction(lattice.sensitivity)) < 1 + Fraction(1, 2**50)
        )


def test_every_row_has_its_own_noise_keyed_by_its_client():
    zero = torch.zeros(3, 50)
    noisy = RoundedGaussian(1.0).add(Bounded(zero, 1.0), RNG.rows([1, 2, 3]))
    assert len({row.numpy().tobytes() for row in noisy}) == 3
    assert torch.equal(noisy[1], RoundedGaussian(1.0).add(Bounded(zero[:1], 1.0), RNG.rows([2]))[0])
    assert not zero.any()


def test_clients_may_have_multipliers_of_their_own():
    value = torch.full((4, 5000), 0.01)
    z = torch.tensor([[0.5], [2.0], [math.inf], [1.0]])
    noisy = RoundedGaussian(1.0).add_each(Bounded(value, 1.0), z, RNG.rows([1, 2, 3, 4]))
    assert (noisy - value)[[0, 1, 3]].std(dim=1).tolist() == pytest.approx([0.5, 2.0, 1.0], rel=0.05)
    assert not noisy[2].any()  # all noise: nothing is left of the row
    assert torch.equal(noisy[3:], RoundedGaussian(1.0).add(Bounded(value[3:], 1.0), RNG.rows([4])))


def test_the_sum_of_two_rows_costs_what_the_event_says():
    """Distinguish the worst neighbours on one coordinate by the law itself: never more than the Gaussian event."""
    z, rows = 0.7, Bounded(torch.zeros(1, 1), 1.0)
    lattice = RoundedGaussian(z).lattice(rows)
    s = z * lattice.sensitivity / lattice.step
    shift = math.floor(lattice.sensitivity / lattice.step)
    edges = np.arange(-8 * int(s), 8 * int(s) + shift) + 0.5
    p, q = (np.diff(norm.cdf(np.concatenate([[-np.inf], edges - move, [np.inf]]) / s)) for move in (0, shift))
    for epsilon in (0.5, 1.0, 2.0):
        delta = np.maximum(p - math.exp(epsilon) * q, 0).sum()
        allowed = tightest.delta(GaussianEvent(z), epsilon)
        assert 0.99 * allowed < delta <= allowed * (1 + 1e-9)  # and hardly less: nothing is wasted


def test_the_event_is_what_was_added():
    assert RoundedGaussian(1.3, contributions=500).event() == GaussianEvent(1.3)


def test_nobody_and_nothing():
    assert RoundedGaussian(1.0).add(Bounded(torch.zeros(0, 5), 1.0), RNG.rows([])).shape == (0, 5)
    assert RoundedGaussian(1.0).add(Bounded(torch.zeros(2, 0), 1.0), RNG.rows([1, 2])).shape == (2, 0)


@pytest.mark.parametrize("z", [0, -1, float("nan"), True])
def test_no_noise_is_not_a_mechanism(z):
    with pytest.raises(SpecError, match="noise_multiplier"):
        RoundedGaussian(z)


@pytest.mark.parametrize("given", [{"contributions": 0}, {"contributions": 1.5}, {"float_error": -1e-9}])
def test_sums_that_make_no_sense_are_refused(given):
    with pytest.raises(SpecError):
        RoundedGaussian(1.0, **given)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (Bounded(torch.zeros(2, 3), 1.0, norm=1), "L2"),
        (Bounded(torch.zeros(2, 3, dtype=torch.bfloat16), 1.0), "float32 or float64"),
        (Bounded(torch.zeros(2, 3, dtype=torch.int64), 1.0), "float32 or float64"),
        (Bounded(torch.tensor([[0.0, math.nan], [0.0, 0.0]]), 1.0), "not finite"),
        (Bounded(torch.zeros(3, 3), 1.0), "one id per row"),
        (Bounded(torch.zeros(2, 3), 1e-300), "2\\^-60"),
    ],
)
def test_rows_that_cannot_be_covered_are_refused(rows, words):
    with pytest.raises(SpecError, match=words):
        RoundedGaussian(1.0).add(rows, RNG.rows([1, 2]))


@pytest.mark.parametrize("z", [torch.tensor([[1.0], [0.0]]), torch.tensor([[1.0], [math.nan]]), torch.ones(3, 1)])
def test_multipliers_that_make_no_sense_are_refused(z):
    with pytest.raises(SpecError, match="noise multipliers"):
        RoundedGaussian(1.0).add_each(Bounded(torch.zeros(2, 3), 1.0), z, RNG.rows([1, 2]))


def test_noise_wider_than_can_be_drawn_is_refused():
    with pytest.raises(SpecError, match="lattice steps wide"):
        RoundedGaussian(1e9).add(Bounded(torch.zeros(1, 10), 1.0), RNG.rows([1]))


# --- noise that clients share


def test_shares_are_whole_numbers_that_add_up_to_the_noise_of_one():
    rows, clients = Bounded(torch.full((20, 5000), 0.01), 1.0), 20
    noise = RoundedGaussian(1.3, summed=clients, shared=clients)
    points = noise.apply(rows, RNG.rows(range(clients)), Use(split=clients))
    assert points.dtype == torch.int32
    total = noise.floats(points.sum(dim=0, keepdim=True), 1.0, torch.float64)
    x = (total - 0.2).flatten().numpy()
    assert kstest(x, norm(scale=1.30).cdf).pvalue > 1e-3
    assert kstest(x, norm(scale=1.43).cdf).pvalue < 1e-3
    assert noise.event(clients) == GaussianEvent(1.3)
    with pytest.raises(SpecError, match="shared by 20 clients, not by 3"):
        noise.apply(rows, RNG.rows(range(clients)), Use(split=3))
    with pytest.raises(SpecError, match="set summed"):
        RoundedGaussian(1.0, shared=2)


@pytest.mark.parametrize(("dim", "shared", "z"), [(1, 1, 0.01), (1, 10**6, 0.3), (17, 1000, 1.0), (26_010, 100, 0.7)])
def test_every_share_is_wide_and_the_variances_add_up(dim, shared, z):
    mechanism, rows = RoundedGaussian(z, summed=shared, shared=shared), Bounded(torch.zeros(1, dim), 0.3)
    lattice = mechanism.lattice(rows)
    share = Fraction(float(mechanism._scales(z, 1, lattice)[0]))
    assert share >= 64
    whole = Fraction(z) * Fraction(lattice.sensitivity) / Fraction(lattice.step)
    assert 1 <= shared * share**2 / whole**2 < 1 + Fraction(1, 2**49)


def test_rows_are_as_wide_as_their_sum_asks_for():
    rows = Bounded(torch.zeros(2, 1000), 1.0)
    for summed, dtype in ((2, torch.int32), (10**6, torch.int64)):
        assert RoundedGaussian(1.0, summed=summed).add(rows, RNG.rows([1, 2])).dtype == dtype
    fine = RoundedGaussian(1.0, summed=10**6)
    points = fine.add(Bounded(torch.full((1, 4), 0.25, dtype=torch.float64), 1.0), RNG.rows([1]))
    back = fine.floats(points, 1.0, torch.float64) / fine.lattice(rows).step
    assert torch.equal(back, back.round())


def test_a_sum_of_rounded_normals_is_the_rounding_of_a_normal_and_uniform_numbers():
    """The step of the proof for shares: every probability agrees up to a factor of 1 +- 2 e^(-2 pi^2 t^2), with
    t^2 = a^2 b^2 / (a^2 + b^2), and the bound is no larger than it must be. Scales are small here, so that it shows."""
    k = np.arange(-40, 41)
    for a, b in ((0.6, 0.6), (0.7, 1.4), (1.0, 1.0)):
        one, two = (norm(scale=s).cdf(k + 0.5) - norm(scale=s).cdf(k - 0.5) for s in (a, b))
        inside = slice(36, 45)
        summed = np.convolve(one, two)[40:121][inside]
        # the rounding of N(0, a^2 + b^2) + U: its distribution function is that of the normal, averaged over U
        whole = norm(scale=math.hypot(a, b))
        primitive = lambda x: x * whole.cdf(x) + whole.var() * whole.pdf(x)  # noqa: E731, B023
        smooth = lambda x: primitive(x + 0.5) - primitive(x - 0.5)  # noqa: E731, B023
        rounded = (smooth(k + 0.5) - smooth(k - 0.5))[inside]
        off = float(np.abs(summed / rounded - 1).max())
        most = 2 * math.exp(-2 * (math.pi * a * b) ** 2 / (a * a + b * b))
        assert most / 10 < off < most * 1.01
