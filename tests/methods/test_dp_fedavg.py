import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from sordino.contract.method import started
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.core.types import State
from sordino.core.vector import Layout
from sordino.methods.dp_fedavg import DpFedAvg
from sordino.privacy.samplers import FixedSizeSampler, Poisson
from support.methods import merged, price, site_of
from support.problems import plan
from support.silent import silence

RNG = Stream.research(8)
CLIENTS = 400


def state_of(method, made, dim=20_000):
    return started(method, State(torch.zeros(dim)), Layout.of(torch.nn.Linear(1, 1)), made)


def sent(method, made, state, updates, sizes=None):
    """What clients with these updates let out."""
    return method.message(updates, state, site_of(method, made, state, sizes or (1,) * len(updates), RNG))


@pytest.mark.parametrize("clip", [1.0, 0.3])
def test_the_servers_noise_is_z_clip_over_the_expected_cohort(clip):
    method, made = DpFedAvg(clip=clip), plan(sampler=Poisson(0.5), noise_multiplier=0.8)
    state = state_of(method, made)
    noise = merged(method, made, state, silence(3, 20_000), RNG).params.numpy()  # 3 came; 4 were expected
    std = 0.8 * clip / 4
    assert kstest(noise, norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=1.1 * std).cdf).pvalue < 1e-3
    assert kstest(noise, norm(scale=0.8 * clip / 3).cdf).pvalue < 1e-3  # the realised cohort


def test_the_noise_uses_the_norm_that_the_updates_were_clipped_with():
    """After the bound has moved, both follow the state, not the option."""
    method, made = DpFedAvg(clip=1.0, adaptive_clip=True), plan(noise_multiplier=0.5)
    state = state_of(method, made)
    state = replace(state, method=replace(state.method, clip=7.0))
    out = sent(method, made, state, torch.full((8, 20_000), 100.0))
    assert torch.allclose(out["update"].double().norm(dim=1), torch.tensor(7.0, dtype=torch.float64), rtol=1e-5)
    nothing = Message({name: 0 * value for name, value in out.fields.items()})
    noise = merged(method, made, state, nothing, RNG).params.numpy()
    std = method._update_noise(made) * 7.0 / 8
    assert kstest(noise, norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=std / 7).cdf).pvalue < 1e-3  # the first bound


@pytest.mark.parametrize("count_noise", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("z", [0.5, 1.5])
def test_the_count_is_paid_for_out_of_the_same_budget(count_noise, z):
    """z_update^-2 + (2 sigma_b)^-2 = z^-2: Andrew et al. (2021), Theorem 1."""
    method, made = DpFedAvg(adaptive_clip=True, count_noise=count_noise), plan(noise_multiplier=z)
    update, count = method.releases(made)
    assert count.bound == 0.5 and count.multiplier * count.bound == method._count_noise(made)  # sigma_b, of +-1/2
    assert update.multiplier**-2 + count.multiplier**-2 == pytest.approx(z**-2, rel=1e-12)
    assert update.multiplier > z
    (alone,) = DpFedAvg().releases(made)
    assert alone.multiplier == z
    charged = {c.viewer: c.event.noise_multiplier for c in price(method, made) if c.viewer == "public"}
    assert charged == {"public": pytest.approx(z, rel=1e-12)}  # both together


def test_the_count_has_its_noise():
    """The bound of one round is exp of a Gaussian with the promised deviation."""
    method = DpFedAvg(adaptive_clip=True, count_noise=20.0, clip_lr=0.2)
    made = plan(population=CLIENTS, noise_multiplier=1.0)
    state = state_of(method, made, 1)
    even = Message(
        {"update": torch.zeros(CLIENTS, 1), "within": torch.zeros(CLIENTS, 1).double()}
    )  # a share of one half
    logs = [math.log(merged(method, made, state, even, RNG.at("r", i)).method.clip) / -0.2 for i in range(2000)]
    assert kstest(logs, norm(scale=20 / CLIENTS).cdf).pvalue > 1e-3
    assert kstest(logs, norm(scale=26 / CLIENTS).cdf).pvalue < 1e-3


def test_a_count_that_eats_the_whole_budget_is_refused_before_the_first_round():
    method, made = DpFedAvg(adaptive_clip=True, count_noise=0.4), plan(noise_multiplier=1.0)
    with pytest.raises(SpecError, match=r"count_noise.*Use count_noise above 0\.5"):
        state_of(method, made, 3)


@pytest.mark.parametrize("factor", [0.1, 10.0])
@pytest.mark.parametrize("quantile", [0.5, 0.9])
def test_the_bound_converges_to_the_quantile_from_both_sides(factor, quantile):
    """Norms spread evenly over [1, 3]: the quantile q lies at 1 + 2q."""
    target = 1 + 2 * quantile
    method = DpFedAvg(clip=factor * target, adaptive_clip=True, quantile=quantile)
    made = plan(population=CLIENTS, noise_multiplier=1.0, rounds=200)
    state = state_of(method, made, 2)
    norms = torch.linspace(1, 3, CLIENTS)
    updates, found = torch.stack([norms, 0 * norms], dim=1), []
    for r in range(200):
        state = replace(state, round=r)
        state = merged(method, made, state, sent(method, made, state, updates), RNG)
        found.append(state.method.clip)
    assert np.mean(found[160:]) == pytest.approx(target, rel=0.1)
    assert found[0] != pytest.approx(target, rel=0.5)


def test_a_clients_weight_is_capped_at_one():
    method, made = DpFedAvg(clip=2.0, weight_cap=10.0), plan()
    out = sent(method, made, state_of(method, made, 9), torch.full((4, 9), 50.0), (1, 5, 10, 1000))
    norms = out.weighed()["update"].norm(dim=1)
    assert torch.allclose(norms, torch.tensor([0.2, 1.0, 2.0, 2.0]), rtol=1e-5)


def test_a_broken_update_counts_for_nothing_but_is_counted():
    method, made = DpFedAvg(adaptive_clip=True), plan()
    updates = torch.tensor([[math.nan, 1.0], [math.inf, 0.0], [0.0, 0.0]])
    out = sent(method, made, state_of(method, made, 2), updates)
    assert torch.equal(out["update"], torch.zeros(3, 2)) and out["within"].tolist() == [[-0.5], [-0.5], [0.5]]


def test_replacing_one_of_a_fixed_cohort_is_charged_twice_the_clip():
    made = plan(sampler=FixedSizeSampler(4), noise_multiplier=3.0)
    costs = {c.viewer: c for c in price(DpFedAvg(), made)}
    assert costs["public"].event.noise_multiplier == 1.5 and costs["public"].relation == "replace"


@pytest.mark.parametrize(
    "bad", [{"clip": -1}, {"quantile": 1.0}, {"clip_lr": 0}, {"count_noise": -1}, {"weight_cap": -1}]
)
def test_options_are_checked(bad):
    with pytest.raises(SpecError):
        DpFedAvg(**bad)
