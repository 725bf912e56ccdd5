"""Whatever bytes arrive, a party raises one clear error or ignores the sender, and holds no more memory than it got."""

from __future__ import annotations

import tracemalloc

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sordino.masking import frames, wire
from sordino.masking.client import DEALT, SURVIVOR
from sordino.masking.cohort import RECORD
from sordino.masking.errors import MaskingError, TooFew
from sordino.masking.sealed import seal, unseal
from sordino.masking.session import Session
from sordino.masking.threshold import SumPolicy
from support.masked_sums import BITS, SESSION, clients, identity, refused, roster, row, server

EXAMPLES = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
SECRET = X25519PrivateKey.generate()


def played(steps: int):
    """Return clients, server, requests and replies after some steps; member 0 has not answered the last of them."""
    policy = SumPolicy(3, 1)
    people, at = clients(4, policy), server(4, policy)
    replies = {m: c.keys() for m, c in people.items()}
    requests = dict.fromkeys(people, b"")
    for step in range(steps):
        if step == 0:
            requests = dict.fromkeys(people, at.keys(replies))
            replies = {m: c.shares(requests[m]) for m, c in people.items() if m or step < steps - 1}
        elif step == 1:
            requests = at.shares(replies)
            replies = {m: c.masked(requests[m], row(m), BITS) for m, c in people.items() if m or step < steps - 1}
        else:
            requests = dict.fromkeys(people, at.masked(replies))
            replies = {m: c.unmask(requests[m]) for m, c in people.items() if m or step < steps - 1}
    return people, at, requests, replies


changes = st.one_of(
    st.binary(max_size=200).map(lambda junk: lambda good: junk),
    st.integers(0, 400).map(lambda n: lambda good: good[: n % (len(good) + 1)]),
    st.binary(min_size=1, max_size=40).map(lambda junk: lambda good: good + junk),
    st.tuples(st.integers(0, 10**6), st.integers(1, 255)).map(
        lambda at: lambda good: bytes(b ^ at[1] if i == at[0] % len(good) else b for i, b in enumerate(good))
    ),
    st.tuples(st.integers(0, 200), st.binary(min_size=4, max_size=4)).map(
        lambda at: lambda good: good[: at[0]] + at[1] + good[at[0] + 4 :]
    ),
)


@pytest.fixture(scope="module")
def stages():
    return {steps: played(steps) for steps in (1, 2, 3)}


@EXAMPLES
@given(change=changes, step=st.sampled_from(["shares", "masked", "unmask"]))
def test_a_client_refuses_changed_requests(change, step, stages):
    """Each flipped, cut, grown or invented request is refused; the right one is accepted even after all of them."""
    people, _, requests, _ = stages[{"shares": 1, "masked": 2, "unmask": 3}[step]]
    good, client = requests[0], people[0]
    bad = change(good)
    if bad == good:
        return
    act = {"shares": client.shares, "masked": lambda r: client.masked(r, row(0), BITS), "unmask": client.unmask}[step]
    assert refused(lambda: act(bad))


def test_a_client_still_accepts_the_right_requests(stages):
    assert stages[1][0][0].shares(stages[1][2][0])
    assert stages[2][0][0].masked(stages[2][2][0], row(0), BITS)
    assert stages[3][0][0].unmask(stages[3][2][0])


@EXAMPLES
@given(change=changes, step=st.sampled_from([0, 1, 2, 3]))
def test_a_server_ignores_changed_replies(change, step):
    """The server cannot check encrypted shares and masked words; all else is ignored unless it is right."""
    people, at, _, replies = played(step)
    good = replies[1]
    bad = change(good)
    if bad == good:
        return
    take = [at.keys, at.shares, at.masked, at.unmask][step]
    try:
        take(replies | {1: bad})
    except TooFew as error:
        assert step > 0 and "lost" in str(error)
    content = {1: wire.HEAD + 4, 2: len(good) - 16}.get(step, len(good))  # encrypted shares; masked words
    assert 1 in at.ignored or (len(bad) == len(good) and bad[:content] == good[:content])
    assert len(people) == 4


@EXAMPLES
@given(change=changes)
def test_a_shuffler_refuses_changed_rows_and_batches(change):
    public = SECRET.public_key().public_bytes_raw().hex()
    good = seal(b"row", 10, public, 1, identity(1), SESSION)
    bad = change(good)
    if bad != good:
        assert refused(lambda: unseal(bad, SECRET, 1, roster(3), SESSION))
    batch = frames.encode_batch(SESSION, {1: good})
    try:
        session, rows = frames.decode_batch(change(batch))
    except MaskingError:
        return
    assert isinstance(session, Session) and all(isinstance(r, bytes) for r in rows.values())


@pytest.mark.parametrize("kind", [wire.PEERS, wire.DEALT, wire.SURVIVORS])
def test_an_announced_size_allocates_nothing(kind):
    """A count of four thousand million records in a short message, and records without end in a long one."""
    form = {wire.PEERS: RECORD, wire.DEALT: DEALT, wire.SURVIVORS: SURVIVOR}[kind]
    huge = wire.header(kind, SESSION) + b"\xff\xff\xff\xff" + bytes(1000)
    long = wire.header(kind, SESSION) + wire.NUMBER.pack(20_000) + bytes(20_000 * form.size)
    tracemalloc.start()
    for message in (huge, long):
        assert refused(lambda m=message: wire.ByteReader(m, kind, SESSION, wire.most_bytes(form)).table(form))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_batch_of_countless_empty_parts_is_refused():
    head = wire.FORMAT + bytes([wire.BATCH])
    tracemalloc.start()
    assert refused(lambda: frames.decode_batch(head + bytes(4_000_000)), "parts")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000
    for session in (b"[1]", b"{}", b"null", b'{"federation": 1, "job": "j", "round": 0, "phase": "p"}', b"[" * 5000):
        data = head + frames.LENGTH.pack(len(session)) + session
        assert refused(lambda d=data: frames.decode_batch(d))


def test_requests_that_are_not_bytes_are_refused():
    people, at, _, _ = played(0)
    for bad in (None, "text", 7, bytearray(b"x")):
        assert refused(lambda bad=bad: people[0].shares(bad))
    at.keys({0: None, 1: "text", "two": b"", **{m: c.keys() for m, c in people.items() if m > 0}})
    assert at.members == (1, 2, 3) and 0 in at.ignored
