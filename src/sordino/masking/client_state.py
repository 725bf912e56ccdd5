"""What a client remembers between the steps of a secure sum, for processes that end after every message.

The saved bytes hold private keys: they stay at the client, in a place that only it can read. Going back to an earlier
copy gains nothing, since the client's register of answers (once.py) knows what was answered already.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from sordino.masking.errors import MaskingError


@dataclass(repr=False)
class ClientState:
    """Secrets and answers of one client in one sum."""

    answers: dict[str, tuple[bytes, bytes | None]] = field(default_factory=dict)  # by step: request digest, reply
    share_key: bytes = b""  # private keys and seed; erased when the upload was made
    mask_key: bytes = b""
    seed: bytes = b""
    peers: bytes = b""  # the request that showed the cohort
    shares: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)  # by dealer; erased when they were revealed

    def saved(self, session: bytes, member: int) -> bytes:
        """Return the state as bytes, bound to session and member; the upload itself is not kept."""
        answers = {
            step: [asked.hex(), None if step == "masked" or reply is None else reply.hex()]
            for step, (asked, reply) in self.answers.items()
        }
        shares = {str(dealer): [share.hex() for share in pair] for dealer, pair in self.shares.items()}
        keys = {name: getattr(self, name).hex() for name in ("share_key", "mask_key", "seed", "peers")}
        return json.dumps(
            {"session": session.hex(), "member": member, "answers": answers, "shares": shares} | keys
        ).encode()

    @staticmethod
    def restored(saved: bytes, session: bytes, member: int) -> ClientState:
        """Return a state from its bytes."""
        try:
            found = json.loads(saved)
            if (found["session"], found["member"]) != (session.hex(), member):
                raise MaskingError("the saved state of a secure sum belongs to another client or round.")
            return ClientState(
                answers={s: (_bytes(a), None if b is None else _bytes(b)) for s, (a, b) in found["answers"].items()},
                share_key=_bytes(found["share_key"]),
                mask_key=_bytes(found["mask_key"]),
                seed=_bytes(found["seed"]),
                peers=_bytes(found["peers"]),
                shares={int(dealer): (_bytes(a), _bytes(b)) for dealer, (a, b) in found["shares"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MaskingError("the saved state of a secure sum is damaged.") from error


def _bytes(text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError
    return bytes.fromhex(text)
