"""The words everyone shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

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
