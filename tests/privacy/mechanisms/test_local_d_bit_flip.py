"""dBitFlip: d noisy bits a user for a histogram of k buckets."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import expit

from sordino.core.errors import DataError, SpecError
from sordino.core.rng import Stream
from sordino.privacy import events, pairs, written
from sordino.privacy.mechanisms.d_bit_flip import DBitFlip
from support.reports import N, audit, bulk, fits, joint, number

ORDERS = np.array([1.01, 1.5, 2.0, 7.0, 64.0])
SHAPES = [(2, 1), (4, 1), (2, 2), (4, 2), (5, 3), (3, 3)]


def sets(m):
    """Every assignment, in the order of `combinations`."""
    return np.array(list(combinations(range(m.categories), m.bits)))


def which(m, ids):
    """The place of each client's assignment among all."""
    digits = m.categories ** np.arange(m.bits)[::-1]
    return np.searchsorted(sets(m) @ digits, m.assigned(ids) @ digits)


def laws(m, client):
    return [joint(m.probabilities(v, client)) for v in range(m.categories)]


# the level


@pytest.mark.parametrize("eps", [0.4, 3.0])
@pytest.mark.parametrize(("k", "d"), SHAPES)
def test_the_level_is_epsilon_for_the_worst_assignment_and_no_more_for_any(eps, k, d):
    m = DBitFlip(eps, k, d)
    clients = {tuple(s): i for i, s in enumerate(m.assigned(range(200)).tolist())}  # one client of every assignment
    assert len(clients) == math.comb(k, d)
    for s, client in clients.items():
        yes = np.array([np.equal(s, v) for v in range(k)])
        assert yes.sum(axis=1).max() == 1  # the proof: two values differ in at most two bits, in one if d = 1
        assert max((a ^ b).sum() for a in yes for b in yes) == min(2, d)
        assert audit(laws(m, client)) == pytest.approx(eps, rel=1e-12)
    assert m.event().pure() == eps


@pytest.mark.parametrize("eps", [0.4, 3.0])
@pytest.mark.parametrize(("k", "d"), SHAPES)
def test_the_pair_of_the_event_is_that_of_the_two_worst_values(eps, k, d):
    m = DBitFlip(eps, k, d)
    event = m.event()
    two = [(p, q) for c in range(60) for p in laws(m, c) for q in laws(m, c) if p is not q]
    for at in (-0.5 * eps, 0.0, 0.3 * eps, 0.95 * eps, eps):
        exact = max(np.maximum(p - math.exp(at) * q, 0).sum() for p, q in two)
        assert pairs.delta(event.pair(), at) == pytest.approx(exact, rel=1e-9, abs=1e-14)
    exact = [max(np.log((p**a * q ** (1 - a)).sum()) / (a - 1) for p, q in two) for a in ORDERS]
    assert_allclose(event.renyi(ORDERS), exact, rtol=1e-9)
    assert (event.renyi(ORDERS) <= event.rho() * ORDERS).all()
    assert written.from_json(written.to_json(event)) == event and event.grouped(3).pure() == pytest.approx(3 * eps)


def test_the_audit_catches_two_mistakes():
    eps, k, d = 1.0, 4, 2
    yes = np.eye(k, dtype=bool)[:, :d]  # a client that has buckets 0 and 1
    wrong = [joint(np.where(row, expit(eps), expit(-eps))) for row in yes]
    assert audit(wrong) == pytest.approx(2 * eps)  # eps a bit: two bits differ
    single = DBitFlip(2 * eps, k, 1)
    assert audit([joint(np.where(row[:1], expit(eps), expit(-eps))) for row in yes]) == pytest.approx(eps)
    assert audit(laws(single, 0)) == pytest.approx(2 * eps)  # what a single bit has room for
    choices = sets(DBitFlip(eps, k, d))
    mine = []  # buckets that are drawn around the value: the assignment tells it
    for v in range(k):
        share = (choices == v).any(axis=1) / math.comb(k - 1, d - 1)
        bits = [joint(np.where(s == v, expit(eps / 2), expit(-eps / 2))) for s in choices]
        mine.append((share[:, None] * bits).ravel())
    assert audit(mine) == math.inf


