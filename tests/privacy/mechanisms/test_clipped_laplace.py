from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.stats import kstest

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy.clip import Bounded, clip_rows
from sordino.privacy.mechanisms.clipped_laplace import ClippedLaplace
from sordino.privacy.mechanisms.laplace import Laplace

M = ClippedLaplace(0.9, -1.0, 2.5)


def outputs(x: float, bound: float, n: int = 40_000) -> np.ndarray:
    rows = Bounded(torch.full((1, n), x, dtype=torch.float64), bound, 1)
    return M.add(rows, Stream.research(5).rows([3]))[0].numpy()


@pytest.mark.parametrize("x", [-0.2, 1.7])
def test_the_output_has_the_promised_law_and_no_other(x):
    y = outputs(x, 2.0)
    assert y.min() == -1.0 and y.max() == 2.5
    low, high = M.atoms(x, 2.0)
    spread = 4.5 * np.sqrt(0.25 / len(y))
    assert abs((y == -1.0).mean() - low) < spread and abs((y == 2.5).mean() - high) < spread
    inside = y[(y > -1.0) & (y < 2.5)]

    def law(scale):
        noise = Laplace(0.9 * scale)
        below, above = noise.cdf(-1.0 - x, 2.0), noise.cdf(2.5 - x, 2.0)
        return lambda t: (noise.cdf(t - x, 2.0) - below) / (above - below)

    assert kstest(inside, law(1.0)).pvalue > 1e-3
    wrong = [
        abs((y == end).mean() - p) > spread
        for end, p in zip((-1.0, 2.5), ClippedLaplace(0.9 * 1.1, -1, 2.5).atoms(x, 2.0), strict=True)
    ]
    assert any(wrong)  # the atoms see ten per cent


@pytest.mark.parametrize("factor", [1.05, 0.95])
def test_five_per_cent_are_seen(factor):
    """On both sides of an interval far away the law is plain Laplace, and the scale shows."""
    rows = Bounded(torch.zeros(1, 40_000, dtype=torch.float64), 2.0, 1)
    y = ClippedLaplace(0.9, -15.0, 15.0).add(rows, Stream.research(5).rows([3]))[0].numpy()
    assert kstest(y, lambda t: Laplace(0.9).cdf(t, 2.0)).pvalue > 1e-3
    assert kstest(y, lambda t: Laplace(0.9 * factor).cdf(t, 2.0)).pvalue < 1e-3


@pytest.mark.parametrize("x", [-3.0, -1.0, 0.4, 2.0, 4.0])
def test_density_atoms_mean_and_variance(x):
    low, high = M.atoms(x, 2.0)
    cuts = sorted({-1.0, min(max(x, -1.0), 2.5), 2.5})

    def integral(f):
        return sum(quad(f, a, b, epsabs=1e-13)[0] for a, b in pairwise(cuts))

    def inside(y):
        return M.density(y, x, 2.0)

    assert_allclose(integral(inside) + low + high, 1, rtol=1e-9)
    mean = integral(lambda y: y * inside(y)) - low + 2.5 * high
    assert_allclose(M.mean(x, 2.0), mean, rtol=1e-9)
    assert_allclose(
        M.variance(x, 2.0),
        integral(lambda y: (y - mean) ** 2 * inside(y)) + low * (1 + mean) ** 2 + high * (2.5 - mean) ** 2,
        rtol=1e-8,
    )
    assert M.density(-1.0, x, 2.0) == M.density(2.6, x, 2.0) == 0


def test_it_is_biased_and_the_mean_says_how_much():
    y = outputs(2.0, 2.0)
    assert abs(M.mean(2.0, 2.0) - 2.0) > 0.5
    assert abs(y.mean() - M.mean(2.0, 2.0)) < 4.5 * np.sqrt(M.variance(2.0, 2.0) / len(y))


def ratio(m: ClippedLaplace, x: float, other: float, bound: float) -> float:
    y = np.linspace(m.low + 1e-9, m.high - 1e-9, 2001)
    inside = np.abs(np.log(m.density(y, x, bound)) - np.log(m.density(y, other, bound))).max()
    ends = [abs(np.log(a) - np.log(b)) for a, b in zip(m.atoms(x, bound), m.atoms(other, bound), strict=True)]
    return max(inside, *ends)


@pytest.mark.parametrize("z", [0.4, 1.5])
def test_audit_by_densities(z):
    m, raw = ClippedLaplace(z, -1.0, 2.5), 2.4
    clipped = float(clip_rows(torch.tensor([[raw]], dtype=torch.float64), 0.8, 1).value)
    claim = m.event().pure()
    assert 0.99 * claim < ratio(m, clipped, 0.0, 0.8) <= claim * (1 + 1e-9)
    assert ratio(m, raw, 0.0, 0.8) > 1.5 * claim  # no clip
    assert ratio(ClippedLaplace(z / 2, -1.0, 2.5), clipped, 0.0, 0.8) > 1.5 * claim  # half the noise


def test_the_event_is_that_of_laplace():
    assert M.event() == Laplace(0.9).event()


def test_rows_are_keyed_by_client():
    zero, rng = torch.zeros(3, 20), Stream.research(1)
    noisy = M.add(Bounded(zero, 1.0, 1), rng.rows([1, 2, 3]))
    assert torch.equal(noisy[2], M.add(Bounded(zero[:1], 1.0, 1), rng.rows([3]))[0])
    assert not torch.equal(noisy[0], noisy[1])


def test_what_is_refused():
    with pytest.raises(SpecError, match="clipped-laplace needs rows clipped in the L1"):
        M.add(Bounded(torch.zeros(1, 1), 1.0, 2), Stream.research(1).rows([0]))
    for low, high in [
        (1.0, 1.0),
        (2.0, -1.0),
        (float("nan"), 1.0),
        (0.0, float("inf")),
        (False, 1.0),
        (None, 1),
        (0, 10**400),
    ]:
        with pytest.raises(SpecError, match=r"low|high"):
            ClippedLaplace(1.0, low, high)
    for z in (0, -1, float("nan"), True):
        with pytest.raises(SpecError, match="noise_multiplier"):
            ClippedLaplace(z, 0.0, 1.0)
