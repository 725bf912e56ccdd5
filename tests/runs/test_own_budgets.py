"""Clients' own budgets with methods whose price depends on who is there, or on the round."""

from __future__ import annotations

import pytest

from sordino.core.errors import DataError, SpecError
from sordino.privacy.events import Approximate
from sordino.runs import build
from sordino.spec import spec
from support.problems import federation, job, marked

BUDGETS = {"budgets": "0.5:0.9,2:0.1", "rounds": 8, "epsilon": 2.0}


def test_noise_of_clients_that_may_be_absent_is_not_counted_on():
    """nbafl: the public sees the mean, with the noise of all who came; here most clients' budgets keep them out."""
    everyone, some = job(method="nbafl", rounds=8, epsilon=2.0), job(method="nbafl", **BUDGETS)
    assert everyone.guarantee("public", 8, 8).epsilon < 0.6 * 2.0
    assert some.guarantee("public", 8, 8).epsilon == pytest.approx(2.0, rel=1e-3)
    capped = job(method="nbafl", rounds=8, epsilon=2.0, max_participations=4)
    assert capped.guarantee("public", 8, 4).epsilon == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("method", ["geodp", "dp-dyns", "fed-alpha-cdp"])
def test_rounds_of_different_cost_have_no_number_of_participations(method):
    with pytest.raises(SpecError, match="rounds that all cost the same"):
        job(method=method, **BUDGETS)


@pytest.mark.parametrize("method", ["udp-fl", "pfa", "fedsdp"])
def test_noise_of_ones_own_is_told_in_words(method):
    made = job(method=method, **BUDGETS)
    text = " ".join(made.notes)
    assert "7 clients have a budget of epsilon 0.5: noise multiplier" in text
    assert "1 clients have a budget of epsilon 2" in text
    assert (
        min(made.plan.multipliers) == pytest.approx(made.plan.z, rel=1e-6) and max(made.plan.multipliers) > made.plan.z
    )


def test_a_budget_above_that_of_the_run_is_cut_and_said_so():
    made = job(method="pfa", budgets="0.5:0.5,9:0.5", epsilon=2.0)
    assert any("count as equal to it" in note for note in made.notes)
    assert min(made.plan.multipliers) == pytest.approx(made.plan.z, rel=1e-6)


@pytest.mark.parametrize("method", ["fedsdp", "fedsdp-paper"])
def test_groups_are_checked_before_anything_is_made(method, tmp_path):
    held = marked(federation())
    held.tags[0] = 2
    keys = {"method": method, "rounds": 2, "out": str(tmp_path / "o")}
    with pytest.raises(DataError, match="marks group 2, and groups = 1"):
        build.build(spec.from_dict(keys), build.nn.Linear(20, 3), held)
    with pytest.raises(DataError, match="set private_data"):
        build.build(spec.from_dict(keys), build.nn.Linear(20, 3), federation())
    assert not (tmp_path / "o").exists()


def test_groups_of_a_huge_epsilon_are_no_overflow():
    found = Approximate(800.0, 1e-5).grouped(2)
    assert found.epsilon == 1600 and 0.999 < found.delta < 1
    assert Approximate(800.0, 0.0).grouped(3) == Approximate(2400.0, 0.0)
    small = Approximate(0.5, 1e-5).grouped(2)
    assert small.delta == pytest.approx(1e-5 * (1 + 2.718281828459045**0.5))
