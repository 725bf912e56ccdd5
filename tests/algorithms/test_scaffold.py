"""SCAFFOLD, option II, against Algorithm 1 of the paper; and better than FedAvg where clients pull apart."""

from __future__ import annotations

import pytest
import torch

from papers import Naive, Rounds, close, everyone, quadratics
from sordino.contract.site import ALGORITHM
from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from support.problems import federation, job

STEPS, LR = 4, 0.2
SIZES = (12,) * 6


def ours(**keys):
    return job(
        method="none", algorithm="scaffold", clients=federation(SIZES), local_steps=STEPS, learning_rate=LR, **keys
    )


def paper(cohorts, server_lr=1.0):
    """Karimireddy et al. (2020), Algorithm 1: the weights, c, every c_i."""
    naive, count = Naive(federation(SIZES)), len(SIZES)
    c, own = 0 * naive.weights, dict.fromkeys(range(count), 0 * naive.weights)
    for cohort in cohorts:
        x, moves, changes = naive.weights, {}, {}
        for i in cohort:
            y = naive.descend(x, i, STEPS, LR, lambda g, w, i=i, c=c: g - own[i] + c)
            new = own[i] - c + (x - y) / (STEPS * LR)
            moves[i], changes[i] = y - x, new - own[i]
            own[i] = new
        naive.weights = x + server_lr * naive.mean(moves)
        c = c + len(cohort) / count * naive.mean(changes)  # |S| / N
    return naive.weights, c, own


@pytest.mark.parametrize("server_lr", [1.0, 0.6])
def test_everyone_takes_part(server_lr):
    made = ours(server_lr=server_lr)
    rounds = Rounds(made)
    state = rounds.run(everyone(made, 4))
    weights, c, own = paper(everyone(made, 4), server_lr)
    assert close(state.params, weights) and close(state.algorithm.control, c)
    assert close(rounds.own(range(6)), torch.stack([own[i] for i in range(6)]))
    assert close(state.algorithm.control, rounds.own(range(6)).mean(0))  # c is the mean of the c_i
    assert float(c.norm()) > 0.1


def test_a_part_takes_part():
    cohorts = [[0, 1], [2, 4], [1, 4], [0, 5], [1, 2]]
    rounds = Rounds(ours(client_sampling="fixed", client_rate=2 / 6))
    state = rounds.run(cohorts)
    weights, c, own = paper(cohorts)
    assert close(state.params, weights) and close(state.algorithm.control, c)
    assert close(rounds.own(range(6)), torch.stack([own[i] for i in range(6)]))
    assert rounds.federation.store.clients(ALGORITHM) == [0, 1, 2, 4, 5]  # client 3 was never there
    assert close(state.algorithm.control, rounds.own(range(6)).mean(0))


def test_the_message_is_model_and_control_variate():
    rounds = Rounds(ours())
    rounds.run([[0, 3]])
    assert list(rounds.arrived.fields) == ["update"]
    assert rounds.arrived["update"].shape == (2, 2 * len(rounds.state.params))


def test_unequal_work_counts_each_clients_own_steps():
    """With epochs in batches clients take 3 and 1 steps; c_i is divided by each one's own number."""
    clients = federation((12, 4))
    keys = {"local_epochs": 1.0, "batch_size": 4, "learning_rate": LR}
    rounds = Rounds(job(method="none", algorithm="scaffold", clients=clients, **keys))
    start = rounds.state.params
    rounds.run([[0, 1]])
    moved = rounds.arrived["update"][:, : len(start)]
    assert close(rounds.own([0, 1]), -moved / (torch.tensor([[3.0], [1.0]]) * LR))


def test_it_needs_plain_steps():
    with pytest.raises(SpecError, match="plain local SGD"):
        ours(optimizer="momentum")


def distance(algorithm, rounds, **keys):
    """From the best common point, on two clients that pull hard in different directions."""
    curves = torch.tensor([[4.0, 0.1], [0.1, 4.0], [1.0, 1.0]])
    best = torch.tensor([[2.0, -6.0], [-6.0, 2.0], [1.0, 1.0]])
    clients, model, target = quadratics(curves, best)
    keys = {"local_steps": 20, "learning_rate": 0.05, "rounds": rounds} | keys
    made = job(model, clients, method="none", algorithm=algorithm, **keys)
    state = Rounds(made).run(everyone(made, rounds))
    return float((state.params - target).norm() / target.norm())


def test_it_reaches_the_optimum_where_fedavg_cannot():
    scaffold, fedavg = distance("scaffold", 30), distance("fedavg", 30)
    assert scaffold < 0.01 and fedavg > 0.3
    assert distance("scaffold", 10) < distance("fedavg", 10) / 3


def skewed(rounds=45, **keys):
    """Relative distance from the optimum and of c from the mean of the c_i; twenty clients, drawn as the keys say."""
    draw = torch.Generator().manual_seed(0)
    curves = 2 * torch.rand(20, 2, generator=draw) + 0.1
    clients, model, target = quadratics(curves, 5 * torch.randn(20, 2, generator=draw))
    keys = {"method": "none", "local_steps": 10, "learning_rate": 0.05, "rounds": rounds} | keys
    made = job(model, clients, algorithm="scaffold", **keys)
    done = Rounds(made)
    for i in range(rounds):
        done.run([made.plan.sampler.draw(20, Stream.research(5).at("draw", i)).tolist()])
    apart = done.state.algorithm.control - done.own(range(20)).mean(0)
    return float((done.state.params - target).norm() / target.norm()), float(apart.norm())


def test_cohorts_of_a_fixed_size_reach_the_optimum():
    far, apart = skewed(client_rate=0.3, client_sampling="fixed")
    assert far < 0.01 and apart < 1e-3


@pytest.mark.parametrize("keys", [{"client_rate": 0.3}, {"dropout": "0.5"}])
def test_cohorts_of_random_size_reach_the_optimum(keys):
    far, apart = skewed(**keys)
    assert far < 0.01 and apart < 1e-3


@pytest.mark.parametrize("law", [{"late": 0.3}, {"dropout": "0.1-0.5"}])
def test_answers_that_do_not_count_once_and_fully_are_refused(law):
    with pytest.raises(SpecError, match="once and in full"):
        skewed(**law)


@pytest.mark.parametrize("method", ["dp-sgd", "dp-fedavg"])
def test_failing_clients_do_not_speed_up_the_control_variate(method):
    """After one round c is the mean of the c_i, those that never changed included; here half of the clients fail."""
    made = job(clients=federation((4,) * 60), algorithm="scaffold", method=method, dropout="0.5", clip=1e3, epsilon=1e9)
    done = Rounds(made)
    done.run([range(60)])
    c, mean = done.state.algorithm.control, done.own(range(60)).mean(0)
    assert float(c @ mean / (mean @ mean)) == pytest.approx(1.0, abs=0.02)
