"""The view that one viewer has of a round: the only input of observers and attacks."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
from torch import Tensor

from sordino.core.message import Message
from sordino.core.types import State

BLIND = ("public", "client")  # viewers who see neither draws nor messages


@dataclass(frozen=True)
class View:
    """One view of a round.

    In every phase the server sees the state that it sent, the clients that it asked, and the message as the channel
    delivered it: a single row without senders behind a secure sum, rows without senders behind a shuffler. Noise that a
    trusted server adds itself is not yet in the message. The public sees the state after the round. A client sees the
    broadcasts; "wire:K", who listens on the link of client K, also sees that client's message, unless the channel masks
    it. "server+N" colludes with the last N clients: `seen` is what remains when their own messages are taken away.
    """

    viewer: str
    round: int  # counted from 1, as in the records
    phase: str  # phase of the round; empty: after the round
    state: State
    cohort: tuple[int, ...] | None = None  # clients that were asked, if the viewer sees the draw
    seen: Message | None = None  # delivered message, if the viewer sees messages

    def __post_init__(self) -> None:
        if self.viewer in BLIND and (self.cohort is not None or self.seen is not None):
            raise ValueError(f"the {self.viewer} sees neither cohorts nor messages")

    def copied(self) -> View:
        """Return a copy with its own memory, so that whoever receives it cannot change the run."""
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
