"""PrivUnit: unit vectors."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.special import gammaln
from scipy.stats import beta, kstest, norm

from sordino.core.errors import DataError, SpecError
from sordino.core.rng import Stream
from sordino.privacy import pairs, written
from sordino.privacy.mechanisms.priv_unit import PrivUnit, pull, share
from support.reports import Bulk

N = 100_000


def marginal(t, dim):
    """The density of <U, v> for a uniform U on the sphere."""
    log = gammaln(dim / 2) - gammaln((dim - 1) / 2) - math.log(math.pi) / 2
    return math.exp(log + (dim - 3) / 2 * math.log1p(-t * t))


def first(dim):
    return np.bincount([0], minlength=dim).astype(float)


def integrals(m):
    """Mass and mean of <z, v> by quadrature, from the density alone."""
    v = first(m.dim)
    high, low = (float(m.density(v, [s * v / m.shrink])[0]) for s in (1, -1))
    spread = min(1.0, 12 / math.sqrt(m.dim))
    parts = [(-spread, 0.0, low), (0.0, m.gamma, low), (m.gamma, min(1.0, m.gamma + spread), high)]
    return [
        sum(
            w * quad(lambda t, k=k: t**k * marginal(t, m.dim), a, b, epsabs=1e-14, epsrel=1e-12)[0] for a, b, w in parts
        )
        for k in (0, 1)
    ]


@pytest.mark.parametrize("dim", [3, 4, 10, 300, 20_000])
@pytest.mark.parametrize("eps", [0.5, 4.0, 12.0])
def test_it_is_unbiased_and_private_by_quadrature(dim, eps):
    m = PrivUnit(eps, dim)
    mass, mean = integrals(m)
    assert mass == pytest.approx(1, rel=1e-9)
    assert mean == pytest.approx(m.shrink, rel=1e-8)  # so that z / m has mean v
    v = first(dim)
    inside, outside = m.density(v, [v / m.shrink, -v / m.shrink])
    assert math.log(inside / outside) == pytest.approx(eps, rel=1e-12)
    assert m.event().pure() == eps
    assert m.variance() == pytest.approx(1 / mean**2 - 1, rel=1e-7)


@pytest.mark.parametrize(("eps", "dim"), [(0.5, 3), (4.0, 50), (12.0, 1000), (8.0, 1_000_000)])
def test_no_other_cap_has_a_larger_mean(eps, dim):
    m = PrivUnit(eps, dim)
    grid = np.linspace(0, 1, 20_001)[:-1] if dim < 10_000 else np.linspace(0, 20 * m.gamma, 20_001)
    best = max(pull(float(g), eps, dim) for g in grid)
    assert best <= m.shrink * (1 + 1e-12) and best > 0.999 * m.shrink
    assert m.shrink == pytest.approx(m.gamma, rel=1e-9)


def test_the_shares_of_caps_are_right_in_few_and_in_very_many_dimensions():
    assert share(0.3, 3) == pytest.approx(0.35, rel=1e-14)  # Archimedes: (1 - gamma) / 2
    assert share(0.3, 2) == pytest.approx(math.acos(0.3) / math.pi, rel=1e-14)
    for d in (10**6, 10**8):  # nearly normal; the first correction is of the order 1/d
        for z in (0.5, 2.0, 5.0):
            assert share(z / math.sqrt(d), d) == pytest.approx(norm.sf(z), rel=300 / d)
    assert share(0.01, 10**6) == pytest.approx(7.601215202359555e-24, rel=1e-12)  # 40-digit quadrature


def test_it_beats_the_loose_closed_form_of_the_paper():
    """Bhowmick et al., Theorem 1: gamma = sqrt(pi/(2(d-1))) tanh(eps1/2), p = e^eps0 / (1 + e^eps0)."""
    eps, dim = 4.0, 500
    worst = []
    for part in np.linspace(0.05, 0.95, 19):
        gamma = math.sqrt(math.pi / (2 * (dim - 1))) * math.tanh(part * eps / 2)
        p, a = 1 / (1 + math.exp(-(1 - part) * eps)), share(gamma, dim)
        level = math.log(p / (1 - p)) + math.log((1 - a) / a)
        assert level <= eps + 1e-9  # sound
        inner = pull(gamma, 50.0, dim) * a  # J, as eps grows
        worst.append(inner * (p / a - (1 - p) / (1 - a)))
    assert max(worst) < PrivUnit(eps, dim).shrink


def test_reports_follow_their_law_and_no_other():
    eps, dim = 3.0, 8
    m, v = PrivUnit(eps, dim), np.arange(1.0, 9.0) / np.linalg.norm(np.arange(1.0, 9.0))
    reports = m.randomize(np.tile(3 * v, (N, 1)), Bulk(Stream.research(2), np.arange(N)))  # its length does not count
    assert_allclose(np.linalg.norm(reports, axis=1), 1 / m.shrink, rtol=1e-9)
    along = reports @ v * m.shrink

    def law(other):
        def cdf(t):
            below = 0.5 + np.sign(t) * beta(0.5, (dim - 1) / 2).cdf(t * t) / 2
            low, high = other.outside / (1 - other.cap), (1 - other.outside) / other.cap
            return low * np.minimum(below, 1 - other.cap) + high * np.maximum(below - (1 - other.cap), 0)

        return cdf

    assert kstest(along, law(m)).pvalue > 1e-3
    assert kstest(along, law(PrivUnit(eps * 1.05, dim))).pvalue < 1e-6
    assert abs((along >= m.gamma).mean() - (1 - m.outside)) < 4 * (0.25 / N) ** 0.5
    # across v the direction is uniform: any fixed coordinate of it is Beta
    w = np.linalg.qr(np.column_stack([v, np.eye(dim)[:, 1:]]))[0][:, 3]
    across = reports @ w / np.sqrt(1 / m.shrink**2 - (reports @ v) ** 2)
    assert kstest((1 + across) / 2, beta((dim - 2) / 2, (dim - 2) / 2).cdf).pvalue > 1e-3
    assert kstest((1 + 1.05 * across) / 2, beta((dim - 2) / 2, (dim - 2) / 2).cdf).pvalue < 1e-3
    assert np.abs(m.estimate(reports) - v).max() < 4 * (m.variance() / dim / N) ** 0.5 * 1.5
    assert ((reports - v) ** 2).sum(axis=1).mean() == pytest.approx(m.variance(), rel=0.01)


@pytest.mark.parametrize("dim", [2, 3, 1000])
def test_the_inverse_is_the_inverse(dim):
    m = PrivUnit(2.0, dim)
    u = np.linspace(1e-6, 1 - 1e-6, 2001)
    for outside in (False, True):
        t = m.along(np.full(len(u), outside), u)
        tail = np.array([share(x, dim) if x >= 0 else 1 - share(-x, dim) for x in t])
        want = m.cap + u * (1 - m.cap) if outside else u * m.cap
        assert_allclose(tail, want, rtol=1e-9, atol=1e-10)
        assert (t <= m.gamma).all() if outside else (t >= m.gamma).all()


def test_a_million_coordinates():
    m, rng = PrivUnit(8.0, 1_000_000), Stream.research(4).rows([1, 2])
    v = np.zeros((2, 1_000_000))
    v[0, 5], v[1] = 1.0, 1e-3
    reports = m.randomize(v, rng)
    assert_allclose(np.linalg.norm(reports, axis=1) * m.shrink, 1, rtol=1e-9)
    assert m.gamma < 0.01 and math.isfinite(m.variance()) and 0 < m.cap < 0.5


def test_the_pair_of_the_event_is_that_of_two_opposite_vectors():
    """Cells of the sphere by <z, v>: both caps and the belt between them."""
    eps = 2.0
    m = PrivUnit(eps, 6)
    low, high = m.outside / (1 - m.cap), (1 - m.outside) / m.cap
    p = np.array([m.cap * high, (1 - 2 * m.cap) * low, m.cap * low])
    assert p.sum() == pytest.approx(1, rel=1e-12)
    event = m.event()
    for at in (-1.0, 0.0, 1.0, 1.9):
        assert pairs.delta(event.pair(), at) == pytest.approx(np.maximum(p - math.exp(at) * p[::-1], 0).sum(), rel=1e-9)
    orders = np.array([1.01, 2.0, 30.0])
    assert_allclose(
        event.renyi(orders), [np.log((p**a * p[::-1] ** (1 - a)).sum()) / (a - 1) for a in orders], rtol=1e-9
    )
    assert pairs.delta(event.pair(), 0.0) < pairs.delta(
        pairs.randomized_response(eps), 0.0
    )  # better than nothing known
    assert written.from_json(written.to_json(event)) == event


def test_rows_depend_on_their_client_and_a_zero_row_has_mean_zero():
    m, rng = PrivUnit(2.0, 4), Stream.research(1)
    values = np.random.default_rng(0).normal(size=(20, 4))
    values[3] = 0
    whole = m.randomize(values, rng.rows(range(20)))
    assert all(np.array_equal(whole[i], m.randomize(values[i : i + 1], rng.rows([i]))[0]) for i in (0, 3, 19))
    assert not np.array_equal(whole, m.randomize(values, rng.rows(range(1, 21))))
    none = m.randomize(np.zeros((N, 4)), Bulk(Stream.research(2), np.arange(N)))
    assert np.abs(none.mean(axis=0)).max() < 4 * (1 / m.shrink**2 / 4 / N) ** 0.5
    assert_allclose(np.linalg.norm(none, axis=1), 1 / m.shrink, rtol=1e-9)
    assert_allclose(m.randomize(1e300 * values, rng.rows(range(20))), whole, rtol=1e-9)


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, True, "1", 1e-9, 1e4])
def test_parameters_that_make_no_sense(bad):
    with pytest.raises(SpecError, match="epsilon"):
        PrivUnit(bad, 3)
    with pytest.raises(SpecError, match="dim"):
        PrivUnit(1.0, 1 if bad == 1e4 else bad)


@pytest.mark.parametrize("values", [[[math.nan, 1]], [[math.inf, 1]], [[1]], [1, 1], [["a", "b"]], [[True, False]]])
def test_values_that_are_no_vectors_are_refused(values):
    with pytest.raises(DataError) as error:
        PrivUnit(1.0, 2).randomize(values, Stream.research(0).rows([0]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("eps", "dim"), [(1e-6, 2), (1e-6, 10**6), (700.0, 2), (700.0, 10**6)])
def test_extreme_levels_stay_finite(eps, dim):
    m = PrivUnit(eps, dim)
    assert 0 < m.shrink < 1 and 0 < m.gamma < 1 and 0 < m.cap < 1 and m.variance() > 0
    assert np.isfinite(m.event().renyi(np.array([1.5, 64.0]))).all()
    if dim == 2:
        assert np.isfinite(m.randomize([[0.6, 0.8]], Stream.research(0).rows([0]))).all()
