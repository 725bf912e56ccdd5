"""Formulas of the baselines as we read them: against one another, and against a sum written out."""

import math

import pytest

from sordino.core.errors import SpecError
from sordino.methods import _claims as claims
from sordino.privacy.accountants import gdp

KEYS = {"clip": 20.0, "records": 1000, "epsilon": 50.0, "delta": 0.01}


def first(ratio, reading, rounds=25, exposures=25, **keys):
    return claims.geodp_first_std(**(KEYS | keys), rounds=rounds, exposures=exposures, ratio=ratio, reading=reading)


def test_linear_with_ratio_one_is_nbafl():
    assert first(1.0, "linear") == pytest.approx(0.0621502292018, rel=1e-10)  # THEORY section 8


def test_moments_with_ratio_one_is_the_groups_public_code():
    """2C/m sqrt(2 T ln(1/delta)) / eps."""
    assert first(1.0, "moments") == pytest.approx(0.04 * math.sqrt(2 * 25 * math.log(100)) / 50)


@pytest.mark.parametrize("ratio", [0.9, 1.1])
def test_what_the_rounds_claim_adds_up(ratio):
    sensitivity = 2 * 20 / 1000
    stds = [first(ratio, "linear") * ratio ** (t / 2) for t in range(25)]
    assert sum(claims.nbafl_factor(0.01) * sensitivity / s for s in stds) == pytest.approx(50.0)
    stds = [first(ratio, "moments") * ratio ** (t / 2) for t in range(25)]
    assert sum((sensitivity / s) ** 2 for s in stds) == pytest.approx(50.0**2 / (2 * math.log(100)))


def test_who_is_in_few_rounds_is_in_the_dearest():
    falling = [first(0.9, "moments", exposures=3) * 0.9 ** (t / 2) for t in range(25)]
    assert sum((0.04 / s) ** 2 for s in falling[-3:]) == pytest.approx(50.0**2 / (2 * math.log(100)))
    rising = [first(1.1, "moments", exposures=3) * 1.1 ** (t / 2) for t in range(25)]
    assert sum((0.04 / s) ** 2 for s in rising[:3]) == pytest.approx(50.0**2 / (2 * math.log(100)))


def test_the_moments_reading_is_too_little_for_a_large_epsilon():
    """Even where the sensitivity is right: mu = eps / sqrt(2 ln(1/delta)), exactly converted."""

    def true(epsilon):
        return gdp.epsilon_of_mu(epsilon / math.sqrt(2 * math.log(1e5)), 1e-5)

    assert true(2.0) < 2.0 and true(20.0) > 20.0


def test_bad_input_is_refused():
    with pytest.raises(SpecError, match="reading"):
        first(0.9, "other")
    with pytest.raises(SpecError, match="ratio"):
        first(0.0, "linear")
