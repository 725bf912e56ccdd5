"""The cohort of a secure sum: who takes part, with which keys, at which threshold.

Every member derives the cohort from the signed keys that the server relays and from its own roster and policy. The
digest of the cohort goes into every key and every signature that follows, so that members to whom the server showed
different cohorts cannot read each other's shares.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sordino.masking import wire
from sordino.masking.errors import MaskingError
from sordino.masking.identity import KeyRoster
from sordino.masking.session import Session, joined
from sordino.masking.threshold import SumPolicy

RECORD = struct.Struct("<I32s32s64s")  # member, key for shares, key for masks, signature
KeyPair = tuple[bytes, bytes]  # the public keys of a member: for shares, and for masks
SIGNED_KEYS, SIGNED_UPLOAD = "keys", "upload"  # purposes of signatures


def signed_keys(member: int, keys: KeyPair) -> bytes:
    """Return what a member signs of its fresh public keys."""
    return joined(member, *keys)


@dataclass(frozen=True)
class Cohort:
    """The members of one sum, as one party was shown them."""

    session: Session
    keys: Mapping[int, KeyPair]  # by member, in order
    threshold: int  # members that must remain, and shares that rebuild a secret
    digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rows = (joined(member, *keys) for member, keys in self.keys.items())
        text = joined("sordino cohort 1", self.session.digest, self.threshold, *rows)
        object.__setattr__(self, "digest", hashlib.sha256(text).digest())

    @staticmethod
    def read(request: bytes, session: Session, roster: KeyRoster, policy: SumPolicy) -> Cohort:
        """Return the cohort that a request shows, after all checks against the reader's own roster and policy."""
        reader = wire.ByteReader(request, wire.PEERS, session, wire.most_bytes(RECORD))
        rows = reader.table(RECORD)
        if len(rows) > len(roster):
            raise MaskingError(f"a cohort of {len(rows)} members exceeds the {len(roster)} clients of the roster.")
        threshold = policy.threshold(len(rows))
        for member, (share, mask, signature) in rows.items():
            if member not in roster:
                raise MaskingError(f"member {member} of the cohort is not in the roster.")
            if not roster.signed(member, SIGNED_KEYS, session, signed_keys(member, (share, mask)), signature):
                raise MaskingError(f"the keys of member {member} are not signed by that member for this round.")
        keys = {member: (row[0], row[1]) for member, row in rows.items()}
        if len({key for pair in keys.values() for key in pair}) < 2 * len(keys):
            raise MaskingError("the cohort uses a key twice.")
        return Cohort(session, keys, threshold)

    @property
    def points(self) -> dict[int, int]:
        """Return the point at which each member holds its shares, from 1 to n."""
        return {member: i for i, member in enumerate(self.keys, 1)}

    def agreement(self, dealers: Iterable[int]) -> bytes:
        """Return the digest of the cohort and of the members whose shares arrived, which an upload is signed for."""
        return hashlib.sha256(joined("sordino agreement 1", self.digest, *sorted(dealers))).digest()
