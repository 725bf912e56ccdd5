"""Local randomizers of categories and items: randomized response, GRR, unary encoding, RAPPOR and the two sketches."""

import math
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sordino.core.errors import DataError, SordinoError, SpecError
from sordino.core.rng import Stream
from sordino.privacy import pairs, written
from sordino.privacy.mechanisms import count_mean_sketch, hadamard_sketch
from sordino.privacy.mechanisms.count_mean_sketch import CountMeanSketch, SketchReports, hashed
from sordino.privacy.mechanisms.generalized_rr import GeneralizedRR
from sordino.privacy.mechanisms.hadamard_sketch import HadamardReports, HadamardSketch, signs, transform
from sordino.privacy.mechanisms.randomized_response import RandomizedResponse, coins
from sordino.privacy.mechanisms.rappor import Rappor
from sordino.privacy.mechanisms.unary_encoding import UnaryEncoding
from support.reports import N, audit, bulk, fits, joint, number

ITEMS = [3, 4, 11, 12]


def finite(name, eps):
    """A mechanism, its inputs and its whole law at each of them; no two inputs collide under any hash function."""
    if name == "rr":
        m = RandomizedResponse(eps)
        return m, [0, 1], [m.probabilities(v) for v in (0, 1)]
    if name == "grr":
        m = GeneralizedRR(eps, 5)
        return m, range(5), [m.probabilities(v) for v in range(5)]
    if name in ("oue", "sue"):
        m = UnaryEncoding(eps, 3, optimized=name == "oue")
        return m, range(3), [joint(m.probabilities(v)) for v in range(3)]
    if name == "cms":
        m = CountMeanSketch(eps, hashes=2, columns=4, seed=2)
        return m, ITEMS, [np.concatenate([joint(m.probabilities(v, r)) for r in (0, 1)]) / 2 for v in ITEMS]
    m = HadamardSketch(eps, hashes=2, columns=4, seed=2)
    return m, ITEMS, [np.concatenate([m.probabilities(v, r).ravel() for r in (0, 1)]) / 2 for v in ITEMS]


def outcome(reports):
    """Which column of the law a report is."""
    match reports:
        case SketchReports(row, bits):
            return row * 2 ** bits.shape[1] + number(bits.astype(np.int64))
        case HadamardReports(row, coefficient, sign):
            return row * 8 + coefficient * 2 + (sign > 0)
        case _:
            return reports if reports.ndim == 1 else number(reports.astype(np.int64))


NAMES = ["rr", "grr", "oue", "sue", "cms", "hcms"]


@pytest.mark.parametrize("name", NAMES)
def test_reports_follow_their_exact_law_and_no_other(name):
    m, inputs, laws = finite(name, 1.5)
    _, _, wrong = finite(name, 1.5 * 1.05)
    for seed, at in ((5, 0), (6, len(inputs) - 1)):
        seen = outcome(m.randomize(np.full(N, inputs[at]), bulk(seed=seed)))
        assert fits(seen, laws[at])
        assert not fits(seen, wrong[at], 1e-6)  # five per cent of epsilon are seen
        assert not fits(seen, laws[1 - at if at < 2 else 0], 1e-6)  # and so is another input


@pytest.mark.parametrize("eps", [0.4, 3.0])
@pytest.mark.parametrize("name", NAMES)
def test_the_level_is_epsilon_exactly(name, eps):
    m, _, laws = finite(name, eps)
    assert audit(laws) == pytest.approx(eps, rel=1e-12)
    assert m.event().pure() == eps


