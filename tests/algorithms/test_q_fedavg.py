"""q-FedAvg against Algorithm 2 of the paper; q = 0 is FedAvg, q > 0 is fairer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from papers import SIZES, Naive, Rounds, close, everyone, plain
from sordino.core.errors import SpecError
from support.problems import federation, job, linear

CLIENTS = federation((12,) * 3)
STEPS, LR = 3, 0.2


def ours(clients=CLIENTS, module=None, rounds=3, **keys):
    keys = {"algorithm": "q-fedavg", "local_steps": STEPS, "learning_rate": LR} | keys
    made = job(module, clients, method="none", rounds=rounds, **keys)
    return Rounds(made).run(everyone(made, rounds)).params


@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
def test_q_fedavg(q):
    """Li et al. (2020), Algorithm 2, with L = 1 / learning rate, over clients of one size."""
    naive, big = Naive(CLIENTS), 1 / LR
    for _ in range(3):
        w, over, under = naive.weights, 0.0, 0.0
        for k in range(3):
            loss = naive.loss(w, k)
            assert loss < 5  # below the cap
            dw = big * (w - naive.descend(w, k, STEPS, LR, plain))
            over = over + loss**q * dw
            under = under + q * loss ** (q - 1) * float(dw @ dw) + big * loss**q
        naive.weights = w - over / under
    assert close(ours(q=q), naive.weights)
    assert not close(ours(q=q + 0.5), naive.weights)


@pytest.mark.parametrize("q", [2.0, 3.0])
def test_small_losses_are_weighed_as_in_the_paper(q):
    """Losses of about 0.0025 and 0.01: the ratio does not change when all losses shrink together."""
    x = torch.eye(4)
    model = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)

    def end(scale):
        return ours([(x, torch.full((4,), scale)), (x, torch.full((4,), 2 * scale))], model, q=q)

    assert torch.allclose(end(0.05) / 0.05, end(1.0), rtol=1e-3)


def test_q_zero_is_fedavg():
    clients = federation(SIZES)
    assert torch.equal(ours(clients, q=0.0), ours(clients, algorithm="fedavg"))


def unfair():
    """Nine clients agree, one has all its labels turned round."""
    pairs = federation((30,) * 10, seed=5)
    x, y = pairs[-1]
    return [*pairs[:-1], (x, (y + 1) % 3)]


def losses(params, clients):
    module = linear()
    naive = Naive(clients, module)
    return torch.tensor([naive.loss(params, k) for k in range(len(clients))])


def test_it_lowers_the_loss_of_the_worst_client_and_the_spread():
    clients, keys = unfair(), {"module": linear(), "rounds": 60, "local_steps": 2, "learning_rate": 0.05}
    fair = losses(ours(clients, q=3.0, **keys), clients)
    usual = losses(ours(clients, algorithm="fedavg", **keys), clients)
    assert float(fair.max()) < 0.8 * float(usual.max())
    assert float(fair.var()) < 0.6 * float(usual.var())
    assert float(fair[:9].mean()) > float(usual[:9].mean())  # the others pay for it


def test_it_needs_plain_steps_and_a_loss():
    with pytest.raises(SpecError, match="plain local SGD"):
        job(method="none", algorithm="q-fedavg", optimizer="adam", local_steps=2)
    with pytest.raises(SpecError, match="q must not be negative"):
        job(method="none", algorithm="q-fedavg", q=-1.0)


def test_a_perfect_client_or_a_terrible_one_breaks_nothing():
    """Losses near zero to the power q - 1, and losses far above the cap."""
    x = torch.eye(4)
    clients = [(x, torch.zeros(4)), (x, torch.full((4,), 1e4))]
    model = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)
    for q in (0.1, 0.5, 2.0):
        assert bool(ours(clients, model, q=q, rounds=5, learning_rate=0.01).isfinite().all())
