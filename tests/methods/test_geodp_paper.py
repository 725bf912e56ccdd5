import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import kstest, norm
from torch import nn

from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.methods import _claims as claims
from sordino.methods.geodp_paper import GeoDPPaper
from sordino.privacy.accountants import gdp
from sordino.runs import loop
from support.methods import merged, rows
from support.problems import job
from support.silent import silent_job

RNG = Stream.research(7)


def sent(made, state):
    return rows(made, state=state, rng=RNG)


@pytest.mark.parametrize("reading", claims.GEODP_READINGS)
def test_the_noise_of_a_round_is_that_of_the_series(reading):
    made = silent_job(3000, method="geodp-paper", clip=2.0, rounds=5, noise_ratio=0.7, reading=reading)
    first = claims.geodp_first_std(2.0, 10, 2.0, 1e-5, rounds=5, exposures=5, ratio=0.7, reading=reading)
    state = loop.begin(made)
    noise = sent(made, replace(state, round=3)).flatten().numpy()
    std = first * 0.7**1.5
    assert kstest(noise, norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=1.1 * std).cdf).pvalue < 1e-3


def test_every_round_is_charged_with_the_true_sensitivity():
    made = job(method="geodp-paper", clip=1.0, rounds=4, noise_ratio=0.8)
    stds = [made.method.uplink(made.plan, t) for t in range(4)]
    mu = math.sqrt(sum((2 / s) ** 2 for s in stds))
    assert made.guarantee("server", 4, 4).epsilon == pytest.approx(gdp.epsilon_of_mu(mu, 1e-5), rel=1e-6)
    claimed = math.sqrt(sum((2 / 12 / s) ** 2 for s in stds))
    assert mu == pytest.approx(12 * claimed)  # the claim's sensitivity is too small by the number of records


def test_an_epsilon_of_a_round_is_that_of_the_first():
    made = job(method="geodp-paper", clip=2.0, rounds=9, noise_ratio=0.81, scope="round")
    stds = [made.method.uplink(made.plan, t) for t in range(3)]
    first = 2 * 2.0 / 12 * math.sqrt(2 * math.log(1e5)) / 2.0
    assert stds == pytest.approx([first, 0.9 * first, 0.81 * first]) and made.method.claim(made.plan).scope == "round"


def test_one_record_moves_the_clipped_weights_by_the_whole_ball():
    """Negative control, as for nbafl-paper: the claim needs 2C/m."""

    def weight(target):
        x, y = torch.zeros(200, 1), torch.zeros(200)
        x[0], y[0] = 5.0, target
        layer = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(layer.weight)
        made = job(layer, [(x, y)], "squared_error", method="geodp-paper", clip=1.0, epsilon=1e9, learning_rate=30.0)
        return float(sent(made, loop.begin(made))[0, 0])

    assert weight(100.0) - weight(-100.0) == pytest.approx(2.0, abs=1e-3)


def test_the_server_adds_nothing_and_the_reading_is_one_of_two():
    made = job(method="geodp-paper")
    state = loop.begin(made)
    after = merged(made.method, made.plan, state, Message({"update": torch.zeros(8, made.plan.dim)}), RNG)
    assert torch.equal(after.params, state.params)
    with pytest.raises(SpecError, match="reading"):
        GeoDPPaper(reading="other")
    assert "2C/m" in made.method.claim(made.plan).sentence()
