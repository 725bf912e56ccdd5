"""The direct channel: the server receives every client's row and sees who sent it.

A viewer who sees only the models sees a sum of messages. If the messages are the noisy values themselves (`linear`) and
every client answers in every round, that sum contains the noise of everyone except one client, which may be the viewer
itself; the cost against viewers other than the server is computed from this noise.
"""

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
    """Deliver every message unchanged, with its sender."""

    name: ClassVar[str] = "direct"
    shows_rows: ClassVar[bool] = True

    def seal(self, message: Message, cohort: Sequence[int]) -> Message:
        """Return the message unchanged."""
        return message

    def carry(self, message: Message, rng: Stream) -> Message:
        """Return the message unchanged."""
        return message

    def split(self, crowd: Crowd) -> int:
        """Return 1: each client adds all of the noise."""
        return 1

    def cost(self, event: Event, viewer: Viewer, crowd: Crowd, linear: bool = False, more: float = 0.0) -> Event:
        """Return the cost of the message against a viewer.

        Against the server it is `event`; against other viewers it is that of the noise in the sum, where this noise is
        larger.
        """
        if viewer.kind == "server" or not linear or not crowd.everyone or not isinstance(event, GaussianEvent):
            return event
        # the mean weight is one, so the squares of the weights add up to at least the population
        others = max(0.0, crowd.population - crowd.heaviest**2)
        shown = math.sqrt(others * event.noise_multiplier**2 + more**2) / crowd.heaviest
        return event if shown <= event.noise_multiplier else GaussianEvent(shown)
