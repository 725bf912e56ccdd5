from dataclasses import replace

import pytest
import torch
from scipy.stats import kstest, norm
from torch import nn

from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.methods.nbafl import NbAFL
from sordino.privacy.accountants import gdp
from sordino.privacy.events import GaussianEvent
from sordino.runs import loop
from support.methods import merged, price, rows
from support.problems import CLASSES, FEATURES, federation, job
from support.silent import silent_job

RNG = Stream.research(5)
WIDE = 3000


def silent(**keys):
    """3001 weights that do not move."""
    return silent_job(WIDE, method="nbafl", **keys)


def sent(made, state=None):
    return rows(made, state=state, rng=RNG)


@pytest.mark.parametrize("clip", [0.2, 3.0])
def test_every_client_adds_z_times_the_clip(clip):
    made = silent(clip=clip)
    noise, std = sent(made).flatten().numpy(), made.plan.z * clip
    assert kstest(noise, norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=1.1 * std).cdf).pvalue < 1e-3
    assert made.method.noise(loop.begin(made), made.plan) == std


def test_an_update_is_clipped_whatever_it_is():
    wild = [(x * 10.0**k, y) for k, (x, y) in enumerate(federation((8,) * 6))]
    made = job(nn.Linear(FEATURES, CLASSES), wild, method="nbafl", clip=0.3, learning_rate=5.0)
    made = replace(made, plan=replace(made.plan, noise_multiplier=1e-9))
    norms = sent(made).double().norm(dim=1)
    assert float(norms.max()) <= 0.3 * (1 + 1e-6) and float(norms.max()) > 0.29


def test_a_removed_client_costs_one_clip_and_a_replaced_one_two():
    made = job(method="nbafl", rounds=4)
    assert price(made.method, made.plan)[0].event == GaussianEvent(made.plan.z)
    fixed = job(method="nbafl", rounds=4, client_sampling="fixed", client_rate=0.5)
    cost = price(fixed.method, fixed.plan)[0]
    assert (cost.unit, cost.relation, cost.event) == ("client", "replace", GaussianEvent(fixed.plan.z / 2))


def test_the_total_is_that_of_gaussians():
    made = job(method="nbafl", rounds=4, epsilon=1.5)
    by_hand = gdp.epsilon_of_mu(4**0.5 / made.plan.z, 1e-5)
    assert made.promise.epsilon == pytest.approx(by_hand, rel=1e-6)
    assert 0.999 * 1.5 < by_hand <= 1.5


def test_absence_of_a_client_is_not_taken_for_amplification():
    """A client that is not drawn brings no noise: its draw is charged as seen, also to the public."""
    made = job(method="nbafl", rounds=1, client_rate=0.5)
    assert {c.draw for c in price(made.method, made.plan)} == {"inside"}
    assert {c.viewer for c in price(made.method, made.plan)} == {"server"}


def test_the_public_sees_the_noise_of_all_but_perhaps_its_own():
    made = job(method="nbafl", rounds=4)
    shown = {c.viewer: c.event for c in price(made.method, made.plan)}["public"]
    assert shown.noise_multiplier == pytest.approx(made.plan.z * 7**0.5)
    more = replace(made, method=NbAFL(downlink=1.0))
    shown = {c.viewer: c.event for c in price(more.method, made.plan)}["public"]
    assert shown.noise_multiplier == pytest.approx(made.plan.z * (7 + 64) ** 0.5)


def test_the_downlink_noise_is_relative_to_the_uplinks():
    made = silent(downlink=0.5)
    state, silence = loop.begin(made), Message({"update": torch.zeros(4, WIDE + 1)})
    noise = (merged(made.method, made.plan, state, silence, RNG).params - state.params).numpy()
    std = 0.5 * made.plan.z
    assert kstest(noise, norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=1.15 * std).cdf).pvalue < 1e-3
    plain = silent()
    assert torch.equal(merged(plain.method, plain.plan, state, silence, RNG).params, state.params)


def test_bad_options_are_refused():
    with pytest.raises(SpecError, match="downlink"):
        NbAFL(downlink=-1.0)
