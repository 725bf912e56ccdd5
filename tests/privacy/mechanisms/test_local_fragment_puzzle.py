"""The sequence fragment puzzle: words that nobody listed, from two sketches a user."""

import math
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sordino.core.errors import DataError, SpecError
from sordino.core.rng import Stream
from sordino.privacy import pairs, written
from sordino.privacy.mechanisms.count_mean_sketch import CountMeanSketch, SketchReports
from sordino.privacy.mechanisms.fragment_puzzle import FragmentPuzzle, PuzzleReports
from support.reports import N, audit, bulk, fits, joint, number

ORDERS = np.array([1.01, 1.5, 2.0, 7.0, 64.0])


WORDS = ["a", "abba", "baa"]


def small(eps, other):
    """Two positions, two hash functions of three columns each; see the test of its seed."""
    return FragmentPuzzle(eps, other, alphabet="ab", length=4, hashes=2, columns=3, seed=SEED)


def part(m, word, position):
    """The law of both sketches at one position, over (row, bits) of the fragment and (row, bits) of the word."""
    laws = []
    for which in (0, 1):
        rows = [m.probabilities(word, position, (r, r))[which] for r in range(m.hashes)]
        laws.append(np.concatenate([joint(row) for row in rows]) / m.hashes)
    return np.outer(*laws).ravel()


def whole(m, word):
    return np.concatenate([part(m, word, i) for i in range(m.positions)]) / m.positions


def outcome(m, reports):
    bits = 2**m.columns
    fragment = reports.fragment.row * bits + number(reports.fragment.bits)
    word = reports.word.row * bits + number(reports.word.bits)
    return (reports.position * m.hashes * bits + fragment) * m.hashes * bits + word


def apart(m, words):
    """Whether no two of the words collide in any sketch, hash function and position."""
    tables = [[m.probabilities(w, i, (r, r)) for i in range(m.positions) for r in range(m.hashes)] for w in words]
    flat = [[p.argmax() for both in table for p in both] for table in tables]
    return all((np.array(a) != np.array(b)).all() for a in flat for b in flat if a is not b)


def first_seed():
    make = (FragmentPuzzle(1.0, 1.0, "ab", 4, hashes=2, columns=3, seed=s) for s in range(10_000))
    return next(m.seed for m in make if apart(m, ["a", "abba"]))


SEED = first_seed()


# the level


@pytest.mark.parametrize(("eps", "other"), [(0.4, 1.1), (3.0, 0.7)])
def test_the_level_is_the_sum_of_both_exactly(eps, other):
    m = small(eps, other)
    laws = [whole(m, w) for w in WORDS]
    assert audit(laws) == pytest.approx(eps + other, rel=1e-12)
    event = m.event()
    assert event.pure() == eps + other
    two = [(p, q) for p in laws for q in laws if p is not q]
    for at in (-0.5, 0.0, 0.3 * eps, abs(eps - other), 0.95 * (eps + other), eps + other):
        exact = max(np.maximum(p - math.exp(at) * q, 0).sum() for p, q in two)
        assert pairs.delta(event.pair(), at) == pytest.approx(exact, rel=1e-9, abs=1e-14)
    exact = [max(np.log((p**a * q ** (1 - a)).sum()) / (a - 1) for p, q in two) for a in ORDERS]
    assert_allclose(event.renyi(ORDERS), exact, rtol=1e-9)
    assert (event.renyi(ORDERS) <= event.rho() * ORDERS).all()
    assert written.from_json(written.to_json(event)) == event
    assert event.grouped(3).pure() == pytest.approx(3 * (eps + other))


def test_the_audit_catches_three_mistakes():
    m = small(1.0, 1.0)
    used = [np.concatenate([part(m, "a", 0), 0 * part(m, "a", 1)]), whole(m, "abba")]
    assert audit(used) == math.inf  # only fragments with letters: the position tells how long the word is
    hashes = [int(m.short(m.encode([w]))[0]) for w in WORDS]
    clear = [np.outer(np.arange(256) == h, whole(m, w)).ravel() for h, w in zip(hashes, WORDS, strict=True)]
    assert len(set(hashes)) == 3 and audit(clear) == math.inf  # the hash beside the fragment, not in it
    both = [np.outer(part(m, w, 0), part(m, w, 1)).ravel() for w in ("a", "abba")]
    assert audit(both) == pytest.approx(4.0)  # all fragments at once, each at eps'
    assert m.event().pure() == 2.0


# the sampler


