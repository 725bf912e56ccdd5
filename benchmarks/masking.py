"""What a secure sum costs one client and the server, in milliseconds of CPU time and in bytes.

    python benchmarks/masking.py

It takes about a minute. Cohorts of 10 and 100 are played in full, in the real code; a tenth of the members drops out
after the shares were dealt. Of a cohort of 1000, one client is played in full.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sordino.masking import dealing, shamir, wire
from sordino.masking.client import DEALT, SURVIVOR, MaskingClient
from sordino.masking.cohort import SIGNED_UPLOAD, Cohort
from sordino.masking.fields import layout_of
from sordino.masking.identity import Identity, KeyRoster
from sordino.masking.once import Once
from sordino.masking.server import MaskingServer
from sordino.masking.session import Session
from sordino.masking.threshold import SumPolicy

BITS = {"update": 32}
Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Return the milliseconds that some work took on the CPU, and its result."""
    start = time.process_time()
    result = work()
    return 1000 * (time.process_time() - start), result


def cohort_of(members: int, words: int) -> tuple[list[MaskingClient], MaskingServer]:
    """Return all clients of a sum, and its server."""
    session, policy = Session("benchmark", f"{members}", words, "train"), SumPolicy(2, members // 10)
    identities = [Identity.new() for _ in range(members)]
    roster = KeyRoster({m: i.public for m, i in enumerate(identities)})
    people = [MaskingClient(m, i, roster, session, policy, Once()) for m, i in enumerate(identities)]
    return people, MaskingServer(session, roster, policy, layout_of({"update": (words,)}, BITS))


def whole_sum(members: int, words: int) -> None:
    """Play one sum with all its members and print what the first of them and the server need."""
    people, server = cohort_of(members, words)
    first, client, costs = people[0], {}, {}
    client["keys"], mine = timed(first.keys)
    keys = [(c.member, c.keys()) for c in people]
    costs["keys"], peers = timed(lambda: server.keys(keys))
    client["shares"], dealt = timed(lambda: first.shares(peers))
    sent = [(c.member, c.shares(peers)) for c in people]
    costs["shares"], requests = timed(lambda: server.shares(sent))
    row = {"update": np.random.default_rng(1).integers(-(2**31), 2**31, words)}
    client["masked"], upload = timed(lambda: first.masked(requests[0], row, BITS))
    stay = members - members // 10
    uploads = [(0, upload)] + [(c.member, c.masked(requests[c.member], row, BITS)) for c in people[1:stay]]
    costs["masked"], survivors = timed(lambda: server.masked(uploads))
    client["unmask"], revealed = timed(lambda: first.unmask(survivors))
    replies = [(0, revealed)] + [(c.member, c.unmask(survivors)) for c in people[1:stay]]
    costs["unmask"], total = timed(lambda: server.unmask(replies))
    if ((total["update"] - stay * row["update"]) % 2**32).any():
        raise SystemExit("the sum is wrong")
    up, down = (mine, dealt, upload, revealed), (peers, requests[0], survivors)
    _print(members, words, client, up, down)
    print(
        f"{'':14}server, {members - stay} dropped out: "
        + ", ".join(f"{step} {ms:.0f} ms" for step, ms in costs.items())
    )


def one_client(members: int, words: int) -> None:
    """Play the part of one member; the others deal it shares of nothing and sign, which costs it the same."""
    people, server = cohort_of(members, words)
    first, others, client = people[0], people[1:], {}
    client["keys"], mine = timed(first.keys)
    peers = server.keys([(c.member, c.keys()) for c in people])
    client["shares"], dealt = timed(lambda: first.shares(peers))
    cohort = Cohort.read(peers, first.session, first._roster, first.policy)
    boxes = {0: dealing.read_dealt(dealt, cohort, 0).boxes[0]}
    for other in others:
        key = X25519PrivateKey.from_private_bytes(other._state.share_key)
        cipher = dealing._cipher(cohort, other.member, 0, key, 0)
        boxes[other.member] = cipher.encrypt(dealing.NONCE, bytes(2 * shamir.SIZE), None)
    request = wire.header(wire.DEALT, first.session) + wire.table(DEALT, list(boxes.items()))
    row = {"update": np.random.default_rng(1).integers(-(2**31), 2**31, words)}
    client["masked"], upload = timed(lambda: first.masked(request, row, BITS))
    agreement = cohort.agreement(boxes)
    signed = [(c.member, c._identity.sign(SIGNED_UPLOAD, c.session, agreement)) for c in people[: -(members // 10)]]
    survivors = wire.header(wire.SURVIVORS, first.session) + wire.table(SURVIVOR, signed)
    client["unmask"], revealed = timed(lambda: first.unmask(survivors))
    _print(members, words, client, (mine, dealt, upload, revealed), (peers, request, survivors))
    print(f"{'':14}server: not measured, since all {members} clients would have to be played")


def _print(members: int, words: int, client: dict[str, float], up: Iterable[bytes], down: Iterable[bytes]) -> None:
    own = ", ".join(f"{step} {ms:.1f} ms" for step, ms in client.items())
    sizes = [sum(map(len, messages)) for messages in (up, down)]
    print(f"n = {members:,d}, d = {words:,d}\n{'':14}client: {own}; {sizes[0]:,d} bytes up, {sizes[1]:,d} down")


if __name__ == "__main__":
    for size in (10_000, 1_000_000):
        whole_sum(10, size)
        whole_sum(100, size)
        one_client(1000, size)
