"""Local randomizers of numbers and vectors: Duchi, Harmony, piecewise, hybrid, one bit for a mean."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import kstest

from sordino.core.errors import DataError, SpecError
from sordino.core.rng import Stream
from sordino.privacy import events, pairs, written
from sordino.privacy.mechanisms.duchi import Duchi, corners
from sordino.privacy.mechanisms.harmony import Harmony
from sordino.privacy.mechanisms.hybrid import TURN, Hybrid
from sordino.privacy.mechanisms.one_bit_mean import OneBitMean
from sordino.privacy.mechanisms.piecewise import Piecewise
from support.reports import N, audit, bulk, fits

ORDERS = np.array([1.01, 1.5, 2.0, 7.0, 64.0])


def dominates(event, laws, eps):
    """The event's pair and curve are exactly those of the worst two of these laws."""
    laws = [law[np.max(laws, axis=0) > 0] for law in laws]
    two = [(p, q) for p in laws for q in laws if p is not q]
    for at in (-0.5 * eps, 0.0, 0.3 * eps, 0.95 * eps, eps):
        exact = max(np.maximum(p - math.exp(at) * q, 0).sum() for p, q in two)
        assert pairs.delta(event.pair(), at) == pytest.approx(exact, rel=1e-9, abs=1e-14)
    exact = [max(np.log((p**a * q ** (1 - a)).sum()) / (a - 1) for p, q in two) for a in ORDERS]
    assert_allclose(event.renyi(ORDERS), exact, rtol=1e-9)
    assert (event.renyi(ORDERS) <= event.rho() * ORDERS).all()
    assert written.from_json(written.to_json(event)) == event and event.grouped(2).pure() == pytest.approx(2 * eps)


