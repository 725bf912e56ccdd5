"""A direct channel that sends floating-point fields in 16 bits, which halves the traffic.

Rounding happens after the noise was added, so it is post-processing: the price is that of the direct channel.

    SORDINO_PLUGINS=examples/plugins sordino run --channel half-precision
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from sordino.channels.direct import Direct
from sordino.core.message import Message
from sordino.core.rng import Stream

__all__ = ["HalfPrecision"]


@dataclass(frozen=True)
class HalfPrecision(Direct):
    name: ClassVar[str] = "half-precision"
    like: ClassVar[str] = "direct"  # whatever goes through a direct channel goes through this one

    def seal(self, message: Message, cohort: Sequence[int]) -> Message:
        """Return the message as it travels: floating-point fields in 16 bits."""
        fields = {name: v.bfloat16() if v.is_floating_point() else v for name, v in message.fields.items()}
        return replace(message, fields=fields)

    def carry(self, message: Message, rng: Stream) -> Message:
        """Return what the server sees: the same numbers, in 32 bits again."""
        fields = {name: v.float() if v.dtype == torch.bfloat16 else v for name, v in message.fields.items()}
        return replace(message, fields=fields)
