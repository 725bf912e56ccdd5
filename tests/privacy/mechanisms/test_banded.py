import itertools
import math

import numpy as np
import pytest
import torch
from scipy.linalg import toeplitz
from scipy.special import binom

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy.clip import Bounded
from sordino.privacy.events import GaussianEvent
from sordino.privacy.mechanisms.banded import Banded
from sordino.privacy.mechanisms.tree import Tree

LIKE = torch.zeros(1, 1)
BOTH = pytest.mark.parametrize("rng", [Stream.research(7), Stream(bytes(range(32)), True)], ids=["research", "secure"])


def matrix(mechanism):
    """C [rounds, rounds], written out."""
    column = np.zeros(mechanism.rounds)
    column[: mechanism.bands] = mechanism.coefficients()
    return np.tril(toeplitz(column))


def test_the_coefficients_are_those_of_the_square_root():
    c = Banded(1.0, 12, 12).coefficients()
    assert np.allclose(c / c[0], [(-1) ** k * binom(-0.5, k) for k in range(12)], rtol=1e-12)
    root = np.tril(toeplitz(c / c[0]))
    assert np.allclose(root @ root, np.tril(np.ones((12, 12))))
    for b in (1, 3, 12):
        assert np.linalg.norm(Banded(1.0, 12, b).coefficients()) == pytest.approx(1, rel=1e-14)


@pytest.mark.parametrize(
    ("rounds", "bands", "most"), [(8, 8, 1), (8, 3, 1), (9, 3, 2), (10, 3, 9), (11, 2, 3), (6, 1, 6)]
)
def test_the_sensitivity_is_the_worst_participation(rounds, bands, most):
    """Every pattern that keeps the distance; contributions point the same way at worst, as no entry is negative."""
    mechanism = Banded(1.0, rounds, bands, most)
    c, worst, closer = matrix(mechanism), 0.0, 0.0
    for size in range(1, most + 1):
        for chosen in itertools.combinations(range(rounds), size):
            moved = np.linalg.norm(c[:, list(chosen)].sum(axis=1))
            if all(b - a >= bands for a, b in itertools.pairwise(chosen)):
                worst = max(worst, moved)
            closer = max(closer, moved)
    assert worst <= mechanism.sensitivity() + 1e-12
    if rounds >= bands * most:
        assert worst == pytest.approx(mechanism.sensitivity(), rel=1e-12)
    if most > 1 and bands > 1:
        assert closer > mechanism.sensitivity()  # who does not keep the distance is not covered


def test_the_event_is_one_gaussian():
    assert Banded(2.0, 128, 16).event() == GaussianEvent(2.0)
    assert Banded(2.0, 128, 16, 4).event() == GaussianEvent(1.0)
    assert Banded(2.0, 128, 16, 100).event() == GaussianEvent(2.0 / math.sqrt(8))  # there is room for eight


@pytest.mark.parametrize(("rounds", "bands"), [(128, 8), (128, 32), (128, 128), (1000, 32)])
def test_it_beats_independent_noise_and_the_tree_at_equal_mu(rounds, bands):
    tree, banded, alone = Tree(1.0, rounds), Banded(1.0, rounds, bands), Banded(1.0, rounds, 1)
    error = [m.mean_squared_error() * m.sensitivity() ** 2 for m in (banded, tree, alone)]  # at mu = 1
    assert error[0] < error[1] < error[2] and error[2] == pytest.approx((rounds + 1) / 2)


def test_the_error_is_the_mean_of_the_covariance():
    mechanism = Banded(1.7, 40, 6)
    b = np.tril(np.ones((40, 40))) @ np.linalg.inv(matrix(mechanism))
    assert np.allclose(mechanism.covariance(), 1.7**2 * b @ b.T, rtol=1e-10)
    assert mechanism.mean_squared_error() == pytest.approx(np.trace(mechanism.covariance()) / 40, rel=1e-10)


@BOTH
@pytest.mark.parametrize("bands", [1, 4, 20])
def test_the_stream_is_the_noise_of_every_round(rng, bands):
    mechanism, rows = Banded(1.5, 20, bands), rng.rows([0, 5])
    for t, y in enumerate(mechanism.stream(30, rows, LIKE)):
        assert torch.allclose(y, mechanism.noise(t, 30, rows, LIKE), atol=1e-4)
    assert t == 19


@BOTH
def test_prefix_noise_has_the_promised_covariance_and_no_other(rng):
    dim, mechanism = 60_000, Banded(1.3, 8, 3)
    noise = torch.cat(list(mechanism.stream(dim, rng.rows([3]), LIKE))).double().cumsum(dim=0).numpy()
    found, exact = noise @ noise.T / dim, mechanism.covariance()
    spread = np.sqrt((np.outer(np.diag(exact), np.diag(exact)) + exact**2) / dim)  # of one entry
    assert np.all(np.abs(found - exact) < 5 * spread)
    for wrong in (1.05**2, 0.95**2):  # five per cent in scale
        assert np.abs((found - wrong * exact) / spread).max() > 8
    assert np.abs((found - Banded(1.3, 8, 4).covariance()) / spread).max() > 8  # another number of bands


def test_add_follows_the_bound_and_the_client():
    mechanism, rng = Banded(1.0, 4, 2), Stream.research(3)
    noisy = mechanism.add(Bounded(torch.ones(2, 20), 0.5), 2, rng.rows([1, 2]))
    assert torch.allclose(noisy, 1 + 0.5 * mechanism.noise(2, 20, rng.rows([1, 2]), LIKE))
    assert torch.equal(noisy[1:], mechanism.add(Bounded(torch.ones(1, 20), 0.5), 2, rng.rows([2])))
    assert not torch.equal(noisy[0], noisy[1])
    with pytest.raises(SpecError, match="L2"):
        mechanism.add(Bounded(torch.ones(2, 20), 0.5, norm=1), 2, rng.rows([1, 2]))


@pytest.mark.parametrize("step", [-1, 4, True, 1.0])
def test_a_round_that_was_not_planned_gets_no_noise(step):
    with pytest.raises(SpecError, match="step"):
        Banded(1.0, 4, 2).noise(step, 3, Stream.research(1).rows([0]), LIKE)


@pytest.mark.parametrize(
    "bad",
    [(0, 4, 2), (math.nan, 4, 2), (True, 4, 2), (1.0, 0, 1), (1.0, 4, 0), (1.0, 4, 5), (1.0, 4, 2.0), (1.0, 4, 2, 0)],
)
def test_impossible_factors_cannot_be_made(bad):
    with pytest.raises(SpecError):
        Banded(*bad)
