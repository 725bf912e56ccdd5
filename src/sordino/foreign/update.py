"""What one client's training changed: the difference of two sets of arrays, clipped in L2 over all of them together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.core.errors import SpecError

FORM = "an update must hold the floating point arrays that were received, with their names and shapes"
INSIDE = 1 - 1e-6  # updates are scaled to slightly less than the clip, so that rounding cannot lift them above it

Arrays = dict[str, NDArray[np.float64]]


def difference(returned: Mapping[str, NDArray[Any]], received: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return what training changed, in float64; raise SpecError unless exactly the received arrays came back."""
    if set(returned) != set(received):
        raise SpecError(FORM)
    out: Arrays = {}
    for name, old in received.items():
        new = returned[name]
        if old.dtype.kind != "f" or new.dtype.kind != "f" or old.shape != new.shape:
            raise SpecError(FORM)
        with np.errstate(all="ignore"):
            out[name] = np.asarray(new.astype(np.float64) - old.astype(np.float64))
    return out


def clipped(update: Arrays, clip: float) -> Arrays:
    """Return the update, scaled down to an L2 norm of at most `clip`; zero if it is zero or not finite."""
    flat = np.concatenate([value.reshape(-1) for value in update.values()]) if update else np.zeros(0)
    largest = float(np.abs(flat).max()) if flat.size else 0.0
    if not np.isfinite(flat).all() or largest < np.finfo(np.float64).tiny:
        return {name: np.zeros(value.shape) for name, value in update.items()}
    shape = {name: np.asarray(value / largest) for name, value in update.items()}  # no square of it overflows
    norm = float(np.linalg.norm(flat / largest))
    if norm * largest <= clip * INSIDE:
        return update
    return {name: np.asarray(value * (clip * INSIDE / norm)) for name, value in shape.items()}


def let_out(
    returned: Mapping[str, NDArray[Any]], received: Mapping[str, NDArray[Any]], clip: float
) -> dict[str, NDArray[np.float32]]:
    """Return the one thing that leaves a client: its clipped update, in float32 and in the order of `received`."""
    update = clipped(difference(returned, received), clip)
    return {name: np.asarray(value, dtype=np.float32) for name, value in update.items()}
