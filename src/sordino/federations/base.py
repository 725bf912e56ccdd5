"""The interface of federations, which run the clients and own their data, state and keys.

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
from sordino.core.errors import LostRound
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.core.types import Model, State
from sordino.federations.facts import Facts


@dataclass(frozen=True)
class Work:
    """The public description of what the clients are asked to do."""

    method: Method
    model: Model
    plan: Plan


def require_cohort(plan: Plan, drawn: int) -> None:
    """Raise LostRound if the plan releases no round in which this many clients are drawn."""
    if plan.thresholds and drawn < plan.smallest_cohort:
        raise LostRound("too few clients were drawn")


def require_answers(plan: Plan, drawn: int, answered: int) -> None:
    """Raise LostRound if the plan releases no round in which this many of the drawn clients answer."""
    if plan.thresholds and drawn - answered > plan.allowed_dropouts:
        raise LostRound("too many of the drawn clients did not answer")


class Federation(Protocol):
    """Protocol of a federation: it holds the clients and answers the server's requests."""

    @property
    def facts(self) -> Facts:
        """Return the public facts about the clients' data."""

    def open(self, work: Work) -> None:
        """Prepare for a run, once, after calibration."""

    def resume(self, path: Path, done: int, seen: bool = False) -> None:
        """Continue with the clients' state as it was after `done` rounds.

        Args:
            path: File with the clients' state.
            done: Number of completed rounds.
            seen: Whether later rounds were paid for and may have been seen, although nothing of them is left. Late
                answers are then dropped, and what clients have spent in those rounds stays spent.
        """

    def ask(self, phase: str, state: State, cohort: Sequence[int]) -> Message:
        """Return what leaves the clients of a cohort in one phase of the round that begins with this state.

        Raises:
            LostRound: if the cohort is smaller than the plan allows, or too many of it are missing.
        """

    def once(self, work: Work, state: State, part: str, rng: Stream) -> Message:
        """Return what all clients release once, outside the rounds.

        Args:
            work: The method, model and plan of the release.
            state: The public state.
            part: Name of the part of the clients' data that is used; "" for the training data.
            rng: Stream from which the streams of the noise are derived.
        """

    def save(self, done: int) -> None:
        """Write the clients' state to disk for a checkpoint after `done` rounds."""

    def personal(self, state: State) -> dict[int, Any]:
        """Return the clients' personal models, by client; only for runs without privacy."""

    def close(self) -> None:
        """Release files and processes."""
