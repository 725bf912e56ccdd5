import math

import pytest

from laws.examples import EXAMPLES
from sordino.core.errors import SpecError, UnsupportedEvent
from sordino.privacy import algebra, tightest, written
from sordino.privacy.events import (
    Approximate,
    Composed,
    Event,
    FixedSize,
    NonPrivate,
    Parallel,
    Pure,
    Repeated,
    Sampled,
    SampledGroup,
    Visible,
)
from sordino.privacy.events import (
    GaussianEvent as Gaussian,
)
from sordino.privacy.mechanisms.discrete_gaussian import DiscreteGaussianEvent
from sordino.privacy.mechanisms.randomized_response import RandomizedResponseEvent

HOLE = NonPrivate("the reason")


def test_an_unknown_kind_is_refused():
    for data in ({"kind": "Magic"}, {}, {"kind": "Repeated", "event": {"kind": "os.system"}, "count": 1}):
        with pytest.raises(SpecError, match="unknown privacy event"):
            written.from_json(data)


@pytest.mark.parametrize("data", [
    None, [], "Gaussian", {"kind": "Gaussian"}, {"kind": "Gaussian", "noise_multiplier": 1.0, "more": 2},
    {"kind": "Gaussian", "noise_multiplier": "loud"}, {"kind": "Gaussian", "noise_multiplier": None},
    {"kind": "Repeated", "event": {"kind": "Pure", "epsilon": 1.0}, "count": 1.5},
    {"kind": "Sampled", "event": {"kind": "Pure", "epsilon": -1.0}, "rate": 0.5},
])  # fmt: skip
def test_what_is_no_event_is_one_clear_error(data):
    with pytest.raises(SpecError):
        written.from_json(data)


def test_two_kinds_cannot_share_a_name():
    with pytest.raises(TypeError, match="two events"):
        type("Gaussian", (Event,), {"__module__": __name__})


@pytest.mark.parametrize("make", [
    lambda: Gaussian(0.0), lambda: Gaussian(math.nan), lambda: Gaussian(True), lambda: Gaussian(math.inf),
    lambda: Pure(-0.1), lambda: Pure(math.inf), lambda: Approximate(1.0, 1.0), lambda: Approximate(1.0, -1e-9),
    lambda: Sampled(Gaussian(1.0), 0.0), lambda: Sampled(Gaussian(1.0), 1.5),
    lambda: Sampled(Gaussian(1.0), 0.5, "swap"),
    lambda: SampledGroup(1.0, 0.1, 0), lambda: Visible(Gaussian(1.0), -0.1),
    lambda: Repeated(Gaussian(1.0), -1), lambda: Repeated(Gaussian(1.0), 1.5), lambda: Repeated(Gaussian(1.0), True),
    lambda: FixedSize(Gaussian(1.0), 11, 10), lambda: FixedSize(Gaussian(1.0), 0, 10),
    lambda: algebra.grouped(Pure(1.0), 0),
])  # fmt: skip
def test_impossible_events_cannot_be_made(make):
    with pytest.raises(SpecError):
        make()


def test_one_private_hole_sinks_the_whole():
    for event in (
        HOLE,
        Repeated(HOLE, 1),
        Sampled(HOLE, 0.1),
        Visible(Sampled(Repeated(HOLE, 3), 0.5), 0.1),
        FixedSize(HOLE, 1, 2),
        Parallel((Gaussian(1.0), HOLE)),
        Composed((Gaussian(1.0), Repeated(HOLE, 2))),
    ):
        assert algebra.non_private(event) == "the reason"
        assert algebra.grouped(event, 3) is not None and algebra.non_private(algebra.grouped(event, 3)) == "the reason"
    assert algebra.non_private(Repeated(HOLE, 0)) is None  # it has not happened
    assert algebra.non_private(Composed((Gaussian(1.0),))) is None


def test_parts_count_every_release_once():
    step = Sampled(Gaussian(1.0), 0.1)
    event = Composed(
        (Repeated(Composed((step, Repeated(step, 2), Gaussian(1.0))), 3), Repeated(Gaussian(1.0), 0), step)
    )
    assert algebra.parts(event) == {step: 10, Gaussian(1.0): 3}
    assert algebra.parts(Repeated(Sampled(Repeated(step, 2), 1.0), 5)) == {step: 10}  # a rate of one is no sampler
    assert algebra.parts(Visible(FixedSize(step, 4, 4), 1.0)) == {step: 1}
    kept = Sampled(Repeated(step, 2), 0.5)
    assert algebra.parts(Repeated(kept, 3)) == {kept: 3}  # a whole round under a sampler stays one release
    assert algebra.parts(Sampled(Gaussian(1.0), 1.0, "replace")) == {Sampled(Gaussian(1.0), 1.0, "replace"): 1}
    assert algebra.parts(Composed(())) == {}


def test_steps_counts_elementary_releases():
    assert algebra.steps(Repeated(Sampled(Repeated(Sampled(Gaussian(1.0), 0.1), 20), 0.5), 30)) == 600
    assert algebra.steps(Composed((Gaussian(1.0), Repeated(Gaussian(1.0), 4)))) == 5
    assert algebra.steps(Repeated(Gaussian(1.0), 0)) == 0
    assert algebra.steps(Parallel((Repeated(Gaussian(1.0), 3), Pure(1.0)))) == 3


