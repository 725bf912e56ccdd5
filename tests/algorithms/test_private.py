"""Every algorithm under every private method, at a generous budget, learns a small problem."""

from __future__ import annotations

import pytest
import torch

from papers import Naive, Rounds, everyone
from sordino.core import plugin
from support.problems import federation, job, mlp

COUNT, RECORDS = 30, 20
PAIRS = federation((RECORDS,) * COUNT + (150,), seed=7)
CLIENTS, TEST = PAIRS[:COUNT], PAIRS[COUNT]
OWN = {
    "fedopt": {"server_lr": 0.05},
    "fedrep": {"head_steps": 2},
    "fedavgm": {"server_momentum": 0.5},
    "fedsgd": {"local_steps": None, "learning_rate": 1.0, "rounds": 20},
}
METHODS = {"dp-sgd": {"clip": 1.0}, "dp-fedavg": {"clip": 2.0}}


def accuracy(models):
    """Of each model on the test records, on average."""
    naive, hits = Naive([TEST]), []
    for model in models:
        naive.loss(model, 0)
        hits.append(float((naive.module(TEST[0]).argmax(1) == TEST[1]).float().mean()))
    return sum(hits) / len(hits)


def run(algorithm, method, epsilon):
    keys = {"rounds": 10, "local_steps": 5, "learning_rate": 0.3, "epsilon": epsilon}
    keys |= METHODS[method] | OWN.get(algorithm, {})
    made = job(mlp(), CLIENTS, method=method, algorithm=algorithm, **keys)
    done = Rounds(made)
    done.run(everyone(made, keys["rounds"]))
    return accuracy(done.own_models(range(5)) if algorithm == "fedrep" else [done.state.params])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("algorithm", plugin.available("algorithms"))
def test_it_learns(algorithm, method):
    assert run(algorithm, method, 30.0) > 0.7  # chance is a third


def test_with_next_to_no_budget_it_does_not():
    """The same test can fail: at epsilon = 0.01 there is nothing but noise."""
    found = [run("fedavg", m, 0.01) for m in METHODS]
    assert max(found) < 0.7
    assert torch.tensor(found).isfinite().all()
