"""Types that all packages share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sordino.core.vector import Layout

Vector = Tensor  # [dim]: a model, or one client's message
Rows = Tensor  # [clients, dim]: one message per client

# (predictions [n, ...], targets [n, ...]) -> one loss per sample [n]
SampleLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Batch:
    """Records of several clients, laid end to end without padding.

    `sizes[k]` records belong to client k; a client may have none.
    """

    x: Tensor  # [records, ...]
    y: Tensor  # [records, ...]
    sizes: tuple[int, ...]  # [clients]; their sum is the number of records
    groups: tuple[tuple[int, ...], ...] | None = None  # [clients]: run lengths of each user's records, if known
    tags: Tensor | None = None  # [records]: group of private attributes; 0: none

    def pick(self, index: Tensor, sizes: tuple[int, ...]) -> Batch:
        """Return the records at these indices, of which sizes[k] belong to client k."""
        return Batch(self.x[index], self.y[index], sizes, tags=None if self.tags is None else self.tags[index])

    def where(self, keep: Tensor) -> Batch:
        """Return the records where `keep` [records] is True; all clients stay, possibly without records."""
        index = keep.nonzero()[:, 0]
        owner = torch.arange(len(self.sizes), device=keep.device).repeat_interleave(
            torch.tensor(self.sizes, dtype=torch.int64, device=keep.device)
        )
        counts = torch.bincount(owner[index], minlength=len(self.sizes))
        return self.pick(index, tuple(counts.tolist()))


class Clients(Protocol):
    """All clients of a federation; only the data of those requested are loaded into memory."""

    @property
    def count(self) -> int:
        """Return the number of clients."""
        ...

    def sizes(self) -> tuple[int, ...]:
        """Return the distinct numbers of records that clients have, ascending (public)."""

    def mean_size(self) -> float:
        """Return the mean number of records per client (public)."""

    def fetch(self, ids: Sequence[int], device: torch.device) -> Batch:
        """Load the records of these clients onto a device."""
        ...

    def subset(self, places: Sequence[int]) -> Clients:
        """Return only these clients, renumbered: the data given to a process that owns them."""


class Gradients(Protocol):
    """Gradient sums of whole cohorts; `sordino.gradients` has the implementation."""

    path: str  # how per-sample gradients are clipped
    reason: str  # reason for that choice

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
        """Return, for each client, the sum of its records' gradients, each clipped to `clip`.

        Args:
            weights: [dim], shared by all clients, or [clients, dim].
            batch: the records.
            clip: clip bound; None: no clipping.
            seeds: one seed per client, needed if the model draws random numbers.
            groups: lengths of consecutive runs of records inside clients; the mean gradient of each run is clipped as a
                whole (a user's records, or views of one record).
            scale: positive, [dim] or [clients, dim]; gradients are divided by it before their norm is compared with
                `clip`, but the sums themselves are not divided.
            layers: one bound for each layer of `Layout.layers`, in place of `clip`, which is then None; the part of a
                gradient in each layer is clipped to its own bound.
            norm: the norm that `clip` bounds, 2 or 1; 1 allows neither `scale` nor `layers`.
        """


@dataclass(frozen=True)
class Model:
    """A network as methods see it: a parameter vector, a loss and its gradients."""

    module: nn.Module  # template; its parameters are the initial ones and never change
    layout: Layout
    loss: SampleLoss
    gradients: Gradients


@dataclass(frozen=True)
class State:
    """The state of the server after a round, all of it public."""

    params: Vector
    round: int = 0  # number of completed rounds
    method: Any = None  # variables of the method: a frozen dataclass (core/variables.py), or None
    algorithm: Any = None  # variables of the algorithm, likewise
    average: Vector | None = None  # average of the models so far, if the run keeps one
    inputs: Any = None  # shift and scale of the features, if they were released

    @property
    def model(self) -> Vector:
        """Return the parameters to report and save: the average, if the run keeps one."""
        return self.params if self.average is None else self.average
