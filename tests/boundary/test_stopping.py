"""A run that ends by what it released: when it ended is an answer too, so the whole plan is paid for."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import sordino
from sordino.privacy.mechanisms.randomized_response import RandomizedResponse
from support.brought import put_method
from support.methods import whole
from support.problems import federation, job, linear

IMPATIENT = """
from dataclasses import dataclass

from sordino.methods.dp_sgd import DpSgd

__all__ = ["Impatient"]


@dataclass(frozen=True)
class Impatient(DpSgd):
    \"\"\"Ends as soon as the released model has moved.\"\"\"

    def over(self, state, plan):
        return state.round >= 2 and float(state.params.norm()) > 0
"""


@pytest.fixture
def impatient(tmp_path, monkeypatch):
    return put_method(monkeypatch, tmp_path, "impatient", IMPATIENT)


KEYS = {"rounds": 6, "epsilon": 3.0, "device": "cpu", "learning_rate": 0.1}


def test_a_run_that_ended_early_is_priced_at_its_whole_plan(impatient, tmp_path):
    found = sordino.train(linear(), federation(), method=impatient, out=str(tmp_path / "run"), **KEYS)
    assert len(found.history) == 2  # it did end
    assert 2.9 < found.guarantee.epsilon <= 3.0 and found.guarantee.rounds == 6
    for viewer, told in found.guarantees.items():
        assert told.epsilon == job(method=impatient, **KEYS).guarantee(viewer, 6, 6).epsilon
    for record in found.history:  # nor may an epsilon on the way be that of the rounds that happened
        assert all(epsilon >= 2.9 for epsilon in record.epsilon.values())


def test_a_run_of_a_method_without_a_say_pays_as_it_goes(tmp_path):
    plain = job(method="dp-sgd", **KEYS)
    assert plain.guarantee("server", 2, 2).epsilon < 0.7 * plain.promise.epsilon


def test_nothing_done_costs_nothing_yet(impatient):
    made = job(method=impatient, **KEYS)
    assert made.guarantee("server", 0, 0).epsilon == 0.0
    assert made.guarantee("server", 1, 1).epsilon == made.promise.epsilon == made.guarantee("server", 6, 6).epsilon


def test_a_filter_of_the_method_s_own_keeps_its_own_price():
    """adap-dp-fl ends early too, and has a cost of the whole run that no choice exceeds."""
    made = job(method="adap-dp-fl", **KEYS)
    assert whole(made.method, made.plan) is not None
    assert made.guarantee("server", 2, 2).epsilon == pytest.approx(made.promise.epsilon)


@pytest.mark.parametrize("rounds", [3, 8])
def test_an_epsilon_of_the_rounds_that_happened_would_not_hold(rounds):
    """One bit by randomized response a round, until the first 1: what the whole answer tells, over all its lengths."""
    each = 0.5
    ones = [float(RandomizedResponse(each).probabilities(v)[1]) for v in (0, 1)]

    def law(one):
        ended = [one * (1 - one) ** t for t in range(rounds)]
        return np.array([*ended, (1 - one) ** rounds])

    p, q = law(ones[0]), law(ones[1])
    losses = np.abs(np.log(p / q))
    assert losses[0] == pytest.approx(each)  # ended at once: one round's worth,
    assert losses[-1] == pytest.approx(rounds * each)  # and where it did not end, all of the plan
    mean = sum(min(t + 1, rounds) * m for t, m in enumerate(p))
    assert losses.max() > each * mean  # more than the rounds that usually happen
    assert all(b >= a - 1e-12 for a, b in itertools.pairwise(losses[1:])) and math.isfinite(losses.max())