@pytest.mark.parametrize("eps", [0.4, 3.0])
@pytest.mark.parametrize("name", NAMES)
def test_the_pair_of_the_event_is_that_of_the_two_worst_inputs(name, eps):
    m, _, laws = finite(name, eps)
    event, orders = m.event(), np.array([1.01, 1.5, 2.0, 7.0, 64.0])
    two = [(p, q) for p in laws for q in laws if p is not q]
    for at in (-0.5 * eps, 0.0, 0.3 * eps, 0.95 * eps, eps):
        exact = max(np.maximum(p - math.exp(at) * q, 0).sum() for p, q in two)
        assert pairs.delta(event.pair(), at) == pytest.approx(exact, rel=1e-9, abs=1e-14)
    exact = [max(np.log((p**a * q ** (1 - a)).sum()) / (a - 1) for p, q in two) for a in orders]
    assert_allclose(event.renyi(orders), exact, rtol=1e-9)
    assert (event.renyi(orders) <= event.rho() * orders).all()
    assert written.from_json(written.to_json(event)) == event and event.grouped(3).pure() == pytest.approx(3 * eps)


def test_the_audit_catches_what_the_surveys_print():
    for eps in (0.5, 1.0, 1.5):  # El Ouadrhiri and Abdelhadi, Eq. 25: truth with 1/2 + eps/4
        truth = 0.5 + eps / 4
        assert audit([[truth, 1 - truth], [1 - truth, truth]]) == pytest.approx(math.log((2 + eps) / (2 - eps)))
        assert audit([[truth, 1 - truth], [1 - truth, truth]]) > eps
    flip = 1 / (1 + math.exp(2) / 2)  # the flip of the count-mean sketch, eps = 2
    assert flip == pytest.approx(0.2130, abs=1e-4) and 1 / (1 + math.e) == pytest.approx(0.2689, abs=1e-4)
    wrong = [joint(np.where(np.arange(3) == v, 1 - flip, flip)) for v in range(3)]
    assert audit(wrong) == pytest.approx(2 * (2 - math.log(2))) and audit(wrong) > 2
    p, q = GeneralizedRR(1.0, 4).truth, GeneralizedRR(1.0, 4).other  # Fu et al., Eq. 15: only "v = 1 - x"
    with pytest.raises(AssertionError):
        audit([[p, q, 0, 0], [q, p, 0, 0]])  # no distribution
    assert audit([[p, 1 - p, 0, 0], [1 - p, p, 0, 0], [0, 0, p, 1 - p]]) == math.inf


def test_values_of_the_literature():
    assert GeneralizedRR(1.0, 10).truth == pytest.approx(0.231969316684, rel=1e-9)
    assert GeneralizedRR(1.0, 10).variance() == pytest.approx(3.63024869292, rel=1e-9)
    e = math.exp(1.3)
    assert GeneralizedRR(1.3, 7).variance(n=9) == pytest.approx((5 + e) / (e - 1) ** 2 / 9, rel=1e-12)
    assert UnaryEncoding(1.3, 7).variance(n=9) == pytest.approx(4 * e / (e - 1) ** 2 / 9, rel=1e-12)
    s = math.exp(0.65)  # Wang et al. (2017), Section 4.2
    assert UnaryEncoding(1.3, 7, optimized=False).variance() == pytest.approx(s / (s - 1) ** 2, rel=1e-12)
    assert RandomizedResponse(1.3).variance(9) == pytest.approx(e / (e - 1) ** 2 / 9, rel=1e-12)
    assert Rappor(blur=0.5, hashes=2).permanent().pure() == pytest.approx(4.39444915467, rel=1e-9)


@pytest.mark.parametrize("name", ["rr", "grr", "oue", "sue"])
def test_estimates_are_unbiased_with_the_promised_variance_over_the_exact_law(name):
    m, _, laws = finite(name, 0.9)
    if name == "rr":
        each = [[m.estimate([r]) for r in (0, 1)]] * 2
        truth, promised = [0.0, 1.0], [m.variance()] * 2
    else:
        reports = (
            [np.array([r]) for r in range(5)] if name == "grr" else np.array(list(product([0, 1], repeat=3)))[:, None]
        )
        each = np.array([m.estimate(r) for r in reports]).T  # [category, outcome]
        each, truth, promised = each[[0, 0]], [1.0, 0.0], [m.variance(1.0), m.variance(0.0)]
    for value, law, mean, var in zip((0, 1), laws, truth, promised, strict=False):
        assert np.dot(law, each[value]) == pytest.approx(mean, abs=1e-12)
        assert np.dot(law, np.square(each[value])) - mean**2 == pytest.approx(var, rel=1e-12)


