"""Secure sums for tests: clients with identities, honest rounds, and what a server can read of what it got."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sordino.masking import dealing, keystream, shamir, wire
from sordino.masking.client import DEALT, REVEALED, SURVIVOR, MaskingClient
from sordino.masking.cohort import Cohort
from sordino.masking.errors import MaskingError
from sordino.masking.fields import layout_of
from sordino.masking.identity import Identity, KeyRoster
from sordino.masking.once import Once
from sordino.masking.server import MaskingServer
from sordino.masking.session import Session
from sordino.masking.threshold import SumPolicy

SESSION = Session("hospitals", "job-7", 3, "train")
BITS = {"update": 32}
SIZE = 4
LAYOUT = layout_of({"update": (SIZE,)}, BITS)


@lru_cache(maxsize=64)
def identity(member: int) -> Identity:
    return Identity.new()


def roster(members: int) -> KeyRoster:
    return KeyRoster({m: identity(m).public for m in range(members)})


def row(member: int) -> dict[str, np.ndarray]:
    return {"update": np.random.default_rng(member).integers(-(2**31), 2**31, SIZE)}


def clients(members: int, policy: SumPolicy, session=SESSION, kind=MaskingClient, once=Once, known=None):
    known = known or roster(members)
    return {m: kind(m, identity(m), known, session, policy, once()) for m in range(members)}


def server(members: int, policy: SumPolicy, session=SESSION, layout=LAYOUT) -> MaskingServer:
    return MaskingServer(session, roster(members), policy, layout)


def until_uploads(people: Mapping[int, MaskingClient], relay: MaskingServer) -> dict[int, bytes]:
    """Play the first three steps without drop-outs and return the uploads."""
    peers = relay.keys({m: c.keys() for m, c in people.items()})
    dealt = relay.shares({m: c.shares(peers) for m, c in people.items()})
    for client in people.values():
        client.memory = client._state.mask_key  # what a colluder would remember of its erased secrets
    return {m: c.masked(dealt[m], row(m), BITS) for m, c in people.items()}


def signature(upload: bytes) -> bytes:
    return upload[wire.HEAD + 4 : wire.HEAD + 68]


def survivors(uploads: Mapping[int, bytes], members: Collection[int], session=SESSION) -> bytes:
    """Return a request that names these survivors, as a lying server would write it."""
    rows = [(m, signature(uploads[m])) for m in members]
    return wire.header(wire.SURVIVORS, session) + wire.table(SURVIVOR, rows)


def relayed(boxes: Mapping[int, bytes], session=SESSION) -> bytes:
    """Return a request with these dealers' encrypted shares, as a lying server would write it."""
    return wire.header(wire.DEALT, session) + wire.table(DEALT, list(boxes.items()))


def again(client: MaskingClient) -> MaskingClient:
    """Return a copy of a client with an empty register, to try many attacks on one upload."""
    return MaskingClient(
        client.member, client._identity, client._roster, client.session, client.policy, Once(), client.saved()
    )


def refused(call: Callable[[], object], words: str = "") -> bool:
    try:
        call()
    except MaskingError as error:
        assert words in str(error), str(error)
        assert len(str(error)) < 300 and "\n" not in str(error)
        return True
    return False


class Spy:
    """A server's attempt to read uploads with every share it got, of whatever kind, from whomever."""

    def __init__(self, views: Mapping[int, Cohort], dealers: Mapping[int, Collection[int]]) -> None:
        self.views, self.dealers = views, dealers  # by member: the cohort and the dealers that it was shown
        self.shares: dict[tuple[int, int], dict[int, bytes]] = {}  # by dealer and kind: share by point
        self.known: dict[tuple[int, int], bytes] = {}  # by member and kind: secrets of colluders

    def hears(self, member: int, reply: bytes) -> None:
        """Take in the revealed shares of a member."""
        reader = wire.ByteReader(reply, wire.REVEALED, self.views[member].session, 1 << 20)
        reader.number()
        for dealer, (kind, share) in reader.table(REVEALED).items():
            self.learns(dealer, kind[0], member, share)

    def learns(self, dealer: int, kind: int, receiver: int, share: bytes) -> None:
        self.shares.setdefault((dealer, kind), {})[self.views[dealer].points[receiver]] = share

    def colludes(self, client: MaskingClient) -> None:
        """Take in everything that a member knows after its upload."""
        self.known[client.member, dealing.KEY] = client.memory
        for dealer, pair in client._state.shares.items():
            for kind in (dealing.SEED, dealing.KEY):
                self.learns(dealer, kind, client.member, pair[kind])

    def secret(self, dealer: int, kind: int) -> bytes | None:
        shares, threshold = self.shares.get((dealer, kind), {}), self.views[dealer].threshold
        if (dealer, kind) in self.known or len(shares) < threshold:
            return self.known.get((dealer, kind))
        return shamir.rebuild(dict(list(shares.items())[:threshold]), threshold)

    def readable(self, uploads: Mapping[int, bytes], honest: Iterable[int]) -> set[frozenset[int]]:
        """Return every set of honest members of whose rows the server can compute the sum, by trying all of them."""
        found = set()
        honest = [m for m in honest if m in uploads]
        bare = {m: self._stripped(m, uploads[m]) for m in honest}
        for size in range(1, len(honest) + 1):
            for chosen in itertools.combinations(honest, size):
                total = np.sum([bare[m] for m in chosen], axis=0, dtype=np.uint32)
                truth = np.sum([row(m)["update"] for m in chosen], axis=0).astype(np.uint32)
                if (total == truth).all():
                    found.add(frozenset(chosen))
        return found

    def _stripped(self, member: int, upload: bytes) -> np.ndarray:
        """Return an upload without the masks that the server can compute."""
        words = np.frombuffer(upload[-4 * SIZE :], "<u4").copy()
        view, dealers = self.views[member], tuple(sorted(self.dealers[member]))
        agreement = view.agreement(dealers)
        seed, mine = self.secret(member, dealing.SEED), self.secret(member, dealing.KEY)
        if seed is not None:
            words -= _private(seed, agreement, member)
        for other in dealers:
            theirs = self.secret(other, dealing.KEY)
            if other != member and (mine or theirs):
                key, public = (mine, view.keys[other][1]) if mine else (theirs, view.keys[member][1])
                words -= _pair(key, public, agreement, member, other)
        return words


@lru_cache(maxsize=10_000)
def _private(seed: bytes, agreement: bytes, member: int) -> np.ndarray:
    words = {"update": np.zeros(SIZE, "<u4")}
    keystream.add_private_mask(words, LAYOUT, seed, keystream.Binding(SESSION, agreement, member))
    return words["update"]


@lru_cache(maxsize=10_000)
def _pair(key: bytes, public: bytes, agreement: bytes, member: int, other: int) -> np.ndarray:
    words = {"update": np.zeros(SIZE, "<u4")}
    shared = keystream.agreed(X25519PrivateKey.from_private_bytes(key), public)
    keystream.add_pair_mask(words, LAYOUT, shared, keystream.Binding(SESSION, agreement, member), other)
    return words["update"]
