"""What the server does with the mean: FedSGD, FedAvg, FedAvgM and FedOpt against the papers' loops."""

from __future__ import annotations

import pytest
import torch

from papers import SIZES, Naive, Rounds, close, everyone, plain
from sordino.core.errors import SpecError
from support.problems import federation, job

CLIENTS = federation(SIZES)
ROUNDS, LR = 4, 0.2


def ours(algorithm, cohorts=None, **keys):
    keys = {"local_steps": 3, "learning_rate": LR} | keys
    made = job(method="none", algorithm=algorithm, clients=CLIENTS, **keys)
    return Rounds(made).run(cohorts or everyone(made, ROUNDS))


def mean_moves(naive, cohort, steps=3):
    return naive.mean({k: naive.descend(naive.weights, k, steps, LR, plain) - naive.weights for k in cohort})


def test_fedsgd_is_one_step_along_the_mean_gradient_of_all_records():
    naive = Naive(CLIENTS)
    for _ in range(ROUNDS):
        naive.weights = naive.weights - LR * naive.mean({k: naive.gradient(naive.weights, k) for k in range(3)})
    assert close(ours("fedsgd", local_steps=None).params, naive.weights)


def test_fedsgd_refuses_more_than_one_plain_step():
    for keys in ({"local_steps": 2}, {"local_epochs": 1.0}, {"optimizer": "adam"}):
        with pytest.raises(SpecError, match="fedsgd"):
            job(method="none", algorithm="fedsgd", **keys)


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_fedavg(server_lr):
    cohorts, naive = [[0, 1, 2], [1], [0, 2], [2, 1]], Naive(CLIENTS)
    for cohort in cohorts:
        naive.weights = naive.weights + server_lr * mean_moves(naive, cohort)
    assert close(ours("fedavg", cohorts, server_lr=server_lr).params, naive.weights)


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_fedavgm(beta):
    naive, velocity = Naive(CLIENTS), 0.0
    for _ in range(ROUNDS):
        velocity = beta * velocity + mean_moves(naive, range(3))
        naive.weights = naive.weights + velocity
    state = ours("fedavgm", server_momentum=beta)
    assert close(state.params, naive.weights) and close(state.algorithm.velocity, velocity)
    if beta == 0:
        assert torch.equal(state.params, ours("fedavg").params)


@pytest.mark.parametrize("kind", ["adagrad", "adam", "yogi"])
def test_fedopt(kind):
    """Reddi et al. (2021), Algorithm 2, lines 10 to 15; FedAdagrad without a first moment, as in their experiments."""
    beta1, beta2, tau, eta = 0.8, 0.9, 0.01, 0.05
    naive, m = Naive(CLIENTS), 0.0
    v = torch.full_like(naive.weights, tau**2)
    for _ in range(ROUNDS):
        delta = mean_moves(naive, range(3))
        m = delta if kind == "adagrad" else beta1 * m + (1 - beta1) * delta
        if kind == "adagrad":
            v = v + delta**2
        elif kind == "adam":
            v = beta2 * v + (1 - beta2) * delta**2
        else:
            v = v - (1 - beta2) * delta**2 * torch.sign(v - delta**2)
        naive.weights = naive.weights + eta * m / (v**0.5 + tau)
    keys = {"server_beta1": beta1, "server_beta2": beta2, "server_tau": tau, "server_lr": eta}
    state = ours("fedopt", server_optimizer=kind, **keys)
    assert close(state.params, naive.weights) and close(state.algorithm.second, v)


def test_the_three_of_fedopt_differ_and_have_their_own_default_rate():
    ends = [ours("fedopt", server_optimizer=kind).params for kind in ("adagrad", "adam", "yogi")]
    assert all(float((a - b).abs().max()) > 1e-3 for a, b in zip(ends, ends[1:] + ends[:1], strict=True))
    assert job(method="none", algorithm="fedopt").plan.server_lr == 0.1
    assert job(method="none", algorithm="fedavg").plan.server_lr == 1.0
    with pytest.raises(SpecError, match="server_optimizer"):
        job(method="none", algorithm="fedopt", server_optimizer="lion")


@pytest.mark.parametrize(
    "algorithm", ["fedavg", "fedavgm", "fedopt", "scaffold", "fednova", "q-fedavg", "ditto", "fedrep"]
)
def test_a_round_in_which_nobody_came_changes_nothing(algorithm):
    made = job(method="none", algorithm=algorithm, clients=CLIENTS, local_steps=2)
    rounds = Rounds(made)
    start = rounds.run([[0, 1]]).params
    assert torch.equal(rounds.run([[]]).params, start)
    assert not torch.equal(rounds.run([[2]]).params, start)
