"""Viewers: the adversaries against whom a guarantee holds.

`server` sees every message and who takes part. `public` sees every released model. `client` is another client, which
sees the released models, its own messages and whether it takes part itself. `server+2` is the server together with what
two colluding clients know: their own data, messages and noise. What a channel hides from a viewer is accounted for by
the channel (channels/base.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sordino.core.errors import SpecError

KINDS = ("server", "public", "client")
_TEXT = re.compile(r"(server)\s*\+\s*(\d{1,9})(?: clients?)?|(server|public|client)")


@dataclass(frozen=True)
class Viewer:
    """A viewer, with the number of clients that collude with it."""

    kind: str  # server, public or client
    colluders: int = 0  # number of clients that share all they know with the server

    @property
    def sees_draw(self) -> bool:
        """Return whether the viewer sees who takes part, so that there is no amplification by sampling against it."""
        return self.kind == "server"

    def drawn_from(self, population: int) -> int:
        """Return the number of clients among which a draw hides each of them.

        Another client knows whether it was drawn itself. If it was not, a cohort of a fixed size is drawn from the
        others, and each of them is in it with probability m / (n - 1) instead of m / n.
        """
        return max(1, population - 1) if self.kind == "client" else population

    def __str__(self) -> str:
        return f"{self.kind}+{self.colluders}" if self.colluders else self.kind


def viewer(text: str) -> Viewer:
    """Parse a viewer: server, public, client or server+N with N colluding clients."""
    match = _TEXT.fullmatch(str(text).strip())
    if match is None:
        raise SpecError(f"viewer must be one of server, public, client or server+N (N colluders), not {text!r}.")
    return Viewer("server", int(match[2])) if match[1] else Viewer(match[3])
