"""Every kind of event under every sampler, by every accountant: never below what the laws themselves say.

An accountant may refuse a combination. What it does price is compared with worlds of a few units in which draws and
outcomes are written down one by one (worlds.py).
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from laws.examples import KINDS, LEAVES
from laws.worlds import AR, LAWS, RO, exact_delta, exact_epsilon, readings, worlds
from sordino.core.errors import UnsupportedEvent
from sordino.privacy import algebra, filters, price, tightest
from sordino.privacy.accountants import gdp, pld, rdp, zcdp
from sordino.privacy.events import (  # fmt: skip
    Composed,
    Cost,
    FixedSize,
    GaussianEvent,
    Parallel,
    Pure,
    Repeated,
    Sampled,
    SampledGroup,
    Visible,
)
from sordino.privacy.samplers import FixedSizeSampler as FixedCohort
from sordino.privacy.samplers import Poisson
from support.accountants import BY_NAME, answers_of, rough

DELTA = 1e-3
ACCOUNTANTS = BY_NAME | {"pld": rough, "all": lambda event, delta: tightest.epsilon(event, delta, pld.ROUGH)}
DELTAS = {"zcdp": zcdp.delta, "rdp": rdp.delta, "gdp": gdp.delta, "pld": pld.delta, "all": tightest.delta}
WRAPPED = {
    "plain": lambda e: e,
    "sampled": lambda e: Sampled(e, 0.3),
    "sampled-replace": lambda e: Sampled(e, 0.3, RO),
    "fixed": lambda e: FixedSize(e, 1, 3),
    "visible": lambda e: Visible(e, 0.3),
}
FEW = [GaussianEvent(1.0), KINDS["LaplaceEvent"](1.0), Pure(0.8), KINDS["RandomizedResponseEvent"](1.0)]
RESPONSE = KINDS["RandomizedResponseEvent"](1.0)


def neighbours(event):
    return [pair for reading in readings(event) for w in worlds(event, reading) for pair in w.neighbours(reading)]


def answers(event, of=ACCOUNTANTS, at=DELTA):
    return answers_of(event, of, at)


def assert_none_is_below(event, copies=1, deltas=False):
    """The accountants that price so many copies of an event, all of them at or above its exact cost."""
    pairs = neighbours(event)
    exact, repeated = exact_epsilon(pairs, copies, DELTA), Repeated(event, copies)
    found = answers(repeated)
    for name, cost in found.items():
        assert cost >= exact * (1 - 1e-8) - 1e-9, (name, event, copies, cost, exact)
    if deltas:
        at = 0.3 * min(exact, 10.0)
        lost = exact_delta(pairs, copies, at)
        for name, cost in answers(repeated, DELTAS, at).items():
            assert cost >= lost * (1 - 1e-8) - 1e-12, (name, event, copies, cost, lost)
    for theory in ("rdp", "gdp"):
        if 1e-6 < exact < math.inf:
            try:
                assert not filters.make(theory, 0.999 * exact, DELTA).fits(repeated), (theory, event, copies)
            except UnsupportedEvent:
                continue
    return set(found)


def test_every_leaf_has_its_laws_written_down():
    leaves = {e.event.written_as for e in LEAVES}
    assert leaves == set(LAWS), f"no law in tests/laws/worlds.py of {sorted(leaves ^ set(LAWS))}"
    for example in LEAVES:
        for world in worlds(example.event, AR):
            for law in (world.one, world.other, *([] if world.absent is None else [world.absent])):
                assert law.min() >= 0 and law.sum() == pytest.approx(1, abs=1e-6), example


@pytest.mark.parametrize("wrap", WRAPPED)
@pytest.mark.parametrize("example", LEAVES, ids=str)
def test_no_accountant_is_below_any_world(example, wrap):
    event = WRAPPED[wrap](example.event)
    priced = [assert_none_is_below(event, copies, deltas=copies == 1) for copies in (1, 2)]
    if wrap in ("plain", "visible"):
        assert all("all" in names for names in priced)  # these are never refused
    if wrap.startswith("sampled") and example.event.replaces:
        assert priced == [set(), set()]


@pytest.mark.parametrize(("outer", "inner"), list(itertools.product(list(WRAPPED)[1:], repeat=2)))
@pytest.mark.parametrize("leaf", FEW, ids=lambda e: type(e).__name__)
def test_samplers_of_samplers(leaf, inner, outer):
    assert_none_is_below(WRAPPED[outer](WRAPPED[inner](leaf)))


@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_groups_under_a_draw(rate):
    for copies in (1, 2):
        assert "pld" in assert_none_is_below(SampledGroup(2.0, rate, 2), copies)


SPLITS = [
    Parallel((Pure(0.8), KINDS["LaplaceEvent"](1.0))),
    Parallel((Sampled(Pure(2.0), 0.2), GaussianEvent(1.5))),
    Parallel((GaussianEvent(1.0), Pure(1.0)), by_place=True),
    Parallel((RESPONSE, KINDS["GeneralizedRREvent"](0.7, 3)), by_place=True),
    Parallel((FixedSize(Pure(1.0), 1, 3), GaussianEvent(2.0)), by_place=True),
    Parallel((Parallel((Pure(0.3), Pure(0.9))), Composed((Pure(0.2), Pure(0.4))))),
]


@pytest.mark.parametrize("split", SPLITS, ids=range(len(SPLITS)))
def test_parts_of_the_data(split):
    """Alone, beside other releases, split anew, and under a sampler: every accountant has a price."""
    replaces = algebra.of_replaced_units(split)
    beside = RESPONSE if replaces else KINDS["LaplaceEvent"](2.0)
    for event in (split, Composed((beside, split)), Visible(split, 0.3)):
        assert assert_none_is_below(event) >= {"basic", "pld", "all"}
    assert "all" in assert_none_is_below(Composed((split, split)))
    if not replaces:
        assert "all" in assert_none_is_below(Sampled(split, 0.3))
        assert_none_is_below(Sampled(split, 0.3, RO))
    assert answers(FixedSize(split, 1, 3)) == {}


@pytest.mark.parametrize(
    "event",
    [
        Sampled(RESPONSE, 0.1),
        Sampled(RESPONSE, 0.1, RO),
        Sampled(Visible(RESPONSE, 0.5), 0.1),
        Sampled(Composed((GaussianEvent(1.0), RESPONSE)), 0.1),
        Sampled(FixedSize(GaussianEvent(1.0), 1, 3), 0.1),
        Sampled(Sampled(GaussianEvent(1.0), 0.1, RO), 0.1),
        FixedSize(Sampled(GaussianEvent(1.0), 0.1), 1, 3),
        FixedSize(SampledGroup(1.0, 0.1, 2), 1, 3),
        FixedSize(Parallel((Pure(1.0), Pure(2.0))), 1, 3),
        FixedSize(Parallel((Pure(1.0), Pure(2.0)), by_place=True), 1, 3),
        Parallel((RESPONSE, RESPONSE)),
        Parallel((FixedSize(Pure(1.0), 1, 3), Pure(1.0))),
        Composed((Sampled(GaussianEvent(1.0), 0.1), RESPONSE)),
        Composed((Parallel((Pure(1.0), Pure(2.0))), RESPONSE)),
        Composed((SampledGroup(1.0, 0.1, 2), FixedSize(GaussianEvent(1.0), 1, 3))),
    ],
)
@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: Repeated(e, 3), lambda e: Composed((Pure(0.1), e))])
def test_what_no_theorem_covers_is_refused_by_all(event, wrap):
    """Every accountant and filter refuses it, alone, repeated, and beside a release that is covered."""
    assert answers(wrap(event)) == {} and answers(wrap(event), DELTAS, 0.5) == {}
    for ask in (tightest.explain, lambda e, d: pld.pair_of(e), lambda e, d: rdp.rdp(e), lambda e, d: zcdp.rho_of(e)):
        with pytest.raises(UnsupportedEvent):
            ask(wrap(event), DELTA)
    for theory in ("rdp", "gdp"):
        with pytest.raises(UnsupportedEvent):
            filters.make(theory, 10.0, DELTA).fits(wrap(event))


# --- whole rounds: who is drawn, and what each viewer sees of it


def cohorts(sampler, population):
    """Every cohort and its probability."""
    who = range(population)
    if isinstance(sampler, FixedCohort):
        found = list(itertools.combinations(who, sampler.size))
        return [(set(c), 1 / len(found)) for c in found]
    sizes = itertools.chain.from_iterable(itertools.combinations(who, k) for k in range(population + 1))
    return [(set(c), sampler.rate ** len(c) * (1 - sampler.rate) ** (population - len(c))) for c in sizes]


def seen(viewer, sampler, population, drawn, otherwise):
    """What the viewer sees of one round: the release, and the cohort or whether it was drawn itself.

    Client 0 is protected and client 1 may be the one that looks."""
    know = {"public": lambda c: (), "client": lambda c: (1 in c,), "server": lambda c: (tuple(sorted(c)),)}[viewer]
    views = sorted({know(c) for c, _ in cohorts(sampler, population)})
    law = np.zeros((len(views), len(drawn)))
    for cohort, p in cohorts(sampler, population):
        law[views.index(know(cohort))] += p * (drawn if 0 in cohort else otherwise)
    return law.ravel()


def rounds_of(leaf, cost, viewer, sampler, population):
    """Neighbouring laws of one round, for all that those who are not drawn may be."""
    out = []
    for w in worlds(leaf, AR if cost.draw == "changed" else cost.relation):
        w = w.each(lambda law: np.append(law, 0.0))
        silent = np.zeros_like(w.one)
        silent[-1] = 1.0  # nothing came, and that shows
        if cost.draw == "inside" or (w.absent is None and sampler.relation == AR):
            others = [silent]
        else:
            others = [w.one, w.other] if w.absent is None or sampler.relation == RO else [w.absent]
        for otherwise in others:
            one, other = (seen(viewer, sampler, population, law, otherwise) for law in (w.one, w.other))
            if cost.draw == "changed" or w.absent is None or cost.relation == RO:
                out.append((one, other))
            elif cost.draw == "inside":
                out.append((one, seen(viewer, sampler, population, w.absent, otherwise)))
            elif viewer != "server":
                out.append((one, seen(viewer, sampler, population, w.absent, w.absent)))
            else:  # the server sees that it is drawn, which is no secret; what it sends is
                out.append((one, seen(viewer, sampler, population, w.absent, otherwise)))
    return out


@pytest.mark.parametrize("viewer", ["public", "client", "server"])
@pytest.mark.parametrize("draw", ["unit", "inside", "changed"])
@pytest.mark.parametrize(
    ("sampler", "population"),
    [(Poisson(0.2), 2), (Poisson(0.7), 3), (FixedCohort(1), 2), (FixedCohort(1), 3), (FixedCohort(2), 3)],
    ids=str,
)
def test_no_price_of_a_run_is_below_any_world(sampler, population, draw, viewer):
    for leaf, relation, rounds in itertools.product(FEW, (AR, RO), (1, 2)):
        if leaf.replaces and relation == AR:
            continue  # a cost that says so is about replaced units all the same
        cost = Cost("client" if draw == "unit" else "record", relation, viewer, leaf, draw=draw)
        try:
            bounds = price.total(cost, viewer, sampler, population, rounds, rounds)
            found = min(tightest.epsilon(event, DELTA, pld.ROUGH) for event in bounds)
        except UnsupportedEvent:
            continue
        exact = exact_epsilon(rounds_of(leaf, cost, viewer, sampler, population), rounds, DELTA)
        assert found >= exact * (1 - 1e-8) - 1e-9, (leaf, relation, rounds, found, exact)


@pytest.mark.parametrize("example", LEAVES, ids=str)
def test_a_hidden_draw_of_every_kind(example):
    """Clients come by Poisson draws and in cohorts of a fixed size; the public looks on."""
    for sampler, relation in ((Poisson(0.3), RO if example.event.replaces else AR), (FixedCohort(1), RO)):
        cost = Cost("client", relation, "public", example.event)
        try:
            (event,) = price.total(cost, "public", sampler, 3, 2, 2)
            found = tightest.epsilon(event, DELTA, pld.ROUGH)
        except UnsupportedEvent:
            assert not example.event.replaces or sampler.relation == RO  # a report under a Poisson draw has a price
            continue
        exact = exact_epsilon(rounds_of(example.event, cost, "public", sampler, 3), 2, DELTA)
        assert found >= exact * (1 - 1e-8) - 1e-9, (sampler, found, exact)
