import itertools
import math

import numpy as np
import pytest
import torch

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy.clip import Bounded
from sordino.privacy.events import GaussianEvent
from sordino.privacy.mechanisms.tree import Tree, nodes

LIKE = torch.zeros(1, 1)
BOTH = pytest.mark.parametrize("rng", [Stream.research(7), Stream(bytes(range(32)), True)], ids=["research", "secure"])


def node_matrix(rounds):
    """[nodes, rounds]: which rounds every node that is ever used holds."""
    used = sorted({node for t in range(1, rounds + 1) for node in nodes(t)})
    return np.array([[i << level <= t < (i + 1) << level for t in range(rounds)] for level, i in used], dtype=float)


def patterns(rounds, most, separation):
    for size in range(1, most + 1):
        for chosen in itertools.combinations(range(rounds), size):
            if all(b - a >= separation for a, b in itertools.pairwise(chosen)):
                yield chosen


def test_the_nodes_of_a_prefix_are_its_rounds():
    for t in range(200):
        held = [r for level, i in nodes(t) for r in range(i << level, (i + 1) << level)]
        assert sorted(held) == list(range(t)) and len(nodes(t)) == t.bit_count()


@pytest.mark.parametrize("rounds", [1, 2, 3, 7, 8, 12])
@pytest.mark.parametrize(("most", "separation"), [(1, 1), (2, 1), (2, 4), (3, 1), (3, 3), (12, 1), (12, 2), (12, 4)])
def test_no_participation_moves_the_nodes_by_more(rounds, most, separation):
    """Every pattern; contributions point the same way at worst, as the matrix has no negative entry."""
    matrix = node_matrix(rounds)
    worst = max(np.linalg.norm(matrix[:, list(c)].sum(axis=1)) for c in patterns(rounds, most, separation))
    found = Tree(1.0, rounds, most, separation).sensitivity()
    assert worst <= found + 1e-12 <= most * math.sqrt(rounds.bit_length()) + 2e-12
    if most == 1:
        assert found == pytest.approx(worst, rel=1e-12)  # and a smaller answer would be wrong


def test_the_event_is_one_gaussian():
    assert Tree(2.0, 128).event() == GaussianEvent(2.0 / math.sqrt(8))
    assert Tree(2.0, 127).event() == GaussianEvent(2.0 / math.sqrt(7))
    assert Tree(2.0, 1).event() == GaussianEvent(2.0)
    assert Tree(2.0, 64, 4, 16).event().gdp() > 2 * Tree(2.0, 64, 1).event().gdp() * 0.999
    assert Tree(2.0, 64, 100, 64).event() == Tree(2.0, 64, 1).event()  # there is room for one only


@BOTH
def test_increments_add_up_to_the_prefix(rng):
    tree, rows = Tree(1.5, 13), rng.rows([0, 5])
    total = torch.zeros(2, 30)
    for t in range(13):
        total += tree.noise(t, 30, rows, LIKE)
        assert torch.allclose(total, tree.prefix(t + 1, 30, rows, LIKE), atol=1e-5)


@BOTH
def test_prefix_noise_has_the_promised_covariance_and_no_other(rng):
    dim, tree = 60_000, Tree(1.3, 8)
    rows = rng.rows([3])
    noise = torch.cat([tree.noise(t, dim, rows, LIKE) for t in range(8)]).double().cumsum(dim=0).numpy()
    found = noise @ noise.T / dim
    lower = np.array(
        [[node in nodes(t) for node in sorted({n for s in range(9) for n in nodes(s)})] for t in range(1, 9)]
    )
    exact = 1.3**2 * (lower.astype(float) @ lower.T)
    assert np.allclose(np.diag(exact), [tree.variance(t) for t in range(1, 9)])
    assert tree.mean_squared_error() == pytest.approx(np.trace(exact) / 8)
    spread = np.sqrt((np.outer(np.diag(exact), np.diag(exact)) + exact**2) / dim)  # of one entry
    assert np.all(np.abs(found - exact) < 5 * spread)
    for wrong in (1.05**2, 0.95**2):  # five per cent in scale
        assert np.abs((found - wrong * exact) / spread).max() > 8


def test_add_follows_the_bound_and_the_client():
    tree, rng = Tree(1.0, 4), Stream.research(3)
    rows = Bounded(torch.ones(2, 20), 0.5)
    noisy = tree.add(rows, 2, rng.rows([1, 2]))
    assert torch.allclose(noisy, 1 + 0.5 * tree.noise(2, 20, rng.rows([1, 2]), LIKE))
    assert torch.equal(noisy[1:], tree.add(Bounded(torch.ones(1, 20), 0.5), 2, rng.rows([2])))
    assert not torch.equal(noisy[0], noisy[1])
    with pytest.raises(SpecError, match="L2"):
        tree.add(Bounded(torch.ones(2, 20), 0.5, norm=1), 2, rng.rows([1, 2]))


@pytest.mark.parametrize("step", [-1, 4, True, 1.0])
def test_a_round_that_was_not_planned_gets_no_noise(step):
    with pytest.raises(SpecError, match="step"):
        Tree(1.0, 4).noise(step, 3, Stream.research(1).rows([0]), LIKE)


@pytest.mark.parametrize(
    "bad", [(0, 4), (-1, 4), (math.nan, 4), (True, 4), (1.0, 0), (1.0, 2.5), (1.0, 4, 0), (1.0, 4, 1, 0)]
)
def test_impossible_trees_cannot_be_made(bad):
    with pytest.raises(SpecError):
        Tree(*bad)