# the sampler


def whole(m, value):
    """The law of assignment and bits together: assignments are equally likely and do not know the value."""
    each = [joint(np.where(s == value, expit(m.step), expit(-m.step))) for s in sets(m)]
    return np.concatenate(each) / len(each)


@pytest.mark.parametrize(("k", "d"), [(5, 3), (4, 1)])
@pytest.mark.parametrize("memoised", [False, True])
def test_reports_follow_their_exact_law_and_no_other(k, d, memoised):
    m, rng = DBitFlip(1.5, k, d, memoised), bulk()
    reports = m.randomize(np.full(N, 1), rng, bulk(seed=9) if memoised else None)
    seen = which(m, rng.ids) * 2**d + number(reports)
    assert fits(seen, whole(m, 1))
    assert not fits(seen, whole(DBitFlip(1.5 * 1.05, k, d), 1), 1e-6)  # five per cent of epsilon are seen
    assert not fits(seen, whole(m, 2), 1e-6)  # and so is another value
    for i in (0, 3, 8):
        bits = np.where(m.assigned([i])[0] == 1, expit(m.step), expit(-m.step))
        assert_allclose(m.probabilities(1, i), bits)


def test_assignments_are_public_equally_likely_and_without_repetition():
    m = DBitFlip(1.0, 6, 3)
    ids = np.arange(N)
    found = m.assigned(ids)
    assert (np.diff(found, axis=1) > 0).all() and found.min() == 0 and found.max() == 5
    at = which(m, ids)
    assert np.array_equal(sets(m)[at], found)
    assert fits(at, np.full(20, 1 / 20))
    assert fits(at[1:] * 20 + at[:-1], np.full(400, 1 / 400))  # neighbours by id as if independent
    tilted = np.full(20, 1 / 20) * np.where(np.arange(20) < 10, 1.05, 0.95)
    assert not fits(at, tilted, 1e-6)
    assert np.array_equal(m.assigned(ids[500:510]), found[500:510])  # by the id alone
    assert (DBitFlip(1.0, 6, 3, seed=1).assigned(ids) != found).any(axis=1).mean() > 0.9
    assert np.array_equal(DBitFlip(1.0, 4, 4).assigned([7]), [[0, 1, 2, 3]])
    assert DBitFlip(1.0, 2**32, 5).assigned([1, 2]).max() > 2**24


# memoised reports


def test_memoised_bits_stay_while_the_state_stays():
    m, n = DBitFlip(1.0, 6, 2, memoised=True), 3000
    memory, days = Stream.research(3).rows(range(n)), [Stream.research(s).rows(range(n)) for s in (1, 2)]
    first = m.randomize(np.full(n, 4), days[0], memory)
    assert np.array_equal(first, m.randomize(np.full(n, 4), days[1], memory))
    other = m.randomize(np.full(n, 5), days[1], memory)
    neither = ~np.isin(m.assigned(memory.ids), (4, 5)).any(axis=1)  # these cannot tell the two values apart
    assert np.array_equal(first[neither], other[neither]) and 0.3 < neither.mean() < 0.5
    assert (first[~neither] != other[~neither]).any(axis=1).mean() > 0.5  # a change of state shows
    mixed = m.randomize(np.where(np.arange(n) % 2, 4, 5), days[1], memory)
    assert np.array_equal(mixed, np.where((np.arange(n) % 2)[:, None], first, other))  # row by row
    free = DBitFlip(1.0, 6, 2)
    assert not np.array_equal(free.randomize(np.full(n, 4), days[0]), free.randomize(np.full(n, 4), days[1]))
    assert m.event(365) == m.event() and free.event(365) == events.Repeated(free.event(), 365)


