"""The learning rate of every round, the steps of a client, weight decay."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from papers import Naive, Rounds, close, everyone
from sordino.contract.method import Local
from sordino.core.errors import SpecError
from support.problems import federation, job

LR = 0.4


def rates(rounds=8, **keys):
    local = Local(learning_rate=LR, **keys)
    return [local.rate_in(r, rounds) for r in range(rounds)]


def test_every_schedule_has_its_values():
    assert rates() == [LR] * 8
    assert rates(schedule="linear") == pytest.approx([LR * (8 - r) / 8 for r in range(8)])
    assert rates(schedule="cosine") == pytest.approx([LR * (1 + math.cos(math.pi * r / 8)) / 2 for r in range(8)])
    assert rates(schedule="step") == pytest.approx([LR] * 4 + [LR / 10] * 2 + [LR / 100] * 2)


def test_warm_up_rises_in_equal_steps_and_then_the_schedule_begins():
    assert rates(warmup=3) == pytest.approx([LR / 4, LR / 2, 3 * LR / 4] + [LR] * 5)
    assert rates(warmup=3, schedule="linear") == pytest.approx(
        [LR / 4, LR / 2, 3 * LR / 4] + [LR * (5 - r) / 5 for r in range(5)]
    )
    assert rates(rounds=3, warmup=9) == pytest.approx([LR / 10, LR / 5, 3 * LR / 10])


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "step"])
@pytest.mark.parametrize("warmup", [0, 1, 7, 50])
@pytest.mark.parametrize("rounds", [1, 2, 3, 7, 8, 50, 5000])
def test_no_round_is_without_a_rate(schedule, warmup, rounds):
    found = rates(rounds, schedule=schedule, warmup=warmup)
    assert all(0 < rate <= LR * (1 + 1e-12) for rate in found)
    rise, fall = found[: warmup + 1], found[warmup:]
    assert rise == sorted(rise) and fall == sorted(fall, reverse=True)


def test_bad_settings_are_refused():
    for keys in ({"schedule": "exponential"}, {"warmup": -1}, {"weight_decay": -0.1}, {"momentum": 1.0}):
        with pytest.raises(SpecError, match=next(iter(keys))):
            Local(**keys)


@pytest.mark.parametrize("method", ["none", "dp-fedavg", "dp-sgd"])
def test_the_rate_of_the_round_is_the_one_that_is_used(method):
    """FedSGD moves by rate times gradient: rows of round 2 with a schedule are those of a constant rate, scaled."""
    arrived = []
    for schedule in ("constant", "linear"):
        made = job(clients=federation(), method=method, algorithm="fedavg", schedule=schedule, rounds=4, epsilon=50.0,
                   **({} if method == "none" else {"clip": 1e3}))  # fmt: skip
        rounds = Rounds(made)
        start = rounds.state
        for number in (0, 3):
            rounds.state = replace(start, round=number)
            rounds.run([range(8)])
            arrived.append(rounds.arrived["update"])
    constant_first, constant_last, linear_first, linear_last = arrived
    assert torch.allclose(linear_first, constant_first, rtol=1e-4, atol=1e-7)
    assert torch.allclose(linear_last, constant_last / 4, rtol=1e-3, atol=1e-6)
    assert float(constant_last.abs().max()) > 1e-3


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_weight_decay_is_torchs(optimizer):
    clients = federation((12,))
    made = job(method="none", clients=clients, local_steps=4, weight_decay=0.3, learning_rate=0.05, optimizer=optimizer)
    ours = Rounds(made).run(everyone(made, 1)).params
    naive = Naive(clients)
    keys = {"lr": 0.05, "weight_decay": 0.3}
    step = {
        "sgd": lambda p: torch.optim.SGD(p, **keys),
        "momentum": lambda p: torch.optim.SGD(p, momentum=0.9, **keys),
        "adam": lambda p: torch.optim.Adam(p, betas=(0.9, 0.999), **keys),
    }[optimizer](naive.module.parameters())
    for _ in range(4):
        step.zero_grad()
        torch.nn.functional.cross_entropy(naive.module(clients[0][0]), clients[0][1]).backward()
        step.step()
    theirs = torch.cat([p.detach().flatten() for p in naive.module.parameters()])
    assert torch.allclose(ours, theirs, atol=2e-4 if optimizer == "adam" else 1e-5)
    plain = job(method="none", clients=clients, local_steps=4, learning_rate=0.05, optimizer=optimizer)
    assert not close(Rounds(plain).run([[0]]).params, ours)
