"""Error rates of attacks: golden values, ties, confidence, and the region that (epsilon, delta) allows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from sordino.audits.roc import Roc
from sordino.core.errors import SpecError

TRUTH = np.repeat([True, False], 1000)


def gaussian(mu, seed, n=1000):
    """Scores of members around mu, of others around 0; the AUC is Phi(mu / sqrt 2)."""
    draw = np.random.default_rng(seed)
    return np.concatenate([mu + draw.standard_normal(n), draw.standard_normal(n)])


def test_a_small_curve_by_hand():
    roc = Roc.of([4.0, 3.0, 2.0, 1.0], np.array([True, False, True, False]))
    assert roc.auc().value == 0.75  # three of the four pairs are in order
    assert roc.balanced_accuracy() == 0.75
    assert roc.tpr_at(0.0).value == 0.5 and roc.tpr_at(0.5).value == 1.0
    assert roc.tpr_at(0.25).value == 0.5  # no threshold lies between: nothing is gained before the next false positive


def test_equal_scores_are_never_told_apart():
    roc = Roc.of(np.zeros(2000), TRUTH)
    assert roc.auc().value == 0.5
    assert roc.tpr_at(0.01).value == pytest.approx(0.01) and roc.tpr_at(0.001).value == pytest.approx(0.001)
    assert roc.balanced_accuracy() == 0.5
    some = Roc.of(np.concatenate([np.ones(500), np.zeros(500), np.ones(100), np.zeros(900)]), TRUTH)
    assert some.tpr_at(0.01).value == pytest.approx(0.05)  # a tenth of the hundred false positives
    assert some.auc().value == pytest.approx(0.5 * 0.9 + 0.5 * (0.5 * 0.1 + 0.5 * 0.9))


def test_the_order_of_the_records_does_not_matter():
    """A sort that puts members first among equal scores would call a constant score perfect."""
    scores = np.round(gaussian(0.5, 3))
    order = np.random.default_rng(4).permutation(len(scores))
    one, other = Roc.of(scores, TRUTH), Roc.of(scores[order], TRUTH[order])
    assert one.auc() == other.auc() and one.tpr_at(0.01) == other.tpr_at(0.01)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    truth = norm.cdf(1 / math.sqrt(2))
    intervals = [Roc.of(gaussian(1.0, seed, 200), np.repeat([True, False], 200)).auc() for seed in range(400)]
    covered = sum(i.low <= truth <= i.high for i in intervals)
    assert 366 <= covered <= 393  # of 380 expected: 3 standard deviations
    widths = np.mean([i.high - i.low for i in intervals])
    assert widths == pytest.approx(2 * 1.96 * np.std([i.value for i in intervals]), rel=0.1)  # not merely wide


def test_delong_agrees_with_its_definition():
    scores, truth = np.round(gaussian(0.7, 9, 40), 1), np.repeat([True, False], 40)
    inside, outside = scores[truth], scores[~truth]
    wins = (inside[:, None] > outside) + 0.5 * (inside[:, None] == outside)
    variance = wins.mean(axis=1).var(ddof=1) / 40 + wins.mean(axis=0).var(ddof=1) / 40
    roc = Roc.of(scores, truth)
    assert roc.auc().value == pytest.approx(wins.mean()) and roc.spread == pytest.approx(variance)


def test_exact_intervals_of_the_rates():
    scores = np.concatenate([np.repeat([3.0, 1.0], [126, 874]), np.repeat([4.0, 2.0], [10, 990])])
    tpr = Roc.of(scores, TRUTH).tpr_at(0.01)
    assert tpr.value == 0.126
    assert (tpr.low, tpr.high) == (pytest.approx(0.1060, abs=1e-4), pytest.approx(0.1482, abs=1e-4))


def test_separated_scores_leave_doubt():
    auc = Roc.of([2.0, 2.0, 1.0, 1.0], np.array([True, True, False, False])).auc()
    assert auc.value == 1.0 == auc.high and auc.low < 0.5  # two of each prove little


def test_the_points_of_the_curve_rise():
    fpr, tpr = Roc.of(gaussian(1.0, 5), TRUTH).points(50)
    assert len(fpr) <= 50 and fpr[0] == 0 and fpr[-1] == tpr[-1] == 1
    assert (np.diff(fpr) > 0).all() and (np.diff(tpr) >= 0).all()
    assert np.interp(0.1, fpr, tpr) == pytest.approx(norm.cdf(1 + norm.ppf(0.1)), abs=0.06)


def randomized_response(epsilon, n, seed):
    """Scores 1 and 0 that are right with the probability that epsilon-DP allows."""
    draw, right = np.random.default_rng(seed), 1 / (1 + math.exp(-epsilon))
    flips = draw.random(2 * n) >= right
    return (np.repeat([True, False], n) ^ flips).astype(float)


def test_what_epsilon_allows_is_within_it_and_more_is_not():
    held = 0
    for seed in range(60):
        roc = Roc.of(randomized_response(1.0, 1000, seed), TRUTH)
        held += roc.within(1.0, 0.0).holds
        assert not roc.within(0.7, 0.0).holds
    assert held >= 55  # at least 95 % of them, on the edge of what is allowed


def test_both_tails_are_compared():
    """An attack that is sure of non-members alone breaks the bound as much as one that is sure of members."""
    scores = np.concatenate([np.ones(1000), np.repeat([1.0, 0.0], 500)])  # half of the others are known for sure
    assert not Roc.of(scores, TRUTH).within(2.0, 1e-5).holds
    assert not Roc.of(-scores, ~TRUTH).within(2.0, 1e-5).holds
    assert Roc.of(gaussian(0.0, 1), TRUTH).within(0.1, 0.0).holds


def test_delta_is_allowed():
    scores = np.concatenate([np.repeat([1.0, 0.0], [200, 800]), np.zeros(1000)])  # a fifth of the members is known
    assert not Roc.of(scores, TRUTH).within(0.0, 0.1).holds
    assert Roc.of(scores, TRUTH).within(0.0, 0.2).holds


@pytest.mark.parametrize(
    ("scores", "members", "words"),
    [
        ([1.0, math.nan], [True, False], "1 of 2 scores are not numbers"),
        ([1.0, 2.0], [True, True], "all 2 records are members"),
        ([1.0, 2.0], [False, False], "all 2 records are non-members"),
        ([1.0, 2.0], [True], "must be as many"),
        ([1.0, 2.0], [1, 0], "True or False"),
    ],
)
def test_bad_input_is_refused(scores, members, words):
    with pytest.raises(SpecError, match=words):
        Roc.of(scores, np.array(members))
