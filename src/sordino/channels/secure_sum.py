"""The secure sum: the server receives the sum of all rows and nothing else.

It stands for a protocol of pairwise masks (Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving
machine learning") between honest-but-curious parties; here the sum is simply computed. Integer (and boolean) fields
leave a client modulo 2^32, or 2^62 if they have 64 bits, as in the protocol, and their sum is read as signed numbers;
they have no weights. A sum that exceeds the modulus wraps around: that costs accuracy, never privacy. Noise has no
largest value, so the channel refuses none; whoever produces the numbers must make sure that wrapping is rare.

If the messages are the unchanged output of the outlets (`linear`), clients add the noise together (`split`): as many of
them as are honest and certain to be in any sum that the server can obtain, so that the sum contains all of the noise
even if the viewer knows the shares of its colluders. How many that are follows from the smallest cohort and from the
drop-outs that clients tolerate before they refuse to unmask a sum (`Crowd.sharing`). Another client knows its own
share. If no cohort size is certain, each client adds all of the noise. A missing client misses with its share, so what
is protected is what a client sends: its data are replaced, or its row becomes zero and its share of the noise remains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError, UnsupportedEvent
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.privacy.algebra import scaled
from sordino.privacy.crowd import Crowd
from sordino.privacy.events import Event, NonPrivate
from sordino.privacy.trust import Viewer

__all__ = ["SecureSum"]

WIDTHS = ((8, torch.int8), (16, torch.int16), (32, torch.int32), (64, torch.int64))
NARROW, WIDE = 32, 62  # default bits of the modulus for numbers of up to 32 bits, and for longer ones


@dataclass(frozen=True)
class SecureSum:
    """Deliver only the weighted sum of the rows."""

    bits: int | None = None  # integers are added modulo 2^bits; None: depends on their type

    name: ClassVar[str] = "secure-sum"
    shows_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.bits is None:
            return
        check.count(bits=self.bits)
        if self.bits > WIDE:
            raise SpecError(f"a secure sum of whole numbers has at most {WIDE} bits, not {self.bits}.")

    def seal(self, message: Message, cohort: Sequence[int]) -> Message:
        """Return the weighted rows, with integers reduced modulo 2^bits."""
        heavy = message.weighed()
        return replace(heavy, fields={k: self._sealed(v) for k, v in heavy.fields.items()})

    def carry(self, message: Message, rng: Stream) -> Message:
        """Return the sum of the rows, with integers modulo 2^bits as signed numbers."""
        total, sent = message.total(), message.fields
        fields = {k: v if v.is_floating_point() else signed(v, self.width(sent[k])) for k, v in total.fields.items()}
        return Message(fields, total.weight, None, heavy=True, summed=True)

    def _sealed(self, value: Tensor) -> Tensor:
        if value.is_floating_point():
            return value
        bits = self.width(value)
        narrowest = next(dtype for most, dtype in WIDTHS if bits <= most)
        return signed(value, bits).to(narrowest)

    def width(self, value: Tensor) -> int:
        """Return the number of bits of the modulus for a field; it is the same before and after sealing."""
        return self.bits or (WIDE if value.dtype == torch.int64 else NARROW)

    def split(self, crowd: Crowd) -> int:
        """Return the number of honest clients whose noise is certain to be in the sum."""
        return crowd.sharing

    def cost(self, event: Event, viewer: Viewer, crowd: Crowd, linear: bool = False, more: float = 0.0) -> Event:
        """Return the cost with only the noise that the viewer does not know.

        The result is not private if the event has no noise of which the viewer could know a share.
        """
        if not linear or self.split(crowd) == 1 or (left := self._left(viewer, crowd)) >= 1:
            return event
        try:
            return scaled(event, left**0.5)
        except UnsupportedEvent as error:
            return NonPrivate(f"the viewer knows a part of the noise in the sum: {error}".rstrip("."))

    def _left(self, viewer: Viewer, crowd: Crowd) -> float:
        """Return the variance in the sum that a viewer does not know, relative to that of the priced noise.

        It is in units of what one client changes. Weights have mean one, so their squares add up to at least the number
        of clients. A client knows its own share; it is not known how much of the weight belongs to colluders. The noise
        that the protected client adds remains in any case. If a unit is only a part of what a client holds, rows are
        weighted so that every unit counts equally.

        Where clients may be missing, those in the sum may be the lightest.
        """
        weight = crowd.heaviest if crowd.single else 1.0
        if not crowd.everyone:
            least = crowd.lightest if crowd.single else 1.0
            unknown = crowd.sharing if viewer.kind == "server" else crowd.sure - (viewer.kind == "client")
            return (1 + max(0, unknown - 1) * (least / weight) ** 2) / crowd.sharing
        squares = crowd.population - weight**2 * (viewer.kind == "client")
        if viewer.colluders:
            squares = crowd.honest if weight <= 1 else 0.0
        return max(squares / weight**2, 1.0) / crowd.honest


def signed(value: Tensor, bits: int) -> Tensor:
    """Return whole numbers modulo 2^bits, as signed numbers."""
    half = 1 << (bits - 1)
    centred: Tensor = (value.long() + half).remainder(2 * half) - half
    return centred
