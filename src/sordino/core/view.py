"""What one viewer saw of a round, and nothing else: what observers and attacks are given."""

from __future__ import annotations

from dataclasses import dataclass

from sordino.core.message import Message
from sordino.core.types import State

BLIND = ("public", "client")  # viewers from whom draws and messages are hidden


@dataclass(frozen=True)
class View:
    """One look at a round.

    The server sees, in every phase, the state that it sent, whom it asked and the message as the channel delivered it:
    behind a secure sum one row without senders, behind a shuffler rows without senders. Its own noise, where it is
    trusted to add any, is not yet in the message. The public sees the state after the round."""

    viewer: str
    round: int  # counted from 1, as in the records
    phase: str  # of the round; empty: after it
    state: State
    cohort: tuple[int, ...] | None = None  # who was asked, where the viewer sees the draw
    seen: Message | None = None  # what arrived, where the viewer sees messages

    def __post_init__(self) -> None:
        if self.viewer in BLIND and (self.cohort is not None or self.seen is not None):
            raise ValueError(f"the {self.viewer} sees neither cohorts nor messages")
