"""Sharpness-aware local steps; clip, noise and price are DP-FedAvg's."""

import pytest
import torch
from scipy.stats import kstest, norm
from torch import nn

from sordino.contract.method import started
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.core.types import State
from sordino.core.vector import Layout
from sordino.methods.dp_fedavg import DpFedAvg
from sordino.methods.dp_fedsam import DpFedSam
from support.methods import merged, price, rows
from support.problems import federation, job, linear, mlp, plan

RNG = Stream.research(33)


def sent(made):
    return rows(made, rng=RNG)


def test_a_step_follows_the_gradient_uphill_by_hand():
    """Two steps of one client, written with autograd: g at w, then the gradient at w + rho g / |g|."""
    x, y = federation((15,))[0]
    module = mlp()
    made = job(module, [(x, y)], method="dp-fedsam", radius=0.7, local_steps=2, learning_rate=0.3, clip=1e6)
    w = [p.detach().clone() for p in module.parameters()]
    first = [p.clone() for p in w]

    def gradient(at):
        leaves = [p.clone().requires_grad_() for p in at]
        names = [n for n, _ in module.named_parameters()]
        out = torch.func.functional_call(module, dict(zip(names, leaves, strict=True)), (x,))
        return torch.autograd.grad(nn.functional.cross_entropy(out, y), leaves)

    for _ in range(2):
        g = gradient(w)
        length = torch.cat([p.flatten() for p in g]).norm()
        w = [p - 0.3 * s for p, s in zip(w, gradient([p + 0.7 * d / length for p, d in zip(w, g, strict=True)]),
                                         strict=True)]  # fmt: skip
    expected = torch.cat([(a - b).flatten() for a, b in zip(w, first, strict=True)])
    assert torch.allclose(sent(made)[0], expected, atol=1e-5)
    plain = job(module, [(x, y)], method="dp-fedavg", local_steps=2, learning_rate=0.3, clip=1e6)
    assert not torch.allclose(sent(plain)[0], expected, atol=1e-3)


def test_a_radius_of_zero_is_dp_fedavg():
    keys = {"local_steps": 3, "batch_size": 4}
    assert torch.allclose(
        sent(job(method="dp-fedsam", radius=0.0, **keys)), sent(job(method="dp-fedavg", **keys)), atol=1e-6
    )


@pytest.mark.parametrize("power", [0, 3, 20, 37])
def test_no_message_is_longer_than_the_clip_whatever_the_data(power):
    wild = [(x * 10.0**power, y) for x, y in federation()]
    norms = sent(job(linear(), wild, method="dp-fedsam", clip=0.05, learning_rate=2.0)).double().norm(dim=1)
    assert bool((norms <= 0.05).all())
    assert power == 37 or float(norms.max()) > 0.04


def test_a_gradient_of_zero_moves_nothing():
    zeros = [(torch.zeros(5, 4), torch.zeros(5))]
    layer = nn.Linear(4, 1)
    nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
    assert torch.equal(sent(job(layer, zeros, "squared_error", method="dp-fedsam")), torch.zeros(1, 5))


def test_the_price_and_the_noise_are_dp_fedavgs():
    made, method = plan(noise_multiplier=0.8), DpFedSam(clip=0.3)
    assert price(method, made) == price(DpFedAvg(clip=0.3), made)
    state = started(method, State(torch.zeros(20_000)), Layout.of(linear()), made)
    noise = merged(method, made, state, Message({"update": torch.zeros(8, 20_000)}), RNG).params.numpy()
    assert kstest(noise, norm(scale=0.8 * 0.3 / 8).cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=1.1 * 0.8 * 0.3 / 8).cdf).pvalue < 1e-3


def test_a_negative_radius_is_refused():
    with pytest.raises(SpecError, match="radius"):
        DpFedSam(radius=-0.1)