@pytest.mark.parametrize("word", ["a", "abba"])
def test_reports_follow_their_exact_law_and_no_other(word):
    m = small(1.5, 2.0)
    seen = outcome(m, m.randomize([word] * N, bulk()))
    assert fits(seen, whole(m, word))
    assert not fits(seen, whole(small(1.5 * 1.05, 2.0), word), 1e-6)  # five per cent of either level are seen
    assert not fits(seen, whole(small(1.5, 2.0 * 1.05), word), 1e-6)
    assert not fits(seen, whole(m, "baa"), 1e-6)
    tilted = np.concatenate([1.05 * part(m, word, 0), 0.95 * part(m, word, 1)]) / 2
    assert not fits(seen, tilted, 1e-6)  # and so are positions that are not equally likely


def test_the_two_sketches_of_a_report_draw_on_their_own():
    m = FragmentPuzzle(1.5, 1.5, "ab", 2, hashes=1, columns=2, seed=1)
    reports = m.randomize(["ab"] * N, bulk())
    assert fits(outcome(m, reports), whole(m, "ab"))
    flips = number(reports.word.bits) ^ (2 if m.probabilities("ab", 0)[1].argmax() == 0 else 1)
    same = flips ^ (2 if m.probabilities("ab", 0)[0].argmax() == 0 else 1)  # the word's flips in both
    assert not fits(same * 4 + number(reports.word.bits), whole(m, "ab"), 1e-6)


# words and numbers


def test_words_are_numbers_and_fragments_their_digits():
    m = FragmentPuzzle(1.0, 1.0, alphabet="abc", length=6)
    words = ["".join(w) for n in (1, 2, 3, 6) for w in product("abc", repeat=n)]
    codes = m.encode(words)
    assert len(set(codes.tolist())) == len(words) and codes.max() == 4**6 - 1
    assert [m.decode(c) for c in codes.tolist()] == words
    assert m.decode(0) == m.decode(4) == ""  # nothing but padding; the fifth letter alone
    assert m.decode(int(m.encode(["ab"])[0]) + 4) == ""  # ab...c. : a letter after padding
    code = m.encode(["cabba"])
    digits = [3, 1, 2, 2, 1, 0]
    for i in range(3):
        short, fragment = np.divmod(m.piece(code, np.array([i])), 16)
        assert fragment == digits[2 * i] * 4 + digits[2 * i + 1] and short == m.short(code)
    long = FragmentPuzzle(1.0, 1.0, length=12)
    assert long.decode(int(long.encode(["zzzzzzzzzzzz"])[0])) == "z" * 12
    assert len(np.unique(long.short(np.arange(5000)))) == 256


# estimates


def test_fragment_shares_are_those_of_the_sketch():
    m = FragmentPuzzle(2.0, 3.0, alphabet="ab", length=4, hashes=5, columns=7)
    reports = m.randomize(["abba", "b", "ab"] * 100, bulk(300))
    items = np.arange(0, 256 * 9, 37)
    for position in (0, 1):
        here = reports.position == position
        mine = SketchReports(reports.fragment.row[here], reports.fragment.bits[here])
        found = m.fragment_shares(reports, position)
        assert found.shape == (256, 9)
        assert_allclose(found.ravel()[items], m.fragments.estimate(mine, items), rtol=1e-9, atol=1e-12)


def test_shares_are_unbiased_with_the_promised_variance_over_noise_and_hash_functions():
    n, times, words = 24, 800, ["abba"] * 12 + ["b"] * 8 + ["ab"] * 4
    asked, truth, others = ["abba", "ab", "bb"], [1 / 2, 1 / 6, 0.0], [5 / 36, 13 / 36, 14 / 36]
    found, pieces = np.empty((times, 3)), np.empty((times, 2))
    for t in range(times):
        m = FragmentPuzzle(3.0, 5.0, alphabet="ab", length=4, hashes=4, columns=6, seed=t)
        reports = m.randomize(words, bulk(n, t))
        found[t] = m.estimate(reports, asked)
        code = m.encode(["ab"])  # its first fragment: also that of abba, under another hash
        here = reports.position == 0
        mine = SketchReports(reports.fragment.row[here], reports.fragment.bits[here])
        pieces[t] = m.fragments.estimate(mine, m.piece(np.repeat(code, 2), np.array([0, 1])))
    for i, (f, rest) in enumerate(zip(truth, others, strict=True)):
        promised = m.variance(f, n, rest)
        assert abs(found[:, i].mean() - f) < 4 * (promised / times) ** 0.5
        assert found[:, i].var() == pytest.approx(promised, rel=4 * (2 / times) ** 0.5)
        for wrong in (FragmentPuzzle(2.0, 5.0, hashes=4, columns=6), FragmentPuzzle(3.0, 5.0, hashes=4, columns=12)):
            assert found[:, i].var() != pytest.approx(wrong.variance(f, n, rest), rel=0.2)
    mean, error = pieces.mean(axis=0), 4 * pieces.std(axis=0) / times**0.5
    assert abs(mean[0] - 1 / 6) < error[0] < 0.05  # the position's own fragment
    assert abs(mean[1]) < error[1] < 0.05  # padding, which is a piece of position 1 only
    assert m.variance(0.5, 9, 0.1) == CountMeanSketch(3.0, 4, 6).variance(0.5, 9, 0.1)


