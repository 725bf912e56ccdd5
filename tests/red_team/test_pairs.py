"""Trials on two datasets: which client holds which, what is looked at, and the curve of a paper's claim."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sordino.audits import game
from sordino.contract.claim import Claim
from sordino.core.errors import SpecError
from sordino.red_team import probe
from sordino.red_team.pairs import claim_curve, pair_trials
from support.problems import job

INSIDE = torch.tensor([[1e4, 0.0], [0.0, 0.0]]), torch.tensor([1, 0])
OUTSIDE = torch.zeros(2, 2), torch.tensor([1, 0])


def made(clients=1200, method="dp-sgd", **keys):
    layer = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(layer.weight)
    keys = {"learning_rate": 1e-9, "rounds": 2, "epsilon": 3.0} | keys
    return job(layer, [OUTSIDE] * clients, method=method, **keys)


def test_every_second_client_holds_the_other_dataset():
    here = made(40)
    quiet = replace(here, plan=replace(here.plan, noise_multiplier=1e-6))
    trials = pair_trials(quiet, INSIDE, OUTSIDE, 20)
    step = 1e-9 * math.sqrt(0.5) / 2  # a gradient of length 1 along two weights, a mean over two records
    assert np.allclose(trials.inside, [[-step, 0, step, 0] * 2] * 20, rtol=1e-3, atol=1e-3 * step)
    assert np.abs(trials.outside).max() < 1e-3 * step


def test_a_sound_method_stands_and_a_smaller_claim_does_not():
    here = made()
    trials = pair_trials(here, INSIDE, OUTSIDE, 1200, seed=1)
    assert trials.inside.shape == (1200, 8) and not np.array_equal(trials.inside[:600], trials.inside[600:])
    curve = probe.epsilon_curve(here)
    found = game.play(trials, curve, 1e-5)
    assert found.sound and found.gaussian.epsilon > 0.4 * found.claimed
    assert game.play(trials, lambda delta: 0.05 * curve(delta), 1e-5).refuted


def test_fields_are_chosen_by_name():
    here = made(20, "adap-dp-fl", rounds=1)
    assert pair_trials(here, INSIDE, OUTSIDE, 10).inside.shape[1] == 6  # four weights, a squared norm, a loss
    assert pair_trials(here, INSIDE, OUTSIDE, 10, fields=("update",)).inside.shape[1] == 4
    with pytest.raises(SpecError, match="no rows of clients with norm"):
        pair_trials(here, INSIDE, OUTSIDE, 10, fields=("norm",))


def test_what_is_no_pair_is_refused():
    with pytest.raises(SpecError, match="even number of clients"):
        pair_trials(made(5), INSIDE, OUTSIDE, 10)
    with pytest.raises(SpecError, match="two datasets of one size"):
        pair_trials(made(6), INSIDE, (torch.zeros(3, 2), torch.zeros(3)), 10)
    with pytest.raises(SpecError, match="channel = direct"):
        pair_trials(made(6, channel="secure-sum"), INSIDE, OUTSIDE, 10)


def test_a_claim_says_nothing_below_its_delta():
    claim = Claim(0.5, 1e-3, "a paper", "an example")
    curve = claim_curve(claim, rounds=4)
    assert [curve(d) for d in (1e-4, 1e-3, 0.5)] == [math.inf, 0.5, 0.5]
    each = claim_curve(replace(claim, scope="round"), rounds=4)
    assert [each(d) for d in (1e-3, 4e-3, 0.5)] == [math.inf, 2.0, 2.0]
    assert claim_curve(replace(claim, scope="round"))(1e-3) == 0.5
