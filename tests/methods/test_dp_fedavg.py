import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from problems import plan
from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.core.types import State
from sordino.methods.dp_fedavg import DpFedAvg
from sordino.privacy.samplers import FixedSize, Poisson

RNG = Stream.research(8)
CLIENTS = 400


def state_of(method, made, dim=20_000):
    return method.begin(State(torch.zeros(dim)), None, made)


@pytest.mark.parametrize("clip", [1.0, 0.3])
def test_the_servers_noise_is_z_clip_over_the_expected_cohort(clip):
    method, made = DpFedAvg(clip=clip), plan(sampler=Poisson(0.5), noise_multiplier=0.8)
    state = state_of(method, made)
    noise = method.merge(state, torch.zeros(3, 20_000), made, RNG).params.numpy()  # 3 came; 4 were expected
    std = 0.8 * clip / 4
    assert kstest(noise, norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=1.1 * std).cdf).pvalue < 1e-3
    assert kstest(noise, norm(scale=0.8 * clip / 3).cdf).pvalue < 1e-3  # the realised cohort


def test_the_noise_uses_the_norm_that_the_updates_were_clipped_with():
    """After the bound has moved, both follow the state, not the option."""
    method, made = DpFedAvg(clip=1.0, adaptive_clip=True), plan(noise_multiplier=0.5)
    state = state_of(method, made)
    state = replace(state, extra=state.extra | {"clip": torch.tensor(7.0, dtype=torch.float64)})
    rows = torch.full((8, 20_000), 100.0)
    released = method.release(rows, (12,) * 8, state, made, RNG.rows(range(8)))
    assert torch.allclose(released[:, :-1].double().norm(dim=1), torch.tensor(7.0, dtype=torch.float64), rtol=1e-5)
    noise = method.merge(state, 0 * released, made, RNG).params.numpy()
    std = method._update_noise(made) * 7.0 / 8
    assert kstest(noise, norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=std / 7).cdf).pvalue < 1e-3  # the first bound


@pytest.mark.parametrize("count_noise", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("z", [0.5, 1.5])
def test_the_count_is_paid_for_out_of_the_same_budget(count_noise, z):
    """z_update^-2 + (2 sigma_b)^-2 = z^-2: Andrew et al. (2021), Theorem 1."""
    method, made = DpFedAvg(adaptive_clip=True, count_noise=count_noise), plan(noise_multiplier=z)
    sigma_b = method._count_noise(made)
    assert method._update_noise(made) ** -2 + (2 * sigma_b) ** -2 == pytest.approx(z**-2, rel=1e-12)
    assert method._update_noise(made) > z
    assert DpFedAvg()._update_noise(made) == z


def test_the_count_has_its_noise():
    """The bound of one round is exp of a Gaussian with the promised deviation."""
    method = DpFedAvg(adaptive_clip=True, count_noise=20.0, clip_lr=0.2)
    made = plan(population=CLIENTS, noise_multiplier=1.0)
    state, rows = state_of(method, made, 1), torch.zeros(CLIENTS, 2)  # counts of zero: a share of one half
    logs = [math.log(float(method.merge(state, rows, made, RNG.at("r", i)).extra["clip"])) / -0.2 for i in range(2000)]
    assert kstest(logs, norm(scale=20 / CLIENTS).cdf).pvalue > 1e-3
    assert kstest(logs, norm(scale=26 / CLIENTS).cdf).pvalue < 1e-3


def test_a_count_that_eats_the_whole_budget_is_refused_before_the_first_round():
    method, made = DpFedAvg(adaptive_clip=True, count_noise=0.4), plan(noise_multiplier=1.0)
    with pytest.raises(SpecError, match=r"count_noise.*Use count_noise above 0\.5"):
        method.begin(State(torch.zeros(3)), None, made)


@pytest.mark.parametrize("factor", [0.1, 10.0])
@pytest.mark.parametrize("quantile", [0.5, 0.9])
def test_the_bound_converges_to_the_quantile_from_both_sides(factor, quantile):
    """Norms spread evenly over [1, 3]: the quantile q lies at 1 + 2q."""
    target = 1 + 2 * quantile
    method = DpFedAvg(clip=factor * target, adaptive_clip=True, quantile=quantile)
    made = plan(population=CLIENTS, noise_multiplier=1.0, rounds=200)
    state = state_of(method, made, 2)
    norms = torch.linspace(1, 3, CLIENTS)
    rows, found = torch.stack([norms, 0 * norms], dim=1), []
    for r in range(200):
        released = method.release(rows, (1,) * CLIENTS, state, made, RNG.rows(range(CLIENTS)))
        state = method.merge(state, released, made, RNG.at("round", r))
        found.append(float(state.extra["clip"]))
    assert np.mean(found[160:]) == pytest.approx(target, rel=0.1)
    assert found[0] != pytest.approx(target, rel=0.5)


def test_a_clients_weight_is_capped_at_one():
    method, made = DpFedAvg(clip=2.0, weight_cap=10.0), plan()
    rows = torch.full((4, 9), 50.0)
    out = method.release(rows, (1, 5, 10, 1000), state_of(method, made, 9), made, RNG.rows(range(4)))
    assert torch.allclose(out.norm(dim=1), torch.tensor([0.2, 1.0, 2.0, 2.0]), rtol=1e-5)


def test_a_broken_update_counts_for_nothing_but_is_counted():
    method, made = DpFedAvg(adaptive_clip=True), plan()
    rows = torch.tensor([[math.nan, 1.0], [math.inf, 0.0], [0.0, 0.0]])
    out = method.release(rows, (1, 1, 1), state_of(method, made, 2), made, RNG.rows(range(3)))
    assert torch.equal(out, torch.tensor([[0, 0, -0.5], [0, 0, -0.5], [0, 0, 0.5]]))


def test_replacing_one_of_a_fixed_cohort_is_charged_twice_the_clip():
    made = plan(sampler=FixedSize(4), noise_multiplier=3.0)
    costs = {c.viewer: c for c in DpFedAvg().costs(made)}
    assert costs["public"].event.noise_multiplier == 1.5 and costs["public"].relation == "replace"


@pytest.mark.parametrize(
    "bad", [{"clip": -1}, {"quantile": 1.0}, {"clip_lr": 0}, {"count_noise": -1}, {"weight_cap": -1}]
)
def test_options_are_checked(bad):
    with pytest.raises(SpecError):
        DpFedAvg(**bad)
