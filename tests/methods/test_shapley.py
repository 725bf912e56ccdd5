import itertools

import numpy as np
import pytest
import torch

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.methods.fedsdp import shapley

RNG = Stream.research(3)


def game(players, seed=0):
    """Any game: a number for every coalition, none of them zero."""
    draw = np.random.default_rng(seed)
    every = itertools.chain.from_iterable(itertools.combinations(range(players), k) for k in range(players + 1))
    return {frozenset(s): float(draw.normal() + 3) for s in every}


def by_orders(players, v):
    """The definition: the mean over all orders of what a player adds when it joins."""
    orders = list(itertools.permutations(range(players)))
    phi = np.zeros(players)
    for order in orders:
        for place, g in enumerate(order):
            phi[g] += (v[frozenset(order[: place + 1])] - v[frozenset(order[:place])]) / len(orders)
    return phi


@pytest.mark.parametrize("players", [1, 2, 3, 6])
def test_exact_values_are_the_mean_over_all_orders(players):
    v = game(players)
    assert np.allclose(shapley.exact(players, v.__getitem__), by_orders(players, v), atol=1e-12)


def test_the_values_share_out_what_all_are_worth():
    v = game(7)
    total = v[frozenset(range(7))] - v[frozenset()]
    assert shapley.exact(7, v.__getitem__).sum() == pytest.approx(total, abs=1e-12)
    found = shapley.sampled(7, v.__getitem__, 5, RNG)  # every single order does
    assert found.values.sum() == pytest.approx(total, abs=1e-12)


def test_twins_get_the_same_and_a_player_who_adds_nothing_gets_nothing():
    v = game(2, seed=4)  # players 0 and 1 count; 2 is a twin of 1 (either will do); 3 adds nothing

    def value(s):
        return v[frozenset({0} & s) | (frozenset({1}) if s & {1, 2} else frozenset())]

    phi = shapley.exact(4, value)
    assert phi[1] == pytest.approx(phi[2], abs=1e-12) and phi[3] == pytest.approx(0, abs=1e-12)
    assert abs(phi[0]) > 0.1 and abs(phi[1]) > 0.1
    assert shapley.sampled(4, value, 20, RNG).values[3] == 0


def test_two_players_and_the_value_of_nobody():
    """Eq. (3): (c - c_u + c_p) / 2; with accuracies, nobody's value is that of the incoming model (THEORY 4.1)."""
    for nobody, ratio in ((0.0, 0.4375), (0.5, 1 / 3)):
        v = {frozenset(): nobody, frozenset({0}): 0.7, frozenset({1}): 0.6, frozenset({0, 1}): 0.8}
        general, private = shapley.exact(2, v.__getitem__)
        assert private == pytest.approx((0.8 - 0.7 + 0.6 - nobody) / 2)
        assert private / (private + general) == pytest.approx(ratio, abs=1e-12)


def test_many_games_at_once_are_each_by_itself():
    games = [game(3, seed) for seed in range(5)]
    together = shapley.exact(3, lambda s: [v[s] for v in games])
    assert together.shape == (3, 5)
    for k, v in enumerate(games):
        assert np.allclose(together[:, k], by_orders(3, v), atol=1e-12)
    found = shapley.sampled(3, lambda s: np.array([v[s] for v in games]), 9, RNG)
    assert found.values.shape == found.errors.shape == (3, 5)


def test_random_orders_come_to_the_exact_values_within_their_errors():
    v = game(6, seed=2)
    truth = by_orders(6, v)
    scores = []
    for i in range(60):
        found = shapley.sampled(6, v.__getitem__, 60, RNG.at("try", i))
        scores.append((found.values - truth) / found.errors)
    scores = np.concatenate(scores)
    assert abs(scores.mean()) < 5 / np.sqrt(360)  # no bias
    assert 0.8 < scores.std() < 1.25  # the errors are those they claim to be
    long = shapley.sampled(6, v.__getitem__, 6_000, RNG)
    assert np.abs(long.values - truth).max() < 0.08 < np.abs(truth - truth.mean()).max()


def test_a_seed_repeats_the_orders():
    v = game(5)
    one, other = (shapley.sampled(5, v.__getitem__, 6, RNG.at(name)) for name in ("a", "b"))
    assert np.array_equal(one.values, shapley.sampled(5, v.__getitem__, 6, RNG.at("a")).values)
    assert not np.allclose(one.values, other.values)


def test_each_coalition_is_asked_for_once():
    asked = []
    shapley.exact(5, lambda s: asked.append(s) or len(s))
    assert len(asked) == len(set(asked)) == 32


@pytest.mark.parametrize("players", [2, 3, 5])
def test_a_quadratic_game_has_a_closed_form(players):
    sums = torch.randn(players, 30, generator=torch.Generator().manual_seed(players))

    def value(s):
        return float(sums[sorted(s)].double().sum(dim=0).square().sum())

    closed = shapley.quadratic(sums).numpy()
    assert np.allclose(closed, shapley.exact(players, value), atol=1e-9)
    alone = sums.double().square().sum(dim=1).numpy()  # without the pairs it would be something else
    assert not np.allclose(closed, alone, atol=0.1)


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(SpecError, match="sample"):
        shapley.exact(13, len)
    with pytest.raises(SpecError, match="at least 2"):
        shapley.sampled(3, len, 1, RNG)
    with pytest.raises(SpecError):
        shapley.exact(0, len)
