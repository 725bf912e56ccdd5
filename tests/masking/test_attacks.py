"""What a lying server can read: every attack fails on the clients as they are, and works on clients with one flaw.

The server of these tests keeps every byte that it gets, rebuilds every secret for which it has enough shares, takes off
every mask that it can compute, and then tries the sum of every set of uploads (`Spy`).
"""

from __future__ import annotations

import hashlib
import itertools
from contextlib import suppress

import numpy as np
import pytest

from sordino.masking import wire
from sordino.masking.client import REVEALED, MaskingClient
from sordino.masking.cohort import RECORD, Cohort
from sordino.masking.dealing import read_dealt
from sordino.masking.errors import MaskingError
from sordino.masking.identity import Identity, KeyRoster
from sordino.masking.once import Once
from sordino.masking.server import MaskingServer
from sordino.masking.session import Session
from sordino.masking.threshold import SumPolicy, least_honest_in_sum
from support.masked_sums import (
    BITS,
    LAYOUT,
    SESSION,
    Spy,
    again,
    clients,
    identity,
    refused,
    relayed,
    roster,
    row,
    server,
    survivors,
    until_uploads,
)


class Forgetful(MaskingClient):
    """A client that forgets that it revealed shares, and does so again."""

    def unmask(self, survivors: bytes) -> bytes:
        return again(self).unmask(survivors)


def spy_of(at: MaskingServer) -> Spy:
    members = at.members
    return Spy(dict.fromkeys(members, at._cohort), dict.fromkeys(members, members))


def asked(spy, people, uploads, lists):
    """Ask every member with a list of its own; whoever refuses is not heard."""
    for member, told in lists.items():
        with suppress(MaskingError):
            spy.hears(member, people[member].unmask(survivors(uploads, told)))


@pytest.fixture(scope="module")
def four():
    """Four members of whom three must remain, after their uploads."""
    policy = SumPolicy(4, 1)
    people, at = clients(4, policy), server(4, policy)
    return people, at, until_uploads(people, at)


def smallest_sum(people, at, uploads, colluders=()):
    """Return the size of the smallest sum that can be read, over all choices of lists, with silence as one of them."""
    members, honest = at.members, [m for m in at.members if m not in colluders]
    lists = [s for k in range(at.threshold, len(members) + 1) for s in itertools.combinations(members, k)]
    replies = {m: [None] for m in honest}
    for m, told in itertools.product(honest, lists):
        with suppress(MaskingError):
            replies[m].append(again(people[m]).unmask(survivors(uploads, told)))
    assert all(len(r) == 1 + sum(m in told for told in lists) for m, r in replies.items())
    sizes = set()
    for choice in itertools.product(*replies.values()):
        spy = spy_of(at)
        for m in colluders:
            spy.colludes(people[m])
        for m, reply in zip(honest, choice, strict=True):
            if reply is not None:
                spy.hears(m, reply)
        sizes |= {len(sums) for sums in spy.readable(uploads, honest)}
    return min(sizes)


def test_no_lists_of_survivors_give_less_than_the_least_sum(four):
    assert smallest_sum(*four) == least_honest_in_sum(4, 3) == 3


def test_with_a_colluder_the_least_sum_holds_too():
    policy = SumPolicy(5, 1, colluders=1)
    people, at = clients(5, policy), server(5, policy)
    uploads = until_uploads(people, at)
    assert smallest_sum(people, at, uploads, (4,)) == least_honest_in_sum(5, 4, 1) == 3


def test_below_the_threshold_nothing_can_be_read(four):
    people, at, uploads = four
    spy = spy_of(at)
    asked(spy, {m: again(people[m]) for m in (0, 1)}, uploads, {0: range(4), 1: range(4)})
    assert not spy.readable(uploads, range(4))
    asked(spy, {2: again(people[2])}, uploads, {2: range(4)})
    assert spy.readable(uploads, range(4)) == {frozenset(range(4))}  # one more, and the sum can be read


