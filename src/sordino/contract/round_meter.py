"""What a round of a simulation measured about clips and noise, for the owner of the data alone.

The signal is the sum of all clipped contributions of a round, over clients and local steps, before any noise; beside it
stands the noise that the declared mechanisms put into that sum. Both are norms, by layer of the model. Nothing of this
was released or charged: it belongs into the private part of a run folder.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sordino.core.clip_counts import ClipCounts
from sordino.core.rng import Ints
from sordino.core.vector import Layout
from sordino.privacy.clip import Bounded
from sordino.privacy.release import Release, Unproven


class RoundMeter:
    """A witness of all outlets of a simulation, emptied after every round."""

    def __init__(self, layout: Layout) -> None:
        self.clips = ClipCounts()  # of the outlet that is used next
        self._layers, self._dim = layout.layers(), layout.dim
        self._empty()

    def _empty(self) -> None:
        self._counts: dict[str, ClipCounts] = {}
        self._name = ""  # of the outlet whose values are shaped like the model
        self._signal: Tensor | None = None  # [dim]
        self._shared, self._central = 0.0, 0.0  # variance per coordinate: of clients' noise, of the server's
        self._drawn: Tensor | None = None  # [dim]: the noise itself, of mechanisms whose deviation is not known
        self._known = True  # whether the noise is known at all

    def known(self, release: Release, ids: Ints) -> Tensor | None:
        """Return None: the mechanism is applied as usual."""
        return None

    def passed(self, release: Release, x: Bounded, ids: Ints, output: Tensor, multiplier: Tensor | None) -> None:
        """Add one use of an outlet."""
        self._counts.setdefault(release.name, ClipCounts()).add(self.clips.take())
        if x.value.ndim != 2 or x.value.shape[1] != self._dim or self._name not in ("", release.name):
            return
        self._name = release.name
        total = x.value.sum(dim=0)
        self._signal = total.double() if self._signal is None else self._signal + total
        std = _deviation(release)
        if std is None:
            self._as_drawn(output, total)
        elif release.where == "server":
            self._central = std**2
        elif multiplier is None or not release.multiplier:
            self._shared += len(x.value) * std**2
        else:
            each = (multiplier.double() / release.multiplier).flatten(1).mean(dim=1)
            self._shared += float((each[each.isfinite()] ** 2).sum()) * std**2

    def _as_drawn(self, output: Tensor, total: Tensor) -> None:
        """Add the noise that was drawn, where its deviation is not known; integers on a lattice are not compared."""
        if output.ndim != 2 or output.shape[1] != self._dim or not output.is_floating_point():
            self._known = False
            return
        noise = output.sum(dim=0).double() - total
        self._drawn = noise if self._drawn is None else self._drawn + noise

    def take(self, split: int = 1) -> dict[str, Any] | None:
        """Return the figures since the last call and begin anew; None if no outlet was used.

        Args:
            split: the number of clients that share the noise.
        """
        out: dict[str, Any] = {}
        counted = {name: c for name, c in self._counts.items() if c.contributions}
        if counted:
            out["clipped"] = {name: c.shortened / c.contributions for name, c in counted.items()}
            out["norm"] = {name: c.lengths / c.finite for name, c in counted.items() if c.finite}
        if self._signal is not None:
            parts = [self._signal[part].norm() for part in self._layers.values()]
            out["signal"] = dict(zip(self._names(), torch.stack(parts).tolist(), strict=True))
            if self._known:
                out["noise"] = dict(zip(self._names(), self._noise(split), strict=True))
        self._empty()
        return out or None

    def _noise(self, split: int) -> list[float]:
        """Return the norm of the noise in every layer."""
        if self._drawn is not None:
            return [float(self._drawn[part].norm()) for part in self._layers.values()]
        variance = self._shared / max(1, split) + self._central
        return [math.sqrt(variance * (part.stop - part.start)) for part in self._layers.values()]

    def _names(self) -> list[str]:
        return [name or "the model itself" for name in self._layers]


def _deviation(release: Release) -> float | None:
    """Return the standard deviation of one use's noise in a coordinate; None if it is not known."""
    mechanism = release.mechanism
    if isinstance(mechanism, Unproven):
        if mechanism.mechanism is None:
            return 0.0
        mechanism = mechanism.mechanism
    std = getattr(mechanism, "std", None)
    value = std(release.bound or 0.0) if callable(std) and release.bound is not None else None
    return float(value) if value is not None and math.isfinite(value) else None
