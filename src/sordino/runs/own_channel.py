"""Checks of third-party channels: what their methods return is checked before it is used.

An error inside a third-party channel is reported in one line with the name of the channel, the method and the place in
its file. Sordino's own channels are used as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from sordino.channels.base import Channel
from sordino.core import plugin
from sordino.core.errors import RunError, SordinoError, SpecError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.privacy.crowd import Crowd
from sordino.privacy.events import Event
from sordino.privacy.trust import Viewer
from sordino.runs.returned import asked, shown


@dataclass(frozen=True)
class OwnChannel:
    """A wrapper of a channel that checks what its methods return; all other attributes are passed through."""

    channel: Any

    def __getattr__(self, name: str) -> Any:
        if name == "channel" or name.startswith("__"):  # requested while copying, before the field exists
            raise AttributeError(name)
        return getattr(self.channel, name)

    def seal(self, message: Message, cohort: Sequence[int]) -> Message:
        """Call `seal` of the channel and check that it returns a message."""
        return self._message("seal", self._asked("seal", RunError, message, cohort))

    def carry(self, message: Message, rng: Stream) -> Message:
        """Call `carry` of the channel and check that it returns a message."""
        return self._message("carry", self._asked("carry", RunError, message, rng))

    def split(self, crowd: Crowd) -> int:
        """Call `split` of the channel and check that it returns an integer from 1 to the number of clients."""
        count = self._asked("split", SpecError, crowd)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= crowd.population:
            wanted = f"a whole number from 1 to the {crowd.population} clients"
            raise SpecError(f"{self.channel.name}.split must return {wanted}, not {count!r}.")
        return count

    def cost(self, event: Event, viewer: Viewer, crowd: Crowd, linear: bool = False, more: float = 0.0) -> Event:
        """Call `cost` of the channel and check that it returns an event."""
        cost_event = self._asked("cost", SpecError, event, viewer, crowd, linear, more)
        if not isinstance(cost_event, Event):
            raise SpecError(f"{self.channel.name}.cost must return an Event, not {shown(cost_event)}.")
        return cost_event

    def _asked(self, verb: str, error: type[SordinoError], *args: Any) -> Any:
        return asked(self.channel.name, verb, getattr(self.channel, verb), *args, error=error)

    def _message(self, verb: str, message: Any) -> Message:
        if not isinstance(message, Message):
            raise RunError(f"{self.channel.name}.{verb} must return a Message, not {shown(message)}.")
        return message


def checked(channel: Any) -> Channel:
    """Return the channel, wrapped in `OwnChannel` unless it is one of Sordino's own."""
    return cast(Channel, channel if plugin.ours("channels", channel.name) else OwnChannel(channel))
