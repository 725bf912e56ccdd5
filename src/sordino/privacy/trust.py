"""Who looks, and what the channel between clients and server hides from whom.

Viewers: `server` sees every message and who takes part; `public` every released model; `client` is another client,
which sees the released models, its own messages and whether it takes part itself; `server+2` is the server with what
two colluding clients know: their own data, messages and noise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sordino.core import check
from sordino.core.errors import SpecError, UnsupportedEvent
from sordino.privacy.events import Event
from sordino.privacy.shuffle import shuffled

CHANNELS = ("direct", "secure-sum", "shuffler")
KINDS = ("server", "public", "client")
_TEXT = re.compile(r"(server)\s*\+\s*(\d{1,9})(?: clients?)?|(server|public|client)")


@dataclass(frozen=True)
class Viewer:
    kind: str  # server, public or client
    colluders: int = 0  # clients that tell the server all they know

    @property
    def sees_draw(self) -> bool:
        """Whether it sees who takes part, so that a draw amplifies nothing against it."""
        return self.kind == "server"

    def drawn_from(self, population: int) -> int:
        """Among how many clients a draw hides one of them.

        Another client knows whether it was drawn itself. If it was not, a cohort of a fixed size comes from the others,
        and each of them is in it with m / (n - 1) instead of m / n.
        """
        return max(1, population - 1) if self.kind == "client" else population

    def __str__(self) -> str:
        return f"{self.kind}+{self.colluders}" if self.colluders else self.kind


def viewer(text: str) -> Viewer:
    found = _TEXT.fullmatch(str(text).strip())
    if found is None:
        raise SpecError(f"viewer must be one of server, public, client or server+N (N colluders), not {text!r}.")
    return Viewer("server", int(found[2])) if found[1] else Viewer(found[3])


def carried(event: Event, channel: str, looks: Viewer, cohort: int, dropouts: int = 0) -> Event:
    """What one client's randomised message costs it, given how messages travel.

    `event` is what the message alone would cost; every client of the cohort randomises its own in the same way. A
    secure sum shows the sum, so the noise of all honest clients that stay hides each of them; a shuffler shows the
    reports without their senders. Drop-outs and colluders hide nobody: their noise is missing or known. One client is
    always honest: the one that is protected.
    """
    check.one_of(CHANNELS, channel=channel)
    check.count(cohort=cohort)
    for name, value in (("dropouts", dropouts), ("colluders", looks.colluders)):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < cohort:
            raise SpecError(
                f"{name} must be a whole number from 0 to the cohort less one ({cohort - 1}), not {value!r}."
            )
    honest = max(1, cohort - dropouts - looks.colluders)
    if channel == "secure-sum":
        return event.summed(honest)
    if channel == "shuffler":
        try:
            return shuffled(event, honest)
        except UnsupportedEvent:
            return event  # hides nothing that we can put a number to
    return event
