"""Spending that adapts to the outputs stays within one (epsilon, delta)."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest

from sordino.core.errors import BudgetError, SordinoError, SpecError, UnsupportedEvent
from sordino.privacy import filters, tightest
from sordino.privacy.accountants import gdp, rdp
from sordino.privacy.events import Approximate, GaussianEvent, NonPrivate, Pure, Repeated, Sampled
from sordino.privacy.filters import GdpFilter, Odometer, PlanFilter, RdpFilter
from sordino.privacy.mechanisms.discrete_gaussian import DiscreteGaussianEvent


def spend_all(filter, event):
    """How often an event fits, one after the other."""
    n = 0
    while filter.fits(event):
        filter, n = filter.spend(event), n + 1
    return n, filter


# --- plans


def test_plans_add_up_to_the_budget_and_not_beyond():
    filter = PlanFilter(3.0, 3e-5).spend(Approximate(1.0, 1e-5)).spend(Approximate(1.5, 1e-5))
    assert filter.left()["epsilon"] == 0.5 and filter.left()["delta"] == pytest.approx(1e-5)
    assert filter.fits(Approximate(0.5, 0.9e-5)) and filter.fits(Pure(0.5))
    assert not filter.fits(Approximate(0.51, 1e-6)) and not filter.fits(Approximate(0.1, 1.1e-5))
    with pytest.raises(
        BudgetError, match=r"asked for epsilon 0.6 .*left: epsilon 0.5.*would fit: epsilon <= 0.5"
    ) as error:
        filter.spend(Approximate(0.6, 1e-6))
    assert "\n" not in str(error.value)
    assert not filter.fits(NonPrivate("no noise"))
    with pytest.raises(UnsupportedEvent, match="Approximate"):
        filter.fits(GaussianEvent(1.0))


def test_nothing_is_rounded_for_the_spender():
    """0.1 is a hair above one tenth: ten of them are more than 1, which a naive sum and even fsum round away."""
    asks = [Approximate(0.1, 0.0)] * 10
    assert math.fsum([0.1] * 10) == 1.0 and sum(Fraction(0.1) for _ in range(10)) > 1
    filter = PlanFilter(1.0, 1e-5)
    for ask in asks[:9]:
        filter = filter.spend(ask)
    assert not filter.fits(asks[9])
    left = filter.left()["epsilon"]
    assert Fraction(left) <= Fraction(1) - 9 * Fraction(0.1)
    assert filter.fits(Approximate(left, 0.0))


@pytest.mark.parametrize("seed", range(20))
def test_plan_sums_are_exact(seed):
    draw = np.random.default_rng(seed)
    filter, exact = PlanFilter(1.0, 0.5), Fraction(0)
    for epsilon in draw.uniform(0, 0.2, 200) * 10.0 ** draw.integers(-18, 1, 200):
        if filter.fits(Pure(float(epsilon))):
            filter, exact = filter.spend(Pure(float(epsilon))), exact + Fraction(float(epsilon))
        else:
            assert exact + Fraction(float(epsilon)) > 1
        assert exact <= 1 and Fraction(filter.left()["epsilon"]) <= 1 - exact


def test_a_long_history_stays_short():
    """Thousands of plans are a handful of numbers."""
    filter = PlanFilter(1e4, 0.5)
    for epsilon in np.random.default_rng(2).uniform(0, 1, 3000).tolist():
        filter = filter.spend(Approximate(epsilon, 1e-7))
    assert max(map(len, filter.spent)) <= 4


# --- Gaussian


def test_the_gaussian_budget_is_the_exact_inverse():
    assert gdp.mu_for(1.0, 1e-5) == pytest.approx(0.268051123211, rel=1e-11)
    assert gdp.mu_for(1.0, 1e-5) ** 2 / 2 == pytest.approx(0.0359257023274, rel=1e-11)
    for epsilon, delta in ((0.01, 1e-9), (1.0, 1e-5), (8.0, 1e-3), (50.0, 0.3), (0.5, 0.9)):
        mu = gdp.mu_for(epsilon, delta)
        assert (
            gdp.delta(GaussianEvent(1 / mu), epsilon) <= delta < gdp.delta(GaussianEvent(1 / mu / (1 + 1e-9)), epsilon)
        )


def test_gaussians_fill_the_budget_and_an_adaptive_order_changes_nothing():
    z = 10.0
    n, _ = spend_all(GdpFilter(1.0, 1e-5), GaussianEvent(z))
    assert n == math.floor(gdp.mu_for(1.0, 1e-5) ** 2 * z**2)
    assert (
        tightest.epsilon(Repeated(GaussianEvent(z), n), 1e-5)
        <= 1.0
        < tightest.epsilon(Repeated(GaussianEvent(z), n + 1), 1e-5)
    )
    mixed = GdpFilter(1.0, 1e-5).spend(GaussianEvent(8.0)).spend(Repeated(GaussianEvent(40.0), 3))
    assert mixed.spent == pytest.approx(1 / 64 + 3 / 1600)
    with pytest.raises(BudgetError, match=r"asked for mu\^2.*left: mu .*noise of multiplier >="):
        mixed.spend(GaussianEvent(4.0))
    with pytest.raises(UnsupportedEvent, match="plain Gaussian"):
        mixed.fits(Sampled(GaussianEvent(8.0), 0.1))
    assert not mixed.fits(NonPrivate("no noise"))
    z = 1 / mixed.left()["mu"]
    assert mixed.fits(GaussianEvent(z * (1 + 1e-9))) and not mixed.fits(GaussianEvent(z * (1 - 1e-9)))


# --- Renyi


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-5), (30.0, 1e-8)])
def test_the_renyi_budgets_invert_the_conversion(epsilon, delta):
    filter = RdpFilter.of(epsilon, delta)
    k = len(filter.orders)
    for a, budget in zip(filter.orders, filter.budgets(), strict=True):
        back = budget + math.log(1 - 1 / a) - (math.log(delta / k) + math.log(a)) / (a - 1)
        assert back == pytest.approx(epsilon, rel=1e-9) and back <= epsilon
    assert max(filter.budgets()) > 0


def test_what_the_renyi_filter_admits_is_within_the_budget_and_not_far_below():
    """A fixed sequence is one special strategy: the exact epsilon of what went through must not exceed the budget."""
    for event, use in ((GaussianEvent(15.0), 0.75), (Sampled(GaussianEvent(1.5), 0.01), 0.5), (Pure(0.02), 0.5)):
        n, _ = spend_all(RdpFilter.of(1.0, 1e-5), event)
        exact = tightest.epsilon(Repeated(event, n), 1e-5)
        assert use < exact <= 1.0, (event, n, exact)


def test_one_order_alive_is_enough_and_none_is_a_refusal():
    filter = RdpFilter.of(1.0, 1e-5)
    low, high = filter.orders[0], filter.orders[-1]
    dear = RdpFilter(1.0, 1e-5, filter.orders, tuple(0.0 if a == high else 1e9 for a in filter.orders))
    assert list(dear.left()) == [f"{high:g}"] and dear.fits(GaussianEvent(60.0))
    gone = RdpFilter(1.0, 1e-5, filter.orders, (1e9,) * len(filter.orders))
    assert gone.left() == {} and not gone.fits(GaussianEvent(1e6)) and gone.room(1e-5) == "nothing more"
    with pytest.raises(BudgetError, match=rf"at order {low:g}.*left: nothing"):
        gone.spend(GaussianEvent(60.0))
    assert not filter.fits(NonPrivate("no noise"))


def test_the_union_over_orders_is_paid_for():
    """With the whole delta for every order the admitted process would not be covered by the proof: less must fit."""
    filter = RdpFilter.of(1.0, 1e-5)
    for a, budget in zip(filter.orders, filter.budgets(), strict=True):
        alone = 1.0 - math.log(1 - 1 / a) + (math.log(1e-5) + math.log(a)) / (a - 1)
        assert budget == pytest.approx(alone - math.log(len(filter.orders)) / (a - 1), rel=1e-9)


def test_renyi_sums_are_rounded_up():
    filter = RdpFilter.of(1.0, 1e-5)
    curve = rdp.rdp(GaussianEvent(1e4))[np.searchsorted(rdp.ORDERS, filter.orders)]
    exact = [Fraction(0)] * len(filter.orders)
    for _ in range(500):
        filter = filter.spend(GaussianEvent(1e4))
        exact = [e + Fraction(float(c)) for e, c in zip(exact, curve, strict=True)]
    assert all(Fraction(s) >= e for s, e in zip(filter.spent, exact, strict=True))


def test_orders_of_our_own_must_be_the_accountants():
    with pytest.raises(SpecError, match="orders"):
        RdpFilter(1.0, 1e-5, (7.77,), (0.0,))
    with pytest.raises(SpecError, match="orders"):
        RdpFilter(1.0, 1e-5, (2.0,), (0.0, 0.0))


# --- odometer


def test_the_odometer_reports_a_level_that_holds():
    odometer, event = Odometer.of(1e-5), GaussianEvent(12.0)
    seen, delta = [], 1e-5
    for n in range(1, 60):
        odometer = odometer.spend(event)
        seen.append(odometer.epsilon())
        assert tightest.epsilon(Repeated(event, n), delta) <= odometer.epsilon()
    assert seen == sorted(seen) and len(set(seen)) > 4
    assert seen[-1] < 1.8 * tightest.epsilon(Repeated(event, 59), delta)


def test_the_odometer_splits_its_delta():
    odometer = Odometer.of(1e-5, levels=10)
    assert math.fsum(level.delta for level in odometer.levels) <= 1e-5 * (1 + 1e-12)
    ratios = np.array([b.epsilon / a.epsilon for a, b in zip(odometer.levels, odometer.levels[1:], strict=False)])
    assert np.allclose(ratios, 1.3)


def test_the_odometer_ends_where_its_levels_end():
    odometer = Odometer.of(1e-5, first=0.5, levels=3)
    assert odometer.epsilon() == 0.5 and odometer.left()
    with pytest.raises(BudgetError, match="above the highest level"):
        odometer.spend(GaussianEvent(0.1))
    with pytest.raises(BudgetError):
        odometer.spend(NonPrivate("no noise"))
    with pytest.raises(SpecError, match="ratio"):
        Odometer.of(1e-5, ratio=1.0)


# --- all of them


MADE = [
    PlanFilter(2.0, 1e-4).spend(Approximate(0.3, 1e-5)),
    RdpFilter.of(2.0, 1e-4).spend(Sampled(GaussianEvent(2.0), 0.1)),
    GdpFilter(2.0, 1e-4).spend(GaussianEvent(9.0)),
    Odometer.of(1e-5, levels=4).spend(GaussianEvent(30.0)),
]


@pytest.mark.parametrize("filter", MADE, ids=lambda f: type(f).__name__)
def test_a_filter_goes_to_json_and_back(filter):
    again = filters.from_json(json.loads(json.dumps(filter.to_json())))
    assert again == filter and again.left() == filter.left()
    with pytest.raises(SpecError, match="state of a filter"):
        filters.from_json({"filter": "Nothing"})
    with pytest.raises(SpecError, match="state of a filter"):
        filters.from_json({"filter": "RdpFilter"})


@pytest.mark.parametrize("theory", filters.THEORIES)
@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, True, "1", 10**400])
def test_a_bad_budget_is_refused(theory, bad):
    with pytest.raises(SordinoError, match="epsilon"):
        filters.make(theory, bad, 1e-5)
    if bad != 0 or theory != "plans":  # plans of pure epsilon need no delta
        with pytest.raises(SordinoError, match="delta"):
            filters.make(theory, 1.0, bad)


@pytest.mark.parametrize("theory", ["rdp", "gdp"])
def test_a_sampler_that_is_not_exact_is_left_to_plans(theory):
    filter = filters.make(theory, 1.0, 1e-5)
    assert filter.fits(GaussianEvent(20.0))
    with pytest.raises(UnsupportedEvent, match="not exact"):
        filter.fits(Repeated(DiscreteGaussianEvent(20.0, 1e-12), 2))


def test_spending_leaves_the_old_filter_as_it_was():
    filter = GdpFilter(1.0, 1e-5)
    filter.spend(GaussianEvent(10.0))
    assert filter.spent == 0.0
    assert filters.make("rdp", 1.0, 1e-5) == RdpFilter.of(1.0, 1e-5)
