"""What one viewer saw of a round, and nothing else: what observers and attacks are given."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
from torch import Tensor

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

    def copied(self) -> View:
        """Return the same look with memory of its own, so that whoever is given it cannot change the run."""
        view: View = _copied(self)
        return view


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {name: _copied(part) for name, part in value.items()}
    if not is_dataclass(value) or isinstance(value, type):
        return value
    twin = copy.copy(value)
    for field in fields(value):
        object.__setattr__(twin, field.name, _copied(getattr(value, field.name)))
    return twin
