"""The guarantee of a run in two plain sentences: what is promised against whom, and who computed and who tried it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sordino.core.rounding import down, up
from sordino.privacy.guarantee import Guarantee, change, who
from sordino.report.run.fields import Fields, RunSources
from sordino.report.run.pricing import Priced, priced
from sordino.report.run.promise import by_viewer, stated
from sordino.report.run.words import capital, number_of, small, whose

# guarantee: of a finished run. promise: of one without a result. none: epsilon is infinite against everybody.
# unread: the records do not say.
Standing = Literal["guarantee", "promise", "none", "unread"]


@dataclass(frozen=True)
class AuditSummary:
    """What an audit has shown: that epsilon is at least so much."""

    least: float
    gaussian: float | None  # if the noise is Gaussian
    confidence: float
    unit: str
    viewer: str
    alarm: bool
    source: str

    @property
    def sure(self) -> str:
        """The confidence in words."""
        return f"{down(100 * self.confidence, 1)} % confidence"


@dataclass(frozen=True)
class Statement:
    """What a run promises, as far as its records say it."""

    standing: Standing
    main: Guarantee | None  # against the viewer of the budget
    viewers: tuple[Guarantee, ...]  # all of them, that of the budget first
    source: str
    price: Priced | None
    audit: AuditSummary | None

    @property
    def finite(self) -> tuple[Guarantee, ...]:
        """The guarantees with a finite epsilon."""
        return tuple(g for g in self.viewers if math.isfinite(g.epsilon))

    @property
    def infinite(self) -> tuple[Guarantee, ...]:
        """The viewers against whom nothing is promised."""
        return tuple(g for g in self.viewers if math.isinf(g.epsilon))


def statement(run: RunSources) -> Statement:
    """Return what a run promises; a viewer against whom something is promised comes first."""
    main, source = stated(run)
    viewers = sorted(by_viewer(run).values(), key=lambda g: math.isinf(g.epsilon))
    main = viewers[0] if viewers and (main is None or math.isinf(main.epsilon)) else main
    standing: Standing = "guarantee" if run.finished else "promise"
    if not viewers:
        standing = "unread"
    elif all(math.isinf(g.epsilon) for g in viewers):
        standing = "none"
    price = None if main is None else priced(run, main)
    where = f"{source}s" if run.finished else source
    return Statement(standing, main, tuple(viewers), where, price, audit_of(run))


def audit_of(run: RunSources) -> AuditSummary | None:
    """Return what the audit on record has shown; None if nobody audited, or its record is damaged."""
    file = run.audit
    least, confidence = file.number("least", 0.0), file.number("confidence", 0.0, 1.0)
    if least is None or confidence is None:
        return None
    gaussian = file.number("least_gaussian", 0.0)
    return AuditSummary(
        least,
        gaussian if gaussian is not None and gaussian > least else None,
        confidence,
        file.text("unit"),
        file.text("viewer"),
        bool(file.flag("alarm")),
        f"{file.file}: least, confidence",
    )


def sentences(run: RunSources, said: Statement) -> tuple[str, ...]:
    """Return the two sentences; one, if the records do not say what is promised."""
    if said.main is None:
        return ("These records state no guarantee that can be read, so count on none.",)
    if said.standing == "none":
        return (f"There is no guarantee: epsilon is infinite {_nothing(said.infinite)}.", _tried(run, said))
    return (_promised(said), _tried(run, said))


def _promised(said: Statement) -> str:
    first = said.finite[0]
    groups: dict[tuple[float, float, str, str], list[Guarantee]] = {}
    for g in said.finite:
        groups.setdefault((g.epsilon, g.delta, g.unit, g.relation), []).append(g)
    parts = []
    for number, ((epsilon, delta, unit, relation), members) in enumerate(groups.items()):
        size = f"with epsilon = {up(epsilon)} and delta = {delta:g}"
        if not number:
            size += f" ({small(delta)})" if 0 < delta < 0.5 else ""
            size += f", the {unit} being {_changed(first)},"
        elif (unit, relation) != (first.unit, first.relation):
            size = f"{whose(unit)[0]} {size}, the {unit} being {_changed(members[0])},"
        parts.append(f"{size} {_against(members)}")
    (text, verb), rounds = whose(first.unit), number_of(first.rounds, "round")
    verb += " to be" if said.standing == "promise" else ""
    return capital(f"in total over {rounds}, {text} {verb} protected {', and '.join(parts)}.")


def _changed(g: Guarantee) -> str:
    """Return how the data of a unit change, with an explanation of it in brackets."""
    what, colon, why = change(g).partition(": ")
    return f"{what} ({why})" if colon else what


def _against(viewers: list[Guarantee]) -> str:
    return ", and ".join(f"against {who(g.viewer, g.channel)}" for g in viewers)


def _tried(run: RunSources, said: Statement) -> str:
    """Return who computed the bound, and who tried to refute it."""
    audit = said.audit
    if audit is None:
        what = "shows how much it learns" if said.standing == "none" else "tries to refute it"
        tried = f"no audit that {what} is on record here (`sordino audit RUN` makes one)"
    else:
        tried = f"an audit showed that epsilon is at least {down(audit.least)} ({audit.sure})"
        if said.main is not None and (audit.unit, audit.viewer) != (said.main.unit, said.main.viewer):
            tried += f" for a {audit.unit} against the {audit.viewer}"
    if said.standing == "none":
        return f"No accountant can bound what such a viewer learns, and {tried}."
    if said.price is not None:
        by = f"by {said.price.accountant}, and again for this report from the published events"
    elif run.finished:
        by = "by that accountant of Sordino whose bound is smallest, and not again for this report"
    else:
        by = "before the first round, by that accountant of Sordino whose bound is smallest"
    return f"This upper bound was computed {by}; {tried}."


def nothing_against(said: Statement) -> str:
    """Return the viewers against whom nothing is promised, with the reasons, as a sentence; "" if there are none."""
    if not said.infinite or said.standing == "none":
        return ""
    return f"There is no guarantee (epsilon is infinite) {_nothing(said.infinite)}."


def _nothing(viewers: tuple[Guarantee, ...]) -> str:
    reasons: dict[str, list[Guarantee]] = {}
    for g in viewers:
        reasons.setdefault((g.reason or "").rstrip(". "), []).append(g)
    return "; and ".join(_against(v) + (f", because {why}" if why else "") for why, v in reasons.items())


def standing_note(run: RunSources) -> str:
    """Return what keeps a promise from being a guarantee; "" for a finished run."""
    done, planned = len(run.records.rounds), run.records.planned_rounds
    rounds = f"{done:,} of {number_of(planned, 'round')} {'is' if done == 1 else 'are'} on record"
    what = "What stands here is the promise made before the first round; only a finished run has a guarantee."
    match run.records.state:
        case "finished":
            return ""
        case "running":
            return f"This run goes on: {rounds}. {what}"
        case "stopped":
            return f"This run stopped before its end: {rounds}. {what}"
        case _:
            return (
                f"This is a copy of a run that had no result yet, and nothing here says if it goes on: {rounds}. {what}"
            )


def claim_of(run: RunSources) -> Fields:
    """Return the claim of a paper that does not hold; it is empty for any other method."""
    return run.result.part("claim") or run.plan.part("claim")