def test_memoised_bits_of_different_states_are_independent():
    """So that values that pass through c states at the same times are c eps apart, and not more."""
    m, n = DBitFlip(1.2, 3, 2, memoised=True), 300_000
    memory, rng = bulk(n, 3), bulk(n)
    pick = (m.assigned(rng.ids) == [0, 1]).all(axis=1)  # states: first bucket, second bucket, none
    reports = [number(m.randomize(np.full(n, v), rng, memory)[pick]) for v in range(3)]
    client = int(np.flatnonzero(pick)[0])
    law, wrong, true = laws(m, client), laws(DBitFlip(1.2 * 1.05, 3, 2), client), [2, 1, 0]
    for a, b in combinations(range(3), 2):
        together = reports[a] * 4 + reports[b]
        assert fits(together, np.outer(law[a], law[b]).ravel())
        assert not fits(together, np.outer(wrong[a], wrong[b]).ravel(), 1e-6)
        common = reports[a] * 4 + (reports[a] ^ true[a] ^ true[b])  # the same flips in both states
        assert not fits(common, np.outer(law[a], law[b]).ravel(), 1e-6)
    history = [np.outer(law[a], law[b]).ravel() for a, b in ((0, 1), (1, 0), (1, 2))]  # one change, the same day
    assert audit(history) == pytest.approx(2 * 1.2, rel=1e-12)
    stays = np.diag(law[0]).ravel()  # two equal reports
    assert audit([stays, history[0]]) == math.inf  # whether the value moved is not hidden


# estimates


@pytest.mark.parametrize(("k", "d"), SHAPES)
def test_shares_are_unbiased_with_the_promised_variance_over_the_exact_law(k, d, monkeypatch):
    m = DBitFlip(0.9, k, d)
    choices, outcomes = sets(m), np.array(list(product([0, 1], repeat=d)))
    monkeypatch.setattr(DBitFlip, "assigned", lambda self, ids: choices[np.asarray(ids)])
    for value, share in ((1, 0.0), (0, 1.0)):  # asked: bucket 0
        law = np.concatenate([joint(m.probabilities(value, i)) for i in range(len(choices))]) / len(choices)
        each = np.array([m.estimate(bits[None], [i])[0] for i in range(len(choices)) for bits in outcomes])
        assert law @ each == pytest.approx(share, abs=1e-12)
        assert law @ each**2 - share**2 == pytest.approx(m.variance(share), rel=1e-9)
    assert m.variance(0.3, 7) == pytest.approx((0.3 * m.variance(1.0) + 0.7 * m.variance(0.0)) / 7)
    s = math.exp(0.9 / min(2, d))  # Section 2.2: k/(nd) sum of (b (s + 1) - 1)/(s - 1)
    assert m.estimate(np.ones((1, d), int), [0])[choices[0][0]] == pytest.approx(k / d * s / (s - 1))


