"""A channel: what becomes of the clients' messages on their way to the server, and what that is worth.

A channel has two ends. `seal` runs at the client (weigh, mask), `carry` is what the server gets to see. Whatever the
channel hides is priced in `cost`, and nowhere else: `privacy/derive.py` asks it for every viewer and phase.

A channel of one's own is a file FOLDER/channels/my_channel.py with one class, made without arguments (core/plugin.py
finds it); methods that name it in `channels` can send through it, or, if it says `like = "direct"`, those that go with
that channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.privacy.crowd import Crowd
from sordino.privacy.events import Event
from sordino.privacy.trust import Viewer


class Channel(Protocol):
    name: ClassVar[str]  # as in the key `channel`, and as its file
    shows_rows: ClassVar[bool]  # whether the server sees single clients' rows

    def seal(self, message: Message, cohort: Sequence[int]) -> Message:
        """Return what leaves the clients of a cohort, or refuse a message that the channel cannot carry."""

    def carry(self, message: Message, rng: Stream) -> Message:
        """Return what the server sees; the stream is the channel's own, one for every phase of a round."""

    def split(self, crowd: Crowd) -> int:
        """Return how many clients add the noise together, each its share; 1: each adds all of it."""

    def cost(self, event: Event, viewer: Viewer, crowd: Crowd, linear: bool = False, more: float = 0.0) -> Event:
        """Return what one client's message of a phase costs it against a viewer.

        `event` is the cost of the message with the noise of all clients that share it. `linear` says that the noise
        of messages adds up in their sum; `more` is noise that the server adds to that sum, in units of the bound."""
