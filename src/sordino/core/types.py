"""The words everyone shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sordino.core.vector import Layout

Vector = Tensor  # [dim]: one model, or one client's message
Rows = Tensor  # [clients, dim]: one message a client

# (predictions [n, ...], targets [n, ...]) -> one loss a sample [n]
SampleLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Batch:
    """Records of several clients, one client after the other.

    `sizes[k]` records belong to client k; a client may have none. Nothing is padded.
    """

    x: Tensor  # [records, ...]
    y: Tensor  # [records, ...]
    sizes: tuple[int, ...]  # [clients], sums to the number of records
    groups: tuple[tuple[int, ...], ...] | None = None  # [clients]: lengths of its users' runs of records, where known
    tags: Tensor | None = None  # [records]: the group of private attributes a record belongs to; 0 is none

    def pick(self, index: Tensor, sizes: tuple[int, ...]) -> Batch:
        """The records at these places, of which sizes[k] belong to client k."""
        return Batch(self.x[index], self.y[index], sizes, tags=None if self.tags is None else self.tags[index])

    def where(self, keep: Tensor) -> Batch:
        """The records marked in keep [records]; clients stay, some perhaps without any."""
        index = keep.nonzero()[:, 0]
        owner = torch.arange(len(self.sizes), device=keep.device).repeat_interleave(
            torch.tensor(self.sizes, dtype=torch.int64, device=keep.device)
        )
        counts = torch.bincount(owner[index], minlength=len(self.sizes))
        return self.pick(index, tuple(counts.tolist()))


class Clients(Protocol):
    """All clients of a federation; only those asked for are brought into memory."""

    @property
    def count(self) -> int: ...

    def sizes(self) -> tuple[int, ...]:
        """How many records clients have: every number that occurs, ascending (public)."""

    def mean_size(self) -> float:
        """Records a client, on average (public)."""

    def fetch(self, ids: Sequence[int], device: torch.device) -> Batch: ...

    def subset(self, places: Sequence[int]) -> Clients:
        """Return these clients alone, numbered anew: what a process that owns them is given."""


class Gradients(Protocol):
    """Sums of gradients of whole cohorts; `sordino.gradients` has the implementation."""

    path: str  # how per-sample gradients are clipped
    reason: str  # why that way

    def sums(
        self,
        weights: Tensor,
        batch: Batch,
        clip: float | None,
        *,
        seeds: Sequence[int] | None = None,
        groups: Sequence[int] | None = None,
        scale: Tensor | None = None,
        layers: Sequence[float] | None = None,
        norm: int = 2,
    ) -> Rows:
        """For each client the sum of its records' gradients, each clipped to `clip` (None: not clipped).

        `weights` is [dim], shared by all, or [clients, dim]. `groups` are lengths of consecutive runs of records inside
        clients: then the mean gradient of each run is clipped as a whole (a user's records, views of one record).

        `scale`, [dim] or [clients, dim] and positive, is what gradients are divided by before their norm is compared
        with `clip`; the sums themselves are not divided. `layers` are bounds of `Layout.layers`, one for each, in
        place of `clip`, which is then None: each layer's part of a gradient is clipped to its own bound.
        `norm` is the one that `clip` bounds, 2 or 1; 1 goes with neither `scale` nor `layers`.
        """


@dataclass(frozen=True)
class Model:
    """A network as the methods see it: a vector, a loss and its gradients."""

    module: nn.Module  # the template; its parameters are the initial ones and never move
    layout: Layout
    loss: SampleLoss
    gradients: Gradients


@dataclass(frozen=True)
class State:
    """What the server knows after a round, all of it public."""

    params: Vector
    round: int = 0  # how many rounds are behind it
    method: Any = None  # the method's own variables: a frozen dataclass (core/variables.py), or None
    algorithm: Any = None  # those of the algorithm
    average: Vector | None = None  # the average of the models so far, where one is kept
    inputs: Any = None  # what features are shifted and scaled by, where that was released

    @property
    def model(self) -> Vector:
        """The parameters that are shown and kept."""
        return self.params if self.average is None else self.average
