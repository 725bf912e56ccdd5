"""A client's privacy budget counted in whole units, for methods that choose its noise round by round.

The budget of a run with noise multiplier z is rho = 1 / (2 z^2). It is divided into UNITS equal units, so that what a
client spends in its rounds adds up exactly.
"""

from __future__ import annotations

import math

from torch import Tensor

UNITS = 2**24  # number of units in a client's budget

Kept = tuple[int, int, int]  # state of a client: units spent, participations, lost rounds that it has counted


def counters(row: Tensor) -> Kept:
    """Return a client's counters, stored as a row of three numbers, as integers."""
    spent, count, counted = (int(v) for v in row)
    return spent, count, counted


def noise_for(units: int, steps: int, run_multiplier: float) -> float:
    """Return the noise multiplier of each of `steps` steps that together cost this many units of a client's budget.

    The budget is that of one Gaussian release with noise multiplier `run_multiplier`. The result is 0 if `units` is 0;
    otherwise it is rounded up slightly, to allow for rounding to float32.
    """
    return run_multiplier * math.sqrt(steps * UNITS / units) * (1 + 2**-22) if units else 0.0
