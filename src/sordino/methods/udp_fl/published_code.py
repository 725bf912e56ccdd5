"""The noise of UDP-FL's public code (github.com/datasec-lab/UDP-FL) with its defaults; see udp_fl_paper.py."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sordino.contract.method import Plan, Release
from sordino.core.rng import RowStream
from sordino.core.types import Rows
from sordino.methods.udp_fl.noises import RowLaplace
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event, NonPrivate
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.mechanisms.laplace import plus
from sordino.privacy.release import Mechanism, Unproven, Use

MAX_NORM, STD, SCALE = 2.0, 0.1, 1.0  # clip bound of a batch, std of Gaussian noise, scale of Laplace noise
STEP, LAMBDA, GAMMA = 0.01, 5.0, 0.498  # parameters of the staircase
STEPS = (
    f"one record can change every coordinate of a batch's gradient by up to {2 * MAX_NORM / STEP:g} steps of the "
    "staircase"
)


@dataclass(frozen=True)
class OffByOne:
    """Adds the staircase noise of the published code, for which we account no privacy."""

    def apply(self, x: Bounded, rng: RowStream, use: Use) -> Rows:
        return off_by_one(x, rng)

    def event(self, split: int = 1) -> Event:
        return NonPrivate(STEPS)


def mechanism(name: str) -> Mechanism:
    """Return the mechanism that the code applies to the mean gradient of a batch, whose norm is at most MAX_NORM."""
    if name == "gaussian":
        return Gaussian(STD / MAX_NORM)
    return RowLaplace(SCALE / MAX_NORM, norm=2) if name == "laplace" else Unproven(STEPS, OffByOne())


def releases(name: str, plan: Plan) -> tuple[Release, ...]:
    """Declare the noisy mean gradient of every step.

    Replacing one record moves it by up to twice the clip bound, whatever the batch size. If the algorithm needs losses,
    they are sent without noise, as the code has none for them."""
    times = max(plan.local.count(n) for n in plan.sizes)
    gradient = Release(
        "gradient", mechanism(name), "record", MAX_NORM, times=times, relation="replace", key="train/noise #"
    )
    if "losses" not in plan.algorithm.needs:
        return (gradient,)
    return gradient, Release("losses", Unproven("the clients' losses are sent without noise"), "record")


def deviation(mechanism: str) -> float:
    """Return the standard deviation of the noise in one coordinate of a mean gradient."""
    return {"gaussian": STD, "laplace": math.sqrt(2) * SCALE, "staircase": off_by_one_std()}[mechanism]


def off_by_one(means: Bounded, rng: RowStream) -> Rows:
    """Add the code's staircase noise: step (k - 1 + part) with k geometric from 0, so mostly reflected at k = 0."""
    n = means.value.shape[1]
    sign, start, part, spread = np.split(rng.uniform(4 * n), 4, axis=1)
    k = np.floor(-np.log(start) / LAMBDA) - 1
    upper = part < GAMMA / (GAMMA + math.exp(-LAMBDA) * (1 - GAMMA))
    size = k + np.where(upper, GAMMA * spread, GAMMA + (1 - GAMMA) * spread)
    return plus(means, STEP * np.where(sign < 0.5, -size, size))


def off_by_one_std() -> float:
    """Return the standard deviation of that noise, STEP sqrt(E (k - 1 + part)^2), with k and part independent."""
    b = math.exp(-LAMBDA)
    width, odds = GAMMA + b * (1 - GAMMA), b / (1 - b)
    first = (GAMMA**2 + b * (1 - GAMMA**2)) / (2 * width)
    second = (GAMMA**3 + b * (1 - GAMMA**3)) / (3 * width)
    square = b * (1 + b) / (1 - b) ** 2 - 2 * odds + 1
    return STEP * math.sqrt(square + 2 * (odds - 1) * first + second)