@pytest.mark.parametrize("kind", [MaskingClient, Forgetful])
def test_asking_twice_breaks_only_those_who_answer_twice(kind):
    policy = SumPolicy(4, 1)
    people, at = clients(4, policy, kind=kind), server(4, policy)
    uploads = until_uploads(people, at)
    spy = spy_of(at)
    asked(spy, people, uploads, dict.fromkeys(range(4), range(4)))
    for missing in range(4):
        asked(spy, people, uploads, {m: [k for k in range(4) if k != missing] for m in range(4)})
    found = spy.readable(uploads, range(4))
    if kind is Forgetful:
        assert len(found) == 15  # everything, single rows included
    else:
        assert found == {frozenset(range(4))}


@pytest.mark.parametrize("durable", [True, False])
def test_going_back_to_an_old_state_helps_only_without_a_register(durable, tmp_path):
    """The server has a member restarted from what it saved before it revealed shares."""
    policy, path = SumPolicy(3, 1), tmp_path / "once.db"
    once = (lambda: Once(path)) if durable else Once
    people, at = clients(3, policy, once=once), server(3, policy)
    uploads = until_uploads(people, at)
    old = {m: c.saved() for m, c in people.items()}
    spy = spy_of(at)
    for told in ((0, 1, 2), (0, 1), (0, 2), (1, 2)):
        back = {m: MaskingClient(m, identity(m), roster(3), SESSION, policy, once(), old[m]) for m in people}
        asked(spy, back, uploads, dict.fromkeys(range(3), told))
    singles = {frozenset({m}) for m in range(3)}
    assert bool(singles & spy.readable(uploads, range(3))) != durable


@pytest.mark.parametrize("bound", [True, False])
def test_showing_different_dealers_breaks_only_unsigned_agreements(bound, monkeypatch):
    """Member 0 masks with 1, 2 and 3 alone, whose keys are then revealed; 4, 5 and 6 fill the lists of survivors.

    With seven members of whom four must remain, the least sum has two. Where uploads are not signed for the members
    whose shares arrived, the server reads the row of member 0 by itself.
    """
    if not bound:
        monkeypatch.setattr(Cohort, "agreement", lambda self, dealers: self.digest)
    policy = SumPolicy(7, 3)
    people, at = clients(7, policy), server(7, policy)
    peers = at.keys({m: c.keys() for m, c in people.items()})
    sent = {m: c.shares(peers) for m, c in people.items()}
    dealt = {m: read_dealt(reply, at._cohort, m) for m, reply in sent.items()}
    shown = {m: range(4) if m == 0 else range(7) for m in people}
    uploads = {}
    for m, client in people.items():
        uploads[m] = client.masked(relayed({d: dealt[d].boxes[m] for d in shown[m]}), row(m), BITS)
    spy = Spy(dict.fromkeys(people, at._cohort), shown)
    told = {0: (0, 1, 2, 3), 1: (1, 4, 5, 6), 2: (2, 4, 5, 6), 3: (3, 4, 5, 6)} | dict.fromkeys((4, 5, 6), (0, 4, 5, 6))
    asked(spy, people, uploads, told)
    found = spy.readable(uploads, range(7))
    assert not found if bound else frozenset({0}) in found
    assert least_honest_in_sum(7, 4) == 2


