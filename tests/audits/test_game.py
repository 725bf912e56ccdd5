"""The distinguishing game on mechanisms whose truth is known: how often it is wrong, and how much it sees."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from scipy.special import expit, ndtri
from scipy.stats import binomtest

from sordino.audits import bounds, game
from sordino.audits.bounds import clopper_pearson
from sordino.audits.game import Trials
from sordino.core.errors import SpecError
from sordino.privacy.accountants import gdp
from sordino.privacy.mechanisms.laplace import Laplace
from sordino.privacy.mechanisms.randomized_response import RandomizedResponse
from sordino.privacy.mechanisms.staircase import Staircase
from sordino.red_team.mechanisms import exact

AUDITS, TRIALS = 1000, 400  # audits of each mechanism, and trials of either kind in one audit
DELTA = 1e-5


def gaussian(rng, shape, inside, mu=1.0):
    return rng.normal(mu * inside, 1.0, shape)


def laplace(rng, shape, inside):
    return rng.laplace(float(inside), 1.0, shape)


def response(rng, shape, inside, epsilon=1.0):
    return (rng.random(shape) < (expit(epsilon) if inside else expit(-epsilon))).astype(float)


def staircase(rng, shape, inside, epsilon=1.0):
    """Written out: a sign, a geometric step, and a place in the step."""
    b, gamma = math.exp(-epsilon), 1 / (1 + math.exp(epsilon / 2))
    k, part = rng.geometric(1 - b, shape) - 1, rng.random(shape)
    first = rng.random(shape) < gamma / (gamma + (1 - gamma) * b)
    size = k + np.where(first, gamma * part, gamma + (1 - gamma) * part)
    return float(inside) + size * rng.choice([-1.0, 1.0], shape)


KNOWN = {
    "gaussian": (gaussian, lambda delta: gdp.epsilon_of_mu(1.0, delta) if delta else math.inf),
    "laplace": (laplace, lambda delta: exact(Laplace(1.0), delta)),
    "randomized response": (response, lambda delta: exact(RandomizedResponse(1.0), delta)),
    "staircase": (staircase, lambda delta: exact(Staircase(1.0), delta)),
}


def simulated(draw, delta, confidence=0.95, seed=0, honest=True):
    """Lower bounds on epsilon and mu of many audits at once: the game with one score, written for arrays.

    `honest = False` counts errors on the trials that the threshold was chosen on.
    """
    rng = np.random.default_rng(seed)
    both = [draw(rng, (AUDITS, TRIALS), inside) for inside in (True, False)]
    half = TRIALS // 2
    pooled = np.concatenate([rows[:, :half] for rows in both], axis=1)
    cuts = np.quantile(pooled, np.linspace(0.02, 0.98, 25), axis=1).T  # [audits, cuts]

    def rates(part, at, sure):
        counts = [(rows[:, part, None] >= at[:, None, :]).sum(axis=1) for rows in both]
        return clopper_pearson(counts[0], half, sure)[0], clopper_pearson(counts[1], half, sure)[1]

    worth = game._separations(*rates(slice(0, half), cuts, game.CHOICE), delta)
    chosen = np.take_along_axis(cuts, worth.argmax(axis=1)[:, None], axis=1)
    low, high = rates(slice(half, None) if honest else slice(0, half), chosen, confidence)
    with np.errstate(divide="ignore"):
        mu = np.maximum(0.0, ndtri(low) - ndtri(high))
    return np.maximum(0.0, game._separations(low, high, delta))[:, 0], mu[:, 0]


def agrees(errors, rate=0.05):
    """Whether so many errors agree with a rate of at most that: one-sided, p > 0.01."""
    return binomtest(int(np.sum(errors)), len(errors), rate, alternative="greater").pvalue > 0.01


@pytest.mark.parametrize("delta", [0.0, 1e-2, 0.1])
@pytest.mark.parametrize("name", KNOWN)
def test_bounds_exceed_the_truth_as_seldom_as_they_say(name, delta):
    draw, truth = KNOWN[name]
    lower, _ = simulated(draw, delta)
    assert agrees(lower > truth(delta))
    assert not agrees(lower > 0.5 * truth(0.1))  # the test sees a claim of half of it


def test_bounds_are_sharp_where_one_threshold_is_all_there_is():
    """Randomized response: some audits do exceed the truth, so that the rate is really tried; more at a lower level."""
    lower, _ = simulated(response, 0.0)
    assert np.mean(lower > 1.0) > 0.002 and not agrees(simulated(response, 0.0, confidence=0.7)[0] > 1.0)
    assert np.mean(lower) > 0.4


def test_counting_where_the_threshold_was_chosen_is_wrong():
    """There is nothing to see: the best of 25 thresholds sees something all the same, too often for its confidence."""
    nothing = functools.partial(gaussian, mu=0.0)
    chosen, honest = (simulated(nothing, 0.0, 0.5, honest=h)[0] > 0 for h in (False, True))
    assert agrees(honest, 0.5) and not agrees(chosen, 1.5 * honest.mean())


def test_the_gaussian_bound_holds_for_gaussians_only():
    _, mu = simulated(gaussian, 1e-2)
    assert agrees(mu > 1.0) and not agrees(mu > 0.5)
    epsilons = np.array([gdp.epsilon_of_mu(m, DELTA) for m in simulated(laplace, 1e-2)[1][:50]])
    assert np.mean(epsilons > 1.0) > 0.9  # of a mechanism that is 1-DP


@pytest.mark.parametrize(("name", "delta"), [("gaussian", 1e-2), ("randomized response", 1e-9)])
def test_the_game_itself_errs_as_seldom_as_it_says(name, delta):
    draw, truth = KNOWN[name]
    rng, claim = np.random.default_rng(3), truth(delta)
    curve = {d: truth(d) for d in (*game.DELTAS, delta)}
    found = []
    for _ in range(100):
        trials = Trials(*(draw(rng, (200, 1), inside) for inside in (True, False)))
        found.append(game.play(trials, curve.__getitem__, delta, alarm=0.95))
    assert agrees([f.lower.epsilon > claim for f in found]) and agrees([f.refuted for f in found])
    if name == "gaussian":
        assert agrees([f.gaussian.epsilon > claim for f in found])


@pytest.mark.parametrize(
    ("name", "part", "gaussian_part"),
    [("gaussian", 0.3, 0.85), ("laplace", 0.6, None), ("randomized response", 0.85, None), ("staircase", 0.6, None)],
)
def test_bounds_reach_a_part_of_the_truth(name, part, gaussian_part):
    draw, truth = KNOWN[name]
    rng = np.random.default_rng(1)
    found = game.play(Trials(*(draw(rng, (8000, 1), inside) for inside in (True, False))), truth, DELTA)
    assert part * truth(DELTA) < found.lower.epsilon <= truth(DELTA) and found.sound
    assert gaussian_part is None or gaussian_part * truth(DELTA) < found.gaussian.epsilon <= truth(DELTA)


# --- one run


def test_one_run_with_fair_coins():
    """Each canary answers by randomized response: the bound exceeds its epsilon in at most 5 % of 1000 runs."""
    rng = np.random.default_rng(2)
    right = rng.binomial(500, expit(1.0), AUDITS)
    known = {int(v): bounds.one_run(500, 500, int(v), 0.0).epsilon for v in np.unique(right)}
    found = np.array([known[int(v)] for v in right])
    assert agrees(found > 1.0) and np.mean(found > 1.0) > 0.02
    assert not agrees(found > 0.8) and found.mean() > 0.75


@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_one_run_by_scores_pays_for_its_four_shares(delta, monkeypatch):
    """Gaussian scores of mu = 1 at its true (epsilon, delta); randomized response, which is sharp, at delta = 0."""
    monkeypatch.setattr(bounds, "one_run", functools.cache(bounds.one_run))
    rng, runs, n = np.random.default_rng(4), 400, 300
    coins = rng.random((runs, n)) < 0.5
    if delta:
        scores, truth = rng.normal(coins, 1.0), gdp.epsilon_of_mu(1.0, delta)
    else:
        says = np.where(rng.random((runs, n)) < expit(1.0), coins, ~coins)
        scores, truth = says + 1e-3 * rng.random((runs, n)), 1.0
    found = np.array([bounds.one_run_scores(s, c, delta).epsilon for s, c in zip(scores, coins, strict=True)])
    assert agrees(found > truth) and np.median(found) > (0.08 if delta else 0.6) * truth
    lower = np.median([bounds.one_run_scores(rng.random(n), c, delta).epsilon for c in coins[:50]])
    assert lower == 0.0  # scores that know nothing


def test_one_run_needs_a_coin_for_every_score():
    with pytest.raises(SpecError, match="one coin for each score"):
        bounds.one_run_scores(np.zeros(5), np.zeros(4, dtype=bool), 0.0)


# --- what the game looks at


def found(inside, outside, claim=lambda delta: 0.5):
    return game.play(Trials(inside, outside), claim, DELTA)


def test_a_claim_is_compared_along_its_whole_curve():
    """mu = 2 against a claim of mu = 1 is refuted at a large delta, long before the bound at 1e-5 exceeds epsilon."""
    rng = np.random.default_rng(5)
    result = found(rng.normal(2, 1, (1500, 1)), rng.normal(0, 1, (1500, 1)), lambda d: gdp.epsilon_of_mu(1.0, d))
    assert result.refuted and not result.sound and result.at is not None and result.at > 0.01
    assert result.lower.epsilon < result.claimed == gdp.epsilon_of_mu(1.0, DELTA)
    honest = found(rng.normal(1, 1, (1500, 1)), rng.normal(0, 1, (1500, 1)), lambda d: gdp.epsilon_of_mu(1.0, d))
    assert honest.sound and honest.at is None


def test_noise_whose_scale_follows_the_unit_is_seen():
    rng = np.random.default_rng(6)
    wide, narrow = rng.normal(0, 2, (1000, 10)), rng.normal(0, 1, (1000, 10))
    assert found(wide, narrow).refuted and found(narrow, wide).refuted
    assert not found(narrow[:500], narrow[500:]).refuted


def test_noise_that_cancels_between_numbers_is_seen():
    """Two numbers with one noise: neither tells anything, their difference everything."""
    rng = np.random.default_rng(7)

    def rows(unit):
        shared = rng.normal(0, 100, (1000, 1))
        return np.concatenate([shared + unit, shared], axis=1)

    result = found(rows(1.0), rows(0.0))
    assert result.refuted and result.test.statistic == "whitened"
    assert not found(rows(0.0), rows(0.0)).refuted


def test_numbers_of_any_scale_are_looked_at():
    """A gradient of 1e-9 beside a loss of 1e3."""
    rng = np.random.default_rng(8)

    def rows(unit):
        return np.concatenate([1e-9 * rng.normal(3 * unit, 1, (1000, 1)), 1e3 * rng.normal(0, 1, (1000, 1))], axis=1)

    assert found(rows(1), rows(0)).refuted and not found(rows(0), rows(0)).refuted


def test_a_unit_in_one_of_many_steps_is_seen():
    rng = np.random.default_rng(9)
    inside, outside = rng.normal(0, 1, (2000, 20)), rng.normal(0, 1, (2000, 20))
    inside[np.arange(2000), rng.integers(0, 20, 2000)] += 5.0
    result = found(inside, outside)
    assert result.refuted and result.test.statistic == "peak"


def test_constants_and_repeated_numbers_do_no_harm():
    rng = np.random.default_rng(10)
    noise, seven = rng.normal(0, 1, (800, 1)), np.full((800, 1), 7.0)
    rows = np.concatenate([noise, noise, 2 * noise, seven, 0 * seven], axis=1)
    assert not found(rows[:400], rows[400:]).refuted
    told = rows.copy()
    told[:, 3] = 8.0
    assert found(told, rows).refuted  # a constant that gives the unit away


@pytest.mark.parametrize(
    ("inside", "outside", "message"),
    [
        (np.full((9, 2), np.nan), np.zeros((9, 2)), "trials inside hold numbers that are not finite"),
        (np.zeros((9, 2)), np.full((9, 2), np.inf), "trials outside hold numbers that are not finite"),
        (np.zeros((3, 2)), np.zeros((9, 2)), "at least 4 trials inside"),
        (np.zeros((9, 2)), np.zeros(9), "at least 4 trials outside"),
        (np.zeros((9, 0)), np.zeros((9, 0)), "at least 4 trials inside"),
        (np.zeros((9, 2)), np.zeros((9, 3)), "equally many numbers"),
    ],
)
def test_bad_trials_are_refused(inside, outside, message):
    with pytest.raises(SpecError, match=message):
        Trials(inside, outside)


@pytest.mark.parametrize("keys", [{"delta": 1.0}, {"delta": 0.1, "confidence": 1.0}, {"delta": 0.1, "alarm": 1.5}])
def test_levels_that_are_none_are_refused(keys):
    with pytest.raises(SpecError):
        game.play(Trials(np.zeros((9, 1)), np.zeros((9, 1))), lambda d: 1.0, **keys)
