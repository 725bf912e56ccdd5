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
from sordino.privacy.algebra import non_private
from sordino.privacy.events import Cost, Event, Repeated
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
    cost: Cost, viewer: str, sampler: Sampler, population: int, rounds: int, participations: int
) -> tuple[Event, ...]:
    """Events that each bound the whole run; the least epsilon counts."""
    every_time = Repeated(cost.event, participations)
    if trust.viewer(viewer).sees_draw or non_private(cost.event) is not None:
        return (every_time,)
    if cost.unit == "record":
        a_round = of_records_inside(sampler, cost.event, population)
    else:
        a_round = sampler.hidden(cost.event, population)
    hidden = Repeated(a_round, rounds)
    return (hidden,) if participations >= rounds else (hidden, every_time)


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
) -> Guarantee:
    cost = cost_to(viewer, costs)
    events = total(cost, viewer, sampler, population, rounds, participations)
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
