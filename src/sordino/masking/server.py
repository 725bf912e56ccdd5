"""The server of a secure sum: it relays four exchanges and learns the sum of those who remained.

Every step takes the replies of any subset of the members. A reply that does not parse, is not signed or does not fit is
ignored, as if it had not arrived; `ignored` says why. Below the threshold the sum is lost, and `TooFew` says so. What a
server that deviates can learn is bounded by the clients alone (client.py): nothing here is trusted by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sordino.masking import dealing, keystream, shamir, wire
from sordino.masking.client import DEALT, REVEALED, STEPS, SURVIVOR
from sordino.masking.cohort import RECORD, SIGNED_KEYS, SIGNED_UPLOAD, Cohort, KeyPair, signed_keys
from sordino.masking.errors import MaskingError, TooFew
from sordino.masking.fields import Ints, Layout, Words, centred, described, reduce_words, total_bytes
from sordino.masking.identity import SIGNATURE, KeyRoster
from sordino.masking.session import Session
from sordino.masking.threshold import SumPolicy

Replies = Mapping[int, bytes] | Iterable[tuple[int, bytes]]
T = TypeVar("T")


class MaskingServer:
    """The state of the server in one phase of one round."""

    def __init__(self, session: Session, roster: KeyRoster, policy: SumPolicy, layout: Layout) -> None:
        """Prepare one sum.

        Args:
            session: federation, job, round and phase.
            roster: the public keys of all clients.
            policy: the policy of the members.
            layout: the fields of every upload (`fields.layout_of`).
        """
        self.session, self.layout = session, layout
        self.ignored: dict[int, str] = {}  # members whose reply was not used, and why
        self.survivors: tuple[int, ...] = ()  # members that are in the sum
        self._roster, self._policy = roster, policy
        self._step = 0
        self._seen: set[bytes] = set()  # public keys of the members
        self._probe = X25519PrivateKey.generate()
        self._cohort = Cohort(session, {}, 0)
        self._dealt: dict[int, dealing.DealtShares] = {}
        self._agreement = b""
        self._total: dict[str, Words] = {f.name: np.zeros(f.size, f.container) for f in layout}

    def keys(self, replies: Replies) -> bytes:
        """Take the members' keys and return the request of the next step, the same for every member."""
        rows = self._read("keys", replies, self._signed_keys)
        keys: dict[int, KeyPair] = {m: (rows[m][0], rows[m][1]) for m in sorted(rows)}
        try:
            self._cohort = Cohort(self.session, keys, self._policy.threshold(len(keys)))
        except MaskingError as error:
            raise TooFew(str(error)) from error
        return wire.header(wire.PEERS, self.session) + wire.table(RECORD, [(m, *rows[m]) for m in rows])

    @property
    def members(self) -> tuple[int, ...]:
        """Return the members of the cohort."""
        return tuple(self._cohort.keys)

    @property
    def threshold(self) -> int:
        """Return the number of members that must remain."""
        return self._cohort.threshold

    def shares(self, replies: Replies) -> dict[int, bytes]:
        """Take the encrypted shares and return the request of the next step for every member that dealt some."""
        self._dealt = self._read("shares", replies, lambda m, reply: dealing.read_dealt(reply, self._cohort, m))
        self._require(len(self._dealt), "members dealt shares")
        self._agreement = self._cohort.agreement(self._dealt)
        head = wire.header(wire.DEALT, self.session)
        return {m: head + wire.table(DEALT, [(d, self._dealt[d].boxes[m]) for d in self._dealt]) for m in self._dealt}

    def masked(self, replies: Replies) -> bytes:
        """Add up masked arrays and return the request of the last step, the same for every survivor."""
        signatures = self._read("masked", replies, self._add)
        self._require(len(signatures), "members sent masked rows")
        self.survivors = tuple(sorted(signatures))
        head = wire.header(wire.SURVIVORS, self.session)
        return head + wire.table(SURVIVOR, [(m, signatures[m]) for m in self.survivors])

    def unmask(self, replies: Replies) -> dict[str, Ints]:
        """Take shares, remove all masks and return the sum of the survivors' arrays, as signed numbers."""
        revealed = self._read("unmask", replies, self._revealed)
        self._require(len(revealed), "members revealed shares")
        points, known = self._cohort.points, dict[tuple[int, ...], dict[int, int]]()
        for dealer in self._dealt:
            shares = {points[m]: mine[dealer] for m, mine in sorted(revealed.items()) if dealer in mine}
            self._require(len(shares), f"members revealed a valid share for member {dealer}")
            shares = dict(list(shares.items())[: self.threshold])
            at = tuple(shares)
            known[at] = known.get(at) or shamir.weights(at)
            try:
                self._take_off(dealer, shamir.rebuild(shares, self.threshold, known[at]))
            except MaskingError as error:
                raise TooFew(f"the secure sum is lost: the shares that member {dealer} dealt do not fit.") from error
        reduce_words(self._total, self.layout)
        return centred(self._total, self.layout)

    def _read(self, step: str, replies: Replies, parse: Callable[[int, bytes], T]) -> dict[int, T]:
        """Return what could be read of the replies to a step, by member; the first valid reply of each counts."""
        if STEPS[self._step : self._step + 1] != (step,):
            raise MaskingError(f"the step '{step}' of a secure sum is out of turn.")
        self._step += 1
        out: dict[int, T] = {}
        for member, reply in replies.items() if isinstance(replies, Mapping) else replies:
            if member in out:
                continue
            try:
                out[member] = parse(member, reply)
            except MaskingError as error:
                self.ignored[member] = f"{step}: {error}"
        return out

    def _require(self, count: int, what: str) -> None:
        if count < self.threshold:
            raise TooFew(f"the secure sum is lost: {count} {what}, where {self.threshold} are the least.")

    def _signed_keys(self, member: int, reply: bytes) -> tuple[bytes, bytes, bytes]:
        reader = wire.ByteReader(reply, wire.KEYS, self.session, wire.HEAD + RECORD.size)
        name, share, mask, signature = RECORD.unpack(reader.take(RECORD.size))
        reader.end()
        if name != member or not self._roster.signed(
            member, SIGNED_KEYS, self.session, signed_keys(member, (share, mask)), signature
        ):
            raise MaskingError("the keys are not signed by their sender.")
        if share == mask or {share, mask} & self._seen:
            raise MaskingError("a key is used twice.")
        for key in (share, mask):
            keystream.agreed(self._probe, key)  # members refuse a cohort with a key that is not valid
        self._seen |= {share, mask}
        return share, mask, signature

    def _add(self, member: int, reply: bytes) -> bytes:
        form, size = described(self.layout), total_bytes(self.layout)
        most = wire.HEAD + 4 + SIGNATURE + len(form) + size
        reader = wire.ByteReader(reply, wire.UPLOAD, self.session, most)
        if member not in self._dealt or reader.number() != member:
            raise MaskingError("the upload is not from a member that dealt shares.")
        signature = reader.take(SIGNATURE)
        if not self._roster.signed(member, SIGNED_UPLOAD, self.session, self._agreement, signature):
            raise MaskingError("the upload is not signed by its sender for this cohort.")
        if reader.take(len(form)) != form:
            raise MaskingError("the upload does not have the announced fields.")
        data, at = reader.rest(), 0
        if len(data) != size:
            raise MaskingError("the upload does not have the announced size.")
        for field in self.layout:
            self._total[field.name] += np.frombuffer(data, field.container, field.size, at)
            at += field.size * field.container.itemsize
        return signature

    def _revealed(self, member: int, reply: bytes) -> dict[int, bytes]:
        """Return the shares that a survivor revealed; those that their dealers did not deal to it are left out."""
        reader = wire.ByteReader(reply, wire.REVEALED, self.session, wire.most_bytes(REVEALED, 4))
        if member not in self.survivors or reader.number() != member:
            raise MaskingError("the revealed shares are not from a survivor.")
        out = {}
        for dealer, (kind, share) in reader.table(REVEALED).items():
            wanted = dealing.SEED if dealer in self.survivors else dealing.KEY
            if dealer in self._dealt and kind == bytes([wanted]):
                expected = self._dealt[dealer].tags[member][wanted]
                if dealing.tag(self._cohort, dealer, member, wanted, share) == expected:
                    out[dealer] = share
        if len(out) < len(self._dealt):
            self.ignored[member] = f"unmask: {len(self._dealt) - len(out)} shares do not fit"
        return out

    def _take_off(self, dealer: int, secret: bytes) -> None:
        """Remove the private mask of a survivor, or the masks that survivors share with a member that is missing."""
        if dealer in self.survivors:
            if dealing.commitment(self._cohort, dealer, secret) != self._dealt[dealer].commitment:
                raise MaskingError("the seed is not the one that was announced.")
            bound = keystream.Binding(self.session, self._agreement, dealer)
            keystream.add_private_mask(self._total, self.layout, secret, bound, -1)
            return
        key = X25519PrivateKey.from_private_bytes(secret)
        if key.public_key().public_bytes_raw() != self._cohort.keys[dealer][1]:
            raise MaskingError("the mask key is not the one that was announced.")
        for member in self.survivors:
            bound = keystream.Binding(self.session, self._agreement, member)
            shared = keystream.agreed(key, self._cohort.keys[member][1])
            keystream.add_pair_mask(self._total, self.layout, shared, bound, dealer, -1)
