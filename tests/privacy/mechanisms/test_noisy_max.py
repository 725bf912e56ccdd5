"""Laws, audits and refusals that it shares with the exponential mechanism are in test_exponential.py."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency, chisquare

from sordino.core.rng import Stream
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.exponential import Exponential
from sordino.privacy.mechanisms.noisy_max import NoisyMax, NoisyMaxEvent

UTILITIES = torch.tensor([[0.0, 0.5, 2.0, 1.1, 0.9, 1.6]], dtype=torch.float64)
N = 80_000


@cache
def counts(m: Exponential, seed: int) -> np.ndarray:
    rows = Bounded(UTILITIES.expand(N, -1), 0.6, math.inf)
    return np.bincount(m.select(rows, Stream.research(seed).rows(range(N))).numpy(), minlength=6)


@pytest.mark.parametrize("monotone", [False, True])
def test_the_law_is_that_of_the_exponential_mechanism(monotone):
    noisy, plain = counts(NoisyMax(1.5, monotone), 1), counts(Exponential(1.5, monotone), 2)
    assert chi2_contingency([noisy, plain]).pvalue > 1e-3
    wrong = counts(Exponential(1.5 * 1.1, monotone), 2)
    assert chi2_contingency([noisy, wrong]).pvalue < 1e-3


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_five_per_cent_are_seen(factor):
    found = counts(NoisyMax(1.5, True), 1)
    right, wrong = (Exponential(e, True).probabilities(UTILITIES[0], 0.6) for e in (1.5, 1.5 * factor))
    assert chisquare(found, right * N).pvalue > 1e-3
    assert chisquare(found, wrong * N).pvalue < 1e-3


def test_laplace_noise_of_the_same_scale_is_another_law():
    found = counts(NoisyMax(1.5, True), 1)
    u = np.random.default_rng(0).laplace(scale=0.6 / 1.5, size=(N, 6)) + UTILITIES.numpy()
    assert chi2_contingency([found, np.bincount(u.argmax(axis=1), minlength=6)]).pvalue < 1e-3


def test_it_has_an_event_of_its_own():
    assert NoisyMax(0.8).event() == NoisyMaxEvent(0.8) != Exponential(0.8).event()
    assert NoisyMax(0.8).event().rho() == Exponential(0.8).event().rho()