def test_values_of_the_literature():
    assert Piecewise(1.0).bound == pytest.approx(4.08298816507, rel=1e-9)
    assert Piecewise(1.0).variance(0.5) == pytest.approx(4.06747689014, rel=1e-9)
    assert Piecewise(1.0).density(0.5, 0.5) == pytest.approx(0.201901304148, rel=1e-9)
    assert Duchi(1.0).variance(0.5) == pytest.approx(4.43269437683, rel=1e-9)
    e = math.exp(1.3)
    assert Duchi(1.3).scale == pytest.approx((e + 1) / (e - 1), rel=1e-12)
    assert Harmony(1.3, 7).scale == pytest.approx(7 * (e + 1) / (e - 1), rel=1e-12)
    s = math.exp(0.65)  # Wang et al. (2019), Section III-C
    worst = (s + 3) / (3 * s * (s - 1)) + (e + 1) ** 2 / (s * (e - 1) ** 2)
    assert Hybrid(1.3).worst_variance() == pytest.approx(worst, rel=1e-12)
    assert Hybrid(0.6).worst_variance() == pytest.approx(1 / math.tanh(0.3) ** 2, rel=1e-12)
    assert abs(TURN - 0.61) < 1e-3
    for d, c in ((2, 1), (3, 4), (4, 5), (5, 16), (6, 22)):  # C_d and B of Wang et al. (2019), Algorithm 3
        assert c == (2 ** (d - 1) if d % 2 else 2 ** (d - 1) - math.comb(d, d // 2) / 2)
        below = math.comb(d - 1, (d - 1) // 2) if d % 2 else math.comb(d - 1, d // 2)
        assert Duchi(1.3, d).scale == pytest.approx((2**d + c * (e - 1)) / (below * (e - 1)), rel=1e-12)


# Duchi


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
@pytest.mark.parametrize("eps", [0.4, 2.0])
def test_duchi_is_unbiased_and_private_by_enumeration(dim, eps):
    m, x = Duchi(eps, dim), np.linspace(-0.9, 0.7, dim)
    law, out = m.probabilities(x), m.outputs()
    assert_allclose(law @ out, x, atol=1e-12)
    assert_allclose(law @ out**2 - x**2, [m.variance(v) for v in x], rtol=1e-12)
    laws = [m.probabilities(v) for v in [*corners(dim), x, np.zeros(dim)]]
    assert audit(laws) == pytest.approx(eps, rel=1e-12)
    dominates(m.event(), laws, eps)


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
def test_duchi_reports_follow_their_law_and_no_other(dim):
    x = np.linspace(0.9, 0.5, dim)

    def code(rows):
        return (rows.reshape(N, dim) > 0) @ (1 << np.arange(dim))

    m = Duchi(1.5, dim)
    reports = m.randomize(np.tile(x, (N, 1)), bulk())
    assert fits(code(reports), m.probabilities(x))
    assert not fits(code(reports), Duchi(1.5 * 1.05, dim).probabilities(x), 1e-6)
    assert not fits(code(reports), m.probabilities(0.95 * x), 1e-6)
    assert_allclose(np.abs(reports), m.scale)
    error = (m.estimate(reports) - x) / np.array([m.variance(v) / N for v in x]) ** 0.5
    assert np.abs(error).max() < 4


@pytest.mark.parametrize("dim", [2, 4])
def test_ties_in_both_halves_break_the_level(dim):
    """As first printed for even d: u with e^eps / (1 + e^eps), then a corner with t . v >= 0 or <= 0."""
    eps, signs = 1.0, corners(dim)
    dot = signs @ signs.T
    up, down = (dot >= 0).sum(axis=1)[0], (dot <= 0).sum(axis=1)[0]
    laws = expit(eps) * (dot >= 0) / up + expit(-eps) * (dot <= 0) / down
    assert audit(laws) == pytest.approx(math.log(1 + math.e), rel=1e-12)


@pytest.mark.parametrize("dim", [1000, 1001, 1_000_000, 1_000_001])
def test_duchi_has_the_right_scale_in_many_dimensions(dim):
    m, below = Duchi(1.0, dim), (dim - 1) // 2 if dim % 2 else dim // 2
    log = math.lgamma(dim) - math.lgamma(below + 1) - math.lgamma(dim - below) - dim * math.log(2)
    center = math.exp(log)  # C(d - 1, .) / 2^d
    share = 0.5 if dim % 2 else 0.5 - center
    assert m.scale == pytest.approx((1 + share * math.expm1(1)) / (center * math.expm1(1)), rel=1e-8)
    x = np.linspace(-1, 1, dim)
    report = m.randomize([x], Stream.research(2).rows([0]))[0]
    scores = float(report @ x), float(x @ x)  # unbiased; the coordinates are nearly independent
    assert abs(scores[0] - scores[1]) < 5 * (m.scale**2 * scores[1]) ** 0.5


# Harmony


def test_harmony_is_unbiased_and_private_exactly():
    x, eps = np.array([-0.8, 0.1, 1.0]), 1.3
    m = Harmony(eps, 3)
    law = m.probabilities(x)
    mean = law @ np.array([-m.scale, m.scale])
    assert_allclose(mean, x, atol=1e-12)
    assert_allclose(law @ np.full(2, m.scale**2) - x**2, [m.variance(v) for v in x], rtol=1e-12)
    laws = [m.probabilities(v).ravel() for v in [*corners(3), x]]
    assert audit(laws) == pytest.approx(eps, rel=1e-12)
    dominates(m.event(), laws, eps)
    assert audit([m.probabilities(v).ravel() for v in ([0.9, 0, 0], [-0.9, 0, 0])]) < eps  # nearer: less


def test_harmony_reports_follow_their_law_and_no_other():
    x, m = np.array([-0.8, 0.1, 1.0]), Harmony(1.3, 3)
    reports = m.randomize(np.tile(x, (N, 1)), bulk())
    assert ((reports != 0).sum(axis=1) == 1).all() and set(np.unique(np.abs(reports))) == {0.0, m.scale}
    at = np.abs(reports).argmax(axis=1)
    seen = 2 * at + (reports[np.arange(N), at] > 0)
    assert fits(seen, m.probabilities(x).ravel())
    assert not fits(seen, Harmony(1.3 * 1.05, 3).probabilities(x).ravel(), 1e-6)
    assert np.abs(m.estimate(reports) - x).max() < 4 * (m.variance(0.0) / N) ** 0.5


# piecewise and hybrid


def cells(m, values):
    """The law of a piecewise report over the cells on which all these densities are constant."""
    ends = [-m.bound, m.bound] + [e for v in values for e in likely(m, v)]
    ends = np.unique(np.round(ends, 12))
    return [np.diff(m.cumulative(v, ends)) for v in values]


def likely(m, x):
    left = (m.bound + 1) / 2 * x - (m.bound - 1) / 2
    return [left, left + m.bound - 1]


@pytest.mark.parametrize("eps", [0.4, 3.0])
def test_piecewise_is_unbiased_and_private_exactly(eps):
    m, values = Piecewise(eps), [-1.0, -0.2, 0.5, 1.0]
    for x in values:
        left, right = likely(m, x)
        whole = [
            sum(
                quad(lambda t, k=k, x=x: t**k * float(m.density(x, t)), a, b, epsabs=1e-13)[0]
                for a, b in ((-m.bound, left), (left, right), (right, m.bound))
            )
            for k in range(3)
        ]
        assert whole[0] == pytest.approx(1, abs=1e-10) and whole[1] == pytest.approx(x, abs=1e-9)
        assert whole[2] - x**2 == pytest.approx(m.variance(x), rel=1e-9)
        inside, outside = m.density(x, (left + right) / 2), m.density(x, -m.bound if x > 0 else m.bound)
        assert math.log(inside / outside) == pytest.approx(eps, rel=1e-12)
        assert m.density(x, m.bound * 1.001) == 0  # the range that Eq. 14 of the survey leaves out
    laws = cells(m, values)
    assert audit(laws) == pytest.approx(eps, rel=1e-9)
    dominates(m.event(), laws, eps)


def test_without_its_range_a_piecewise_law_is_no_distribution():
    m = Piecewise(1.0)
    wide = np.linspace(-50, 50, 100_001)
    outside = float(m.density(0.0, m.bound))
    density = np.where(np.abs(wide) <= likely(m, 0.0)[1], m.density(0.0, 0.0), outside)  # Fu et al., Eq. 14
    with pytest.raises(AssertionError):
        audit([density * 1e-3, density * 1e-3])


@pytest.mark.parametrize("x", [0.6, -1.0])
def test_piecewise_reports_follow_their_law_and_no_other(x):
    m = Piecewise(1.5)
    reports = m.randomize(np.full(N, x), bulk())
    assert np.abs(reports).max() <= m.bound
    assert kstest(reports, lambda t: m.cumulative(x, t)).pvalue > 1e-3
    wrong = Piecewise(1.5 * 1.05)
    assert kstest(reports, lambda t: wrong.cumulative(x, t)).pvalue < 1e-6
    assert kstest(reports, lambda t: m.cumulative(0.95 * x, t)).pvalue < 1e-6
    assert abs(m.estimate(reports)[0] - x) < 4 * (m.variance(x) / N) ** 0.5
    assert reports.var() == pytest.approx(m.variance(x), rel=0.02)
    steps = reports / m.bound * 2**20
    assert_allclose(steps, np.round(steps), atol=1e-6)  # the low bits of a float say nothing


@pytest.mark.parametrize("eps", [0.4, 3.0])
def test_hybrid_is_unbiased_and_private_exactly(eps):
    m, values = Hybrid(eps), [-1.0, -0.2, 0.5, 1.0]
    inner, share = Piecewise(eps), -math.expm1(-eps / 2) if eps > 0.61 else 0.0
    laws = [np.concatenate([share * c, m.probabilities(v)]) for c, v in zip(cells(inner, values), values, strict=True)]
    assert audit(laws) == pytest.approx(eps, rel=1e-9)
    dominates(m.event(), laws, eps)
    for x in values:
        atoms = m.probabilities(x)
        assert share * x + atoms @ [-m.scale, m.scale] == pytest.approx(x, abs=1e-12)
        second = share * (inner.variance(x) + x * x) + atoms.sum() * m.scale**2
        assert second - x * x == pytest.approx(m.variance(x), rel=1e-12)
        assert_allclose(m.density(x, [0.0, 0.9]), share * inner.density(x, [0.0, 0.9]))
    assert max(m.variance(x) for x in np.linspace(-1, 1, 101)) == pytest.approx(m.worst_variance(), rel=1e-12)


def test_hybrid_reports_follow_their_law_and_no_other():
    m, x = Hybrid(1.5), 0.6
    reports = m.randomize(np.full(N, x), bulk())
    atom = np.isclose(np.abs(reports), m.scale, rtol=1e-12, atol=0)
    seen = np.where(atom, 1 + (reports > 0), 0)
    law = np.concatenate([[1 - m.probabilities(x).sum()], m.probabilities(x)])
    assert fits(seen, law)
    wrong = Hybrid(1.5 * 1.05).probabilities(x)
    assert not fits(seen, np.concatenate([[1 - wrong.sum()], wrong]), 1e-6)
    assert kstest(reports[~atom], lambda t: Piecewise(1.5).cumulative(x, t)).pvalue > 1e-3
    assert kstest(reports[~atom], lambda t: Piecewise(1.5 * 1.05).cumulative(x, t)).pvalue < 1e-6
    assert abs(m.estimate(reports)[0] - x) < 4 * (m.variance(x) / N) ** 0.5
    assert reports.var() == pytest.approx(m.variance(x), rel=0.02)


@pytest.mark.parametrize("kind", [Piecewise, Hybrid])
@pytest.mark.parametrize(("eps", "dim", "k"), [(2.0, 3, 1), (6.0, 5, 2), (9.0, 2, 2), (30.0, 4, 4)])
def test_vectors_give_a_few_coordinates_at_a_share_of_the_level(kind, eps, dim, k):
    m, x, n = kind(eps, dim), np.linspace(-0.9, 1.0, dim), 200_000
    assert m.coordinates == k
    reports = m.randomize(np.tile(x, (n, 1)), bulk(n))
    assert ((reports != 0).sum(axis=1) == k).all()
    assert_allclose((reports != 0).mean(axis=0), k / dim, atol=4 * (0.25 / n) ** 0.5)
    for j, v in enumerate(x):
        assert abs(m.estimate(reports)[j] - v) < 4 * (m.variance(v) / n) ** 0.5
        assert reports[:, j].var() == pytest.approx(m.variance(v), rel=0.03)
    s = math.exp(eps / k / 2)
    if kind is Piecewise:  # Wang et al. (2019), Section IV-B
        assert m.variance(0.5) == pytest.approx(
            dim * (s + 3) / (3 * k * (s - 1) ** 2) + (dim * s / (k * (s - 1)) - 1) / 4, rel=1e-12
        )
    else:
        assert max(m.variance(v) for v in np.linspace(-1, 1, 101)) == pytest.approx(m.worst_variance(), rel=1e-12)
    one, event = kind(eps / k, 1).event(), m.event()
    assert event.pure() == eps and event.rho() == pytest.approx(k * one.rho())
    assert_allclose(event.renyi(ORDERS), k * one.renyi(ORDERS), rtol=1e-9)
    part, whole = one.pair(), event.pair()
    assert whole.p.sum() == pytest.approx(1) and whole.q.sum() == pytest.approx(1)
    assert (whole.p * whole.losses).sum() == pytest.approx(k * (part.p * part.losses).sum())
    assert_allclose(whole.losses[-1], eps)
    assert whole.p[-1] == pytest.approx(part.p[-1] ** k)


# one bit for a mean


@pytest.mark.parametrize("eps", [0.4, 2.0])
def test_one_bit_is_unbiased_and_private_exactly(eps):
    m = OneBitMean(eps, top=8.0)
    laws = [m.probabilities(x) for x in (0.0, 3.0, 8.0)]
    assert audit(laws) == pytest.approx(eps, rel=1e-12)
    dominates(m.event(), laws, eps)
    e = math.exp(eps)
    for x, law in zip((0.0, 3.0, 8.0), laws, strict=True):
        assert law[1] == pytest.approx(1 / (e + 1) + x / 8 * (e - 1) / (e + 1), rel=1e-12)  # Eq. 26
        each = np.array([m.estimate([b]) for b in (0, 1)])
        assert_allclose(each, [8 * (b * (e + 1) - 1) / (e - 1) for b in (0, 1)], rtol=1e-12)  # Eq. 27
        assert law @ each == pytest.approx(x, abs=1e-12)
        assert law @ each**2 - x**2 == pytest.approx(m.variance(x), rel=1e-9)
    assert m.variance(3.0, 10) == pytest.approx(m.variance(3.0) / 10)


@pytest.mark.parametrize("levels", [0, 1, 5])
def test_one_bit_reports_follow_their_law_and_no_other(levels):
    m, x = OneBitMean(1.5, 8.0, levels), 7.0
    bits = m.randomize(np.full(N, x), bulk(), bulk(seed=9) if levels else None)
    assert fits(bits, m.probabilities(x))
    assert not fits(bits, OneBitMean(1.5 * 1.05, 8.0).probabilities(x), 1e-6)
    assert not fits(bits, m.probabilities(0.95 * x), 1e-6)
    assert abs(m.estimate(bits) - x) < 4 * m.variance(x, N) ** 0.5


def test_memoised_bits_stay_while_the_value_stays_near():
    m, n = OneBitMean(1.0, 10.0, levels=5), 2000
    memory, days = Stream.research(3).rows(range(n)), [Stream.research(s).rows(range(n)) for s in (1, 2)]
    first = m.randomize(np.full(n, 5.0), days[0], memory)
    assert np.array_equal(first, m.randomize(np.full(n, 5.0), days[1], memory))
    moved = (first != m.randomize(np.full(n, 5.2), days[1], memory)).mean()  # a tenth change their point
    far = (first != m.randomize(np.full(n, 9.0), days[1], memory)).mean()
    assert 0 < moved < 0.1 < 0.35 < far
    free = OneBitMean(1.0, 10.0)
    assert not np.array_equal(free.randomize(np.full(n, 5.0), days[0]), free.randomize(np.full(n, 5.0), days[1]))
    assert m.event(365) == m.event() and free.event(365) == events.Repeated(free.event(), 365)
    for bad in (
        lambda: m.randomize([1.0], Stream.research(1).rows([0])),
        lambda: free.randomize([1.0], days[0], memory),
    ):
        with pytest.raises((SpecError, DataError)):
            bad()
    with pytest.raises(SpecError, match="different clients"):
        m.randomize([1.0], Stream.research(1).rows([0]), Stream.research(1).rows([1]))


# rows and bad input


@pytest.mark.parametrize(
    "m", [Duchi(1.0), Duchi(1.0, 4), Duchi(1.0, 5), Harmony(1.0, 4), Piecewise(6.0, 4), Hybrid(6.0, 4), OneBitMean(1.0)]
)
def test_a_row_depends_on_its_client_alone_and_values_are_clamped(m):
    rng, dim = Stream.research(1), getattr(m, "dim", 1)
    values = np.linspace(-1, 1, 40 * dim).reshape(40, dim) if dim > 1 else np.linspace(-1, 1, 40)
    whole = m.randomize(values, rng.rows(range(40)))
    assert whole.shape == values.shape
    assert all(np.array_equal(whole[i], m.randomize(values[i : i + 1], rng.rows([i]))[0]) for i in (0, 7, 39))
    assert not np.array_equal(whole, m.randomize(values, rng.rows(range(1, 41))))
    wild = np.where(np.arange(40) % 2, np.inf, -7.0)[:, None] * np.ones(dim) if dim > 1 else np.full(40, 7.0)
    tame = np.clip(wild, -1, 1)
    assert np.array_equal(m.randomize(wild, rng.rows(range(40))), m.randomize(tame, rng.rows(range(40))))


@pytest.mark.parametrize(
    "values", [[math.nan], ["a"], [True], [None], [[0.1, 0.2]], [0.1, 0.2], 0.1, [[0.1], [0.1, 0.2]]]
)
def test_values_that_are_not_numbers_are_refused(values):
    for m in (Duchi(1.0), Harmony(1.0, 1), Piecewise(1.0), Hybrid(1.0), OneBitMean(1.0)):
        with pytest.raises(DataError) as error:
            m.randomize(values, Stream.research(0).rows([0]))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, True, "1", 1e-9, 1e4])
def test_parameters_that_make_no_sense(bad):
    for make in (Duchi, lambda e: Harmony(e, 2), Piecewise, Hybrid, OneBitMean):
        with pytest.raises(SpecError, match="epsilon"):
            make(bad)
    for make in (
        lambda d: Duchi(1.0, d),
        lambda d: Harmony(1.0, d),
        lambda d: Piecewise(1.0, d),
        lambda d: Hybrid(1.0, d),
    ):
        if bad != 1e4:
            with pytest.raises(SpecError, match="dim"):
                make(bad)
    if bad not in (1e-9, 1e4):
        with pytest.raises(SpecError, match="top"):
            OneBitMean(1.0, bad)
    with pytest.raises(SpecError, match="levels"):
        OneBitMean(1.0, 1.0, -1 if bad == 0 else bad)


@pytest.mark.parametrize("eps", [1e-6, 700.0])
def test_extreme_levels_stay_finite(eps):
    for m in (
        Duchi(eps),
        Duchi(eps, 4),
        Harmony(eps, 2),
        Piecewise(eps),
        Hybrid(eps),
        Piecewise(eps, 300),
        OneBitMean(eps),
    ):
        dim = getattr(m, "dim", 1)
        reports = m.randomize(np.full((2, dim) if dim > 1 else 2, 0.3), Stream.research(0).rows([0, 1]))
        assert np.isfinite(reports).all() and np.isfinite(m.variance(0.3)) and m.variance(0.3) >= 0
        assert np.isfinite(m.event().renyi(ORDERS)).all() and 0 <= pairs.delta(m.event().pair(), 0.0) <= 1 + 1e-12
    with pytest.raises(DataError):
        Duchi(1.0).estimate([])
