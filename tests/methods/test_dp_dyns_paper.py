import math
from dataclasses import replace

import pytest
import torch

from sordino.core.rng import Stream
from sordino.core.types import Batch
from sordino.methods import _measured
from sordino.methods.dp_dyns_paper import DpDynsPaper
from sordino.privacy.accountants import gdp
from sordino.runs import loop
from support.methods import price, rows
from support.problems import federation, job, linear
from support.silent import zero_clients, zero_layer

RNG = Stream.research(9)
WIDE = 2000


def with_one(value, method="dp-dyns-paper", **keys):
    """A client whose records are zero but for one; what it sends."""
    ((x, y),) = zero_clients(WIDE, (10,))
    x[0, 0], y[0] = 1.0, value
    keys = {"method": method, "learning_rate": 1.0} | keys
    made = job(zero_layer(WIDE), [(x, y)], "squared_error", **keys)
    return made, rows(made, rng=RNG)[0]


def test_the_noise_shows_whether_the_record_is_there():
    """Negative control: without it there is no noise at all, with it there is; any output tells them apart."""
    _, without = with_one(0.0)
    made, there = with_one(0.05)
    assert not without.any()
    assert bool(there[1:].all())
    _, larger = with_one(0.1)  # and its scale is that of the record's gradient
    assert float(larger[1:-1].std() / there[1:-1].std()) == pytest.approx(2.0, rel=1e-3)
    assert price(made.method, made.plan)[0].event.reason == made.method.claim(made.plan).why_not


def three_clients():
    """The second has no record in its batch."""
    made = job(linear(), federation((5, 9)), method="dp-dyns-paper")
    data = made.federation.data.fetch(range(2), torch.device("cpu"))
    return made, replace(data, sizes=(5, 0, 9), groups=None), loop.begin(made).params


def test_norms_and_sums_are_those_of_single_records():
    made, data, weights = three_clients()
    sums, norms = _measured.sums_and_norms(weights, data, made.model, [1, 2, 3], 0.7)
    assert torch.allclose(sums, made.model.gradients.sums(weights, data, 0.7), atol=1e-5)
    for i in (0, 7, 13):
        one = made.model.gradients.sums(weights, Batch(data.x[i : i + 1], data.y[i : i + 1], (1,)), 0.7)
        assert float(norms[i]) == pytest.approx(float(one.norm()), rel=1e-5)
    own = weights + torch.randn(3, len(weights), generator=torch.Generator().manual_seed(0))
    sums, _ = _measured.sums_and_norms(own, data, made.model, [1, 2, 3], 0.7)
    assert torch.allclose(sums, made.model.gradients.sums(own, data, 0.7), atol=1e-5)


def test_few_records_at_a_time_change_nothing(monkeypatch):
    made, data, weights = three_clients()
    whole = _measured.sums_and_norms(weights, data, made.model, [1, 2, 3], 0.7)
    monkeypatch.setattr(_measured, "NUMBERS", 4 * made.plan.dim)
    parts = _measured.sums_and_norms(weights, data, made.model, [1, 2, 3], 0.7)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(whole, parts, strict=True))


def test_sigma_is_that_of_the_claimed_total():
    made = job(method="dp-dyns-paper", rounds=6, epsilon=1.0)
    mu = sum(made.method.sigma(made.plan, t) ** -2 for t in range(6)) ** 0.5
    assert 0.999 < gdp.epsilon_of_mu(mu, 1e-5) <= 1.0
    few = replace(made.plan, max_participations=2)
    mu = sum(made.method.sigma(few, t) ** -2 for t in (4, 5)) ** 0.5  # the dearest two
    assert 0.999 < gdp.epsilon_of_mu(mu, 1e-5) <= 1.0


def test_noise_once_an_upload_follows_the_largest_norm_of_all_steps():
    """One record has a gradient, of 0.1 in a weight and the bias at first, and it shrinks with every step."""
    made, sent = with_one(0.05, learning_rate=0.1, local_steps=3, noised="upload")
    std = made.method.sigma(made.plan, 0) * math.hypot(0.1, 0.1) * 0.1 * 3 / 10
    assert float(sent[1:-1].std()) == pytest.approx(std, rel=0.05)
    _, without = with_one(0.0, learning_rate=0.1, local_steps=3, noised="upload")
    assert not without.any()
    mu = sum(made.method.sigma(made.plan, t) ** -2 for t in range(made.plan.rounds)) ** 0.5
    assert 0.999 < gdp.epsilon_of_mu(mu, made.plan.delta) / made.plan.epsilon <= 1.0  # three steps count once
    assert math.isinf(made.promise.epsilon)
    assert "largest gradient norm" in made.promise.reason and "once to an update" in made.promise.reason


def test_a_run_is_infinite_and_says_so():
    made = job(method="dp-dyns-paper")
    assert math.isinf(made.promise.epsilon) and "largest gradient norm" in made.promise.reason
    assert made.method.noise(loop.begin(made), made.plan) is None
    assert "does not hold" in DpDynsPaper().claim(made.plan).sentence()
