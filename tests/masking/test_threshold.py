"""The least sum that a lying server can get, by counting and by trying all lists of survivors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sordino.core.errors import SpecError
from sordino.masking.errors import MaskingError
from sordino.masking.threshold import SumPolicy, least_honest_in_sum, least_in_sum

CASES = [
    (n, t, c) for n in range(2, 7) for t in range(2, n + 1) for c in range(n - 1) if 2 * t > n + c
]  # what clients accept


def smallest(members: int, threshold: int, colluders: int) -> int:
    """Try every choice of lists, silence included; members who ask are alike, so that their order does not matter.

    The server gets a sum if every honest member's seed or key is known (any two share a mask): the sum of those whose
    seed is known. Lists need not hold the member that is asked, which makes the server stronger than it is.
    """
    honest = members - colluders
    lists = [s for k in range(threshold, members + 1) for s in itertools.combinations(range(members), k)]
    options = np.zeros((len(lists) + 1, members), np.int8)  # the last is silence
    answers = np.ones(len(lists) + 1, np.int8)
    answers[-1] = 0
    for i, told in enumerate(lists):
        options[i, list(told)] = 1
    chosen = np.array(list(itertools.combinations_with_replacement(range(len(options)), honest)))
    told = options[chosen].sum(1)[:, :honest]  # [choices, honest members]: how many were told that it survived
    total = answers[chosen].sum(1)[:, None]
    seed, key = told >= threshold - colluders, total - told >= threshold - colluders
    assert not (seed & key).any()
    sums = np.where((seed | key).all(1), seed.sum(1), 0)
    return int(sums[sums > 0].min())


@pytest.mark.parametrize(("members", "threshold", "colluders"), CASES)
def test_no_choice_of_lists_gives_a_smaller_sum(members, threshold, colluders):
    least = least_honest_in_sum(members, threshold, colluders)
    found = smallest(members, threshold, colluders)
    assert found >= least
    assert found <= least + 1  # the bound is not idle either
    honest = members - colluders
    formula = (honest * threshold - members * (honest - threshold + colluders)) / (threshold - colluders)
    assert least_in_sum(members, threshold, colluders) == int(np.ceil(formula - 1e-9)) == least + colluders


def test_the_bound_is_met_somewhere_and_a_larger_one_would_be_wrong():
    tight = [case for case in CASES if smallest(*case) == least_honest_in_sum(*case)]
    assert len(tight) > len(CASES) / 2


def test_known_values():
    assert least_in_sum(10, 10) == 10
    assert least_in_sum(10, 8) == 8  # 7.5
    assert least_in_sum(100, 80) == 75
    assert least_in_sum(100, 80, 10) == 10 + 65  # 90 x 50 / 70 = 64.3
    with pytest.raises(SpecError, match="protects nobody"):
        least_in_sum(10, 5)
    with pytest.raises(SpecError, match="protects nobody"):
        least_in_sum(10, 6, 2)


def test_a_policy_gives_the_threshold_or_refuses():
    assert SumPolicy(5, 2).threshold(10) == 8
    assert SumPolicy(2).threshold(2) == 2
    for policy, members in (
        (SumPolicy(5, 2), 4),
        (SumPolicy(2, 1), 2),
        (SumPolicy(2, 2, 2), 6),
        (SumPolicy(2), 10_001),
    ):
        with pytest.raises(MaskingError, match="refused"):
            policy.threshold(members)
    for bad in ((1,), (True,), (2, -1), (2, 0, 1.5), (2, 0, -1)):
        with pytest.raises(SpecError):
            SumPolicy(*bad)
