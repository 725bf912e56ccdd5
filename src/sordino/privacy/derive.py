"""Costs derived from declared releases: relation, copies, draw and viewers are handled here, once for all methods.

    price(viewer) = clients' draw( channel.cost( records' draw( releases ), viewer ) )

The draw of clients is left to price.py. The releases of one participation compose; the channel carries the message of
each phase separately, so its cost is computed for each phase. Releases on different parts of the data are alternatives.
Gaussian noise that a trusted server adds to several sums of one round is a single Gaussian release. Where a `total` is
declared, the run costs one use of it, whatever the rounds cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from sordino.core.errors import SpecError
from sordino.privacy.algebra import grouped, of_replaced_units
from sordino.privacy.crowd import Crowd
from sordino.privacy.events import Composed, Cost, Event, GaussianEvent, NonPrivate, Parallel, Repeated
from sordino.privacy.release import Draw, Mechanism, Release
from sordino.privacy.samplers import Poisson, Sampler
from sordino.privacy.trust import Viewer

TRUSTED = "the server receives the clipped updates and adds the noise itself"


class Hides(Protocol):
    """The part of a channel that cost computation needs: see channels/base.py."""

    def split(self, crowd: Crowd) -> int:
        """Return the number of clients that share the noise of a release; 1: each adds all of it."""
        ...

    def cost(self, event: Event, viewer: Viewer, crowd: Crowd, linear: bool = False, more: float = 0.0) -> Event:
        """Return the cost of one client's message of a phase against a viewer."""
        ...


@dataclass(frozen=True)
class Setting:
    """The public circumstances of a round."""

    channel: Hides
    crowd: Crowd = field(default_factory=Crowd)
    sampler: Sampler = field(default_factory=lambda: Poisson(1.0))  # sampler of clients
    copies: int = 1  # largest number of clients that hold data of one unit
    linear: bool = False  # whether messages are unchanged outputs of the outlets, so that noise adds up in a sum

    @property
    def split(self) -> int:
        """Return the number of clients that share the noise of one release; 1 unless noise adds up in a sum."""
        return self.channel.split(self.crowd) if self.linear else 1


def costs(releases: Sequence[Release], setting: Setting) -> tuple[Cost, ...]:
    """Return the cost of one participation, by viewer."""

    _one_draw(releases)

    def event(release: Release) -> Event:
        single = release.draw.hidden(_moved(release.mechanism.event(setting.split), release, releases, setting))
        return single if release.times == 1 else Repeated(single, release.times)

    return _costs(releases, setting, event)


def run_costs(releases: Sequence[Release], setting: Setting) -> tuple[Cost, ...] | None:
    """Return the cost of the whole run, whatever its rounds do; None if no release has a total."""
    pooled = [(r, r.total) for r in releases if r.total is not None]
    if not pooled:
        return None
    if any(r.total != pooled[0][1] for r in releases if not r.onto):
        raise SpecError("releases with a total share one: all releases of a method must name the same total.")
    for release, total in pooled:
        _metered(release, total)
    first, total = max(pooled, key=lambda pair: pair[0].swing)
    copies = setting.copies if first.unit == "user" else 1
    # the guarantee of single messages is chosen adaptively, so no client is certain to send an equally private one
    alone = replace(setting, crowd=replace(setting.crowd, sure=1))

    def event(release: Release) -> Event:
        single = _moved(total.event(setting.split), release, releases, setting)
        if release.where == "server" and release.unit == "user":  # all clients of the user change in one sum
            return grouped(single, release.swing * copies)
        return single if copies == 1 else Repeated(single, copies)

    return _costs([first, *(r for r in releases if r.onto)], alone, event)


def once(releases: Sequence[Release], relation: str, copies: int = 1, changed: bool = False) -> Event:
    """Return the cost of releases that are made once, in addition to the rounds, on the data of all units.

    Noise added by a single party covers all copies of a unit at once; otherwise each copy is charged.

    Args:
        releases: the releases.
        relation: the neighbouring relation of the rounds with which the cost is composed.
        copies: the largest number of clients that hold data of one unit.
        changed: whether a unit is added or removed inside clients that remain, so that these clients change in place.
    """
    events = []
    for release in releases:
        event = release.mechanism.event()
        if (relation == "replace" or changed) and not isinstance(event, NonPrivate):
            event = grouped(event, release.swing)
        if not isinstance(event, NonPrivate):
            event = grouped(event, copies) if release.where == "server" else Repeated(event, copies)
        events.append(event if release.times == 1 else Repeated(event, release.times))
    return _composed(events)


def relation(releases: Sequence[Release], setting: Setting) -> str:
    """Return the neighbouring relation under which all of the releases have a cost."""
    if any(r.unit == "user" and r.where == "server" for r in releases):
        return "add/remove"  # relation of the user; its clients change in place
    for r in releases:
        if r.relation == "replace" or r.draw.fixed or of_replaced_units(r.mechanism.event(setting.split)):
            return "replace"
        if r.unit == "client" and setting.sampler.relation == "replace":
            return "replace"
    return "add/remove"


def _moved(event: Event, release: Release, releases: Sequence[Release], setting: Setting) -> Event:
    """Convert an event for an added unit to the relation of the releases; a replaced unit may change the value more."""
    if relation(releases, setting) == "add/remove" or of_replaced_units(event) or isinstance(event, NonPrivate):
        return event
    return grouped(event, max(2, release.swing) if release.part else release.swing)  # a unit may change parts


