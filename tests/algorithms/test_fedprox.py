"""FedProx against the paper's inner problem; without the spring it is FedAvg, bit for bit."""

from __future__ import annotations

import pytest
import torch

from papers import SIZES, Naive, Rounds, close, everyone, quadratics
from support.problems import federation, job

CLIENTS = federation(SIZES)


def ours(algorithm="fedprox", **keys):
    made = job(method="none", algorithm=algorithm, clients=CLIENTS, local_steps=4, learning_rate=0.2, **keys)
    return Rounds(made).run(everyone(made, 3)).params


def test_fedprox():
    naive = Naive(CLIENTS)
    for _ in range(3):
        start = naive.weights
        moves = {
            k: naive.descend(start, k, 4, 0.2, lambda g, w, s=start: g + 0.7 * (w - s)) - start
            for k in range(len(SIZES))
        }
        naive.weights = start + naive.mean(moves)
    assert close(ours(mu=0.7), naive.weights)
    assert not close(ours(mu=0.3), naive.weights)


def test_without_a_spring_it_is_fedavg():
    assert torch.equal(ours(mu=0.0), ours("fedavg"))


def test_the_spring_holds_where_it_balances_the_clients_pull():
    """F(w) = (w - 3)^2 and mu / 2 w^2 balance at w = 6 / (2 + mu)."""
    clients, model, _ = quadratics(torch.tensor([[1.0]]), torch.tensor([[3.0]]))
    for mu in (0.0, 1.0, 10.0):
        made = job(model, clients, method="none", algorithm="fedprox", mu=mu, local_steps=150, learning_rate=0.05)
        assert float(Rounds(made).run([[0]]).params) == pytest.approx(6 / (2 + mu), rel=1e-4)