def test_shares_come_out_of_many_reports():
    true = np.repeat(np.arange(5), [200, 150, 100, 40, 10])
    for m in (GeneralizedRR(1.0, 5), UnaryEncoding(1.0, 5), UnaryEncoding(1.0, 5, optimized=False)):
        found = m.estimate(m.randomize(np.tile(true, 400), bulk(200_000)))
        for share, f in zip(found, np.bincount(true) / 500, strict=True):
            assert abs(share - f) < 4 * m.variance(f, 200_000) ** 0.5
    m = RandomizedResponse(1.0)
    assert abs(m.estimate(m.randomize(np.arange(N) % 4 == 0, bulk())) - 0.25) < 4 * m.variance(N) ** 0.5


# the sketches: unbiased and of the promised variance over noise and hash functions


@pytest.mark.parametrize("kind", [CountMeanSketch, HadamardSketch])
def test_a_sketch_is_unbiased_over_noise_for_given_hash_functions(kind):
    """Exactly: an item counts as itself, and as every other item it collides with, less what is expected of that."""
    m, items = kind(1.1, hashes=2, columns=4, seed=2), [3, 4, 11, 12, 19]
    where = np.array([[hashed(np.array([i]), np.array([r]), 4, 2)[0] for r in (0, 1)] for i in items])
    for item in items:
        mean = np.zeros(len(items))
        for row in (0, 1):
            if kind is CountMeanSketch:
                for bits, p in zip(product([0, 1], repeat=4), joint(m.probabilities(item, row)), strict=True):
                    mean += p / 2 * m.estimate(SketchReports(np.array([row]), np.array([bits])), items)
            else:
                for (c, s), p in np.ndenumerate(m.probabilities(item, row)):
                    report = HadamardReports(np.array([row]), np.array([c]), np.array([2 * s - 1]))
                    mean += p / 2 * m.estimate(report, items)
        meet = (where == where[items.index(item)]).mean(axis=1)  # 1 for the item itself
        assert_allclose(mean, 4 / 3 * (meet - 1 / 4), atol=1e-12)


def moments(m, item, asked):
    """Mean and variance of the estimate of `asked` from one report of `item`, over the exact law of the report."""
    first = second = 0.0
    for row in range(m.hashes):
        if isinstance(m, CountMeanSketch):
            outcomes = zip(product([0, 1], repeat=m.columns), joint(m.probabilities(item, row)), strict=True)
            said = [(SketchReports(np.array([row]), np.array([bits])), p) for bits, p in outcomes]
        else:
            outcomes = np.ndenumerate(m.probabilities(item, row))
            said = [
                (HadamardReports(np.array([row]), np.array([c]), np.array([2 * s - 1])), p) for (c, s), p in outcomes
            ]
        found = np.array([m.estimate(report, [asked])[0] for report, _ in said])
        chance = np.array([p for _, p in said]) / m.hashes
        first, second = first + chance @ found, second + chance @ found**2
    return first, second - first**2


@pytest.mark.parametrize("kind", [CountMeanSketch, HadamardSketch])
def test_a_sketch_has_the_promised_mean_and_variance_over_all_hash_functions(kind, monkeypatch):
    """Exactly: every table of k hash functions of three items, all equally likely."""
    m, counts = kind(1.7, hashes=2, columns=2), np.array([2, 3, 1])
    n, means, noise = counts.sum(), [], []
    for flat in product([0, 1], repeat=6):
        tables = np.array(flat).reshape(3, 2)
        for module in (count_mean_sketch, hadamard_sketch):
            monkeypatch.setattr(module, "hashed", lambda items, which, columns, seed, t=tables: t[items, which])
        each = [moments(m, item, 0) for item in range(3)]
        means.append(sum(c * mean for c, (mean, _) in zip(counts, each, strict=True)) / n)
        noise.append(sum(c * var for c, (_, var) in zip(counts, each, strict=True)) / n**2)
    assert np.mean(means) == pytest.approx(counts[0] / n, rel=1e-12)
    exact, others = np.mean(noise) + np.var(means), float((counts[1:] ** 2).sum() / n**2)
    assert m.variance(counts[0] / n, int(n), others) == pytest.approx(exact, rel=1e-12)
    assert m.variance(counts[0] / n, int(n)) != pytest.approx(exact, rel=0.05)  # common collisions count