# discovery


LETTERS = "abcdefgh"


def population(frequent, n, seed=3):
    """Frequent words with their shares, and for the rest random words, hardly any twice."""
    words = [w for w, f in frequent.items() for _ in range(round(f * n))]
    letters = np.array(list(LETTERS))
    rest = (Stream.research(seed).words(6 * (n - len(words))) % np.uint64(8)).astype(int).reshape(-1, 6)
    return words + ["".join(row) for row in letters[rest]]


FREQUENT = {"cab": 0.2, "cabbed": 0.15, "headed": 0.12, "b": 0.1, "deface": 0.08}  # shared fragments, short words


def puzzle(seed=0):
    return FragmentPuzzle(4.0, 6.0, alphabet=LETTERS, length=6, hashes=32, columns=128, seed=seed)


def test_it_finds_the_frequent_words_and_no_others():
    n, m = 30_000, puzzle()
    reports = m.randomize(population(FREQUENT, n), bulk(n))
    found = m.discover(reports, share=0.04)
    assert list(found) == list(FREQUENT)  # all of them, nothing else, the most frequent first
    for word, share in found.items():
        rest = sum(f * f for w, f in FREQUENT.items() if w != word)
        assert abs(share - FREQUENT[word]) < 4 * m.variance(FREQUENT[word], n, rest) ** 0.5
        assert share == m.estimate(reports, [word])[0]
    assert list(m.discover(reports, share=0.11)) == ["cab", "cabbed", "headed"]
    assert list(m.discover(reports, share=0.04, heaviest=1)) in ([], ["cab"])  # too few fragments
    assert puzzle(seed=1).discover(reports, share=0.04) == {}  # other hash functions: nothing but noise


def test_without_frequent_words_it_finds_none():
    n, m = 20_000, puzzle()
    assert m.discover(m.randomize(population({}, n), bulk(n, 6)), share=0.04) == {}
    few = m.randomize(population(FREQUENT, 60), bulk(60, 6))
    assert set(m.discover(few, share=0.04)) != set(FREQUENT)  # sixty users are not enough


def test_words_of_one_hash_are_not_mixed_up():
    m, n = puzzle(), 20_000
    every = ["".join(w) for w in product(LETTERS, repeat=4)]
    short = m.short(m.encode(every))
    one = "abcd"
    pick = [w for w, h in zip(every, short, strict=True) if h == short[every.index(one)] and w[:2] != "ab"]
    two = next(w for w in pick if w[2:] != "cd")
    reports = m.randomize(population({one: 0.25, two: 0.2}, n), bulk(n, 8))
    for position in (0, 1):  # both words stand under one hash: four words can be joined of their fragments
        shares = m.fragment_shares(reports, position)[short[every.index(one)]]
        assert (shares > 0.1).sum() == 2
    assert list(m.discover(reports, share=0.05)) == [one, two]
    mixed = [one[:2] + two[2:], two[:2] + one[2:]]
    assert np.abs(m.estimate(reports, mixed)).max() < 0.05  # the words' sketch knows better
    assert not np.isin(m.short(m.encode(mixed)), short[every.index(one)]).any()
    forged = m.randomize(population({mixed[0]: 0.4, two: 0.2}, n), bulk(n, 9))
    both = PuzzleReports(reports.position, reports.fragment, forged.word)
    assert m.estimate(both, mixed)[0] > 0.3  # and where it would not:
    assert list(m.discover(both, share=0.05)) == [two]  # a word must have the hash of its fragments
    assert m.fragments.seed != m.words.seed


# rows and bad input


