"""The noise of UDP-FL's public code (github.com/datasec-lab/UDP-FL), its defaults: see udp_fl_paper.py."""

from __future__ import annotations

import math

import numpy as np

from sordino.core.rng import RowStream
from sordino.core.types import Rows
from sordino.methods._harmonised import laplace
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.laplace import plus

MAX_NORM, STD, SCALE = 2.0, 0.1, 1.0  # clip of a batch, Gaussian and Laplace noise
STEP, LAMBDA, GAMMA = 0.01, 5.0, 0.498  # of its staircase


def add(mechanism: str, means: Bounded, rng: RowStream) -> Rows:
    if mechanism == "gaussian":
        return means.value + STD * rng.normal(means.value.shape[1], like=means.value)
    if mechanism == "laplace":
        return means.value + SCALE * laplace(rng, means.value)
    return off_by_one(means, rng)


def deviation(mechanism: str) -> float:
    return {"gaussian": STD, "laplace": math.sqrt(2) * SCALE, "staircase": off_by_one_std()}[mechanism]


def off_by_one(means: Bounded, rng: RowStream) -> Rows:
    """The code's staircase: step (k - 1 + part), k geometric from 0, so mostly reflected at k = 0."""
    n = means.value.shape[1]
    sign, start, part, spread = np.split(rng.uniform(4 * n), 4, axis=1)
    k = np.floor(-np.log(start) / LAMBDA) - 1
    upper = part < GAMMA / (GAMMA + math.exp(-LAMBDA) * (1 - GAMMA))
    size = k + np.where(upper, GAMMA * spread, GAMMA + (1 - GAMMA) * spread)
    return plus(means, STEP * np.where(sign < 0.5, -size, size))


def off_by_one_std() -> float:
    """E (k - 1 + part)^2 in steps, k and part being independent."""
    b = math.exp(-LAMBDA)
    width, odds = GAMMA + b * (1 - GAMMA), b / (1 - b)
    first = (GAMMA**2 + b * (1 - GAMMA**2)) / (2 * width)
    second = (GAMMA**3 + b * (1 - GAMMA**3)) / (3 * width)
    square = b * (1 + b) / (1 - b) ** 2 - 2 * odds + 1
    return STEP * math.sqrt(square + 2 * (odds - 1) * first + second)
