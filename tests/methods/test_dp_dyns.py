import itertools
import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import kstest, norm

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.core.types import State
from sordino.methods.dp_dyns import ENDS_AT, SHAPES, DpDyns, decayed
from sordino.privacy.accountants import gdp
from sordino.runs import loop
from support.methods import let_out, rows
from support.problems import job, plan
from support.silent import silent_job

RNG = Stream.research(8)


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_fall_from_one_to_their_end(shape):
    values = [decayed(shape, 0.3, u / 50) for u in range(51)]
    assert values[0] == pytest.approx(1.0) and values[-1] == pytest.approx(0.3)
    assert all(a >= b for a, b in itertools.pairwise(values))


def test_shapes_are_those_of_the_authors_code():
    """Its noise scales over 100 rounds, in round 37: 15 - 10.15 u, exp(1.13 (1 - u) + 1.58), 15 cos(1.24 u)."""
    u = 0.37
    assert 15 * decayed("linear", ENDS_AT, u) == pytest.approx(15 - 10.15 * u, rel=1e-3)
    assert 15 * decayed("exponential", ENDS_AT, u) == pytest.approx(math.exp(1.13 * (1 - u) + 1.58), rel=5e-3)
    assert 15 * decayed("cyclic", ENDS_AT, u) == pytest.approx(15 * math.cos(1.24 * u), rel=5e-3)
    assert 15 * decayed("staircase", ENDS_AT, u) == pytest.approx(15 - 1.015 * 3, rel=1e-3)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_total_is_that_of_the_rounds(shape):
    made = job(method="dp-dyns", decay_shape=shape, rounds=10, epsilon=1.0, clip_decay=0.5)
    z = [made.method.releases(made.plan, t)[0].multiplier for t in range(10)]
    mu = math.sqrt(sum(v**-2 for v in z))
    assert 0.999 < gdp.epsilon_of_mu(mu, 1e-5) <= 1.0
    even = job(method="dp-sgd", rounds=10, epsilon=1.0).plan.z
    assert z[9] < even < z[0]


def test_noise_follows_both_schedules_and_the_gradients_the_clip():
    keys = {"method": "dp-dyns", "rounds": 4, "clip": 2.0, "clip_decay": 0.2, "noise_decay": 0.6, "learning_rate": 1.0}
    made = silent_job(3000, **keys)
    state = replace(loop.begin(made), round=2)  # half way
    noise = rows(made, state=state, rng=RNG).flatten().numpy()
    std = made.plan.z * 0.8 * 2.0 * 0.6 / 10
    assert made.method.noise(state, made.plan) == pytest.approx(std)
    assert kstest(noise, norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=1.1 * std).cdf).pvalue < 1e-3
    (use,) = let_out(made, state=state, rng=RNG)
    assert use.release.bound == use.x.bound == pytest.approx(1.2)


def test_the_schedule_is_public():
    """Multipliers and clips are functions of the plan and of the number of the round: no data goes in."""
    method, made = DpDyns(clip_decay=0.5), plan(rounds=4)
    for t in range(4):
        states = [None, *(State(torch.full((5,), v), round=t) for v in (0.0, 9.0))]
        assert len({method.releases(made, t, s) for s in states}) == 1


def test_rising_or_vanishing_noise_is_refused():
    for keys in ({"noise_decay": 0.0}, {"clip_decay": 1.5}, {"decay_shape": "square"}):
        with pytest.raises(SpecError, match=next(iter(keys))):
            DpDyns(**keys)
