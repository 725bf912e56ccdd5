"""From one participation to a whole run: what the viewer is charged, given what it can see.

A viewer who sees the draw pays for every participation, the others for every round at the sampler's rate; both
are upper bounds for the latter, so the cheaper one counts. Whoever sees less than the server pays at most what
the server pays.
"""

from __future__ import annotations

from collections.abc import Sequence

from sordino.core.errors import SpecError
from sordino.privacy import trust
from sordino.privacy.account import epsilon
from sordino.privacy.accountants import pld
from sordino.privacy.algebra import grouped, non_private, replaced
from sordino.privacy.events import Composed, Cost, Event, Repeated, Visible
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.samplers import Sampler, of_records_inside

VIEWERS = ("server", "public")  # those every run reports


def cost_to(viewer: str, costs: Sequence[Cost]) -> Cost:
    """The cost that names the viewer; else that of someone who sees all that this viewer sees."""
    kind = trust.viewer(viewer).kind
    by_viewer = {c.viewer: c for c in costs}
    for name in (viewer, *(("public", "server") if kind != "server" else ("server",))):
        if name in by_viewer:
            return by_viewer[name]
    raise SpecError(f"the method does not say what viewer {viewer!r} is charged.")


def total(
    cost: Cost,
    viewer: str,
    sampler: Sampler,
    population: int,
    rounds: int,
    participations: int,
    once: Sequence[Event] = (),
) -> tuple[Event, ...]:
    """Events that each bound the whole run, `once` being released beside the rounds; the least epsilon counts."""
    changed = cost.draw == "changed"
    each = grouped(replaced(cost.event), cost.copies) if changed else _times(cost.event, cost.copies)
    every_time = _with(Repeated(each, participations), once)
    if trust.viewer(viewer).sees_draw or non_private(cost.event) is not None:
        return (every_time,)
    if changed:
        a_round = grouped(replaced(sampler.hidden(cost.event, population)), cost.copies)
    elif cost.draw == "inside":
        a_round = _copies_inside(cost, sampler, population)
    else:
        a_round = sampler.hidden(cost.event, population)
    hidden = _with(Repeated(a_round, rounds), once)
    return (hidden,) if participations >= rounds else (hidden, every_time)


def _copies_inside(cost: Cost, sampler: Sampler, population: int) -> Event:
    """A unit inside several clients, each drawn on its own; in a cohort of a fixed size draws are not independent."""
    if cost.copies == 1 or sampler.relation == "add/remove":
        return _times(of_records_inside(sampler, cost.event, population), cost.copies)
    whole, rate = _times(cost.event, cost.copies), min(1.0, cost.copies * sampler.probability(population))
    return whole if rate >= 1 else Visible(whole, rate)


def _times(event: Event, copies: int) -> Event:
    return event if copies == 1 else Repeated(event, copies)


def _with(event: Event, once: Sequence[Event]) -> Event:
    return Composed((event, *once)) if once else event


def guarantee(
    costs: Sequence[Cost],
    viewer: str,
    sampler: Sampler,
    population: int,
    rounds: int,
    participations: int,
    delta: float,
    mode: str,
    cells: float = pld.FINE,
    once: Sequence[Event] = (),
) -> Guarantee:
    cost = cost_to(viewer, costs)
    events = total(cost, viewer, sampler, population, rounds, participations, once)
    return Guarantee(
        epsilon=min(epsilon(e, delta, cells) for e in events),
        delta=delta,
        unit=cost.unit,
        relation=cost.relation,
        viewer=viewer,
        rounds=rounds,
        mode=mode,
        reason=non_private(cost.event),
    )