@pytest.mark.parametrize("bound", [True, False])
def test_showing_different_cohorts_breaks_only_unbound_shares(bound, monkeypatch):
    """Each peer of member 0 gets a cohort of its own, whose other members reveal the key of that peer.

    Where shares and signatures are not bound to the cohort, the server reads the row of member 0.
    """
    if not bound:
        monkeypatch.setattr(Cohort, "agreement", lambda self, dealers: b"same")

        def digest(self):
            object.__setattr__(self, "digest", hashlib.sha256(b"same").digest())

        monkeypatch.setattr(Cohort, "__post_init__", digest)
    policy = SumPolicy(5, 2)
    people = clients(17, policy)
    helpers = {v: tuple(range(2 + 3 * v, 5 + 3 * v)) for v in range(1, 5)}  # 5, 6, 7 for peer 1, and so on
    views = {0: (0, 1, 2, 3, 4)} | {m: (0, v, *h) for v, h in helpers.items() for m in (v, *h)}
    keys = {m: RECORD.unpack(c.keys()[wire.HEAD :]) for m, c in people.items()}
    peers = {
        m: wire.header(wire.PEERS, SESSION) + wire.table(RECORD, [keys[k] for k in view]) for m, view in views.items()
    }
    cohorts = {m: Cohort.read(peers[m], SESSION, roster(17), policy) for m in people}
    dealt = {m: read_dealt(c.shares(peers[m]), cohorts[m], m) for m, c in people.items()}
    dealers = {m: [d for d in views[m] if m in views[d]] for m in people}
    uploads = {}
    for m, client in people.items():
        with suppress(MaskingError):
            uploads[m] = client.masked(relayed({d: dealt[d].boxes[m] for d in dealers[m]}), row(m), BITS)
    told = {0: (0, 1, 2)} | {v: (0, v, helpers[v][0]) for v in helpers} | {h: hs for hs in helpers.values() for h in hs}
    spy = Spy(cohorts, dealers)
    for m in uploads:
        with suppress(MaskingError, KeyError):
            spy.hears(m, people[m].unmask(survivors(uploads, told[m])))
    if bound:
        assert not spy.readable({m: u for m, u in uploads.items() if m < 5}, range(5)) and 0 not in uploads
    else:
        assert frozenset({0}) in spy.readable({0: uploads[0]}, [0])


@pytest.mark.parametrize("own", [True, False])
def test_playing_all_peers_works_only_with_a_roster_from_the_server(own):
    """The server invents every peer; a client that takes the server's roster gives its row away."""
    invented = {m: Identity.new() for m in range(1, 4)}
    false = KeyRoster({0: identity(0).public} | {m: i.public for m, i in invented.items()})
    policy = SumPolicy(4)
    target = MaskingClient(0, identity(0), roster(4) if own else false, SESSION, policy, Once())
    people = {0: target} | {m: MaskingClient(m, i, false, SESSION, policy, Once()) for m, i in invented.items()}
    at = MaskingServer(SESSION, false, policy, LAYOUT)
    peers = at.keys({m: c.keys() for m, c in people.items()})
    if own:
        assert refused(lambda: target.shares(peers), "not signed")
        return
    dealt = at.shares({m: c.shares(peers) for m, c in people.items()})
    rows = {m: row(0) if m == 0 else {"update": np.zeros(4, int)} for m in people}
    request = at.masked({m: c.masked(dealt[m], rows[m], BITS) for m, c in people.items()})
    assert (at.unmask({m: c.unmask(request) for m, c in people.items()})["update"] == row(0)["update"]).all()


def test_cohorts_that_a_client_refuses():
    """Too few, strangers, itself missing or with other keys, keys of another round, swapped and forged keys."""
    policy = SumPolicy(3, 1)
    people = clients(5, policy)
    old = clients(5, policy, session=Session("hospitals", "job-7", 2, "train"))
    twin = clients(5, policy)
    sent = {m: RECORD.unpack(c.keys()[wire.HEAD :]) for m, c in people.items()}
    before = {m: RECORD.unpack(c.keys()[wire.HEAD :]) for m, c in old.items()}
    other = {m: RECORD.unpack(c.keys()[wire.HEAD :]) for m, c in twin.items()}
    few = MaskingClient(0, identity(0), roster(5), SESSION, policy, Once())
    few.keys()

    def shown(rows, client=people[0]):
        return lambda: client.shares(wire.header(wire.PEERS, SESSION) + wire.table(RECORD, rows))

    rows = [sent[m] for m in range(5)]
    swapped = (1, sent[1][2], sent[1][1], sent[1][3])
    forged = (1, *sent[1][1:3], sent[2][3])
    claimed = (1, *sent[2][1:])
    stranger = (8, *sent[1][1:])
    assert refused(shown(rows[:2]), "least")
    assert refused(shown([]), "least")
    assert refused(shown(rows[1:]), "own keys")
    assert refused(shown([other[0], *rows[1:]]), "own keys")  # an earlier process of the same client
    assert refused(shown([rows[0], before[1], *rows[2:]]), "not signed")
    for bad in (swapped, forged, claimed):
        assert refused(shown([rows[0], bad, *rows[2:]]), "not signed")
    assert refused(shown([*rows, stranger]), "exceeds")
    assert refused(shown([rows[0], *rows[2:], stranger]), "not in the roster")
    assert refused(shown([rows[0], rows[0], *rows[1:]]), "twice")
    assert refused(shown(rows, few), "own keys")
    loose = MaskingClient(0, identity(0), roster(5), SESSION, SumPolicy(3, 2, colluders=1), Once())
    loose.keys()
    assert refused(shown(rows, loose), "single out")  # 2 x 3 <= 5 + 1
    assert shown(rows)()


