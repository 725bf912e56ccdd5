import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from sordino.audits import bounds
from sordino.audits.bounds import Counts
from sordino.core.errors import SpecError


@pytest.mark.parametrize(
    ("m", "r", "v", "delta", "epsilon"),
    [
        (1000, 1000, 600, 0.0, 0.297467923649),
        (1000, 100, 90, 0.0, 1.63082319274),
        (1000, 100, 90, 1e-5, 1.6261434807),
        (1000, 100, 100, 1e-5, 3.46537634781),
        (5000, 500, 400, 1e-5, 1.19521827095),
    ],
)
def test_golden_one_run(m, r, v, delta, epsilon):
    found = bounds.one_run(m, r, v, delta)
    assert found.epsilon == pytest.approx(epsilon, rel=1e-6) and found.confidence == 0.95
    assert found.epsilon <= found.ceiling == bounds.one_run(m, r, r, delta).epsilon
    assert bounds.one_run_p_value(m, r, v, found.epsilon, delta) <= 0.05
    assert bounds.one_run_p_value(m, r, v, found.epsilon * 1.001, delta) > 0.05


def test_golden_p_value_and_its_formula_written_out():
    assert bounds.one_run_p_value(1000, 100, 90, 1.5, 1e-5) == pytest.approx(0.0187645884747, rel=1e-6)
    q = 1 / (1 + math.exp(-0.7))
    law = binom(30, q)
    tail = sum(law.pmf(k) for k in range(22, 31))
    extra = max(sum(law.pmf(k) for k in range(22 - i, 22)) / i for i in range(1, 23))
    assert bounds.one_run_p_value(50, 30, 22, 0.7, 1e-4) == pytest.approx(tail + 2 * 50 * 1e-4 * extra, rel=1e-12)


def test_one_run_does_not_refute_what_is_true():
    """Randomized response at epsilon 1 is refuted in at most 5 % of the runs, and a claim of 0.5 always."""
    rng, q = np.random.default_rng(5), 1 / (1 + math.exp(-1.0))
    found = np.array([bounds.one_run(400, 400, int(v), 0.0).epsilon for v in rng.binomial(400, q, size=2000)])
    assert 0.02 < np.mean(found > 1.0) < 0.065
    assert np.mean(found > 0.5) > 0.99


def test_golden_clopper_pearson():
    assert bounds.clopper_pearson(0, 1000)[1] == pytest.approx(0.00368208389687, rel=1e-6)
    assert bounds.clopper_pearson(50, 1000)[0] == pytest.approx(0.0373353976047, rel=1e-6)
    assert bounds.clopper_pearson(10, 1000)[1] == pytest.approx(0.0183132430551, rel=1e-6)


def test_clopper_pearson_is_the_inverse_of_two_tails():
    hits = np.arange(21)
    low, high = bounds.clopper_pearson(hits, 20, 0.9)
    assert low[0] == 0 and high[-1] == 1
    assert np.allclose(binom.sf(hits[1:] - 1, 20, low[1:]), 0.05) and np.allclose(
        binom.cdf(hits[:-1], 20, high[:-1]), 0.05
    )


def test_golden_rates():
    first = bounds.from_rates(Counts(100, 1000, 0, 1000), 1e-5)
    assert first.epsilon == pytest.approx(3.10440231782, rel=1e-6)
    assert bounds.from_rates(Counts(50, 1000, 10, 1000), 1e-5).epsilon == pytest.approx(0.712049533529, rel=1e-6)
    assert first.ceiling == pytest.approx(5.60, abs=5e-3)  # no false alarm among 1000 shows no more
    assert bounds.from_rates(Counts(1000, 1000, 0, 1000), 1e-5).epsilon == first.ceiling
    assert bounds.from_rates(Counts(10**5, 10**5, 0, 10**5), 1e-5).ceiling > 10
    assert bounds.from_rates(Counts(100, 1000, 10, 1000), 1e-5).epsilon == pytest.approx(1.50, abs=5e-3)


