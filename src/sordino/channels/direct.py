"""The direct channel: the server receives every client's row and sees who sent it.

Whoever sees the models alone sees a sum of messages. Where the messages are the noisy values themselves (`linear`) and
every client answers in every round, that sum has everyone's noise in it, less that of one client, which may be the
viewer's own; the public is charged by it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.privacy.crowd import Crowd
from sordino.privacy.events import Event, GaussianEvent
from sordino.privacy.trust import Viewer

__all__ = ["Direct"]


@dataclass(frozen=True)
class Direct:
    name: ClassVar[str] = "direct"
    shows_rows: ClassVar[bool] = True

    def seal(self, message: Message, cohort: Sequence[int]) -> Message:
        return message

    def carry(self, message: Message, rng: Stream) -> Message:
        return message

    def split(self, crowd: Crowd) -> int:
        return 1

    def cost(self, event: Event, viewer: Viewer, crowd: Crowd, linear: bool = False, more: float = 0.0) -> Event:
        if viewer.kind == "server" or not linear or not crowd.everyone or not isinstance(event, GaussianEvent):
            return event
        # the mean weight is one, so the squares of the weights add up to the population at least
        others = max(0.0, crowd.population - crowd.heaviest**2)
        shown = math.sqrt(others * event.noise_multiplier**2 + more**2) / crowd.heaviest
        return event if shown <= event.noise_multiplier else GaussianEvent(shown)
