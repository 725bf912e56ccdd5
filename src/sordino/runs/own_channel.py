"""A channel of someone else's: what its verbs return is looked at before it is used.

Whatever goes wrong inside it is told in one line with its name, its verb and the place in its file. Ours are used as
they are."""

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
    """A channel; its verbs are checked, all else is as it was."""

    channel: Any

    def __getattr__(self, name: str) -> Any:
        if name == "channel" or name.startswith("__"):  # asked for while it is copied, before it is there
            raise AttributeError(name)
        return getattr(self.channel, name)

    def seal(self, message: Message, cohort: Sequence[int]) -> Message:
        return self._message("seal", self._asked("seal", RunError, message, cohort))

    def carry(self, message: Message, rng: Stream) -> Message:
        return self._message("carry", self._asked("carry", RunError, message, rng))

    def split(self, crowd: Crowd) -> int:
        found = self._asked("split", SpecError, crowd)
        if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= crowd.population:
            wanted = f"a whole number from 1 to the {crowd.population} clients"
            raise SpecError(f"{self.channel.name}.split must return {wanted}, not {found!r}.")
        return found

    def cost(self, event: Event, viewer: Viewer, crowd: Crowd, linear: bool = False, more: float = 0.0) -> Event:
        found = self._asked("cost", SpecError, event, viewer, crowd, linear, more)
        if not isinstance(found, Event):
            raise SpecError(f"{self.channel.name}.cost must return an Event, not {shown(found)}.")
        return found

    def _asked(self, verb: str, error: type[SordinoError], *args: Any) -> Any:
        return asked(self.channel.name, verb, getattr(self.channel, verb), *args, error=error)

    def _message(self, verb: str, found: Any) -> Message:
        if not isinstance(found, Message):
            raise RunError(f"{self.channel.name}.{verb} must return a Message, not {shown(found)}.")
        return found


def checked(channel: Any) -> Channel:
    """Return a channel whose verbs are checked, where it is not one of ours."""
    return cast(Channel, channel if plugin.ours("channels", channel.name) else OwnChannel(channel))
