"""Norms of gradients divided coordinate-wise by a scale: clipping to an ellipsoid.

    |g_i / s|² = sum over parameters of  G_i² / s²

Every client may have its own scale. The scale is first divided by its largest entry (if that is above 1), and the bound
is multiplied by it. Then no gradient shrinks before it is squared, so none becomes too small for float32 that was not
too small before, and no norm is underestimated. A gradient that becomes too large is dropped, like any gradient whose
norm is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sordino.core.errors import SpecError
from sordino.core.vector import Layout
from sordino.gradients import cost
from sordino.gradients.split import Split

SPREAD = 1e12  # largest entry of a scale, or 1, over its smallest; its square must fit float32


def checked(scale: Tensor, weights: Tensor, clients: int) -> Tensor:
    """Check the scale [dim] or [clients, dim] and return it with the dtype and device of the weights."""
    dim = weights.shape[-1]
    if not isinstance(scale, Tensor) or tuple(scale.shape) not in ((dim,), (clients, dim)):
        given = list(scale.shape) if isinstance(scale, Tensor) else repr(scale)
        raise SpecError(f"scale must be a tensor [{dim}] or [{clients}, {dim}], not {given}.")
    scale = scale.detach().to(weights)
    if scale.numel() == 0:
        return scale
    low, high = scale.amin(-1), scale.amax(-1)  # aminmax along a dimension is many times slower than both
    if not bool(((low > 0) & torch.isfinite(high)).all()):
        raise SpecError("scale must be positive and finite everywhere; give a coordinate without one the value 1.")
    if not bool((high.clamp(min=1) <= SPREAD * low).all()):
        raise SpecError(
            f"scale must not fall below {1 / SPREAD:.0e}, nor below {1 / SPREAD:.0e} of its largest entry,"
            f" but goes from {low.min():.1e} to {high.max():.1e}; bound it from below."
        )
    return scale


def pick(scale: Tensor | None, clients: int | slice) -> Tensor | None:
    """Return the scale of these clients; a shared scale is returned unchanged."""
    return scale if scale is None or scale.dim() == 1 else scale[clients]


class Scale:
    """The scale of one call; `split` assigns the units (samples or groups) to clients."""

    def __init__(self, scale: Tensor, layout: Layout, split: Split) -> None:
        self._rows, self._split = scale if scale.dim() == 2 else scale.unsqueeze(0), split
        self._high = self._rows.amax(1).clamp(min=1)  # [1 or clients]
        self._views = layout.views(self._rows)

    def bound(self, clip: float | Tensor) -> Tensor:
        """Return the bound [1 or units] to compare the norms of `Divisor` with."""
        high = self._high if len(self._high) == 1 else self._high[self._split.owner(self._high.device)]
        return high * clip

    def flat(self) -> Divisor:
        """Return the divisor for flat gradients [units, dim]."""
        return Divisor(self._rows, self._high, self._split)

    def of(self, slot: str) -> Divisor:
        """Return the divisor for gradients of one parameter."""
        return Divisor(self._views[slot], self._high, self._split)


@dataclass(frozen=True)
class Divisor:
    """The scale of one parameter. Gradients are multiplied by high / rows, which is at least 1."""

    rows: Tensor  # [1 or clients, *shape]
    high: Tensor  # [1 or clients], the largest entry over all parameters, or 1
    split: Split

    def moved(self, order: Callable[[Tensor], Tensor]) -> Divisor:
        """Return the divisor for gradients whose entries are stored in another order."""
        return Divisor(order(self.rows), self.high, self.split)

    @property
    def _shared(self) -> bool:
        return len(self.rows) == 1

    @cached_property
    def _all(self) -> Tensor:
        return self._inverse(slice(None))

    def _inverse(self, which: slice | Tensor) -> Tensor:
        """Return high / rows for these clients [which, *shape]."""
        return self.high[which].view(-1, *(1,) * (self.rows.dim() - 1)) / self.rows[which]

    def squares(self, values: Tensor, first: int = 0) -> Tensor:
        """Return squared norms [units] of gradients [units, *shape] over the scale; the first row is unit `first`."""
        parts = []
        for part in values.split(step(self.rows[0].numel(), values.device)):
            stop = first + len(part)
            by = self._all if self._shared else self._inverse(self.split.owner(values.device)[first:stop])
            parts.append((part * by).square().flatten(1).sum(1))
            first = stop
        return join(parts)

    def outer(self, a: Tensor, g: Tensor) -> Tensor:
        """Return squared norms of g aᵀ / s from a [units, d] and g [units, p] without forming g aᵀ:

            |g aᵀ / s|² = (g²)ᵀ W (a²),   W = 1 / s².

        a and g are scaled to a largest entry of 1, so that no square underflows. The shorter side is contracted by a
        matrix product, which adds sequentially, the longer by a sum, which does not. A guard covers the rounding error
        of the product: a sum of k numbers is off by about sqrt(k) eps / 2 (Higham and Mary 2019,
        doi:10.1137/18M1226312).
        """
        top, peak = largest(a), largest(g)
        short, long = (a / top).square(), (g / peak).square()
        turned = short.shape[1] > long.shape[1]
        if turned:
            short, long = long, short
        guard = 1 + torch.finfo(a.dtype).eps * (8 + math.sqrt(short.shape[1]))
        norms = (self._product(short, turned) * long).sum(1).sqrt() * top.squeeze(1) * peak.squeeze(1)
        return norms.square() * guard

    def _product(self, x: Tensor, turned: bool) -> Tensor:
        """Return Wᵀ x for x [units, p] if turned, else W x for x [units, d]; W is made for a few clients at a time."""
        if self._shared:
            w = self._inverse(slice(None))[0].square_()
            return x @ w if turned else x @ w.t()
        parts, at, many = [], 0, step(self.rows[0].numel(), x.device)
        for k in range(0, len(self.rows), many):
            split = self.split if many >= len(self.rows) else Split(self.split.sizes[k : k + many], self.split.fused)
            w = self._inverse(slice(k, k + many)).square_()
            parts.append(split.linear(x[at : at + split.records], w.transpose(1, 2) if turned else w))
            at += split.records
        return join(parts)

    def tokens(self, index: Tensor, g: Tensor) -> Tensor:
        """Return g [units, t, d] divided by the scale of the table row, index [units, t], that it belongs to."""
        if self._shared:
            return g * (self.high / self.rows[0][index])
        owner = self.split.owner(index.device).view(-1, 1)
        return g * (self.high[owner].unsqueeze(2) / self.rows[owner, index])

    def entries(self, units: Tensor, rows: Tensor, values: Tensor) -> Tensor:
        """Return rows [entries, d] of the units' table gradients, divided by the scale."""
        if self._shared:
            return values * (self.high / self.rows[0][rows])
        owner = self.split.owner(units.device)[units]
        return values * (self.high[owner].unsqueeze(1) / self.rows[owner, rows])


def step(numbers: int, device: torch.device) -> int:
    """Return how many tensors with this many entries to hold at once."""
    return max(1, cost.SCALED["cpu" if device.type == "cpu" else "cuda"] // max(1, numbers))


def largest(x: Tensor) -> Tensor:
    """Return the largest magnitude of each row [rows, 1], never 0; nan is preserved."""
    return x.abs().amax(1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)


def join(parts: list[Tensor]) -> Tensor:
    """Concatenate tensors, without a copy if there is only one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
