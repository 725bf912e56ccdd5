import math

import pytest
import torch
from scipy.stats import kstest, norm
from torch import nn

from sordino.core.rng import Stream
from sordino.data.clients import ArrayClients
from sordino.runs import loop
from support.methods import let_out, rows
from support.problems import federation, job, mlp

RNG = Stream.research(10)
CPU = torch.device("cpu")


def made_of(clients, **keys):
    return job(mlp(), clients, method="fed-cdp", **keys)


def test_a_record_moves_the_sum_by_no_more_than_the_root_of_the_layers():
    wild = [(x * 10.0**k, y) for k, (x, y) in enumerate(federation((6,) * 4))]
    made = made_of(wild, clip=0.3)
    data, longest = made.federation.data.fetch(range(4), CPU), 0.0
    (use,) = let_out(made, rng=RNG)
    whole = use.x
    assert whole.bound == pytest.approx(0.3 * math.sqrt(2)) == use.release.bound
    for i in range(24):
        keep = [j for j in range(24) if j != i]
        sizes = tuple(6 - (i // 6 == k) for k in range(4))
        (less,) = let_out(made, clients=ArrayClients(data.x[keep], data.y[keep], sizes), rng=RNG)
        moved = whole.value - less.x.value
        for part in made.model.layout.layers().values():
            assert float(moved[:, part].norm()) <= 0.3 * (1 + 1e-4)
        longest = max(longest, float(moved.norm()))
    assert 0.9 * whole.bound < longest <= whole.bound * (1 + 1e-4)
    assert longest > 1.2 * 0.3  # the paper's C alone would be too little


def test_the_noise_is_that_of_all_layers_together():
    layers = nn.Sequential(nn.Linear(1500, 1), nn.Linear(1, 1), nn.Linear(1, 1))
    for p in layers.parameters():
        nn.init.zeros_(p)
    zeros = [(torch.zeros(10, 1500), torch.zeros(10)) for _ in range(4)]
    made = job(layers, zeros, "squared_error", method="fed-cdp", clip=0.5, learning_rate=1.0)
    state = loop.begin(made)
    noise = rows(made, state=state, rng=RNG).flatten().numpy()
    std = made.plan.z * 0.5 * math.sqrt(3) / 10
    assert made.method.noise(state, made.plan) == pytest.approx(std)
    assert kstest(noise, norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=1.1 * std).cdf).pvalue < 1e-3


def test_it_costs_what_dp_sgd_costs():
    for keys in ({}, {"rounds": 9, "epsilon": 0.5}):
        assert made_of(None, **keys).plan.z == job(method="dp-sgd", **keys).plan.z


def test_with_one_layer_it_is_dp_sgd():
    one, other = (job(nn.Linear(20, 3), federation(), method=m, clip=0.4) for m in ("fed-cdp", "dp-sgd"))
    other.model.layout.write(other.model.module, one.model.layout.read(one.model.module))
    state = loop.begin(one)
    sent = [rows(m, state=state, rng=RNG) for m in (one, other)]
    assert torch.allclose(*sent, atol=1e-5)
