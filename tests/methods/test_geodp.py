import math
from dataclasses import replace

import numpy as np
import pytest

from sordino.core.errors import SpecError
from sordino.methods.geodp import GeoDP
from sordino.privacy.accountants import gdp
from sordino.privacy.events import GaussianEvent
from sordino.runs import loop
from support.allocation import geometric_stds
from support.methods import price
from support.problems import job, plan


def multipliers(method, plan):
    """What is declared for every round."""
    return [method.releases(plan, t)[0].multiplier for t in range(plan.rounds)]


@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.2])
def test_the_first_multiplier_is_the_closed_form(ratio):
    """z_1^2 = sum_t r^-t / mu^2, by the closed form that has its own golden value."""
    made = job(method="geodp", noise_ratio=ratio, rounds=12, epsilon=1.0)
    mu = gdp.mu_for(1.0, 1e-5)
    stds = geometric_stds(mu**2 / 2, ratio, 12)
    found = multipliers(made.method, made.plan)
    assert np.allclose(found, stds, rtol=1e-4)
    assert not np.allclose(found, 1.01 * stds, rtol=1e-4)


def test_the_variance_changes_by_the_ratio_and_is_charged_so():
    method, made = GeoDP(noise_ratio=0.9), plan(rounds=5)
    z = multipliers(method, made)
    assert np.allclose(np.diff(np.log(z)), 0.5 * math.log(0.9))
    assert [price(method, made, t)[0].event for t in range(5)] == [GaussianEvent(v) for v in z]


def test_a_client_in_few_rounds_pays_for_the_dearest_of_them():
    made = job(method="geodp", noise_ratio=0.8, rounds=6, max_participations=2)
    z = multipliers(made.method, made.plan)
    mu = math.hypot(1 / z[4], 1 / z[5])  # the last rounds have least noise
    assert made.promise.epsilon == pytest.approx(gdp.epsilon_of_mu(mu, 1e-5), rel=1e-6)


def test_the_noise_of_a_round_is_its_own():
    made = job(method="geodp", noise_ratio=0.5, rounds=4)
    state = loop.begin(made)
    first, third = (made.method.noise(replace(state, round=t), made.plan) for t in (0, 2))
    assert third == pytest.approx(first / 2)


def test_a_series_that_runs_away_is_refused():
    with pytest.raises(SpecError, match="nearer to 1"):
        job(method="geodp", noise_ratio=0.5, rounds=100)
    with pytest.raises(SpecError, match="noise_ratio"):
        GeoDP(noise_ratio=0.0)