@pytest.mark.parametrize("kind", [CountMeanSketch, HadamardSketch])
def test_a_big_sketch_finds_shares(kind):
    m = kind(4.0, hashes=16, columns=64, seed=1)
    values = np.repeat([5, 2**62, 77], [10_000, 6_000, 4_000])
    found = m.estimate(m.randomize(values, bulk(20_000)), [5, 2**62, 77, 1])
    for share, f in zip(found, [0.5, 0.3, 0.2, 0.0], strict=True):
        assert abs(share - f) < 4 * m.variance(f, 20_000, 0.38 - f * f) ** 0.5


def test_hash_functions_spread_items_and_differ():
    items = np.arange(N)
    for which in (0, 1, 63):
        assert fits(hashed(items, np.full(N, which), 64, 0), np.full(64, 1 / 64))
    one, two = hashed(items, np.zeros(N, int), 8, 0), hashed(items, np.ones(N, int), 8, 0)
    assert fits(one * 8 + two, np.full(64, 1 / 64))  # as if independent
    assert not fits(one * 8 + one, np.full(64, 1 / 64))
    assert (hashed(items[:99], np.zeros(99, int), 64, 0) != hashed(items[:99], np.zeros(99, int), 64, 1)).mean() > 0.8


def test_the_transform_is_the_hadamard_matrix():
    rows = np.arange(24.0).reshape(3, 8) ** 2
    matrix = signs(np.arange(8)[:, None], np.arange(8)[None])
    assert_allclose(transform(rows), rows @ matrix)
    assert_allclose(matrix @ matrix, 8 * np.eye(8))


# RAPPOR


def transcripts(m, value, reports):
    """The exact law of several reports of one item, over all outcomes of all bits, permanent bits summed out."""
    true = m.bloom(np.array([value]), np.array([0]))[0]
    law = np.ones(1)
    for bit in true:
        one = np.zeros(2**reports)
        for kept, chance in ((bit, 1 - m.blur / 2), (not bit, m.blur / 2)):
            one += chance * joint(np.full(reports, m.high if kept else m.low))
        law = np.outer(law, one).ravel()
    return law


@pytest.mark.parametrize("reports", [1, 2, 3])
@pytest.mark.parametrize(("blur", "low", "high"), [(0.5, 0.5, 0.75), (0.25, 0.3, 0.6)])
def test_the_level_of_many_rappor_reports_is_exact(blur, low, high, reports):
    m = Rappor(4, 2, 1, blur, low, high, seed=1)
    filters = m.bloom(np.arange(60), np.zeros(60, int))
    first = next(i for i in range(60) if filters[i].sum() == 2)
    other = next(i for i in range(60) if filters[i].sum() == 2 and not (filters[i] & filters[first]).any())
    laws = [transcripts(m, v, reports) for v in (first, other)]
    assert audit(laws) == pytest.approx(m.event(reports).pure(), rel=1e-9)
    if reports == 1:
        p, q = m.truth  # Erlingsson et al., Theorem 2
        assert m.event().pure() == pytest.approx(2 * math.log(q * (1 - p) / (p * (1 - q))), rel=1e-12)
        assert_allclose(laws[0], joint(m.probabilities(first)), rtol=1e-12)
    assert m.event(reports).pure() < m.event(reports + 1).pure() < m.permanent().pure()
    assert m.event(10**400).pure() == pytest.approx(m.permanent().pure(), rel=1e-12)
    assert audit(laws) > m.event().pure() * 0.999  # and it can fail: more reports say more
    assert reports == 1 or audit(laws) > m.event().pure() * 1.05


