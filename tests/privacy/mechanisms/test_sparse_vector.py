import itertools
import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import chisquare, laplace

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy.algebra import grouped
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Pure
from sordino.privacy.mechanisms.sparse_vector import SparseVector, SparseVectorEvent
from sordino.privacy.written import from_json, to_json


class Scaled(SparseVector):
    """A defect: other noise than the mechanism's own."""

    factors = (1.0, 1.0)

    def scales(self, bound):
        line, query = super().scales(bound)
        return line * self.factors[0], query * self.factors[1]


class HalfNoise(Scaled):
    factors = (0.5, 0.5)


class HalfQueryNoise(Scaled):
    factors = (1.0, 0.5)


class SlightlyLess(Scaled):
    factors = (0.95, 0.95)


def patterns(queries: int, count: int) -> list[tuple[int, ...]]:
    """Every row that can come out."""
    out = []
    for bits in itertools.product((0, 1), repeat=queries):
        row, seen = [], 0
        for bit in bits:
            row.append(bit if seen < count else -1)
            seen += row[-1] == 1
        out.append(tuple(row))
    return sorted(set(out))


def worst_case(m: SparseVector, below: int = 40, up: float = 1.0, down: float | None = None) -> float:
    """The log-ratio of "below" many times, then "above" count times, on the neighbours that fit."""
    down = (0.0 if m.monotone else -1.0) if down is None else down
    pattern = (0,) * below + (1,) * m.count
    first = np.zeros(len(pattern)) + 2.0
    second = first + np.array([up] * below + [down] * m.count)
    best = 0.0
    for threshold in (-20.0, 2.0, 5.0, 20.0, 80.0):
        p, q = (m.probability(pattern, answers, threshold, 1.0) for answers in (first, second))
        best = max(best, math.log(p / q))
    return best


@pytest.mark.parametrize(("count", "monotone"), [(1, False), (2, False), (2, True)])
def test_answers_have_the_promised_law_and_no_other(count, monotone):
    answers, threshold, n = [0.3, 1.4, 0.0, 0.8], [0.5, 1.0, 0.2, 0.5], 40_000
    rows = Bounded(torch.tensor([answers], dtype=torch.float64).expand(n, -1), 0.5, math.inf)
    m = SparseVector(4.0, count, monotone)
    found = m.above(rows, threshold, Stream.research(3).rows(range(n))).numpy()
    keys = patterns(4, count)
    tally = np.array([(found == key).all(axis=1).sum() for key in keys])
    assert tally.sum() == n
    right = np.array([m.probability(key, answers, threshold, 0.5) for key in keys])
    assert_allclose(right.sum(), 1, rtol=1e-9)
    some = right * n > 5
    assert chisquare(tally[some], right[some] / right[some].sum() * tally[some].sum()).pvalue > 1e-3
    wrong = np.array([HalfNoise(4.0, count, monotone).probability(key, answers, threshold, 0.5) for key in keys])
    assert chisquare(tally[some], wrong[some] / wrong[some].sum() * tally[some].sum()).pvalue < 1e-3


def test_five_per_cent_less_noise_is_seen():
    n = 100_000
    rows = Bounded(torch.tensor([[1.0, -1.0]], dtype=torch.float64).expand(n, -1), 0.5, math.inf)
    m = SparseVector(4.0, 2)
    found = m.above(rows, 0.0, Stream.research(3).rows(range(n))).numpy()
    keys = patterns(2, 2)
    tally = np.array([(found == key).all(axis=1).sum() for key in keys])
    for kind, fine in ((SparseVector, True), (SlightlyLess, False)):
        law = np.array([kind(4.0, 2).probability(key, [1.0, -1.0], 0.0, 0.5) for key in keys])
        assert (chisquare(tally, law / law.sum() * n).pvalue > 1e-3) == fine


