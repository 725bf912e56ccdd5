"""The shuffler: the server receives every client's row in a secret random order, without the senders.

It stands for a party between clients and server that mixes their reports (Bittau et al. 2017, "Prochlo") and does not
collude with the server; here the rows are simply permuted, by a stream that the server does not have.

A client is hidden because any of the others' rows might be its own, so all rows must come from one randomizer. The
rule: every field of a message is the unchanged output of an outlet, with the same mechanism for everyone, and rows have
no weights. Anything else a client would add is refused even if it is public: a size, a weight, a remark, a place in a
public order. A client's own random choice (which coordinate to report) must also be released by an outlet.

Privacy cost: if the message of a phase as a whole is pure epsilon_0-DP for a replaced client, the cost is that of
hiding among clones (privacy/shuffle.py), over all honest clients who are sure to report. Another client knows its own
report and colluders reveal theirs, so those hide nobody. Nothing is amplified if the event has a delta, if the unit is
only a part of what a client holds (another client's report need not look like that of a client of which one record
changed), if the run is priced as a whole, or if nobody else is sure to report: with Poisson sampling, dropouts, late
answers. A report that arrives a round late is by itself as private as any other, and is then charged at that cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from sordino.core.errors import RunError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.privacy.algebra import of_replaced_units, parts, pure
from sordino.privacy.crowd import Crowd
from sordino.privacy.events import Event, Pure
from sordino.privacy.shuffle import shuffled
from sordino.privacy.tightest import epsilon
from sordino.privacy.trust import Viewer

__all__ = ["Shuffler"]

DELTA = 1e-6  # delta at which two costs are compared, both of which are valid


@dataclass(frozen=True)
class Shuffler:
    """Deliver every row, in a secret random order and without its sender."""

    name: ClassVar[str] = "shuffler"
    shows_rows: ClassVar[bool] = True

    def seal(self, message: Message, cohort: Sequence[int]) -> Message:
        """Return the rows without their senders; refuse anything that could tell them apart."""
        if message.weight is not None and bool((message.weight != 1).any()):
            raise RunError(
                "weights tell clients apart behind a shuffler: send rows that count once, and use one dropout for all."
            )
        if strange := sorted(set(message.fields) - message.released):
            raise RunError(
                f"the field {strange[0]} is not what an outlet returned, the same for everyone, so it may tell clients "
                "apart behind a shuffler: send what outlets return, and nothing else."
            )
        return replace(message, weight=None, ids=None)

    def carry(self, message: Message, rng: Stream) -> Message:
        """Return the rows in a random order."""
        return message.pick(torch.from_numpy(rng.permutation(len(message))))

    def split(self, crowd: Crowd) -> int:
        """Return 1: each client adds all of the noise."""
        return 1

    def cost(self, event: Event, viewer: Viewer, crowd: Crowd, linear: bool = False, more: float = 0.0) -> Event:
        """Return the event amplified by shuffling, or `event` itself if amplification does not apply or is worse."""
        honest = crowd.sure - viewer.colluders - (viewer.kind == "client")
        level = pure(event)
        if not level or honest < 2 or not crowd.single or not of_replaced_units(event):
            return event
        hidden = shuffled(Pure(level), honest)
        several = sum(parts(event).values()) > 1  # their epsilons may add up to more than they cost together
        return event if several and epsilon(event, DELTA) <= epsilon(hidden, DELTA) else hidden