def test_rappor_reports_follow_their_law_and_no_other():
    m = Rappor(4, 1, 1, blur=0.5, low=0.4, high=0.8)
    seen = number(m.randomize(np.full(N, 9), bulk()).astype(np.int64))
    assert fits(seen, joint(m.probabilities(9)))
    for wrong in (Rappor(4, 1, 1, 0.525, 0.4, 0.8), Rappor(4, 1, 1, 0.5, 0.42, 0.8), Rappor(4, 1, 1, 0.5, 0.4, 0.84)):
        assert not fits(seen, joint(wrong.probabilities(9)), 1e-6)
    other = next(v for v in range(99) if (m.probabilities(v) != m.probabilities(9)).any())
    assert not fits(seen, joint(m.probabilities(other)), 1e-6)


def test_permanent_bits_stay_and_reports_do_not():
    m, memory = Rappor(bits=64, low=0.0, high=1.0), Stream.research(3).rows(range(50))  # reports are the permanent bits
    a, b = (m.randomize(np.full(50, 7), Stream.research(s).rows(range(50)), memory) for s in (1, 2))
    assert np.array_equal(a, b)  # the same item, another day
    values = np.arange(50) % 3
    both = m.randomize(values, Stream.research(4).rows(range(50)), memory)
    assert np.array_equal(
        both[values == 1], m.randomize(np.ones(50, int), Stream.research(5).rows(range(50)), memory)[values == 1]
    )
    flips = [
        m.randomize(np.full(50, v), memory, memory) ^ m.bloom(np.full(50, v), m.cohort(memory.ids)) for v in (7, 8)
    ]
    assert abs((flips[0] == flips[1]).mean() - 0.625) < 4 * (0.25 / 3200) ** 0.5  # items have noise of their own
    c, d = (m.randomize(np.full(50, 7), Stream.research(s).rows(range(50))) for s in (1, 2))
    assert not np.array_equal(c, d)  # without a memory
    m = Rappor(bits=64)
    a, b = (m.randomize(np.full(50, 7), Stream.research(s).rows(range(50)), memory) for s in (1, 2))
    assert not np.array_equal(a, b)
    with pytest.raises(SpecError, match="different clients"):
        m.randomize([7], Stream.research(1).rows([0]), Stream.research(1).rows([1]))


def test_rappor_finds_shares_and_its_bits_have_the_promised_variance():
    m, values = Rappor(bits=16, hashes=2, cohorts=2), np.repeat([0, 0, 1, 2], 50_000)
    values = values[np.argsort(np.arange(200_000) * 7 % 199_999, kind="stable")]
    rng = bulk(200_000)
    reports = m.randomize(values, rng)
    cohort = m.cohort(rng.ids)
    found = m.bit_shares(reports, cohort)
    for c in (0, 1):
        true = m.bloom(values[cohort == c], np.full(100_000, c)).mean(axis=0)
        error = (found[c] - true) / np.array([m.variance(s, 100_000) ** 0.5 for s in true])
        assert np.abs(error).max() < 4 and 0.3 < (error**2).mean() < 2.2
    assert_allclose(m.estimate(reports, cohort, [0, 1, 2, 3]), [0.5, 0.25, 0.25, 0], atol=0.03)
    with pytest.raises(SpecError, match="told apart"):
        m.estimate(reports, cohort, range(100))


# rows, rounding, bad input


@pytest.mark.parametrize("m", [RandomizedResponse(1.0), GeneralizedRR(1.0, 6), UnaryEncoding(1.0, 6), Rappor(16)])
def test_a_row_depends_on_its_client_alone(m):
    values, rng = np.arange(40) % 2, Stream.research(1)
    whole = m.randomize(values, rng.rows(range(40)))
    assert all(np.array_equal(whole[i], m.randomize([values[i]], rng.rows([i]))[0]) for i in (0, 7, 39))
    assert not np.array_equal(whole, m.randomize(values, rng.rows(range(1, 41))))