def _one_draw(releases: Sequence[Release]) -> None:
    """Refuse several sampled releases in one phase: they may be based on the same draw, which costs more."""
    for phase in {r.phase for r in releases}:
        drawn = [r for r in releases if r.phase == phase and r.draw != Draw() and not _free(r.mechanism.event())]
        if len(drawn) > 1:
            raise SpecError(
                f"the releases {' and '.join(r.name for r in drawn)} are both of drawn units, which cannot be priced "
                "in one phase: release them as one, or without a draw."
            )


def _free(event: Event) -> bool:
    return isinstance(event, NonPrivate)


def _metered(release: Release, total: Mechanism) -> None:
    """Refuse a total that is not bounded by the sum of squared noise levels, which is what outlets keep track of."""
    single, overall = release.mechanism.event(), total.event()
    if release.where == "server":
        if release.mechanism != total or not getattr(total, "correlated", False):
            raise SpecError(
                f"the release {release.name}: at the server a total belongs to noise correlated over the rounds, "
                "and the mechanism itself."
            )
        return
    gaussian = overall.gdp() is not None
    by_rho = not gaussian and overall.pure() is None and overall.rho() is not None
    if not (single.gdp() is not None if gaussian else by_rho and single.rho() is not None):
        raise SpecError(
            f"the release {release.name}: a total must be Gaussian, of Gaussian releases, or a bound on rho of "
            "releases whose rho is known: nothing else adds up by squares."
        )


def _costs(releases: Sequence[Release], setting: Setting, event_of: Callable[[Release], Event]) -> tuple[Cost, ...]:
    at_clients = [r for r in releases if r.where == "client"]
    at_server = [r for r in releases if r.where == "server" and not r.onto]
    on_top = [r for r in releases if r.where == "server" and r.onto]
    if not at_clients and not at_server:
        raise SpecError("a method must release something: otherwise what it sends cannot be priced.")
    how, unit = relation(releases, setting), releases[0].unit
    if any(r.unit == "record" and not _free(r.mechanism.event()) for r in at_server):
        raise SpecError("a server's noise covers whole rows: use it for units client or user, not for records.")
    if any(r.unit != unit for r in releases):
        raise SpecError("the releases of a method must protect one unit.")
    copies = setting.copies if unit == "user" else 1
    if at_server:
        inside = [_together(at_clients, event_of)] if at_clients else []
        shown = _composed([*inside, _fused([event_of(r) for r in at_server])])
        if inside and unit == "user":
            raise SpecError(
                "noise of clients and of the server on one method's releases cannot be priced for unit = user."
            )
        # participation shows if a client's own noise is absent with the client, or if a record arrives with others
        draw = "changed" if unit == "user" else "unit" if unit == "client" and not inside else "inside"
        return (
            Cost(unit, how, "server", NonPrivate(TRUSTED)),
            Cost(unit, how, "public", shown, draw=draw, copies=copies),
        )
    crowd = replace(setting.crowd, single=setting.crowd.single or unit == "client")
    phases = dict.fromkeys(r.phase for r in at_clients)
    messages = {phase: _together([r for r in at_clients if r.phase == phase], event_of) for phase in phases}

    def seen(viewer: Viewer) -> Event:
        """Compose the events that the channel shows a viewer for the messages of all phases."""
        more = {
            phase: 0.0 if viewer.kind == "server" else _on_top(on_top, at_clients, phase, how) for phase in messages
        }
        channel, linear = setting.channel, setting.linear
        return _composed([channel.cost(event, viewer, crowd, linear, more[p]) for p, event in messages.items()])

    by_viewer = [Cost(unit, how, "server", seen(Viewer("server", crowd.colluders)), draw="inside", copies=copies)]
    for kind in ("public", "client"):
        shown = seen(Viewer(kind))
        if shown != by_viewer[-1].event:
            by_viewer.append(Cost(unit, how, kind, shown, draw="inside", copies=copies))
    return tuple(by_viewer)


def _on_top(releases: Sequence[Release], below: Sequence[Release], phase: str, relation: str) -> float:
    """Return the noise that the server adds to the sum of a phase, in units of the change that one client can cause."""
    moved = {r.name: (r.bound or 0.0) * (r.swing if relation == "replace" else 1) for r in below}
    matches = [r for r in releases if r.phase == phase and moved.get(r.onto)]
    return math.hypot(*((r.multiplier or 0.0) * (r.bound or 0.0) / moved[r.onto] for r in matches))


def _together(releases: Sequence[Release], event_of: Callable[[Release], Event]) -> Event:
    """Compose the releases of each part, and combine the parts; a unit lies in one part."""
    parts: dict[str, list[Event]] = {}
    for release in releases:
        parts.setdefault(release.part, []).append(event_of(release))
    everywhere = parts.pop("", [])
    apart = list(dict.fromkeys(_composed(events) for events in parts.values()))
    if len(apart) == 1:
        return _composed([*everywhere, apart[0]])
    return _composed([*everywhere, Parallel(tuple(apart))] if apart else everywhere)


def _composed(events: Sequence[Event]) -> Event:
    return events[0] if len(events) == 1 else Composed(tuple(events))


def _fused(events: Sequence[Event]) -> Event:
    """Fuse Gaussian releases of one sum with the same draw into one Gaussian release; compose any others.

    Releases with multipliers z_i are equivalent to one with z^-2 = sum of z_i^-2 (Andrew et al. 2021, Theorem 1).
    """
    levels = [e.noise_multiplier**-2 for e in events if isinstance(e, GaussianEvent)]
    if len(events) == 1 or len(levels) < len(events):
        return _composed(events)
    return GaussianEvent(math.fsum(levels) ** -0.5)