def test_a_histogram_comes_out_of_many_reports():
    m, n, true = DBitFlip(1.0, 8, 3), 200_000, np.array([400, 250, 150, 100, 60, 30, 10, 0]) / 1000
    values, rng = np.tile(np.repeat(np.arange(8), (true * 1000).astype(int)), n // 1000), bulk(n)
    reports = m.randomize(values, rng)
    found = m.estimate(reports, rng.ids)
    error = (found - true) / np.array([m.variance(f, n) ** 0.5 for f in true])
    assert np.abs(error).max() < 4 and 0.1 < (error**2).mean() < 2.7
    other = DBitFlip(1.0, 8, 3, seed=1).estimate(reports, rng.ids)  # buckets that were not asked
    assert abs(other[0] - true[0]) > 10 * m.variance(0.4, n) ** 0.5


def test_the_variance_is_seen_in_repeated_surveys():
    m, n, times = DBitFlip(2.0, 6, 2), 400, 1500
    values = np.tile(np.repeat([0, 1], n // 2), times)
    reports, ids = m.randomize(values, bulk(n * times)), np.arange(n * times)
    found = np.array(
        [m.estimate(r, i) for r, i in zip(reports.reshape(times, n, 2), ids.reshape(times, n), strict=True)]
    )
    for bucket, share in ((0, 0.5), (1, 0.5), (5, 0.0)):
        promised = m.variance(share, n)
        assert abs(found[:, bucket].mean() - share) < 4 * (promised / times) ** 0.5
        assert found[:, bucket].var() == pytest.approx(promised, rel=4 * (2 / times) ** 0.5)
        assert found[:, bucket].var() != pytest.approx(m.variance(1.0, n), rel=4 * (2 / times) ** 0.5)


# rows and bad input


def test_a_row_depends_on_its_client_alone():
    values, rng = np.arange(40) % 6, Stream.research(1)
    for m, memory in ((DBitFlip(1.0, 6, 3), None), (DBitFlip(1.0, 6, 3, True), Stream.research(2))):
        some = [() if memory is None else (memory.rows(ids),) for ids in (range(40), range(1, 41))]
        whole = m.randomize(values, rng.rows(range(40)), *some[0])
        for i in (0, 7, 39):
            own = () if memory is None else (memory.rows([i]),)
            assert np.array_equal(whole[i], m.randomize([values[i]], rng.rows([i]), *own)[0])
        assert not np.array_equal(whole, m.randomize(values, rng.rows(range(1, 41)), *some[1]))
    assert DBitFlip(1.0, 6, 3).randomize(np.empty(0, int), rng.rows([])).shape == (0, 3)


@pytest.mark.parametrize("eps", [1e-6, 700.0])
@pytest.mark.parametrize("d", [1, 2])
def test_extreme_levels_stay_finite(eps, d):
    m = DBitFlip(eps, 3, d)
    assert np.isfinite(m.variance(0.5)) and np.isfinite(m.event().renyi(ORDERS)).all()
    reports = m.randomize([0, 1], Stream.research(0).rows([0, 1]))
    assert np.isfinite(m.estimate(reports, [0, 1])).all() and 0 <= pairs.delta(m.event().pair(), 0.0) <= 1


@pytest.mark.parametrize("eps", [0, -1, math.nan, math.inf, True, "1", 1e-9, 1e4, 10**400])
def test_a_level_that_is_none(eps):
    with pytest.raises(SpecError, match="epsilon") as error:
        DBitFlip(eps, 4, 2)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DBitFlip(1.0, 1, 1),
        lambda: DBitFlip(1.0, 2**33, 1),
        lambda: DBitFlip(1.0, 4, 0),
        lambda: DBitFlip(1.0, 4, 5),
        lambda: DBitFlip(1.0, 4, True),
        lambda: DBitFlip(1.0, 4, 2.0),
        lambda: DBitFlip(1.0, 4, 2, memoised=1),
        lambda: DBitFlip(1.0, 4, 2, seed=-1),
        lambda: DBitFlip(1.0, 4, 2, seed=True),
        lambda: DBitFlip(1.0, 4, 2).event(0),
        lambda: DBitFlip(1.0, 4, 2).variance(1.5),
        lambda: DBitFlip(1.0, 4, 2).variance(math.nan),
        lambda: DBitFlip(1.0, 4, 2).variance(n=0),
        lambda: DBitFlip(1.0, 4, 2, True).randomize([1], Stream.research(1).rows([0])),
        lambda: DBitFlip(1.0, 4, 2).randomize([1], Stream.research(1).rows([0]), Stream.research(1).rows([0])),
        lambda: DBitFlip(1.0, 4, 2, True).randomize([1], Stream.research(1).rows([0]), Stream.research(1).rows([1])),
    ],
)
def test_parameters_that_make_no_sense(make):
    with pytest.raises(SpecError) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("values", [[4], [-1], [1.0], [math.nan], ["a"], [None], [[1]], [1, 2], 1, [True], [2**70]])
def test_values_that_are_no_buckets(values):
    with pytest.raises(DataError) as error:
        DBitFlip(1.0, 4, 2).randomize(values, Stream.research(0).rows([0]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("reports", "ids"),
    [
        ([], []),
        ([[0, 1]], []),
        ([[0, 1]], [1, 2]),
        ([[0, 1], [1, 1]], [3, 3]),  # one client twice
        ([[0, 1]], [1.0]),
        ([[0, 1]], [[1]]),
        ([[0, 1]], [True]),
        ([[0, 1]], [[1], [1, 2]]),
        ([[0, 2]], [1]),
        ([[0, 1, 1]], [1]),
        ([[math.nan, 1]], [1]),
    ],
)
def test_reports_that_are_none(reports, ids):
    with pytest.raises(DataError) as error:
        DBitFlip(1.0, 4, 2).estimate(reports, ids)
    assert "\n" not in str(error.value)
