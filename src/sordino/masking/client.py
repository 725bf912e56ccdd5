"""One client in one secure sum: four answers, each given once.

Bonawitz et al. (2017), "Practical secure aggregation for privacy-preserving machine learning" (CCS), figure 4, with
these differences. (1) Nobody answers for fewer than T members, and T comes from the client's own policy. (2) The
cohort's digest is bound into the encryption of shares, so that only members that were shown the same keys can read each
other's shares. (3) An upload carries a signature on the cohort and on the members whose shares arrived, and a client
reveals shares only for survivors whose signatures agree with its own. This replaces the fifth exchange of the paper
(its ConsistencyCheck): lists of survivors may still differ from client to client, and `least_in_sum` bounds what that
is worth to a lying server.

The client is protected from the server and from up to `colluders` members, as long as its identity is known to the
other members by rosters of their own. Nothing here protects the sum from members that send wrong numbers.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Callable, Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from sordino.masking import dealing, keystream, shamir, wire
from sordino.masking.client_state import ClientState
from sordino.masking.cohort import RECORD, SIGNED_KEYS, SIGNED_UPLOAD, Cohort, signed_keys
from sordino.masking.errors import MaskingError
from sordino.masking.fields import Layout, Words, described, layout_of, reduce_words, residues
from sordino.masking.identity import Identity, KeyRoster
from sordino.masking.once import Once
from sordino.masking.session import Session
from sordino.masking.threshold import SumPolicy

STEPS = ("keys", "shares", "masked", "unmask")
DEALT = struct.Struct(f"<I{dealing.BOX}s")  # dealer, encrypted shares
SURVIVOR = struct.Struct("<I64s")  # member, signature on its agreement
REVEALED = struct.Struct(f"<I1s{shamir.SIZE}s")  # dealer, kind of secret, share


class MaskingClient:
    """The state of one client in one phase of one round."""

    def __init__(
        self,
        member: int,
        identity: Identity,
        roster: KeyRoster,
        session: Session,
        policy: SumPolicy,
        once: Once,
        saved: bytes | None = None,
    ) -> None:
        """Prepare to take part; nothing is sent yet.

        Args:
            member: the number of this client in the roster.
            identity: its long-term key.
            roster: the public keys of all clients, which did not come from the server.
            session: federation, job, round and phase.
            policy: what this client asks of the cohort; the same for all members.
            once: the client's durable register of answers.
            saved: what `saved` returned after the step before, if that was in another process.
        """
        if roster.get(member) != identity.public:
            raise MaskingError(f"the roster has another public key for client {member} than its identity.")
        self.member, self.session, self.policy = member, session, policy
        self._identity, self._roster, self._once = identity, roster, once
        self._state = ClientState() if saved is None else ClientState.restored(saved, session.digest, member)
        self._agreed: Cohort | None = None

    def saved(self) -> bytes:
        """Return all that a later process needs to go on with the next step, as bytes that must stay private."""
        return self._state.saved(self.session.digest, self.member)

    def keys(self) -> bytes:
        """Return fresh public keys, signed by the client's identity."""
        return self._answer("keys", b"", self._keys)

    def shares(self, peers: bytes) -> bytes:
        """Check the cohort and return encrypted shares of this client's secrets for every member.

        Args:
            peers: the signed keys of all members, as the server relays them.
        """
        return self._answer("shares", _digest(peers), lambda: self._deal(peers))

    def masked(self, dealt: bytes, arrays: Mapping[str, NDArray[Any]], bits: Mapping[str, int]) -> bytes:
        """Return the arrays under masks.

        Args:
            dealt: the encrypted shares that members dealt to this client.
            arrays: whole numbers by field.
            bits: the modulus 2^bits of each field.
        """
        layout = layout_of({name: array.shape for name, array in arrays.items()}, bits)
        words = residues(arrays, layout)
        asked = hashlib.sha256(_digest(dealt) + described(layout))
        for field in layout:
            asked.update(words[field.name].data)
        return self._answer("masked", asked.digest(), lambda: self._mask(dealt, words, layout))

    def unmask(self, survivors: bytes) -> bytes:
        """Return one share for every member: of the seed of a survivor, of the mask key of one that is missing.

        Args:
            survivors: the members whose uploads arrived, with the signatures of these uploads.
        """
        return self._answer("unmask", _digest(survivors), lambda: self._reveal(survivors))

    def _answer(self, step: str, asked: bytes, compute: Callable[[], bytes]) -> bytes:
        """Answer a step once, in its turn; the same request again gets the same reply."""
        if step in self._state.answers:
            before, reply = self._state.answers[step]
            if before != asked or reply is None:
                raise MaskingError(f"the step '{step}' of this round was answered before, and is not answered twice.")
            return reply
        if len(self._state.answers) != STEPS.index(step):
            raise MaskingError(f"the step '{step}' of a secure sum is out of turn.")
        reply = compute()
        name = f"masking {self.session.digest.hex()} {self.member} {step}"
        self._once.claim(name, hashlib.sha256(asked + reply).digest())  # before anything leaves
        self._state.answers[step] = (asked, reply)
        if step == "masked":
            self._state.share_key = self._state.mask_key = self._state.seed = b""
        if step == "unmask":
            self._state.shares = {}
        return reply

    def _keys(self) -> bytes:
        share, mask = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._state.share_key, self._state.mask_key = share.private_bytes_raw(), mask.private_bytes_raw()
        keys = (share.public_key().public_bytes_raw(), mask.public_key().public_bytes_raw())
        signature = self._identity.sign(SIGNED_KEYS, self.session, signed_keys(self.member, keys))
        return wire.header(wire.KEYS, self.session) + RECORD.pack(self.member, *keys, signature)

    def _cohort(self) -> Cohort:
        """Return the cohort that this client dealt shares to."""
        if self._agreed is None:
            self._agreed = Cohort.read(self._state.peers, self.session, self._roster, self.policy)
        return self._agreed

    def _deal(self, peers: bytes) -> bytes:
        cohort = Cohort.read(peers, self.session, self._roster, self.policy)
        share, mask = (
            X25519PrivateKey.from_private_bytes(self._state.share_key),
            X25519PrivateKey.from_private_bytes(self._state.mask_key),
        )
        if cohort.keys.get(self.member) != tuple(k.public_key().public_bytes_raw() for k in (share, mask)):
            raise MaskingError("the cohort does not hold this client with its own keys.")
        seed = secrets.token_bytes(32)
        reply = dealing.deal(cohort, self.member, share, seed, mask.private_bytes_raw())
        self._state.seed, self._state.peers = seed, peers
        return reply

    def _mask(self, dealt: bytes, words: dict[str, Words], layout: Layout) -> bytes:
        cohort = self._cohort()
        boxes = wire.ByteReader(dealt, wire.DEALT, self.session, wire.most_bytes(DEALT)).table(DEALT)
        if not boxes.keys() <= cohort.keys.keys() or self.member not in boxes:
            raise MaskingError("shares were relayed from outside of the cohort, or without this client's own.")
        if len(boxes) < cohort.threshold:
            raise MaskingError(f"{len(boxes)} members dealt shares, where {cohort.threshold} are the least.")
        key = X25519PrivateKey.from_private_bytes(self._state.share_key)
        shares = {d: dealing.open_box(cohort, d, self.member, key, box) for d, (box,) in boxes.items()}
        bound = keystream.Binding(self.session, cohort.agreement(boxes), self.member)
        keystream.add_private_mask(words, layout, self._state.seed, bound)
        mask = X25519PrivateKey.from_private_bytes(self._state.mask_key)
        for other in boxes:
            if other != self.member:
                shared = keystream.agreed(mask, cohort.keys[other][1])
                keystream.add_pair_mask(words, layout, shared, bound, other)
        reduce_words(words, layout)
        self._state.shares = shares
        head = wire.header(wire.UPLOAD, self.session) + wire.NUMBER.pack(self.member)
        signature = self._identity.sign(SIGNED_UPLOAD, self.session, bound.agreement)
        return b"".join([head, signature, described(layout), *(words[field.name].tobytes() for field in layout)])

    def _reveal(self, survivors: bytes) -> bytes:
        cohort = self._cohort()
        rows = wire.ByteReader(survivors, wire.SURVIVORS, self.session, wire.most_bytes(SURVIVOR)).table(SURVIVOR)
        if not rows.keys() <= self._state.shares.keys() or self.member not in rows:
            raise MaskingError("the survivors include a stranger, or lack this client, whose upload was made.")
        if len(rows) < cohort.threshold:
            raise MaskingError(f"{len(rows)} members survived, where {cohort.threshold} are the least.")
        agreement = cohort.agreement(self._state.shares)
        for member, (signature,) in rows.items():
            if not self._roster.signed(member, SIGNED_UPLOAD, self.session, agreement, signature):
                raise MaskingError(f"the upload of member {member} was not signed by it for the same cohort.")
        kinds = {member: dealing.SEED if member in rows else dealing.KEY for member in self._state.shares}
        revealed = [(member, bytes([kind]), self._state.shares[member][kind]) for member, kind in kinds.items()]
        head = wire.header(wire.REVEALED, self.session) + wire.NUMBER.pack(self.member)
        return head + wire.table(REVEALED, revealed)


def _digest(request: bytes) -> bytes:
    if not isinstance(request, bytes):
        raise MaskingError(f"a request of a secure sum must be bytes, not {type(request).__name__}.")
    return hashlib.sha256(request).digest()
