"""What a secure sum costs, one client and the server, in milliseconds and bytes.

    python benchmarks/masking.py [--seconds 60]

One client of each cohort goes through all steps of the real code; the others do only what that client and the server
need from them. A tenth of the cohort may drop out and does, after the shares were dealt. Nothing is extrapolated: what
does not fit into the time is left out, with a line that says so.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from sordino.masking.client import MaskingClient
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


def measure(members: int, words: int, until: float) -> None:
    """Play one sum and print its costs; stop with a line if it would take longer than the time left."""
    name = f"n = {members:5,d}  d = {words:9,d}"
    session, policy = Session("benchmark", f"{members}", words, "train"), SumPolicy(2, members // 10)
    identities = [Identity.new() for _ in range(members)]
    roster = KeyRoster({m: i.public for m, i in enumerate(identities)})
    people = [MaskingClient(m, i, roster, session, policy, Once()) for m, i in enumerate(identities)]
    server = MaskingServer(session, roster, policy, layout_of({"update": (words,)}, BITS))
    row = {"update": np.random.default_rng(1).integers(-(2**31), 2**31, words)}

    first = people[0]
    client, costs = {}, {}
    client["keys"], mine = timed(first.keys)
    costs["keys"], peers = timed(lambda: server.keys([(c.member, c.keys()) for c in people]))
    client["shares"], dealt = timed(lambda: first.shares(peers))
    if time.monotonic() + members * client["shares"] / 1000 > until:
        print(
            f"{name}  client: keys {client['keys']:.1f} ms, shares {client['shares']:.0f} ms; the rest has no time left"
        )
        return
    sent = [(c.member, c.shares(peers)) for c in people]
    costs["shares"], requests = timed(lambda: server.shares(sent))
    client["masked"], upload = timed(lambda: first.masked(requests[0], row, BITS))
    up = len(mine) + len(dealt) + len(upload)
    down = len(peers) + len(requests[0])
    stay = members - members // 10
    if time.monotonic() + (stay * 2.2 + stay * (members - stay) / members) * client["masked"] / 1000 > until:
        _print(name, client, costs, up, down, "; the rest has no time left")
        return
    uploads = [(0, upload)] + [(c.member, c.masked(requests[c.member], row, BITS)) for c in people[1:stay]]
    costs["masked"], survivors = timed(lambda: server.masked(uploads))
    client["unmask"], revealed = timed(lambda: first.unmask(survivors))
    replies = [(0, revealed)] + [(c.member, c.unmask(survivors)) for c in people[1:stay]]
    costs["unmask"], total = timed(lambda: server.unmask(replies))
    if ((total["update"] - stay * row["update"]) % 2**32).any():
        raise SystemExit("the sum is wrong")
    _print(name, client, costs, up + len(revealed), down + len(survivors), f"; {members - stay} dropped out")


def _print(name: str, client: dict[str, float], server: dict[str, float], up: int, down: int, rest: str) -> None:
    own = ", ".join(f"{step} {ms:.1f}" for step, ms in client.items())
    all_ = ", ".join(f"{step} {ms:.0f}" for step, ms in server.items())
    print(f"{name}  client ms: {own}; bytes up {up:,d}, down {down:,d}\n{'':26}server ms: {all_}{rest}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    end = time.monotonic() + parser.parse_args().seconds
    for cohort, size in (
        (10, 10_000),
        (10, 1_000_000),
        (100, 10_000),
        (100, 1_000_000),
        (1000, 10_000),
        (1000, 1_000_000),
    ):
        measure(cohort, size, end)
