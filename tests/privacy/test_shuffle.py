import json
import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom

from sordino.core.errors import SpecError, UnsupportedEvent
from sordino.privacy import pairs, shuffle, written
from sordino.privacy.events import Approximate, GaussianEvent, Pure, Repeated
from sordino.privacy.shuffle import ShuffledEvent

# n, eps0, delta: closed 2021, closed 2023, clones 2021, clones 2023, exact binary randomized response
GOLDEN = [
    (100_000, 4.0, 1e-6, 0.534633991652, 0.407792587161, 0.169769747258, 0.118153066537, 0.0847139906856),
    (10_000, 1.0, 1e-6, 0.214025651931, 0.180006367731, 0.0530053164811, 0.0432061580851, 0.0356588152981),
    (10_000, 2.0, 1e-5, 0.469583393831, 0.372059650398, 0.130479094425, 0.0956334880875, 0.0718917229015),
]
BOTH = pytest.mark.parametrize("randomizer", ["any", "response"])


def binary_delta(n, eps0, eps):
    """The number of ones when one client says 1 or 0 and all others 0: exact, the worse direction."""
    flip = 1 / (1 + math.exp(eps0))
    others = binom.pmf(np.arange(-1, n + 1), n - 1, flip)
    p = (1 - flip) * others[:-1] + flip * others[1:]
    q = flip * others[:-1] + (1 - flip) * others[1:]
    return max(np.maximum(a - math.exp(eps) * b, 0).sum() for a, b in ((p, q), (q, p)))


def clones_delta(n, eps0, eps, rate):
    """Every outcome of the clones' pair, written out."""
    keep, total = 1 / (1 + math.exp(-eps0)), 0.0
    for c in range(n):
        a = np.arange(c + 2)
        p = keep * binom.pmf(a - 1, c, 0.5) + (1 - keep) * binom.pmf(a, c, 0.5)
        total += binom.pmf(c, n - 1, rate) * np.maximum(p - math.exp(eps) * p[::-1], 0).sum()
    return total


def clones_sum(n, eps0, eps, randomizer="any"):
    """Delta of the clones' pair by the library's own sums, which `numerical` inverts."""
    if eps >= eps0:
        return 0.0
    return shuffle._hockey(*shuffle._clones(n, eps0, randomizer, shuffle.BLOCKS), eps0, eps)


@pytest.mark.parametrize("row", GOLDEN)
def test_golden_values(row):
    n, eps0, delta, closed_2021, closed_2023, any_one, response, binary = row
    assert shuffle.closed_2021(n, eps0, delta) == pytest.approx(closed_2021, rel=1e-9)
    assert shuffle.closed_2023(n, eps0, delta) == pytest.approx(closed_2023, rel=1e-9)
    assert shuffle.numerical(n, eps0, delta) == pytest.approx(any_one, rel=1e-6)
    assert shuffle.numerical(n, eps0, delta, "response") == pytest.approx(response, rel=1e-6)
    exact = brentq(lambda e: binary_delta(n, eps0, e) - delta, 0, eps0, xtol=1e-12)
    assert exact == pytest.approx(binary, rel=1e-6)
    assert shuffle.epsilon(n, eps0, delta) == pytest.approx(any_one, rel=1e-6)
    assert shuffle.epsilon(n, eps0, delta, "response") == pytest.approx(response, rel=1e-6)


