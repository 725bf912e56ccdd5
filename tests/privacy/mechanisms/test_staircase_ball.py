import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import gammaln, logsumexp
from scipy.stats import kstest

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy import pairs
from sordino.privacy.algebra import grouped
from sordino.privacy.clip import Bounded, clip_rows
from sordino.privacy.events import Pure
from sordino.privacy.mechanisms.staircase import Staircase
from sordino.privacy.mechanisms.staircase_ball import StaircaseBall, StaircaseBallEvent
from sordino.privacy.written import from_json, to_json


def draw(m: StaircaseBall, n: int, dim: int, bound: float = 1.0) -> np.ndarray:
    rows = Bounded(torch.zeros(n, dim, dtype=torch.float64), bound, 1)
    return m.add(rows, Stream.research(3).rows(range(n))).numpy()


def shells(epsilon: float, gamma: float, dim: int, count: int = 4000):
    """A second road: log-masses of the shells, lower and upper part of each step, between two radii."""
    k = np.arange(count, dtype=float)
    low, high = np.concatenate([k, k + gamma]), np.concatenate([k + gamma, k + 1])
    level = np.concatenate([k, k + 1])
    low, high, level = low[high > low], high[high > low], level[high > low]
    with np.errstate(divide="ignore"):
        volume = dim * np.log(high) + np.log(-np.expm1(dim * (np.log(low) - np.log(high))))
    mass = -epsilon * level + volume
    order = np.argsort(low, kind="stable")
    return low[order], high[order], (mass - logsumexp(mass))[order]


def radius_cdf(epsilon: float, gamma: float, dim: int):
    low, high, mass = shells(epsilon, gamma, dim)
    below = np.cumsum(np.exp(mass)) - np.exp(mass)

    def cdf(r):
        i = np.searchsorted(low, r, side="right") - 1
        part = (r**dim - low[i] ** dim) / (high[i] ** dim - low[i] ** dim)
        return below[i] + np.exp(mass[i]) * part

    return cdf


@pytest.mark.parametrize(
    ("epsilon", "gamma", "dim", "bound"), [(1.0, 0.5, 1, 1.0), (2.0, 0.3, 2, 0.25), (5.0, 0.2, 5, 2.0)]
)
def test_the_radius_has_the_promised_law_and_no_other(epsilon, gamma, dim, bound):
    x = draw(StaircaseBall(epsilon, gamma), 12_000, dim, bound)
    r = np.abs(x).sum(axis=1) / bound
    cdf = radius_cdf(epsilon, gamma, dim)
    assert kstest(r, cdf).pvalue > 1e-3
    assert kstest(r * 1.05, cdf).pvalue < 1e-3 and kstest(r * 0.95, cdf).pvalue < 1e-3
    assert kstest(r + 1, cdf).pvalue < 1e-3  # a shell index that starts at 1


def test_the_direction_is_uniform_on_the_ball():
    x = draw(StaircaseBall(2.0), 12_000, 3)
    share = x / np.abs(x).sum(axis=1, keepdims=True)
    for i in range(3):  # |share_i| is Beta(1, 2), its sign fair
        assert kstest(np.abs(share[:, i]), lambda t: 1 - (1 - t) ** 2).pvalue > 1e-3
        assert kstest(np.abs(share[:, i]), lambda t: 1 - (1 - t / 1.05) ** 2).pvalue < 1e-3
        assert abs((share[:, i] > 0).mean() - 0.5) < 4 * 0.5 / np.sqrt(12_000)
    assert abs(np.corrcoef(np.sign(share).T)[0, 1]) < 0.04


def test_one_dimension_is_the_staircase():
    m, flat = StaircaseBall(1.3, 0.4), Staircase(1.3, 0.4)
    x = np.linspace(-4, 4, 801)[:, None]
    assert_allclose(m.log_density(x, 0.7), np.log(flat.density(x[:, 0], 0.7)), rtol=1e-9)
    assert_allclose(m.variance(0.7, 1), flat.variance(0.7), rtol=1e-9)
    assert kstest(draw(m, 12_000, 1).ravel(), lambda t: flat.cdf(t, 1.0)).pvalue > 1e-3


@pytest.mark.parametrize(
    ("epsilon", "dim", "golden"), [(1.0, 2, 1.99307133374), (5.0, 10, 0.0790101540244), (1.0, 1000, 2.0)]
)
def test_variance_golden_values(epsilon, dim, golden):
    m = StaircaseBall(epsilon, 0.5)
    assert_allclose(m.variance(1.0, dim), golden, rtol=1e-9)
    assert_allclose(m.variance(3.0, dim), 9 * golden, rtol=1e-9)
    n = 4000 if dim < 100 else 200
    x = draw(m, n, dim)
    assert_allclose((x**2).mean(), golden, rtol=0.1)


