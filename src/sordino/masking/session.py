"""The session that a message belongs to: one phase of one round of one job of one federation.

Every signature, every key and every message of a secure sum and of a shuffler is bound to the digest of its session, so
that nothing of one session is of use in another.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from sordino.masking.errors import MaskingError

LONGEST = 200  # bytes of a name


@dataclass(frozen=True)
class Session:
    """One phase of one round."""

    federation: str
    job: str
    round: int
    phase: str
    digest: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, text in (("federation", self.federation), ("job", self.job), ("phase", self.phase)):
            if not isinstance(text, str) or not 0 < len(text.encode(errors="replace")) <= LONGEST:
                raise MaskingError(f"the {name} of a session must be a text of 1 to {LONGEST} bytes.")
        if isinstance(self.round, bool) or not isinstance(self.round, int) or not 0 <= self.round < 2**32:
            raise MaskingError("the round of a session must be a whole number from 0 to 2^32 - 1.")
        parts = joined("sordino session 1", self.federation, self.job, self.round, self.phase)
        object.__setattr__(self, "digest", hashlib.sha256(parts).digest())


def joined(*parts: str | int | bytes) -> bytes:
    """Return parts as bytes from which every part can be told: each has its kind and length in front."""
    out = []
    for part in parts:
        kind = b"b" if isinstance(part, bytes) else b"s" if isinstance(part, str) else b"i"
        data = part if isinstance(part, bytes) else str(part).encode(errors="surrogatepass")
        out.append(kind + len(data).to_bytes(4, "little") + data)
    return b"".join(out)
