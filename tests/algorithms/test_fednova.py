"""FedNova against Eq. (8) of the paper; the right optimum where unequal work biases FedAvg."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from papers import Naive, Rounds, close, everyone, plain
from sordino.algorithms.fednova import amount
from sordino.contract.method import Local
from sordino.core.errors import SpecError
from support.problems import federation, job

BATCH, COPIES = 4, (4, 12, 20)  # so 1, 3 and 5 steps an epoch


def alike(pairs):
    """Clients whose records are all the same, so that whatever batch is drawn has the client's gradient."""
    return [(x[:1].repeat(n, 1), y[:1].repeat(n)) for (x, y), n in zip(pairs, COPIES, strict=True)]


def ours(algorithm, clients, module=None, rounds=3, cohorts=None, **keys):
    keys = {"local_epochs": 1.0, "batch_size": BATCH, "learning_rate": 0.2} | keys
    made = job(module, clients, method="none", algorithm=algorithm, rounds=rounds, **keys)
    return Rounds(made).run(cohorts or everyone(made, rounds))


def test_fednova_with_unequal_work():
    clients = alike(federation((1, 1, 1)))
    naive, taus = Naive(clients), {k: n // BATCH for k, n in enumerate(COPIES)}
    usual = sum(n * taus[k] for k, n in enumerate(COPIES)) / sum(COPIES)
    for _ in range(3):
        x = naive.weights
        directions = {k: (naive.descend(x, k, tau, 0.2, plain) - x) / tau for k, tau in taus.items()}
        naive.weights = x + usual * naive.mean(directions)
    assert close(ours("fednova", clients).params, naive.weights)
    assert not close(ours("fedavg", clients).params, naive.weights)


def test_with_equal_work_it_is_fedavg():
    clients = federation((12, 30, 5))
    keys = {"local_epochs": None, "batch_size": None, "local_steps": 3}
    assert close(ours("fednova", clients, **keys).params, ours("fedavg", clients, **keys).params)


def test_the_optimum_is_that_of_the_weighted_loss():
    """F_k(w) = (w - b_k)^2, weighed by records: the best w is their weighted mean of the b_k."""
    points = torch.tensor([10.0, 0.0, -10.0])
    clients = [(torch.ones(n, 1), torch.full((n,), float(b))) for n, b in zip(COPIES, points, strict=True)]
    target = float((torch.tensor(COPIES) * points).sum() / sum(COPIES))
    model = nn.Linear(1, 1, bias=False)
    nova = float(ours("fednova", clients, model, rounds=60, learning_rate=0.02).params)
    average = float(ours("fedavg", clients, model, rounds=60, learning_rate=0.02).params)
    assert nova == pytest.approx(target, abs=0.25)
    assert abs(average - target) > 1.5  # drawn to the client that takes five steps


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_amount_of_work_with_momentum_is_what_a_constant_gradient_makes(rho, steps):
    gone, velocity = 0.0, 0.0
    for _ in range(steps):
        velocity = rho * velocity + 1
        gone += velocity
    found = amount(torch.tensor(float(steps)), Local(optimizer="momentum", momentum=rho))
    assert float(found) == pytest.approx(gone, rel=1e-5)


def test_it_refuses_optimisers_whose_work_it_does_not_know():
    with pytest.raises(SpecError, match="fednova"):
        job(method="none", algorithm="fednova", optimizer="adam", local_steps=2)
