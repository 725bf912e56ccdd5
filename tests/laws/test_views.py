"""Several views of a record count as one record, in every method that clips records inside the clients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from sordino.core import plugin
from sordino.core.rng import Stream
from support.methods import let_out
from support.problems import job

SIZES, CLIP = (6, 4, 5), 0.3
RNG = Stream.research(3)
METHODS = [
    name
    for name in plugin.available("methods")
    if (kind := plugin.load("methods", name)).noisy_steps and kind.private and name != "fedsdp"
]


def pictures(seed=0, power=3.0):
    draw = torch.Generator().manual_seed(seed)
    return [(power * torch.randn(n, 1, 4, 5, generator=draw), torch.arange(n) % 3) for n in SIZES]


def made(method, clients, **keys):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(20, 3))
    keys = {"epsilon": 8.0, "method": method, "clip": CLIP, "augment": "flip-crop"} | keys
    return job(model, clients, **keys)


def clipped_sums(found, clients):
    """What the first step's noise is added to, and the bound it is calibrated to."""
    held = made(found.spec.method, clients, views=found.plan.local.views).federation.data
    return next(use.x for use in let_out(found, clients=held, rng=RNG) if use.release.norm == use.x.norm)


def test_all_of_them_are_looked_at():
    assert {"dp-sgd", "adaptive-noise", "udp-fl", "geodp", "dp-dyns", "fed-cdp", "adap-dp-fl", "pfa"} <= set(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_one_record_with_all_its_views_moves_the_sum_by_the_bound_at_most(method):
    views = 3
    found = made(method, pictures(), views=views)
    before = clipped_sums(found, pictures())
    longest = 0.0
    for k, i in ((0, 0), (1, 3), (2, 2)):
        other = pictures()
        other[k][0][i] = -40 * other[k][0][i]
        after = clipped_sums(found, other)
        assert after.bound == before.bound
        moved = (after.value - before.value).double().norm(p=before.norm, dim=1)
        assert float(moved[k]) <= 2 * before.bound * (1 + 1e-4)  # one out, one in
        assert float(moved.sum() - moved[k]) <= 1e-5
        longest = max(longest, float(moved[k]))
    assert longest > 0.2 * before.bound  # the records do pull
    local = replace(found.plan.local, views=1)
    single = clipped_sums(replace(found, plan=replace(found.plan, local=local)), pictures())
    assert single.bound == before.bound and not torch.equal(single.value, before.value)  # the views are there