def test_gaussians_add_up_in_squares():
    assert algebra.gdp_mu_squared(Composed((Gaussian(2.0), Repeated(Gaussian(0.5), 3)))) == pytest.approx(0.25 + 12)
    assert algebra.gdp_mu_squared(Composed((Gaussian(2.0), Pure(0.1)))) is None
    assert algebra.gdp_mu_squared(Sampled(Gaussian(2.0), 0.5)) is None
    assert algebra.gdp_mu_squared(Repeated(Pure(0.1), 0)) == 0.0


def test_distances_of_samplers_add_up_and_are_paid_for():
    off = DiscreteGaussianEvent(2.0, 1e-12)
    event = Composed((Repeated(Sampled(Repeated(off, 3), 0.5), 4), Parallel((off, Gaussian(1.0)))))
    assert algebra.distance(event) == pytest.approx(13e-12)
    plain, paid = DiscreteGaussianEvent(2.0), DiscreteGaussianEvent(2.0, 1e-20)
    assert tightest.epsilon(plain, 1e-5) < tightest.epsilon(paid, 1e-5) < tightest.epsilon(plain, 1e-5) * (1 + 1e-6)
    assert math.isinf(tightest.epsilon(DiscreteGaussianEvent(2.0, 1e-6), 1e-5))  # more than can be spared
    found = tightest.delta(off, 1.0)
    assert found == pytest.approx(tightest.delta(plain, 1.0) + 1e-12 * (1 + math.e), rel=1e-9)


def test_groups():
    step = Sampled(Pure(0.5), 0.1)
    assert algebra.grouped(step, 1) is step
    three = algebra.grouped(step, 3)
    assert three.event == Pure(1.5) and three.rate == pytest.approx(1 - 0.9**3)
    assert algebra.grouped(Sampled(Gaussian(2.0), 0.1), 3) == SampledGroup(2.0, 0.1, 3)
    assert algebra.grouped(SampledGroup(2.0, 0.1, 3), 2) == SampledGroup(2.0, 0.1, 6)
    large = algebra.grouped(Sampled(Gaussian(2.0), 0.01), 1000)
    assert large.event == Gaussian(0.002) and large.rate == pytest.approx(1 - 0.99**1000)
    assert algebra.grouped(FixedSize(Gaussian(2.0), 10, 100), 20) == FixedSize(Gaussian(0.1), 100, 100)
    assert algebra.grouped(Visible(Pure(0.5), 0.4), 3) == Visible(Pure(1.5), 1.0)
    assert algebra.grouped(Parallel((Pure(0.1), Pure(0.2))), 2) == Composed((Pure(0.2), Pure(0.4)))
    nothing = type("Nothing", (Event,), {"__module__": "tests"})()
    del Event._kinds["Nothing"]
    with pytest.raises(UnsupportedEvent, match="3 units"):
        algebra.grouped(nothing, 3)


def test_a_group_is_dearer_apart_than_a_bound_says():
    """Drawn one by one: between one unit and all or none of them drawn together."""
    one, apart = Sampled(Gaussian(4.0), 0.05), algebra.grouped(Sampled(Gaussian(4.0), 0.05), 4)
    together = Sampled(Gaussian(1.0), 1 - 0.95**4)
    costs = [tightest.epsilon(Repeated(event, 50), 1e-5) for event in (one, apart, together)]
    assert costs[0] < costs[1] < costs[2]
    assert tightest.epsilon(Repeated(algebra.grouped(Sampled(Gaussian(4.0), 1.0), 4), 3), 1e-5) == pytest.approx(
        tightest.epsilon(Repeated(Gaussian(1.0), 3), 1e-5), rel=1e-6
    )


def test_replaced_units():
    step = Sampled(Gaussian(2.0), 0.1)
    replaced = algebra.replaced(Composed((Repeated(step, 3), Gaussian(2.0), Visible(Pure(0.5), 0.2))))
    expected = Composed((Repeated(Sampled(Gaussian(2.0), 0.1, "replace"), 3), Gaussian(1.0), Visible(Pure(1.0), 0.2)))
    assert replaced == expected and algebra.replaced(RandomizedResponseEvent(1.0)) == RandomizedResponseEvent(1.0)
    for event in (
        FixedSize(Gaussian(1.0), 1, 2),
        Sampled(Gaussian(1.0), 0.5, "replace"),
        RandomizedResponseEvent(1.0),
    ):
        assert algebra.of_replaced_units(Repeated(Visible(event, 0.5), 2)) and algebra.replaced(event) == event
    assert not algebra.of_replaced_units(step)


@pytest.mark.parametrize("example", [e for e in EXAMPLES if not algebra.of_replaced_units(e.event)], ids=str)
def test_replacing_costs_at_least_as_much_as_adding(example):
    try:
        replaced = tightest.epsilon(algebra.replaced(example.event), 1e-5)
    except UnsupportedEvent:
        return
    assert replaced >= tightest.epsilon(example.event, 1e-5) * (1 - 1e-6)