def test_a_row_depends_on_its_client_alone():
    m, rng = FragmentPuzzle(1.0, 1.0, columns=16), Stream.research(1)
    words = ["sordino", "a", "legato", "zzzzzzzzzz"] * 10
    many = m.randomize(words, rng.rows(range(40)))
    for i in (0, 7, 39):
        own = m.randomize([words[i]], rng.rows([i]))
        assert many.position[i] == own.position[0]
        for a, b in ((many.fragment, own.fragment), (many.word, own.word)):
            assert a.row[i] == b.row[0] and np.array_equal(a.bits[i], b.bits[0])
    assert set(many.position.tolist()) == set(range(5))
    other = m.randomize(np.array(words), rng.rows(range(1, 41)))
    assert not np.array_equal(many.word.bits, other.word.bits)


@pytest.mark.parametrize("eps", [1e-6, 700.0])
def test_extreme_levels_stay_finite(eps):
    m = FragmentPuzzle(eps, eps, "ab", 4, hashes=2, columns=4)
    reports = m.randomize(["a", "b"] * 20, Stream.research(0).rows(range(40)))
    assert np.isfinite(m.fragment_shares(reports, 1)).all() and np.isfinite(m.estimate(reports, ["a"])).all()
    assert np.isfinite(m.event().renyi(ORDERS)).all() and 0 <= pairs.delta(m.event().pair(), 0.0) <= 1 + 1e-12
    assert np.isfinite(m.variance(0.5))


@pytest.mark.parametrize("eps", [0, -1, math.nan, math.inf, True, "1", 1e-9, 1e4, 10**400])
def test_a_level_that_is_none(eps):
    for make in (lambda: FragmentPuzzle(eps, 1.0), lambda: FragmentPuzzle(1.0, eps)):
        with pytest.raises(SpecError, match="epsilon") as error:
            make()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "bad",
    [
        {"alphabet": ""},
        {"alphabet": "aab"},
        {"alphabet": 3},
        {"alphabet": "".join(map(chr, range(256)))},
        {"length": 0},
        {"length": 5},
        {"length": 14},  # 27^14 > 2^63
        {"length": 10**400},
        {"length": True},
        {"length": 4.0},
        {"hashes": 0},
        {"columns": 1},
        {"seed": -1},
        {"seed": 1.0},
        {"seed": True},
    ],
)
def test_parameters_that_make_no_sense(bad):
    with pytest.raises(SpecError) as error:
        FragmentPuzzle(1.0, 1.0, **bad)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "words",
    [
        [""],
        ["abcde"],
        ["A"],
        ["a b"],
        [1],
        [None],
        [b"ab"],
        [["a"]],
        ["a", "b"],
        [],
        "a",
        3,
        None,
        np.array([["a"]]),
        np.array("a"),
    ],
)
def test_values_that_are_no_words(words):
    with pytest.raises(DataError) as error:
        FragmentPuzzle(1.0, 1.0, length=4).randomize(words, Stream.research(0).rows([0]))
    assert "\n" not in str(error.value)


def test_reports_and_questions_that_are_none():
    m = FragmentPuzzle(1.0, 1.0, "ab", 4, hashes=2, columns=4)
    good = m.randomize(["a", "b"] * 20, Stream.research(0).rows(range(40)))
    half = PuzzleReports(good.position[:20], good.fragment, good.word)
    first = PuzzleReports(np.zeros(40, int), good.fragment, good.word)
    for bad in (
        lambda: m.discover(half, 0.1),
        lambda: m.discover(first, 0.1),  # nobody at the second position
        lambda: m.discover(PuzzleReports(good.position + 1, good.fragment, good.word), 0.1),
        lambda: m.fragment_shares(good, 2),
        lambda: m.probabilities("a", 2),
        lambda: m.estimate(good, ["c"]),
        lambda: m.estimate(good, "a"),
    ):
        with pytest.raises(DataError) as error:
            bad()
        assert "\n" not in str(error.value)
    for share, heaviest in ((0.0, 20), (math.nan, 20), (1.5, 20), (True, 20), (0.1, 0), (0.1, 2.0)):
        with pytest.raises(SpecError):
            m.discover(good, share, heaviest)
    long = FragmentPuzzle(1.0, 1.0, "abcdefgh", 6, hashes=2, columns=4)
    reports = long.randomize(["a", "b"] * 20, Stream.research(0).rows(range(40)))
    with pytest.raises(DataError, match="smaller heaviest"):
        long.discover(reports, 0.1, heaviest=10**9)  # all of them: 256 * 81^3 words