@pytest.mark.parametrize("m", [CountMeanSketch(1.0, columns=16), HadamardSketch(1.0, columns=16)])
def test_a_sketch_row_depends_on_its_client_alone(m):
    values, rng = np.arange(40), Stream.research(1)
    whole = m.randomize(values, rng.rows(range(40)))
    for i in (0, 7, 39):
        assert all(np.array_equal(a[i], b[0]) for a, b in zip(whole, m.randomize([i], rng.rows([i])), strict=True))
    assert len(set(whole.row.tolist())) > 10


def test_coins_are_rounded_up_and_never_certain():
    words = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], dtype=np.uint64)
    assert coins(words, 0.5).tolist() == [True, True, True, False, False]
    assert coins(words, math.exp(-100)).tolist() == [True, False, False, False, False]  # 2^-64, not never
    assert coins(words, 1.0).tolist() == [True, True, True, True, False]


@pytest.mark.parametrize("eps", [0, -1, math.nan, math.inf, True, "1", 1e-9, 1e4, 10**400])
def test_a_level_that_is_none(eps):
    for make in (
        RandomizedResponse,
        lambda e: GeneralizedRR(e, 3),
        lambda e: UnaryEncoding(e, 3),
        CountMeanSketch,
        HadamardSketch,
    ):
        with pytest.raises(SpecError, match="epsilon") as error:
            make(eps)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("eps", [1e-6, 700.0])
def test_extreme_levels_stay_finite(eps):
    for m in (RandomizedResponse(eps), GeneralizedRR(eps, 3), UnaryEncoding(eps, 3), UnaryEncoding(eps, 3, False)):
        assert np.isfinite(m.variance()) and np.isfinite(m.event().renyi(np.array([1.5, 100.0]))).all()
        assert np.isfinite(m.estimate(m.randomize([0, 1], Stream.research(0).rows([0, 1])))).all()
        assert 0 <= pairs.delta(m.event().pair(), 0.0) <= 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: GeneralizedRR(1.0, 1),
        lambda: GeneralizedRR(1.0, 2**33),
        lambda: GeneralizedRR(1.0, 2.5),
        lambda: UnaryEncoding(1.0, 3, optimized=1),
        lambda: CountMeanSketch(1.0, columns=1),
        lambda: CountMeanSketch(1.0, seed=-1),
        lambda: HadamardSketch(1.0, columns=12),
        lambda: Rappor(blur=0.0),
        lambda: Rappor(blur=1.0),
        lambda: Rappor(low=0.5, high=0.5),
        lambda: Rappor(low=0.5, high=1.5),
        lambda: Rappor(bits=2**30),
        lambda: Rappor().event(0),
        lambda: GeneralizedRR(1.0, 3).variance(1.5),
        lambda: GeneralizedRR(1.0, 3).variance(n=0),
    ],
)
def test_parameters_that_make_no_sense(make):
    with pytest.raises(SpecError) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "values", [[3], [-1], [0.0], [math.nan], ["a"], [[0]], [0, 1], [2**64], [[0], [0, 1]], 0, [True]]
)
def test_categories_out_of_range_are_refused(values):
    for m in (GeneralizedRR(1.0, 3), UnaryEncoding(1.0, 3)):
        with pytest.raises(DataError) as error:
            m.randomize(values, Stream.research(0).rows([0]))
        assert "\n" not in str(error.value)


def test_reports_that_cannot_be_estimated_from_are_refused():
    good = CountMeanSketch(1.0, columns=4)
    for call in (
        lambda: GeneralizedRR(1.0, 3).estimate([]),
        lambda: UnaryEncoding(1.0, 3).estimate([[0, 1]]),
        lambda: UnaryEncoding(1.0, 3).estimate([[0, 1, 2]]),
        lambda: good.estimate(SketchReports(np.array([99]), np.zeros((1, 4), int)), [1]),
        lambda: HadamardSketch(1.0).estimate(HadamardReports(np.array([0]), np.array([0]), np.array([0])), [1]),
        lambda: Rappor(bits=4).estimate(np.zeros((1, 4), int), [0], [1]),
    ):
        with pytest.raises(SordinoError):
            call()
