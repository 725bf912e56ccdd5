"""The interface of a channel: how the clients' messages reach the server, and how much privacy that provides.

A channel has two ends. `seal` runs at the client (weighting, masking); `carry` returns what the server sees. Whatever
the channel hides is priced in `cost`, and nowhere else: `privacy/derive.py` calls it for every viewer and phase.

To add a channel, write a file FOLDER/channels/my_channel.py with one class whose constructor takes no arguments
(core/plugin.py finds it). Methods that name it in `channels` can send through it; if it declares `like = "direct"`, so
can those that work with that channel.
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
    """A way for the messages of a cohort to reach the server."""

    name: ClassVar[str]  # value of the key `channel`, and name of its file
    shows_rows: ClassVar[bool]  # whether the server sees the rows of single clients

    def seal(self, message: Message, cohort: Sequence[int]) -> Message:
        """Return what leaves the clients of a cohort, or refuse a message that the channel cannot carry."""

    def carry(self, message: Message, rng: Stream) -> Message:
        """Return what the server sees; `rng` is the channel's own stream, one for every phase of a round."""

    def split(self, crowd: Crowd) -> int:
        """Return how many clients add the noise together, each a share of it; 1 means that each adds all of it."""

    def cost(self, event: Event, viewer: Viewer, crowd: Crowd, linear: bool = False, more: float = 0.0) -> Event:
        """Return what one client's message of a phase costs that client against a viewer.

        Args:
            event: the cost of the message with the noise of all clients that share it.
            viewer: who sees the output of the channel.
            crowd: public facts about the clients among whom the message is hidden.
            linear: whether the noise of messages adds up in their sum.
            more: noise that the server adds to that sum, in units of the bound.
        """