@pytest.mark.parametrize("dim", [1, 2, 3, 10, 200])
@pytest.mark.parametrize(("epsilon", "gamma"), [(0.5, 0.0), (3.0, 0.3), (8.0, 1.0)])
def test_the_density_integrates_to_one(dim, epsilon, gamma):
    """Volume of a shell times the density inside it, over all shells."""
    m = StaircaseBall(epsilon, gamma)
    low, high, mass = shells(epsilon, gamma, dim)
    some = (high - low > 1e-9) & (mass > -60)
    middle = (low + high)[some] / 2
    x = np.zeros((len(middle), dim))
    x[:, 0] = middle * 0.4
    volume = dim * np.log(0.8 * high[some]) + np.log(
        -np.expm1(dim * np.log((low / high)[some], where=low[some] > 0, out=np.full(some.sum(), -np.inf)))
    )
    total = logsumexp(m.log_density(x, 0.4) + volume - gammaln(dim + 1))
    assert_allclose(total, 0, atol=1e-9)


@pytest.mark.parametrize(("epsilon", "dim"), [(1.0, 2), (5.0, 40)])
def test_audit_by_densities(epsilon, dim):
    m, rng, bound = StaircaseBall(epsilon), np.random.default_rng(1), 0.5
    x = draw(m, 4000, dim, bound)
    raw = torch.from_numpy(rng.normal(size=(4000, dim)) * 10 ** rng.uniform(-2, 1, (4000, 1)))
    sparse = torch.zeros_like(raw)
    sparse[:, 0] = 3.0
    claim = m.event().pure()

    def worst(mechanism, shift):
        return np.abs(mechanism.log_density(x, bound) - mechanism.log_density(x - shift, bound)).max()

    for rows in (raw, sparse):
        shift = clip_rows(rows, bound, 1).value.numpy()
        assert worst(m, shift) <= claim + 1e-6
    assert worst(m, shift) > claim - 1e-6  # the claim is reached
    assert worst(m, sparse.numpy()) > 2 * claim  # no clip
    assert worst(m, clip_rows(raw, bound, 2).value.numpy()) > 1.5 * claim  # clipped in the wrong norm
    assert worst(StaircaseBall(2 * epsilon), shift) > 1.5 * claim  # half the noise


def test_high_dimension_is_laplace_noise():
    m = StaircaseBall(1.0)
    x = draw(m, 2, 1_000_000)
    assert_allclose((x**2).mean(), 2.0, rtol=0.01)
    assert_allclose(m.variance(1.0, 1_000_000), 2.0, rtol=1e-9)
    assert np.isfinite(m.log_density(x, 1.0)).all()


def test_what_the_two_ends_leave_out_is_nothing():
    for epsilon in (0.001, 0.3, 4.0, 100.0):
        for dim in (1, 2, 30, 1000):
            for gamma in (0.0, 1e-9, 0.5, 1.0):
                radius, logs = StaircaseBall(epsilon, gamma)._balls(dim)
                ratio = np.exp(dim * np.log1p(1 / radius[-1]) - epsilon)  # of the next weight to the last
                assert logs[-1] + np.log(ratio / (1 - ratio)) - logsumexp(logs) < np.log(1e-18)
                if radius[0] - gamma >= 2:  # else nothing is left out below
                    down = np.exp(dim * np.log(radius[0] / (radius[0] + 1)) + epsilon)
                    assert logs[0] + np.log(1 / (1 - down)) - logsumexp(logs) < np.log(1e-18)


def test_the_event_is_randomized_response():
    event = StaircaseBall(1.7).event()
    assert event == StaircaseBallEvent(1.7) and event.pure() == 1.7
    assert_allclose(pairs.delta(event.pair(), 0.5), pairs.delta(pairs.randomized_response(1.7), 0.5))
    assert from_json(to_json(event)) == event and grouped(event, 2) == Pure(3.4)


def test_rows_are_keyed_by_client():
    zero, rng, m = torch.zeros(3, 6), Stream.research(1), StaircaseBall(1.0)
    noisy = m.add(Bounded(zero, 1.0, 1), rng.rows([1, 2, 3]))
    assert noisy.dtype == torch.float32 and len({r.numpy().tobytes() for r in noisy}) == 3
    assert torch.equal(noisy[1], m.add(Bounded(zero[:1], 1.0, 1), rng.rows([2]))[0])


def test_what_is_refused():
    with pytest.raises(SpecError, match="staircase-ball needs rows clipped in the L1"):
        StaircaseBall(1.0).add(Bounded(torch.zeros(1, 2), 1.0, 2), Stream.research(1).rows([0]))
    with pytest.raises(SpecError, match="shells"):
        StaircaseBall(1e-5).variance(1.0, 1_000_000)
    for epsilon in (0, -1, float("nan"), True, 1e9):
        with pytest.raises(SpecError, match="epsilon"):
            StaircaseBall(epsilon)
    for gamma in (-1, 2, float("nan"), None):
        with pytest.raises(SpecError, match="gamma"):
            StaircaseBall(1.0, gamma)
    for dim in (0, 1.5, True, 10**400):
        with pytest.raises(SpecError, match="dim"):
            StaircaseBall(1.0).variance(1.0, dim)
