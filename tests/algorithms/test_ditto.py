"""Ditto against Algorithm 1 of the paper: FedAvg's model, and a personal one beside it."""

from __future__ import annotations

import pytest
import torch

from papers import SIZES, Naive, Rounds, close, everyone, plain
from sordino.contract.site import ALGORITHM
from support.problems import federation, job, linear

CLIENTS = federation(SIZES)
STEPS, LR, PULL = 3, 0.2, 0.4


def ours(clients=CLIENTS, algorithm="ditto", module=None, rounds=3, cohorts=None, **keys):
    keys = {"local_steps": STEPS, "learning_rate": LR} | ({"pull": PULL} if algorithm == "ditto" else {}) | keys
    made = job(module, clients, algorithm=algorithm, **{"method": "none", "rounds": rounds} | keys)
    done = Rounds(made)
    done.run(cohorts or everyone(made, rounds))
    return done


def test_ditto():
    """A client's personal model begins as the shared one of its first round."""
    cohorts, naive, personal = [[0, 1], [1], [0, 1, 2]], Naive(CLIENTS), {}
    for cohort in cohorts:
        w = naive.weights
        moves = {k: naive.descend(w, k, STEPS, LR, plain) - w for k in cohort}
        for k in cohort:
            v = personal.get(k, w)
            personal[k] = naive.descend(v, k, STEPS, LR, lambda g, v, w=w: g + PULL * (v - w))
        naive.weights = w + naive.mean(moves)
    done = ours(cohorts=cohorts)
    assert close(done.state.params, naive.weights)
    assert close(done.own_models(range(3)), torch.stack([personal[k] for k in range(3)]))


@pytest.mark.parametrize("method", ["none", "dp-sgd", "dp-fedavg"])
@pytest.mark.parametrize("batch", [{}, {"batch_rate": 0.4}])
def test_the_shared_model_is_fedavgs_bit_for_bit(method, batch):
    keys = {"method": method, "epsilon": 5.0} | batch
    assert torch.equal(ours(**keys).state.params, ours(algorithm="fedavg", **keys).state.params)


@pytest.mark.parametrize("method", ["none", "dp-sgd", "dp-fedavg"])
def test_nothing_personal_is_sent(method):
    """Whatever personal models the clients had, the messages are the same."""
    made = job(clients=CLIENTS, algorithm="ditto", method=method, local_steps=2)
    one, other = Rounds(made), Rounds(made)
    other.federation.store.write(ALGORITHM, range(3), torch.randn(3, made.model.layout.dim) * 100)
    assert torch.equal(one.run([range(3)]).params, other.run([range(3)]).params)
    assert list(one.arrived.fields) == list(other.arrived.fields) == ["update"]
    assert torch.equal(one.arrived.weighed()["update"], other.arrived.weighed()["update"])
    assert not torch.allclose(one.own(range(3)), other.own(range(3)))


def unlike(shift, records=40):
    """Clients that agree on where classes lie and name them each its own way, and test records of each."""
    pairs = federation((2 * records,) * 6, seed=2)
    named = [(x, (y + shift * k) % 3) for k, (x, y) in enumerate(pairs)]
    return [(x[:records], y[:records]) for x, y in named], [(x[records:], y[records:]) for x, y in named]


def accuracy(models, tests):
    """Of linear models, each on its own client's test records."""
    hits = []
    for model, (x, y) in zip(models, tests, strict=True):
        logits = x @ model[:60].view(3, 20).T + model[60:]
        hits.append(float((logits.argmax(1) == y).float().mean()))
    return sum(hits) / len(hits)


def test_personal_models_beat_the_shared_one_where_clients_differ():
    clients, tests = unlike(1)
    done = ours(clients, module=linear(), rounds=20, local_steps=5)
    personal = accuracy(done.own_models(range(6)), tests)
    shared = accuracy(done.state.params.expand(6, -1), tests)
    assert personal > 0.9 and shared < 0.6


def test_a_strong_pull_makes_personal_models_the_shared_one():
    clients, _ = unlike(1)
    far = [
        float((d.own_models(range(6)) - d.state.params).norm())
        for d in (ours(clients, module=linear(), rounds=10, pull=p) for p in (0.0, 1.0, 4.0))
    ]
    assert far[0] > 1.3 * far[1] > 1.3**2 * far[2]
