"""The cost of a whole run, derived from the cost of one participation and from what the viewer can see.

A viewer who sees the draw is charged for every participation, other viewers for every round at the sampler's rate. For
the latter both are upper bounds, so the smaller one counts. A viewer who sees less than the server is charged at most
what the server is charged. Another client knows whether it was drawn itself: see `trust.Viewer.drawn_from`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import Any, TypeVar

from sordino.core.errors import SpecError, UnsupportedEvent
from sordino.privacy import trust
from sordino.privacy.accountants import pld
from sordino.privacy.algebra import grouped, non_private, relations, replaced
from sordino.privacy.events import Composed, Cost, Event, Parallel, Repeated, Visible
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.samplers import Sampler, of_records_inside
from sordino.privacy.tightest import epsilon
from sordino.privacy.written import to_json

VIEWERS = ("server", "public")  # viewers that every run reports
ONE_PLACE = ("record", "label")  # units that are entirely used for training or entirely held out

A = TypeVar("A")
B = TypeVar("B")


def cost_to(viewer: str, costs: Sequence[Cost]) -> Cost:
    """Return the cost that names the viewer, or else the cost of one who sees everything that this viewer sees."""
    kind = trust.viewer(viewer).kind
    by_viewer = {c.viewer: c for c in costs}
    for name in (viewer, *(("public", "server") if kind != "server" else ("server",))):
        if name in by_viewer:
            return by_viewer[name]
    raise SpecError(f"the method does not say what viewer {viewer!r} is charged.")


def total(
    costs: Cost | Sequence[Cost],
    viewer: str,
    sampler: Sampler,
    population: int,
    rounds: int,
    participations: int,
    once: Sequence[Event] = (),
    apart: Sequence[Event] = (),
) -> tuple[Event, ...]:
    """Return events that each bound the whole run; the smallest epsilon counts.

    Args:
        costs: the cost of a round for those who take part in it: one for all rounds, or one per round.
        viewer: the viewer, as in trust.py.
        sampler: the sampler of clients.
        population: the number of clients.
        rounds: the number of rounds.
        participations: the largest number of rounds in which one client takes part.
        once: releases made in addition to the rounds, on all data.
        apart: releases made in addition to the rounds, on data that no round uses: see `beside`.
    """
    by_round = [costs] * rounds if isinstance(costs, Cost) else list(costs)
    for cost, _ in groupby(by_round):
        _check(cost)
    if not by_round:
        return (beside(Composed(()), once, apart, [costs] if isinstance(costs, Cost) else ()),)
    looks = trust.viewer(viewer)
    every_time = beside(_sum(_dearest(by_run(_each, by_round), participations)), once, apart, by_round)
    if looks.sees_draw or any(non_private(c.event) is not None for c, _ in groupby(by_round)):
        return (every_time,)
    drawn = looks.drawn_from(population)
    hidden = beside(_sum(by_run(lambda c: _hidden(c, sampler, drawn), by_round)), once, apart, by_round)
    return (hidden,) if participations >= rounds else (hidden, every_time)


def _check(cost: Cost) -> None:
    """Refuse a cost whose event does not hold under the relation (add/remove or replace) that the cost names."""
    if cost.draw != "changed" and non_private(cost.event) is None and cost.relation not in relations(cost.event):
        (other,) = relations(cost.event)
        raise UnsupportedEvent(
            f"a cost says {cost.relation}, but its event is about the relation {other} only: say {other}, "
            "or charge what adding or removing a unit does."
        )


def beside(rounds: Event, once: Sequence[Event], apart: Sequence[Event], costs: Sequence[Cost]) -> Event:
    """Compose the rounds with the releases that are made in addition to them.

    A unit pays for `once`, and either for the rounds or for `apart` if it lies entirely on one side: a record, or its
    label, whose side follows from its place and a public seed; or a user that is added or removed, all of whose records
    are on the side determined by the user's number and a public seed. Other units may lie on both sides and pay for
    everything.
    """
    if not apart:
        return Composed((rounds, *once)) if once else rounds
    kinds = [cost for cost, _ in groupby(costs)]
    by_place = all(cost.unit in ONE_PLACE and cost.copies == 1 for cost in kinds)
    if by_place or all(cost.unit == "user" and cost.relation == "add/remove" for cost in kinds):
        stays = by_place or all(cost.draw == "changed" for cost in kinds)  # adding a user changes clients in place
        return Composed((Parallel((rounds, Composed(tuple(apart))), by_place=stays), *once))
    return Composed((rounds, *once, *apart))


def by_run(make: Callable[[A], B], rounds: Sequence[A]) -> list[B]:
    """Return `make` of each round, evaluated once for each run of consecutive equal rounds."""
    return [made for key, run in groupby(rounds) for made in [make(key)] for _ in run]


def _each(cost: Cost) -> Event:
    """Return the event of a round in which it is known who takes part."""
    if cost.draw == "changed":
        return grouped(replaced(cost.event), cost.copies)
    return _times(cost.event, cost.copies)


def _hidden(cost: Cost, sampler: Sampler, population: int) -> Event:
    """Return the event of a round in which it is not known who takes part."""
    if cost.draw == "changed":
        event = replaced(cost.event) if sampler.relation == "replace" else cost.event
        return grouped(replaced(sampler.hidden(event, population)), cost.copies)
    if cost.draw == "inside":
        return _copies_inside(cost, sampler, population)
    if cost.relation == sampler.relation:
        return sampler.hidden(cost.event, population)
    if cost.relation == "replace":  # a client that is not drawn may not look like one whose data were replaced
        return of_records_inside(sampler, cost.event, population)
    raise UnsupportedEvent(
        "a cohort of a fixed size hides replaced clients only: charge relation replace (twice a client's bound), "
        "or draw clients with client_sampling = poisson."
    )


def _sum(events: Sequence[Event]) -> Event:
    """Compose all events, with runs of equal events as `Repeated`."""
    repeated = tuple(Repeated(event, len(list(run))) for event, run in groupby(events))
    return repeated[0] if len(repeated) == 1 else Composed(repeated)


def _dearest(events: Sequence[Event], count: int) -> list[Event]:
    """Return the `count` most expensive rounds, where `count` is the number of rounds that one client can be in.

    The rounds must differ in the amount of noise only.
    """
    if count >= len(events) or all(e == events[0] for e in events):
        return list(events[:count])
    if any(non_private(e) is not None for e in events):
        return [next(e for e in events if non_private(e) is not None)]
    shapes, levels = zip(*(_level(to_json(e)) for e in events), strict=True)
    order = sorted(range(len(events)), key=lambda i: levels[i])
    steps = pairwise([levels[i] for i in order])
    if len(set(shapes)) > 1 or not all(a <= b for low, high in steps for a, b in zip(low, high, strict=True)):
        raise UnsupportedEvent(
            "there is no bound for rounds of different kinds with clients that are not in all of them."
        )
    return [events[i] for i in order[:count]]


def _level(event: Any) -> tuple[str, tuple[float, ...]]:
    """Return a description of an event without its noise, and the noise multipliers in it."""
    multipliers: list[float] = []

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            multipliers.extend(v for k, v in value.items() if k == "noise_multiplier")
            return {k: walk(v) for k, v in value.items() if k != "noise_multiplier"}
        return [walk(v) for v in value] if isinstance(value, list) else value

    return repr(walk(event)), tuple(multipliers)


def _copies_inside(cost: Cost, sampler: Sampler, population: int) -> Event:
    """Return the event of a unit inside several clients, each drawn independently.

    In a cohort of a fixed size, draws are not independent.
    """
    if cost.copies == 1 or sampler.relation == "add/remove":
        return _times(of_records_inside(sampler, cost.event, population), cost.copies)
    all_copies, rate = _times(cost.event, cost.copies), min(1.0, cost.copies * sampler.probability(population))
    return all_copies if rate >= 1 else Visible(all_copies, rate)


def _times(event: Event, copies: int) -> Event:
    return event if copies == 1 else Repeated(event, copies)


def guarantee(
    costs: Sequence[Cost] | Sequence[Sequence[Cost]],
    viewer: str,
    sampler: Sampler,
    population: int,
    rounds: int,
    participations: int,
    delta: float,
    mode: str,
    cells: float = pld.FINE,
    once: Sequence[Event] = (),
    apart: Sequence[Event] = (),
) -> Guarantee:
    """Return the guarantee of a run against a viewer.

    Args:
        costs: the costs by viewer of one round, for all rounds, or one such list per round.
        viewer: the viewer, as in trust.py.
        sampler: the sampler of clients.
        population: the number of clients.
        rounds: the number of rounds.
        participations: the largest number of rounds in which one client takes part.
        delta: the delta of the guarantee.
        mode: the mode of randomness, "research" or "secure".
        cells: the grid of the accountant.
        once: see `total`.
        apart: see `total`.
    """
    by_round = [cost_to(viewer, c) for c in costs if not isinstance(c, Cost)]
    cost = by_round[0] if by_round else cost_to(viewer, [c for c in costs if isinstance(c, Cost)])
    events = total(by_round or cost, viewer, sampler, population, rounds, participations, once, apart)
    return of(events, cost, viewer, rounds, delta, mode, cells)


def of(
    events: Sequence[Event], cost: Cost, viewer: str, rounds: int, delta: float, mode: str, cells: float = pld.FINE
) -> Guarantee:
    """Return the guarantee given by the best of these bounds."""
    return Guarantee(
        epsilon=min(epsilon(e, delta, cells) for e in events),
        delta=delta,
        unit=cost.unit,
        relation=cost.relation,
        viewer=viewer,
        rounds=rounds,
        mode=mode,
        reason=non_private(cost.event) or next((why for e in events if (why := non_private(e)) is not None), None),
    )
