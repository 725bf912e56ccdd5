"""Shape and range of the records that an attacker makes: public, or as records that it knows have them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.attacks.base import Knowledge
from sordino.core.errors import SpecError


@dataclass(frozen=True)
class RecordForm:
    """Public shape and range of the model's inputs."""

    shape: tuple[int, ...]
    low: Tensor | None = None  # broadcasts against records
    high: Tensor | None = None

    def clamped(self, x: Tensor) -> Tensor:
        """Return records held in their range."""
        return x if self.low is None or self.high is None else torch.minimum(torch.maximum(x, self.low), self.high)

    def scaled(self, raw: Tensor) -> Tensor:
        """Return records in their range from numbers of any size."""
        if self.low is None or self.high is None:
            return raw
        return self.low + (self.high - self.low) * torch.sigmoid(raw)


def form_of(
    name: str, knowledge: Knowledge, shape: tuple[int, ...], low: float | None, high: float | None, device: torch.device
) -> RecordForm:
    """Return shape and range of records: as given, or else as known records have them."""
    known = next((b for b in (knowledge.auxiliary, knowledge.own) if b is not None and len(b.x)), None)
    if not shape and known is None:
        raise SpecError(
            f"{name} must know the shape of a record: give its option shape, or records from the same source."
        )
    if low is not None and high is not None:
        ends = [torch.tensor(v, dtype=torch.float32, device=device) for v in (low, high)]
        return RecordForm(shape or tuple(known.x.shape[1:] if known is not None else ()), *ends)
    if known is None:
        return RecordForm(shape)
    x = known.x.to(device)
    over = [0, *range(2, x.ndim)] if x.ndim > 2 else [0, 1]  # a range for each channel of pictures, else one
    return RecordForm(tuple(x.shape[1:]), x.amin(dim=over, keepdim=True), x.amax(dim=over, keepdim=True))