def test_probability_of_one_query_in_closed_form():
    """P(x + Lap(s) >= Lap(t)): the difference of two Laplace variables."""
    m = SparseVector(1.0, 1)
    s, t = m.scales(1.0)
    z = np.linspace(-60 * s, 60 * s, 400_001)
    naive = np.trapezoid(laplace.pdf(z, scale=s) * laplace.sf(z - 1.7, scale=t), z)
    assert_allclose(m.probability([1], [1.7], 0.0, 1.0), naive, rtol=1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize(("count", "monotone"), [(1, False), (3, False), (1, True), (3, True)])
def test_the_worst_case_reaches_epsilon_and_never_passes_it(epsilon, count, monotone):
    claim = SparseVector(epsilon, count, monotone).event().pure()
    assert 0.9 * claim < worst_case(SparseVector(epsilon, count, monotone)) <= claim * (1 + 1e-9)
    assert worst_case(HalfNoise(epsilon, count, monotone)) > 1.5 * claim
    assert worst_case(HalfQueryNoise(epsilon, count, monotone)) > 1.2 * claim


@pytest.mark.parametrize("monotone", [False, True])
def test_no_small_case_passes_epsilon(monotone):
    m, rng, epsilon = SparseVector(1.0, 2, monotone), np.random.default_rng(0), 1.0
    most = 0.0
    for _ in range(12):
        base = rng.uniform(0, 3, 3)
        unit = rng.choice([0.0, 1.0] if monotone else [-1.0, 1.0], 3)
        for key in patterns(3, 2):
            p, q = (m.probability(key, answers, 1.0, 1.0) for answers in (base, base + unit))
            most = max(most, abs(math.log(p / q)))
    assert 0.3 < most <= epsilon * (1 + 1e-9)


def test_signed_answers_with_the_noise_of_monotone_ones_are_caught():
    assert worst_case(SparseVector(1.0, 3, True), down=-1.0) > 1.4


def test_noise_on_the_queries_alone_is_caught():
    """Without noise on the threshold every answer costs, also those below."""
    scale = SparseVector(1.0).scales(1.0)[1]
    below, above = laplace.logcdf(1.0, scale=scale), laplace.logsf(1.0, scale=scale)
    moved, moved_above = laplace.logcdf(0.0, scale=scale), laplace.logsf(2.0, scale=scale)
    assert 40 * (below - moved) + above - moved_above > 5


def test_a_clip_that_is_not_applied_is_caught():
    assert worst_case(SparseVector(1.0), up=4.0, down=-4.0) > 2


def test_it_stops_after_count_answers_above():
    m = SparseVector(1e3, 2)
    rows = Bounded(torch.tensor([[9.0, -9.0, 9.0, 9.0, -9.0]]), 1.0, math.inf)
    assert m.above(rows, 0.0, Stream.research(1).rows([0])).tolist() == [[1, 0, 1, -1, -1]]
    assert m.probability((1, 0, 1, 1, 0), rows.value[0], 0.0, 1.0) == 0  # went on
    assert m.probability((1, 0, -1, -1, -1), rows.value[0], 0.0, 1.0) == 0  # stopped early
    assert m.probability((1, 0, 1, -1, -1), rows.value[0], 0.0, 1.0) > 0.99


@pytest.mark.parametrize(("count", "monotone"), [(1, False), (5, False), (5, True)])
def test_the_budget_is_split_for_the_least_variance(count, monotone):
    m, sides = SparseVector(0.8, count, monotone), count * (1 if monotone else 2)
    line, query = m.scales(0.3)
    e1, e2 = 0.3 / line, sides * 0.3 / query
    assert_allclose([e1 + e2, e2 / e1], [0.8, sides ** (2 / 3)])
    for other in (0.9 * e1, 1.1 * e1):
        assert (0.3 / other) ** 2 + (sides * 0.3 / (0.8 - other)) ** 2 > line**2 + query**2


def test_rows_are_keyed_by_client():
    value, rng, m = torch.zeros(9, 30), Stream.research(1), SparseVector(1.0, 30)
    found = m.above(Bounded(value, 1.0, math.inf), 0.0, rng.rows(range(9)))
    assert len({row.numpy().tobytes() for row in found}) == 9
    assert torch.equal(found[4], m.above(Bounded(value[:1], 1.0, math.inf), 0.0, rng.rows([4]))[0])


def test_the_event():
    event = SparseVector(1.3, 4).event()
    assert event == SparseVectorEvent(1.3) and event.pure() == 1.3
    assert from_json(to_json(event)) == event and grouped(event, 2) == Pure(2.6)


def test_what_is_refused():
    rows, rng = Bounded(torch.zeros(1, 3), 1.0, math.inf), Stream.research(1).rows([0])
    with pytest.raises(SpecError, match="sparse-vector needs rows clipped in the Linf"):
        SparseVector(1.0).above(Bounded(torch.zeros(1, 3), 1.0, 2), 0.0, rng)
    for threshold in ([1.0, 2.0], float("nan"), float("inf"), "high", None):
        with pytest.raises(SpecError, match="threshold"):
            SparseVector(1.0).above(rows, threshold, rng)
    with pytest.raises(SpecError, match="negative"):
        SparseVector(1.0, monotone=True).above(Bounded(torch.tensor([[-1.0]]), 1.0, math.inf), 0.0, rng)
    for epsilon in (0, -1, float("nan"), True):
        with pytest.raises(SpecError, match="epsilon"):
            SparseVector(epsilon)
    for count in (0, -1, 1.5, True, 10**400):
        with pytest.raises(SpecError, match="count"):
            SparseVector(1.0, count)
    with pytest.raises(SpecError, match="monotone"):
        SparseVector(1.0, 1, "yes")
