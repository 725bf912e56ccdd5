"""Who runs the clients, and where. A federation owns their data, what they keep, and their keys.

The server's code asks for a phase of a round and gets what has left the clients, sealed by the channel; it never sees
data, client state or the clients' randomness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sordino.contract.method import Method
from sordino.contract.plan import Plan
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.core.types import Model, State
from sordino.federations.facts import Facts


@dataclass(frozen=True)
class Work:
    """What the clients are asked to do: public, all of it."""

    method: Method
    model: Model
    plan: Plan


class Federation(Protocol):
    @property
    def facts(self) -> Facts:
        """What is public of the clients' data."""

    def open(self, work: Work) -> None:
        """Get ready for a run, once, after calibration."""

    def resume(self, path: Path, done: int, seen: bool = False) -> None:
        """Go on with what clients kept after `done` rounds.

        `seen` says that later rounds were paid for and may have been seen, though nothing of them is left: late answers
        are dropped then, and what clients have spent in those rounds stays spent."""

    def ask(self, phase: str, state: State, cohort: Sequence[int]) -> Message:
        """Return what leaves the clients of a cohort in one phase of the round that begins with this state."""

    def once(self, work: Work, state: State, part: str, rng: Stream) -> Message:
        """Return what all clients let out in a release beside the rounds, of a part of their data ("": what they
        train on); `rng` is the stream below which its noise is drawn."""

    def save(self, done: int) -> None:
        """Put what clients keep on file, as of a checkpoint after `done` rounds."""

    def personal(self, state: State) -> dict[int, Any]:
        """Return the models that clients use themselves, by client: for runs without privacy only."""

    def close(self) -> None:
        """Let go of files and processes."""
