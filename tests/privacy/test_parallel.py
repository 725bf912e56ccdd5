"""Releases on disjoint parts of the data: a unit pays for one of them, beside everything else."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from laws.worlds import AR, RO, exact_epsilon, worlds
from sordino.core.errors import BudgetError, UnsupportedEvent
from sordino.privacy import algebra, filters, price, tightest, written
from sordino.privacy.accountants import gdp, pld, rdp, zcdp
from sordino.privacy.calibrate import noise_multiplier
from sordino.privacy.events import Composed, Cost, GaussianEvent, Parallel, Pure, Repeated, Sampled, Visible
from sordino.privacy.mechanisms.laplace import LaplaceEvent
from sordino.privacy.mechanisms.randomized_response import RandomizedResponseEvent
from sordino.privacy.samplers import Poisson
from support.problems import job

DELTA = 1e-5
ONE, TWO, THREE = GaussianEvent(2.0), Pure(0.3), LaplaceEvent(1.5)
RECORD = Cost("record", "add/remove", "server", GaussianEvent(4.0))


def test_the_alternatives_are_all_places_of_a_unit():
    both = Parallel((ONE, TWO))
    assert algebra.alternatives(ONE) == (ONE,)
    assert algebra.alternatives(both) == (ONE, TWO)
    assert set(algebra.alternatives(Composed((THREE, both)))) == {Composed((THREE, ONE)), Composed((THREE, TWO))}
    assert set(algebra.alternatives(Visible(both, 0.5))) == {Visible(ONE, 0.5), Visible(TWO, 0.5)}
    assert set(algebra.alternatives(Sampled(both, 0.5))) == {Sampled(ONE, 0.5), Sampled(TWO, 0.5)}
    assert set(algebra.alternatives(Repeated(both, 2))) == {Repeated(ONE, 2), Composed((ONE, TWO)), Repeated(TWO, 2)}
    assert algebra.alternatives(Parallel((both, Composed((TWO, THREE))))) == (ONE, TWO, Composed((TWO, THREE)))
    assert algebra.alternatives(Parallel(())) == (Composed(()),)
    many = Repeated(both, 1000)
    assert algebra.alternatives(many) == (many,)


def test_what_is_not_told_apart_is_still_an_upper_bound():
    """A thousand splits: at least as dear as any two thousand of which a unit is in one part each time."""
    many = Repeated(Parallel((GaussianEvent(40.0), LaplaceEvent(50.0))), 1000)
    ways = [
        Composed((Repeated(GaussianEvent(40.0), k), Repeated(LaplaceEvent(50.0), 1000 - k))) for k in (0, 300, 1000)
    ]
    for theory in (pld, rdp):
        found = theory.epsilon(many, DELTA)
        assert all(found >= theory.epsilon(way, DELTA) * (1 - 1e-4) for way in ways)
    assert tightest.epsilon(many, DELTA) <= tightest.epsilon(Repeated(GaussianEvent(35.0), 1000), DELTA)


def test_levels_that_add_up_take_the_largest_part():
    split = Parallel((GaussianEvent(2.0), Composed((GaussianEvent(4.0), GaussianEvent(5.0)))))
    event = Composed((Repeated(split, 3), GaussianEvent(3.0)))
    assert algebra.gdp_mu_squared(event) == pytest.approx(3 / 4 + 1 / 9)
    assert zcdp.rho_of(event) == pytest.approx((3 / 4 + 1 / 9) / 2)
    assert tightest.epsilon(event, DELTA) == pytest.approx(gdp.epsilon_of_mu(math.sqrt(3 / 4 + 1 / 9), DELTA))
    for theory in ("gdp", "rdp"):
        limit = filters.make(theory, 10.0, DELTA)
        assert limit.spend(split).left() == limit.spend(GaussianEvent(2.0)).left()
    assert algebra.gdp_mu_squared(Parallel((GaussianEvent(2.0), Pure(0.1)))) is None


@pytest.mark.parametrize("relation", [AR, RO])
def test_a_composition_beside_a_split_is_exact(relation):
    """Both worlds by their laws: the unit in the first part, or in the second, and a third release of everything."""
    split = Parallel((RandomizedResponseEvent(1.0), Pure(0.7)) if relation == RO else (Pure(1.1), Pure(0.7)), True)
    event = Composed((Pure(0.4), Visible(split, 0.5), Pure(0.2)))
    pairs = [pair for w in worlds(event, relation) for pair in w.neighbours(relation)]
    for delta in (1e-2, 1e-4):
        exact = exact_epsilon(pairs, 1, delta)
        assert exact * (1 - 1e-9) <= pld.epsilon(event, delta) <= exact * (1 + 1e-4)
        assert tightest.epsilon(event, delta) == pytest.approx(exact, rel=1e-4)
        whole = Composed((Pure(0.4), *(Visible(e, 0.5) for e in split.events), Pure(0.2)))
        assert tightest.epsilon(whole, delta) > 1.2 * exact  # as if it lay in both


def test_a_replaced_unit_stays_only_where_places_decide():
    moves, stays = Parallel((ONE, TWO)), Parallel((ONE, TWO), by_place=True)
    assert algebra.replaced(moves) == Composed((GaussianEvent(1.0), Pure(0.6)))
    assert algebra.replaced(stays) == Parallel((GaussianEvent(1.0), Pure(0.6)), by_place=True)
    assert algebra.relations(moves) == {AR} and algebra.relations(stays) == {AR, RO}
    for split in (moves, stays):  # two units of a group may lie in different parts
        assert algebra.grouped(split, 2) == Composed((GaussianEvent(1.0), Pure(0.6)))
    report = RandomizedResponseEvent(1.0)
    with pytest.raises(UnsupportedEvent, match="say by_place"):
        tightest.epsilon(Parallel((report, report)), DELTA)
    assert tightest.epsilon(Parallel((report, report), by_place=True), DELTA) == tightest.epsilon(report, DELTA)
    back = written.from_json(json.loads(json.dumps(written.to_json(stays))))
    assert back == stays and written.from_json({"kind": "Parallel", "events": []}) == Parallel(())


def test_training_and_an_evaluation_of_other_records_cost_the_dearer_one():
    """Training of epsilon 2 and an evaluation of epsilon 0.3 on records that it never touches: 2, not more."""
    z = noise_multiplier(lambda z: Repeated(GaussianEvent(z), 10), 2.0, DELTA)
    cost, check = Cost("record", "add/remove", "server", GaussianEvent(z)), (Pure(0.3),)
    alone = price.guarantee([cost], "server", Poisson(1.0), 8, 10, 10, DELTA, "secure")
    found = price.guarantee([cost], "server", Poisson(1.0), 8, 10, 10, DELTA, "secure", apart=check)
    both = price.guarantee([cost], "server", Poisson(1.0), 8, 10, 10, DELTA, "secure", once=check)
    assert alone.epsilon == found.epsilon == pytest.approx(2.0, rel=1e-4) and both.epsilon > 2.15
    dear = price.guarantee([cost], "server", Poisson(1.0), 8, 10, 10, DELTA, "secure", apart=(Pure(2.5),))
    assert dear.epsilon == tightest.epsilon(Pure(2.5), DELTA) == pytest.approx(2.5, rel=1e-5)


def test_what_is_released_of_all_data_joins_both_sides():
    once, apart = (GaussianEvent(8.0),), (GaussianEvent(3.0), GaussianEvent(5.0))
    (event,) = price.total(RECORD, "server", Poisson(1.0), 8, 6, 6, once, apart)
    train, check = 6 / 16 + 1 / 64, 1 / 9 + 1 / 25 + 1 / 64
    assert train > check
    assert tightest.epsilon(event, DELTA) == pytest.approx(gdp.epsilon_of_mu(math.sqrt(train), DELTA))
    (event,) = price.total(RECORD, "server", Poisson(1.0), 8, 1, 1, once, apart)
    assert tightest.epsilon(event, DELTA) == pytest.approx(gdp.epsilon_of_mu(math.sqrt(check), DELTA))
    (nothing,) = price.total(RECORD, "server", Poisson(1.0), 8, 0, 0, once, apart)
    assert tightest.epsilon(nothing, DELTA) == pytest.approx(gdp.epsilon_of_mu(math.sqrt(check), DELTA))


def test_the_draw_of_clients_does_not_hide_what_is_released_apart():
    hidden, every = price.total(RECORD, "public", Poisson(0.1), 8, 6, 2, (), (GaussianEvent(4.0),))
    for event, rounds in ((hidden, {Visible(GaussianEvent(4.0), 0.1): 6}), (every, {GaussianEvent(4.0): 2})):
        assert [algebra.parts(e) for e in algebra.alternatives(event)] == [rounds, {GaussianEvent(4.0): 1}]


@pytest.mark.parametrize("copies", [1, 3])
def test_a_user_that_comes_or_goes_lies_on_one_side(copies):
    """All records of a user are held out or none, in whatever client they are: its own number decides."""
    cost = Cost("user", "add/remove", "server", GaussianEvent(4.0), copies=copies)
    (event,) = price.total(cost, "server", Poisson(1.0), 8, 6, 6, (), (GaussianEvent(3.0),))
    sides = [algebra.gdp_mu_squared(e) for e in algebra.alternatives(event)]
    assert sides == [pytest.approx(6 * copies / 16), pytest.approx(1 / 9)]
    assert "replace" not in algebra.relations(event)  # another user may be on the other side
    cost = Cost("user", "add/remove", "public", GaussianEvent(4.0), draw="changed", copies=copies)
    (event,) = price.total(cost, "public", Poisson(0.5), 8, 6, 6, (), (GaussianEvent(3.0),))
    alone = price.total(cost, "public", Poisson(0.5), 8, 6, 6)[0]
    assert tightest.epsilon(event, DELTA) == max(tightest.epsilon(e, DELTA) for e in (alone, GaussianEvent(3.0)))


BOTH = [("client", 1, "add/remove"), ("user", 1, "replace"), ("user", 3, "replace"), ("record", 2, "add/remove")]


@pytest.mark.parametrize(("unit", "copies", "relation"), BOTH)
def test_who_may_lie_on_both_sides_pays_for_both(unit, copies, relation):
    cost = Cost(unit, relation, "server", GaussianEvent(4.0), draw="inside", copies=copies)
    (event,) = price.total(cost, "server", Poisson(1.0), 8, 6, 6, (), (GaussianEvent(3.0),))
    assert algebra.gdp_mu_squared(event) == pytest.approx(6 * copies / 16 + 1 / 9)


def test_noise_is_found_for_the_part_that_it_is_in():
    """An evaluation that costs nearly the whole budget leaves the noise of training where it was."""
    alone = noise_multiplier(lambda z: Repeated(GaussianEvent(z), 10), 2.0, DELTA)
    for part in (Pure(0.3), Pure(1.97), Pure(2.0)):
        made = noise_multiplier(lambda z, part=part: Parallel((Repeated(GaussianEvent(z), 10), part)), 2.0, DELTA)
        assert made == pytest.approx(alone, rel=1e-6)
    with pytest.raises(BudgetError, match="one part of the data"):
        noise_multiplier(lambda z: Parallel((GaussianEvent(z), Pure(2.01))), 2.0, DELTA)


def test_a_job_pays_apart_for_what_is_apart():
    made = job(method="dp-sgd", epsilon=2.0, rounds=4)
    for extra, dearer in (((Pure(0.3),), False), ((Pure(2.5),), True)):
        held = replace(made, apart=extra)
        assert held.promise.epsilon == (tightest.epsilon(Pure(2.5), 1e-5) if dearer else made.promise.epsilon)
        assert tightest.epsilon(held.plan_cost().event, 1e-5) == pytest.approx(held.promise.epsilon)
        assert replace(made, once=extra).promise.epsilon > held.promise.epsilon