def test_the_complement_counts_too():
    """Members missed never, others often: the other inequality sees it."""
    found = bounds.from_rates(Counts(1000, 1000, 500, 1000), 0.0).epsilon
    low, high = bounds.clopper_pearson([1000, 500], 1000)[0][0], bounds.clopper_pearson(500, 1000)[1]
    assert found == pytest.approx(math.log((1 - high) / (1 - low))) and found > math.log(low / high)


def test_golden_gaussian():
    counts = Counts(100, 1000, 10, 1000)
    assert bounds.gaussian_mu(counts) == pytest.approx(0.698854641435, rel=1e-6)
    assert bounds.gaussian(counts, 1e-5).epsilon == pytest.approx(2.90432059121, rel=1e-6)
    assert bounds.gaussian(counts, 1e-5).epsilon < bounds.gaussian(counts, 1e-5).ceiling < math.inf


def test_a_gaussian_is_not_refuted_at_its_own_mu():
    """The best threshold test of N(1, 1) against N(0, 1), 2000 times: above mu = 1 in at most 5 %."""
    rng, tpr, fpr = np.random.default_rng(3), norm.sf(1.0 - 1.0), norm.sf(1.0)
    draws = zip(rng.binomial(500, tpr, 2000), rng.binomial(500, fpr, 2000), strict=True)
    found = np.array([bounds.gaussian_mu(Counts(int(t), 500, int(f), 500)) for t, f in draws])
    assert np.mean(found > 1.0) < 0.05 and np.mean(found > 0.5) > 0.95


def test_nothing_shown_is_zero():
    for counts in (Counts(0, 10, 0, 10), Counts(0, 10, 10, 10), Counts(5, 10, 5, 10)):
        assert bounds.from_rates(counts, 1e-5).epsilon == 0.0 and bounds.gaussian(counts, 1e-5).epsilon == 0.0
    assert bounds.one_run(10, 0, 0, 1e-5).epsilon == 0.0 and bounds.one_run(10, 10, 5, 0.0).epsilon == 0.0
    assert bounds.one_run(10**6, 1000, 1000, 0.5).epsilon == 0.0  # a delta that explains everything


def test_a_large_audit():
    assert 2.1 < bounds.one_run(10**6, 10**5, 90_000, 1e-7).epsilon < math.log(9)


@pytest.mark.parametrize(
    "make",
    [
        lambda: bounds.one_run(0, 0, 0, 0.0),
        lambda: bounds.one_run(10, 11, 5, 0.0),
        lambda: bounds.one_run(10, 5, 6, 0.0),
        lambda: bounds.one_run(10, 5, -1, 0.0),
        lambda: bounds.one_run(10, 5, True, 0.0),
        lambda: bounds.one_run(10, 5, 2.0, 0.0),
        lambda: bounds.one_run(10, 5, 2, 1.0),
        lambda: bounds.one_run(10, 5, 2, math.nan),
        lambda: bounds.one_run(10, 5, 2, 0.0, 1.0),
        lambda: bounds.one_run_p_value(10, 5, 2, -0.1, 0.0),
        lambda: Counts(11, 10, 0, 10),
        lambda: Counts(1, 10, 11, 10),
        lambda: Counts(1, 0, 0, 10),
        lambda: Counts(-1, 10, 0, 10),
        lambda: Counts(1.0, 10, 0, 10),
        lambda: bounds.from_rates(Counts(1, 10, 0, 10), -0.1),
        lambda: bounds.gaussian(Counts(1, 10, 0, 10), 0.0),
        lambda: bounds.clopper_pearson(3, 2),
        lambda: bounds.clopper_pearson([1, -1], [2, 2]),
        lambda: bounds.clopper_pearson(0.5, 2),
        lambda: bounds.clopper_pearson(1, 2, 0.0),
    ],
)
def test_impossible_counts_are_refused(make):
    with pytest.raises(SpecError):
        make()
