"""The secure sum: the server receives the sum of all rows and nothing else.

Stands for a protocol of pairwise masks (Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving
machine learning") between honest-but-curious parties; here the sum is simply taken. Fields of whole numbers are added
modulo 2^bits, as the protocol does it, and read as signed numbers; they have no weights.

Where every client is in every sum, the honest ones add the noise together (`split`), so that the sum holds the whole of
it even if the viewer knows the shares of its colluders. Another client knows its own share. Where anyone may be
missing, each client adds all of the noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.privacy.algebra import scaled
from sordino.privacy.crowd import Crowd
from sordino.privacy.events import Event
from sordino.privacy.trust import Viewer

__all__ = ["SecureSum"]


@dataclass(frozen=True)
class SecureSum:
    bits: int = 32  # whole numbers are added modulo 2^bits

    name: ClassVar[str] = "secure-sum"
    shows_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check.count(bits=self.bits)
        if self.bits > 62:
            raise SpecError(f"a secure sum of whole numbers has at most 62 bits, not {self.bits}.")

    def seal(self, message: Message, cohort: Sequence[int]) -> Message:
        return message.weighed()

    def carry(self, message: Message, rng: Stream) -> Message:
        total = message.total()
        fields = {k: v if v.is_floating_point() else self._signed(v) for k, v in total.fields.items()}
        return Message(fields, total.weight, None, heavy=True, summed=True)

    def _signed(self, value: Tensor) -> Tensor:
        """Return whole numbers modulo 2^bits, as signed ones."""
        half = 2 ** (self.bits - 1)
        found: Tensor = (value.long() + half).remainder(2 * half) - half
        return found

    def split(self, crowd: Crowd) -> int:
        return crowd.honest if crowd.everyone else 1

    def cost(self, event: Event, viewer: Viewer, crowd: Crowd, linear: bool = False, more: float = 0.0) -> Event:
        if self.split(crowd) == 1 or viewer.kind != "client" or crowd.colluders:
            return event
        others = max(1, crowd.population - 1)  # a client knows its own share of the noise
        return scaled(event, (others / crowd.population) ** 0.5)
