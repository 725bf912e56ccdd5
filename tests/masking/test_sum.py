"""A secure sum is exact modulo 2^bits for whoever remains, and lost below the threshold."""

from __future__ import annotations

import numpy as np
import pytest

from sordino.masking import wire
from sordino.masking.client import MaskingClient
from sordino.masking.cohort import RECORD, SIGNED_KEYS, signed_keys
from sordino.masking.errors import MaskingError, TooFew
from sordino.masking.fields import layout_of
from sordino.masking.identity import Identity, KeyRoster
from sordino.masking.once import Once
from sordino.masking.session import Session
from sordino.masking.threshold import SumPolicy
from support.masked_sums import BITS, SESSION, clients, identity, refused, roster, row, server

WIDTHS = {"a": 3, "b": 8, "c": 13, "d": 16, "e": 32, "f": 47, "g": 62}


def wide_rows(members: int, seed: int) -> dict[int, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    shapes = {"a": (), "b": (3,), "c": (2, 2), "d": (1,), "e": (5,), "f": (0,), "g": (4, 1)}
    return {
        m: {k: np.asarray(rng.integers(-(2 ** (b - 1)), 2 ** (b - 1), shapes[k])) for k, b in WIDTHS.items()}
        for m in range(members)
    }


def wrapped(values: list[np.ndarray], bits: int) -> np.ndarray:
    """Add up with Python's whole numbers: a second way to the same sum."""
    total = sum(v.astype(object) for v in values)
    return np.asarray((total + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)).astype(np.int64)


@pytest.mark.parametrize("members", range(2, 21))
def test_the_sum_is_exact_whoever_drops_out(members):
    """Members drop out before each of the four steps; who remains is summed up modulo 2^bits, in every width."""
    rng = np.random.default_rng(members)
    policy = SumPolicy(2, (members - 1) // 2)
    rows = wide_rows(members, members)
    people = clients(members, policy)
    leaves = list(rng.permutation(members)[: policy.allowed_dropouts])  # one step each, in turns
    lost = [set(leaves[i::3]) for i in range(3)]
    at = server(members, policy, layout=layout_of({k: v.shape for k, v in rows[0].items()}, WIDTHS))
    peers = at.keys({m: c.keys() for m, c in people.items()})
    dealt = at.shares({m: c.shares(peers) for m, c in people.items() if m not in lost[0]})
    uploads = {m: people[m].masked(dealt[m], rows[m], WIDTHS) for m in dealt if m not in lost[1]}
    request = at.masked(uploads.items())
    total = at.unmask({m: people[m].unmask(request) for m in uploads if m not in lost[2]})
    assert set(at.survivors) == set(range(members)) - lost[0] - lost[1] and not at.ignored
    for name, bits in WIDTHS.items():
        assert total[name].shape == rows[0][name].shape
        assert (total[name] == wrapped([rows[m][name] for m in at.survivors], bits)).all(), name


def test_an_upload_is_not_the_row_and_masks_change_with_everything():
    """The same row in another round, job, phase or federation, and of another member, looks unrelated."""
    policy, seen = SumPolicy(2), []
    for session in (SESSION, Session("hospitals", "job-7", 4, "train"), Session("hospitals", "job-8", 3, "train")):
        people, at = clients(3, policy, session), server(3, policy, session)
        dealt = at.shares(_shares(people, at))
        same = {"update": np.zeros(4, np.int64)}
        seen += [c.masked(dealt[m], same, BITS)[-16:] for m, c in people.items()]
    assert len(set(seen)) == 9 and bytes(16) not in seen


def _shares(people, at):
    peers = at.keys({m: c.keys() for m, c in people.items()})
    return {m: c.shares(peers) for m, c in people.items()}


@pytest.mark.parametrize("step", ["keys", "shares", "masked", "unmask"])
def test_below_the_threshold_the_sum_is_lost(step):
    policy = SumPolicy(5, 1)
    people, at = clients(6, policy), server(6, policy)
    gone = {"keys": 2, "shares": 2, "masked": 2, "unmask": 2}
    some = lambda now, replies: dict(list(replies.items())[gone[step] if now == step else 0 :])  # noqa: E731

    def play():
        peers = at.keys(some("keys", {m: c.keys() for m, c in people.items()}))
        dealt = at.shares(some("shares", {m: c.shares(peers) for m, c in people.items()}))
        request = at.masked(some("masked", {m: people[m].masked(dealt[m], row(m), BITS) for m in dealt}))
        return at.unmask(some("unmask", {m: people[m].unmask(request) for m in at.survivors}))

    with pytest.raises(TooFew, match=r"least"):
        play()


def test_garbage_and_bad_shares_of_single_members_are_ignored():
    policy = SumPolicy(3, 2)
    people, at = clients(7, policy), server(7, policy)
    peers = at.keys([(m, c.keys()) for m, c in people.items()] + [(0, b"late"), (9, b"stranger")])
    sent = {m: c.shares(peers) for m, c in people.items()} | {6: b"garbage"}
    dealt = at.shares(sent)
    uploads = {m: people[m].masked(dealt[m], row(m), BITS) for m in dealt}
    request = at.masked(uploads)
    revealed = {m: people[m].unmask(request) for m in uploads}
    revealed[2] = revealed[2][:-5] + bytes(5)  # one share is wrong
    total = at.unmask(revealed)["update"]
    assert (total == wrapped([row(m)["update"] for m in range(6)], 32)).all()
    assert set(at.ignored) == {2, 6, 9} and "share" in at.ignored[2]


def test_a_dealer_of_false_shares_loses_the_round_and_nothing_else():
    """Its shares authenticate and fit its tags, but belong to another seed than it masks with."""
    policy = SumPolicy(3)
    people, at = clients(4, policy), server(4, policy)
    peers = at.keys({m: c.keys() for m, c in people.items()})
    sent = {m: c.shares(peers) for m, c in people.items()}
    sent[1] = sent[1][:41] + bytes(32) + sent[1][73:]  # the announced hash of the seed
    dealt = at.shares(sent)
    request = at.masked({m: people[m].masked(dealt[m], row(m), BITS) for m in people})
    with pytest.raises(TooFew, match="member 1"):
        at.unmask({m: people[m].unmask(request) for m in people})


def test_steps_come_in_order_and_once_and_repeats_give_the_same_bytes():
    policy = SumPolicy(3)
    people, at = clients(3, policy), server(3, policy)
    one = people[0]
    assert refused(lambda: one.shares(b""), "out of turn")
    assert refused(lambda: at.shares({}), "out of turn")
    assert one.keys() == one.keys()
    peers = at.keys({m: c.keys() for m, c in people.items()})
    sent = {m: c.shares(peers) for m, c in people.items()}
    assert one.shares(peers) == sent[0] and refused(lambda: one.shares(peers + b"x"), "twice")
    dealt = at.shares(sent)
    uploads = {m: c.masked(dealt[m], row(m), BITS) for m, c in people.items()}
    assert one.masked(dealt[0], row(0), BITS) == uploads[0]
    assert refused(lambda: one.masked(dealt[0], row(1), BITS), "twice")  # else two rows under one mask
    request = at.masked(uploads)
    assert one.unmask(request) == one.unmask(request)
    assert refused(lambda: one.unmask(request + b"x"), "twice")


def test_a_client_goes_on_in_another_process(tmp_path):
    """Every step runs in a new object, made from saved bytes; the upload is exact and no secret outlives its use."""
    policy, at = SumPolicy(3), server(3, SumPolicy(3))
    saved: dict[int, bytes | None] = dict.fromkeys(range(3))

    def step(m, act):
        once = Once(tmp_path / f"{m}.db")
        client = MaskingClient(m, identity(m), roster(3), SESSION, policy, once, saved[m])
        reply = act(client)
        saved[m] = client.saved()
        return reply

    peers = at.keys({m: step(m, lambda c: c.keys()) for m in range(3)})
    dealt = at.shares({m: step(m, lambda c: c.shares(peers)) for m in range(3)})
    assert b'"seed": ""' not in saved[0]
    uploads = {m: step(m, lambda c: c.masked(dealt[c.member], row(c.member), BITS)) for m in range(3)}
    assert all(f'"{name}": ""'.encode() in saved[0] for name in ("seed", "mask_key", "share_key"))
    request = at.masked(uploads)
    total = at.unmask({m: step(m, lambda c: c.unmask(request)) for m in range(3)})
    assert (total["update"] == wrapped([row(m)["update"] for m in range(3)], 32)).all()
    assert refused(lambda: step(0, lambda c: c.masked(dealt[0], row(0), BITS)), "twice")  # the upload is not kept
    other = Session("hospitals", "job-7", 4, "train")
    assert refused(lambda: MaskingClient(0, identity(0), roster(3), other, policy, Once(), saved[0]), "another")
    assert refused(lambda: MaskingClient(0, identity(0), roster(3), SESSION, policy, Once(), b"{}"), "damaged")


def test_a_register_refuses_a_second_client_for_one_round(tmp_path):
    path = tmp_path / "once.db"
    make = lambda: MaskingClient(0, identity(0), roster(3), SESSION, SumPolicy(2), Once(path))  # noqa: E731
    make().keys()
    assert refused(make().keys, "twice")
    assert path.stat().st_mode & 0o077 == 0


def test_members_with_keys_that_would_spoil_the_cohort_are_left_out():
    """A member that copies another's keys, or sends a key of low order, would make everyone refuse."""
    policy, people = SumPolicy(2), clients(4, SumPolicy(2))
    at = server(4, policy)

    def signed(m, share, mask):
        signature = identity(m).sign(SIGNED_KEYS, SESSION, signed_keys(m, (share, mask)))
        return wire.header(wire.KEYS, SESSION) + RECORD.pack(m, share, mask, signature)

    replies = {m: people[m].keys() for m in (0, 1)}
    _, share, mask, _ = RECORD.unpack(replies[0][wire.HEAD :])
    peers = at.keys({**replies, 2: signed(2, share, mask), 3: signed(3, bytes(32), mask)})
    assert at.members == (0, 1) and set(at.ignored) == {2, 3}
    assert people[0].shares(peers)


def test_an_upload_in_another_form_is_ignored():
    policy = SumPolicy(3, 1)
    people, at = clients(4, policy), server(4, policy)
    dealt = at.shares(_shares(people, at))
    uploads = {m: c.masked(dealt[m], row(m), BITS) for m, c in people.items() if m}
    uploads[0] = people[0].masked(dealt[0], {"update": np.zeros(5, np.int64)}, BITS)
    at.masked(uploads)
    assert at.survivors == (1, 2, 3) and "masked" in at.ignored[0]


def test_what_cannot_be_masked_is_refused():
    people, at = clients(3, SumPolicy(3)), server(3, SumPolicy(3))
    dealt = at.shares(_shares(people, at))
    ask = lambda arrays, bits: refused(lambda: people[0].masked(dealt[0], arrays, bits))  # noqa: E731
    assert ask({"update": np.zeros(4)}, BITS)  # floats
    assert ask({"update": np.zeros(4, int)}, {"update": 63})
    assert ask({"update": np.zeros(4, int)}, {})
    assert ask({}, {})
    assert not ask(row(0), BITS)


def test_rosters_and_identities():
    assert refused(lambda: KeyRoster({}))
    assert refused(lambda: KeyRoster({0: "ab"}))
    assert refused(lambda: KeyRoster({-1: identity(0).public}))
    assert refused(lambda: KeyRoster({0: identity(0).public, 1: identity(0).public}), "same")
    with pytest.raises(MaskingError, match="another public key"):
        MaskingClient(0, Identity.new(), roster(2), SESSION, SumPolicy(2), Once())