@pytest.mark.parametrize("eps0", [0.1, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("n", [1, 2, 30, 1000])
def test_every_bound_is_above_the_exact_binary_response(n, eps0):
    for eps in np.linspace(0.0, 0.95, 7) * eps0:
        exact = binary_delta(n, eps0, eps)
        response, general = (clones_sum(n, eps0, eps, r) for r in ("response", "any"))
        assert exact <= response * (1 + 1e-9) + 1e-16 and response <= general * (1 + 1e-9) + 1e-16
    for delta in (1e-3, 1e-8):
        exact = brentq(lambda e, d=delta: binary_delta(n, eps0, e) - d, 0, eps0, xtol=1e-12)
        for bound in (shuffle.closed_2021, shuffle.closed_2023, shuffle.epsilon):
            assert exact * (1 - 1e-9) <= bound(n, eps0, delta) <= eps0


@pytest.mark.parametrize("delta", [1e-3, 1e-8])
@pytest.mark.parametrize("n", [500, 10**4, 10**6])
def test_closed_forms_are_above_the_sums_they_bound(n, delta):
    for eps0 in (0.01, 0.3, 1.0, 2.5, 5.0, 8.0):
        assert shuffle.numerical(n, eps0, delta) <= shuffle.closed_2021(n, eps0, delta) * (1 + 1e-8)
        assert shuffle.numerical(n, eps0, delta, "response") <= shuffle.closed_2023(n, eps0, delta) * (1 + 1e-8)


@BOTH
@pytest.mark.parametrize(("n", "eps0"), [(1, 1.0), (2, 0.3), (17, 2.0), (120, 1.0), (120, 4.0)])
def test_two_tails_are_the_whole_sum(n, eps0, randomizer):
    rate = math.exp(-eps0) if randomizer == "any" else 2 / (math.exp(eps0) + 1)
    pair = ShuffledEvent(eps0, n, randomizer).pair()
    for eps in np.array([0.0, 0.1, 0.5, 0.9, 1.0]) * eps0:
        exact = clones_delta(n, eps0, eps, rate)
        assert clones_sum(n, eps0, eps, randomizer) == pytest.approx(exact, rel=1e-9, abs=1e-15)
        assert exact * (1 - 1e-9) - 1e-15 <= pairs.delta(pair, eps) <= exact * (1 + 1e-4) + 1e-15


def test_the_condition_of_response_holds_for_k_ary_response_and_not_for_all():
    """R(x) >= (R(x0) + R(x1)) / (E + 1) at every output, for all inputs; subset selection breaks it."""

    def holds(table, e):
        size = range(len(table))
        return all(
            (table[x] * (e + 1) >= table[a] + table[b] - 1e-12).all()
            for x in size
            for a in size
            for b in size
            if a != b
        )

    e, k = math.exp(1.5), 5
    response = (np.ones((k, k)) + (e - 1) * np.eye(k)) / (e + k - 1)
    assert holds(response, e)
    subsets = np.array([[i, j] for i in range(k) for j in range(i)])
    member = np.array([[x in s for s in subsets] for x in range(k)])
    selection = np.where(member, e, 1.0)
    selection /= selection.sum(axis=1, keepdims=True)
    assert np.allclose(selection.max(axis=0) / selection.min(axis=0), e) and not holds(selection, e)


@BOTH
@pytest.mark.parametrize(("n", "eps0"), [(1000, 8.0), (3000, 2.0), (100_000, 4.0), (10**6, 0.5), (10**7, 3.0)])
def test_the_pair_is_the_direct_sum_from_above(n, eps0, randomizer):
    pair = ShuffledEvent(eps0, n, randomizer).pair()
    assert len(pair.losses) <= 200_000 and pair.symmetric
    assert pair.p.sum() == pytest.approx(1, abs=1e-12) and pair.q.sum() == pytest.approx(1, abs=1e-12)
    assert np.allclose(pair.p, pair.q[::-1], rtol=1e-12, atol=0) and np.allclose(pair.losses, -pair.losses[::-1])
    assert np.allclose(np.log(pair.p / pair.q), pair.losses, rtol=1e-9, atol=1e-9)
    assert np.abs(pair.losses).max() <= eps0
    for eps in np.array([0.0, 0.3, 1.0, 1.5]) * shuffle.numerical(n, eps0, 1e-6, randomizer):
        exact = clones_sum(n, eps0, eps, randomizer)
        assert exact * (1 - 1e-9) - 1e-15 <= pairs.delta(pair, eps) <= exact * 1.003 + 1e-15
    assert pairs.delta(pair, eps0) <= 1e-15


def test_rounds_compose_after_the_amplification():
    """Two rounds, convolved by hand: above one round, and below two unamplified or two added up."""
    n, eps0, delta = 30, 0.5, 1e-3
    pair = ShuffledEvent(eps0, n).pair()
    keep = pair.p > 1e-9
    loss = np.add.outer(pair.losses[keep], pair.losses[keep]).ravel()
    p, q = (np.multiply.outer(m[keep], m[keep]).ravel() for m in (pair.p, pair.q))
    two = pairs.Atoms(loss, p, q)
    assert len(loss) < 10**6 and 1 - p.sum() < 1e-5
    eps = brentq(lambda e: pairs.delta(two, e) - delta, 0, 2)
    one = shuffle.numerical(n, eps0, delta)
    assert one < eps < 2 * shuffle.numerical(n, eps0, delta / 2) < 2 * eps0


@BOTH
def test_the_renyi_curve_is_the_pairs(randomizer):
    event, orders = ShuffledEvent(2.0, 40, randomizer), np.array([1.01, 1.5, 2.0, 7.3, 64.0, 200.0])
    rate, keep = (math.exp(-2) if randomizer == "any" else 2 / (math.exp(2) + 1)), 1 / (1 + math.exp(-2))
    exact = np.zeros(len(orders))
    for c in range(40):
        a = np.arange(c + 2)
        p = keep * binom.pmf(a - 1, c, 0.5) + (1 - keep) * binom.pmf(a, c, 0.5)
        exact += binom.pmf(c, 39, rate) * np.array([(p * (p / p[::-1]) ** (o - 1)).sum() for o in orders])
    exact = np.log(exact) / (orders - 1)
    found = event.renyi(orders)
    assert np.all(found >= exact * (1 - 1e-9)) and np.allclose(found, exact, rtol=1e-5)
    assert np.all(found <= Pure(2.0).renyi(orders) * (1 + 1e-12))


def test_more_reports_hide_better_and_one_report_does_not_hide():
    found = [shuffle.epsilon(n, 2.0, 1e-6) for n in (1, 10, 100, 1000, 10**4, 10**6)]
    assert found == sorted(found, reverse=True) and found[-1] < 0.02 * found[0]
    assert found[0] == pytest.approx(2.0, abs=1e-4)
    assert shuffle.epsilon(1000, 2.0, 1e-6, "response") < shuffle.epsilon(1000, 2.0, 1e-6)
    assert shuffle.epsilon(10, 400.0, 1e-6) == 400.0  # nobody is a clone
    assert shuffle.epsilon(10**6, 0.01, 0.4) == 0.0
    assert pairs.delta(ShuffledEvent(400.0, 10).pair(), 300.0) == pytest.approx(1.0)


def test_closed_forms_claim_nothing_outside_their_range():
    inside, outside = math.log(1000 / (16 * math.log(2e6))), math.log(1000 / (8 * math.log(2e6)) - 1)
    assert shuffle.closed_2021(1000, inside * 1.001, 1e-6) == inside * 1.001
    assert shuffle.closed_2021(10**5, inside, 1e-6) < inside
    assert shuffle.closed_2023(1000, outside * 1.001, 1e-6) == outside * 1.001
    assert shuffle.closed_2023(1, 0.5, 1e-6) == 0.5


def test_more_reports_hide_more():
    few, some, many = (shuffle.epsilon(n, 1.0, 1e-6) for n in (10**5, 10**6, 10**7))
    assert 0 < many < some < few


def test_blocks_of_clones_are_on_the_safe_side(monkeypatch):
    exact = shuffle.numerical(10**5, 1.0, 1e-6)
    monkeypatch.setattr(shuffle, "BLOCKS", 50)
    assert exact < shuffle.numerical(10**5, 1.0, 1e-6) < exact * 1.01


def test_only_pure_randomizers_are_amplified():
    assert shuffle.shuffled(Pure(1.5), 100) == ShuffledEvent(1.5, 100)
    assert shuffle.shuffled(Pure(1.5), 100, "response") == ShuffledEvent(1.5, 100, "response")
    assert shuffle.shuffled(Pure(0.0), 100) == Pure(0.0)
    for event in (GaussianEvent(1.0), Approximate(1.0, 1e-6), Repeated(Pure(1.0), 2)):
        with pytest.raises(UnsupportedEvent, match="pure local DP only"):
            shuffle.shuffled(event, 100)


def test_the_event_keeps_what_it_promises():
    event = ShuffledEvent(1.5, 100, "response")
    assert event.pure() == 1.5 and event.grouped(2) == Pure(3.0) and event.rho() == 1.5**2 / 2
    assert written.from_json(json.loads(json.dumps(written.to_json(event)))) == event


@pytest.mark.parametrize(
    ("epsilon", "reports", "randomizer"),
    [
        *((epsilon, 10, "any") for epsilon in (0.0, -1.0, math.nan, math.inf, True)),
        *((1.0, reports, "any") for reports in (0, 1.5, True)),
        (1.0, 10, "2023"),
    ],
)
def test_impossible_reports_cannot_be_priced(epsilon, reports, randomizer):
    with pytest.raises(SpecError):
        ShuffledEvent(epsilon, reports, randomizer)
    with pytest.raises(SpecError):
        shuffle.epsilon(reports, epsilon, 1e-6, randomizer)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-6, math.nan, True])
def test_a_delta_is_between_zero_and_one(delta):
    for bound in (shuffle.epsilon, shuffle.numerical, shuffle.closed_2021, shuffle.closed_2023):
        with pytest.raises(SpecError, match="delta"):
            bound(100, 1.0, delta)