def test_relayed_shares_that_a_client_refuses():
    policy = SumPolicy(4, 1)
    people, at = clients(4, policy), server(4, policy)
    peers = at.keys({m: c.keys() for m, c in people.items()})
    sent = {m: read_dealt(c.shares(peers), at._cohort, m) for m, c in people.items()}
    boxes = {d: sent[d].boxes[0] for d in people}
    mask = lambda chosen: lambda: people[0].masked(relayed(chosen), row(0), BITS)  # noqa: E731
    assert refused(mask({d: boxes[d] for d in (0, 1)}), "least")
    assert refused(mask({d: boxes[d] for d in (1, 2, 3)}), "own")
    assert refused(mask(boxes | {1: sent[1].boxes[2]}), "not made by it")  # for another receiver
    assert refused(mask(boxes | {1: boxes[2]}), "not made by it")  # by another dealer
    assert refused(mask(boxes | {7: boxes[2]}), "outside")
    assert refused(mask(boxes | {1: bytes(len(boxes[1]))}), "not made by it")
    assert mask(boxes)()


def test_survivors_that_a_client_refuses(four):
    people, _, uploads = four
    ask = lambda told, proofs=uploads: lambda: again(people[0]).unmask(survivors(proofs, told))  # noqa: E731
    assert refused(ask((0, 1)), "least")
    assert refused(ask(()), "lack")
    assert refused(ask((1, 2, 3)), "lack")
    assert refused(ask((0, 1, 2, 9), uploads | {9: uploads[1]}), "stranger")
    assert refused(ask((0, 1, 2), uploads | {1: uploads[2]}), "not signed")
    assert refused(ask((0, 1, 2), uploads | {1: bytes(200)}), "not signed")
    assert not refused(ask((0, 1, 2)))
    twin, relay = clients(4, SumPolicy(4, 1)), server(4, SumPolicy(4, 1))
    other = until_uploads(twin, relay)  # the same members in the same round, with other keys
    assert refused(ask((0, 1, 2), uploads | {1: other[1]}), "not signed")


def test_every_member_gets_one_kind_of_share(four):
    people, _, uploads = four
    reply = again(people[0]).unmask(survivors(uploads, (0, 1, 3)))
    reader = wire.ByteReader(reply, wire.REVEALED, SESSION, 1000)
    assert reader.number() == 0
    kinds = {member: kind[0] for member, (kind, _) in reader.table(REVEALED).items()}
    assert kinds == {0: 0, 1: 0, 2: 1, 3: 0}


def test_two_rows_under_one_mask_would_give_their_difference():
    """Why the step 'masked' is answered once: the masks of a round do not depend on the row."""
    policy = SumPolicy(3)
    people, at = clients(3, policy), server(3, policy)
    peers = at.keys({m: c.keys() for m, c in people.items()})
    dealt = at.shares({m: c.shares(peers) for m, c in people.items()})
    words = [np.frombuffer(again(people[0]).masked(dealt[0], row(k), BITS)[-16:], "<u4") for k in (0, 1)]
    assert (words[0] - words[1] == (row(0)["update"] - row(1)["update"]).astype(np.uint32)).all()
