"""Every pair against laws written down: integrals, sums over outcomes, mirror images."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import log_ndtr, logsumexp, ndtr
from scipy.stats import norm

from laws.examples import EXAMPLES
from sordino.core.errors import UnsupportedEvent
from sordino.privacy import loss_distributions, pairs
from sordino.privacy.accountants import gdp, pld
from sordino.privacy.events import Approximate, FixedSize, GaussianEvent, Pure, Repeated, Sampled, SampledGroup, Visible
from sordino.privacy.mechanisms.laplace import LaplaceEvent, LaplacePair

AT = np.concatenate([-np.geomspace(1e-6, 30, 40)[::-1], [0.0], np.geomspace(1e-6, 30, 40)])
PAIRED = []
for example in EXAMPLES:
    try:
        PAIRED.append((str(example), pld.pair_of(example.event)))
    except UnsupportedEvent:
        continue
every = pytest.mark.parametrize("pair", [p for _, p in PAIRED], ids=[name for name, _ in PAIRED])


def hockey(p, q, epsilon):
    return float(np.maximum(0.0, np.asarray(p) - math.exp(epsilon) * np.asarray(q)).sum())


@every
def test_above_and_below_are_two_sides_of_a_law(pair):
    for side in (pair, pair.reversed()):
        above, below = side.above(AT), side.below(AT)
        for over, under in zip(above, below, strict=True):
            assert_allclose(over + under, 1.0, atol=2e-9)
            assert np.all(np.diff(over) <= 1e-15) and np.all(np.diff(under) >= -1e-15)
            assert np.all((over >= 0) & (under >= 0))


@every
def test_losses_are_log_ratios(pair):
    """Between two losses l < m: e^l Q <= P <= e^m Q, whatever the cell. A pair that is reversed twice is itself."""
    edges = np.linspace(-3, 3, 61)
    for side in (pair, pair.reversed()):
        p, q = (np.diff(mass) for mass in side.below(edges))
        assert np.all(p >= np.exp(edges[:-1]) * q * (1 - 1e-9) - 1e-13)
        assert np.all(p <= np.exp(edges[1:]) * q * (1 + 1e-9) + 1e-13)
    twice = pair.reversed().reversed()
    assert_allclose(twice.above(AT)[0], pair.above(AT)[0], rtol=1e-12)


@every
def test_the_other_direction_is_the_mirror_image(pair):
    """H_g(Q || P) = 1 - g + g H_{1/g}(P || Q) wherever one pair holds for both directions; both where it says so."""
    if isinstance(getattr(pair, "of", pair), pairs.TwoSided):
        return  # two pairs, one for each direction
    for epsilon in (0.01, 0.1, 0.5, 1.0, 2.0):
        back = pairs.delta(pair.reversed(), epsilon)
        p, q = pair.above(np.array([-epsilon]))  # H_g(P || Q) at g = e^-epsilon
        mirror = 1 - math.exp(epsilon) + math.exp(epsilon) * (float(p[0]) - math.exp(-epsilon) * float(q[0]))
        assert back == pytest.approx(mirror, abs=1e-11)
        if pair.symmetric:
            assert back == pytest.approx(pairs.delta(pair, epsilon), rel=1e-9, abs=1e-12)


def test_a_shift_is_the_formula():
    for mu in (1e-4, 0.3, 3.0, 30.0):
        for epsilon in (0.0, mu * mu / 2, mu * mu / 2 + 4 * mu):
            assert pairs.delta(pairs.Shift(mu), epsilon) == pytest.approx(pairs.gaussian_delta(mu, epsilon), rel=1e-7)
    far = pairs.delta(pairs.Shift(40.0), 800.0)  # Q is too small for a float: on the safe side
    assert pairs.gaussian_delta(40.0, 800.0) <= far <= 1.05 * pairs.gaussian_delta(40.0, 800.0)
    assert pairs.gaussian_delta(0.0, 1.0) == 0.0
    assert pairs.gaussian_delta(1.0, 37.0) == pytest.approx(
        float(np.exp(log_ndtr(-36.5))) - float(np.exp(37 + log_ndtr(-37.5))), rel=1e-6
    )


def test_atoms_are_sorted_and_sum_from_either_end():
    pair = pairs.Atoms([1.0, -math.inf, math.inf, 0.0], [0.5, 0.0, 1e-30, 0.5], [0.2, 0.3, 0.0, 0.5])
    assert pair.above(np.array([0.5]))[0][0] == 0.5 + 1e-30 and pair.above(np.array([1.0]))[0][0] == 1e-30
    assert pair.below(np.array([-5.0]))[1][0] == 0.3 and pair.above(np.array([math.inf]))[0][0] == 0.0
    assert pairs.Atoms.of([0.5, 0.0, 0.5], [0.25, 0.75, 0.0]).losses.tolist() == [-math.inf, math.log(2), math.inf]


@pytest.mark.parametrize("rate", [1.0, 1 - 1e-15, 0.3, 1e-6])
@pytest.mark.parametrize("inner", [Pure(1.3), Approximate(0.7, 1e-3), LaplaceEvent(0.8)], ids=str)
def test_dilution_mixes_the_outcomes(inner, rate):
    """((1-q) Q + q P, Q) and its reverse, summed over outcomes; Laplace noise through fine cells."""
    if isinstance(inner, LaplaceEvent):
        edges = np.linspace(0, 1, 200_001)
        x, s = edges[1:] / 2 + edges[:-1] / 2, 1 / 0.8
        p = np.concatenate([[math.exp(-s) / 2], s / 2 * np.exp(-s * (1 - x)) * np.diff(edges), [0.5]])
        q = p[::-1]
    else:
        atoms = inner.pair()
        p, q = atoms.p, atoms.q
    mixed = (1 - rate) * q + rate * p
    pair = pairs.diluted(inner.pair(), rate)
    for epsilon in (0.0, 1e-4, 0.05, 0.4, 1.2):
        assert pairs.delta(pair, epsilon) == pytest.approx(hockey(mixed, q, epsilon), rel=1e-4, abs=1e-12)
        assert pairs.delta(pair.reversed(), epsilon) == pytest.approx(hockey(q, mixed, epsilon), rel=1e-4, abs=1e-12)


def test_dilution_of_what_can_be_seen_for_sure():
    """An outcome that only Q has is no sure sign any more in the mixture: its loss is ln(1 - rate)."""
    rr, rate, seen = pairs.randomized_response(1.0, 0.2), 0.1, 0.5
    p, q = np.append(seen * rr.p, 1 - seen), np.append(seen * rr.q, 1 - seen)
    mixed = (1 - rate) * q + rate * p
    pair = pld.pair_of(Sampled(Visible(Approximate(1.0, 0.2), seen), rate))
    for epsilon in (0.0, 0.05, 0.1, 0.2, 0.5):
        assert pairs.delta(pair, epsilon) == pytest.approx(hockey(mixed, q, epsilon), rel=1e-9, abs=1e-15)
        assert pairs.delta(pair.reversed(), epsilon) == pytest.approx(hockey(q, mixed, epsilon), rel=1e-9, abs=1e-15)
    back = pair.reversed()
    assert back.above(np.array([0.2]))[0][0] == 0.0  # ends at -ln(0.9) = 0.105
    assert math.isfinite(loss_distributions.epsilon([back], [20], 1e-9))


@pytest.mark.parametrize("z", [1e-3, 5e-3, 0.05, 0.7, 10.0, 1e4])
@pytest.mark.parametrize("rate", [1e-6, 0.1, 0.999])
def test_mixtures_know_where_a_loss_is_reached(z, rate):
    """No threshold may tell the mixtures apart any better: the hockey stick is a supremum."""
    p, q = {0.0: 1 - rate, 1.0: rate}, {0.0: 1 - rate, -1.0: rate}
    pair = pairs.Mixtures(z, p, q)
    assert pair.symmetric
    x = np.concatenate([np.linspace(-1 - 9 * z, 1 + 9 * z, 100_001), np.linspace(1 - 9 * z, 1 + 9 * z, 50_001)])
    over = sum(w * ndtr((s - x) / z) for s, w in p.items())
    log_other = logsumexp([math.log(w) + log_ndtr((s - x) / z) for s, w in q.items()], axis=0)
    for share in (1e-3, 0.3):
        epsilon = loss_distributions.epsilon([pair], [1], share * rate * min(1.0, 0.1 / z))
        best = float(np.max(over - np.exp(np.minimum(epsilon + log_other, 600.0))))
        assert best <= share * rate * min(1.0, 0.1 / z) * (1 + 1e-5) + 1e-15


def test_replaced_directions_other_than_opposite_ones_are_no_worse():
    """Two records at an angle, drawn with probability q, in the plane: H_g of the mixtures, by integration."""
    z, q = 0.8, 0.2
    x, y = np.meshgrid(np.linspace(-7, 7, 701), np.linspace(-7, 7, 701))
    cell = (x[0, 1] - x[0, 0]) ** 2

    def law(angle):
        shifted = norm.pdf(x, math.cos(angle), z) * norm.pdf(y, math.sin(angle), z)
        return (1 - q) * norm.pdf(x, 0, z) * norm.pdf(y, 0, z) + q * shifted

    pair = pld.pair_of(Sampled(GaussianEvent(z), q, "replace"))
    for epsilon in (0.05, 0.3, 1.0, 2.0):
        bound = pairs.delta(pair, epsilon)
        found = [cell * hockey(law(0.0), law(a), epsilon) for a in (math.pi, 0.8 * math.pi, math.pi / 2, 0.5)]
        assert found[0] == pytest.approx(bound, rel=2e-3) and all(f <= bound * (1 + 2e-3) for f in found)
        assert found[0] > found[2]
        gone = cell * hockey(law(0.0), norm.pdf(x, 0, z) * norm.pdf(y, 0, z), epsilon)  # replaced by nothing
        assert gone <= bound


def test_a_group_is_drawn_one_by_one():
    """3 units at rate 0.2: a binomial mixture of shifts, by integration, both ways."""
    z, x = 1.4, np.linspace(-16, 20, 400_001)
    p = sum(w * norm.pdf(x, j, z) for j, w in enumerate([0.512, 0.384, 0.096, 0.008])) * (x[1] - x[0])
    q = norm.pdf(x, 0, z) * (x[1] - x[0])
    pair = SampledGroup(z, 0.2, 3).pair()
    for epsilon in (0.0, 0.2, 1.0, 3.0):
        assert pairs.delta(pair, epsilon) == pytest.approx(hockey(p, q, epsilon), rel=1e-5, abs=1e-12)
        assert pairs.delta(pair.reversed(), epsilon) == pytest.approx(hockey(q, p, epsilon), rel=1e-5, abs=1e-12)


def test_a_mirrored_pair_has_the_hockey_sticks_it_promises():
    """Without replacement: rate * H at the amplified epsilon, the same both ways, and a law: masses add up to one."""
    rate = 0.1
    pair = pld.pair_of(FixedSize(GaussianEvent(1.0), 10, 100))
    for inner in (0.1, 1.0, 3.0):
        outer = math.log1p(rate * math.expm1(inner))
        for side in (pair, pair.reversed()):
            assert pairs.delta(side, outer) == pytest.approx(rate * gdp.delta_of_mu(1.0, inner), rel=1e-9)
    p, q = (np.diff(mass) for mass in pair.below(np.linspace(-40, 40, 8001)))
    assert p.sum() == pytest.approx(1, abs=1e-12) == q.sum() and np.all(p >= -1e-15)


def test_seldom_is_nothing_most_of_the_time():
    pair = pairs.Seldom(LaplacePair(1.0), 0.25)
    assert pairs.delta(pair, 0.5) == pytest.approx(0.25 * pairs.delta(LaplacePair(1.0), 0.5), rel=1e-12)
    below, at = pair.below(np.array([-1e-12]))[0][0], pair.below(np.array([0.0]))[0][0]
    assert at - below == pytest.approx(0.75, abs=1e-9)


@pytest.mark.parametrize("cells", [pld.FINE, pld.ROUGH])
@pytest.mark.parametrize(
    "inner",
    [GaussianEvent(0.5), GaussianEvent(30.0), Sampled(GaussianEvent(0.6), 0.01), Pure(1.0), LaplaceEvent(0.3)],
    ids=str,
)
@pytest.mark.parametrize("steps", [2, 50])
def test_the_law_of_a_whole_round_is_a_law(inner, steps, cells):
    """P and Q add up to one, nothing of note is infinite, and the losses are those of the sum."""
    whole = pld.pair_of(Repeated(inner, steps), cells)
    for side in (whole, whole.reversed()):
        law = side.forth
        assert law.p.sum() == pytest.approx(1, abs=1e-9) and law.q.sum() == pytest.approx(1, abs=1e-9)
        assert law.p[-1] <= 1e-12
    for epsilon in (0.1, 1.0, 8.0):
        exact = pld.delta(Repeated(inner, steps), epsilon)
        found = max(pairs.delta(whole, epsilon), pairs.delta(whole.reversed(), epsilon))
        assert exact * (1 - 1e-3) - 1e-15 <= found <= exact * (1 + 0.05) + 1e-4
