"""Who looks. What a channel hides from whom is priced by the channel (channels/base.py).

Viewers: `server` sees every message and who takes part; `public` every released model; `client` is another client,
which sees the released models, its own messages and whether it takes part itself; `server+2` is the server with what
two colluding clients know: their own data, messages and noise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sordino.core.errors import SpecError

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
