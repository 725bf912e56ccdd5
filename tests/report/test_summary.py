"""Statistics over seeds, and what may be ranked against what."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sordino.report.summary import Spread, blocks
from support.summaries import lines_of as of


def test_spread_is_that_of_a_sample():
    values = np.random.default_rng(0).normal(0.8, 0.05, 7)
    found = Spread.of([*values, math.nan])  # what was not measured does not count
    assert found.n == 7
    assert_allclose([found.mean, found.deviation], [np.mean(values), np.std(values, ddof=1)])
    assert abs(found.deviation - np.std(values)) > 1e-3  # not that of a population


def test_one_seed_has_no_deviation_and_none_has_nothing():
    assert Spread.of([0.5]).mean == 0.5 and math.isnan(Spread.of([0.5]).deviation)
    assert Spread.of([]).n == 0 and math.isnan(Spread.of([]).mean)


def test_a_line_is_a_method_at_an_epsilon(fabricated):
    for epsilon, seeds in ((0.5, [0.5, 0.7]), (2.0, [0.8, 0.9, 1.0])):
        fabricated.add("dp-sgd", epsilon, seeds)
    one, other = of(fabricated)
    assert (one.asked, one.n, other.asked, other.n) == (0.5, 2, 2.0, 3)
    assert_allclose([one.accuracy.mean, other.accuracy.mean, other.accuracy.deviation], [0.6, 0.9, 0.1])
    assert (other.rounds, other.seconds, other.bytes_up) == (10, 5.0, 1000)


def test_the_worst_seed_decides_what_is_accounted(fabricated):
    fabricated.add("dp-sgd", 2.0, [0.9, 0.9], accounted=1.5)
    path = fabricated.folder / "cells/dp-sgd-eps2-seed1/result.json"
    path.write_text(path.read_text().replace('"epsilon": 1.5', '"epsilon": null'))
    (line,) = of(fabricated)
    assert math.isinf(line.accounted) and line.kind == "open" and not blocks([line])


DIFFERENT = [{"unit": "client"}, {"viewer": "public"}, {"relation": "replace"}, {"channel": "secure-sum"}]


@pytest.mark.parametrize("other", DIFFERENT)
def test_no_ranking_mixes_what_is_protected_or_from_whom(fabricated, other):
    fabricated.add("dp-sgd", 2.0, [0.7]).add("adaptive-noise", 2.0, [0.8]).add("dp-fedavg", 2.0, [0.9], **other)
    found = blocks(of(fabricated))
    assert [{line.method for _, line in b.ranked} for b in found] == [{"dp-sgd", "adaptive-noise"}, {"dp-fedavg"}]
    for block in found:
        assert {line.whom for _, line in block.ranked} == {block.whom}
        assert min(rank for rank, _ in block.ranked) == 1  # the best of each, whatever the others have


def test_ranks_are_within_one_epsilon_best_first_and_shared_by_equals(fabricated):
    fabricated.add("a", 2.0, [0.7]).add("b", 2.0, [0.9]).add("c", 2.0, [0.9]).add("a", 0.5, [0.95])
    (block,) = blocks(of(fabricated))
    assert [(line.asked, rank, line.method) for rank, line in block.ranked] == [
        (0.5, 1, "a"),
        (2.0, 1, "b"),
        (2.0, 1, "c"),
        (2.0, 3, "a"),
    ]


def test_where_there_is_no_accuracy_the_least_loss_wins_and_a_diverged_one_is_last(fabricated):
    fabricated.add("a", 2.0, [None], losses=[0.5]).add("b", 2.0, [None], losses=[0.2])
    fabricated.add("c", 2.0, [None], losses=[None])
    (block,) = blocks(of(fabricated))
    assert [line.method for _, line in block.ranked] == ["b", "a", "c"]


def test_paper_forms_and_the_reference_are_never_ranked(typical):
    found = of(typical)
    kinds = {line.method: line.kind for line in found}
    assert kinds["none"] == "reference" and kinds["nbafl-paper"] == kinds["geodp-paper"] == "printed"
    ranked = {line.method for block in blocks(found) for _, line in block.ranked}
    assert ranked == {"dp-sgd", "adaptive-noise", "dp-fedavg"}


def test_cells_that_failed_do_not_count(fabricated):
    fabricated.add("dp-sgd", 2.0, [0.8, 0.9])
    name, alone = fabricated.fail("dp-sgd", 2.0, 2), fabricated.fail("dp-fedavg", 2.0, 0)
    one, other = of(fabricated, {name: "no", alone: "no"})
    assert (one.kind, one.n, len(one.errors)) == ("sound", 2, 1)
    assert (other.kind, other.n) == ("failed", 0)
