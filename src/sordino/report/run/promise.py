"""The guarantee of a run as its records state it, with every field of it checked."""

from __future__ import annotations

import math

from sordino.privacy.guarantee import Guarantee
from sordino.report.run.fields import Fields, RunSources, one_line


def guarantee_of(fields: Fields) -> Guarantee | None:
    """Return the guarantee in a mapping; None if a field that gives it its meaning is missing or damaged."""
    if not fields:
        return None
    delta, infinite = fields.number("delta", 0.0, 1.0), fields.flag("infinite")
    unit, relation, viewer = (fields.text(name) for name in ("unit", "relation", "viewer"))
    rounds = fields.count("rounds")
    epsilon = math.inf if infinite else fields.number("epsilon", 0.0)
    if infinite and fields.has("epsilon"):
        fields.report("epsilon", "null, as `infinite` says it is")
        epsilon = None
    if epsilon is None or delta is None or rounds is None or not (unit and relation and viewer):
        lacking = f"{fields.file}: the guarantee is not complete ({fields.path}), so it is not stated here."
        if lacking not in fields.damage:
            fields.damage.append(lacking)
        return None
    return Guarantee(
        epsilon, delta, unit, relation, viewer, rounds,
        mode=fields.text("mode"),
        reason=fields.text("reason") or None,
        channel=fields.text("channel") or "direct",
        public=fields.texts("public"),
        exact=bool(fields.flag("exact")),
    )  # fmt: skip


def stated(run: RunSources) -> tuple[Guarantee | None, str]:
    """Return the guarantee of a finished run, or the promise of one that is not, and where it is written."""
    if run.finished:
        return guarantee_of(run.result.part("guarantee")), "public/result.json: guarantee"
    return guarantee_of(run.plan.part("promise")), "public/plan.json: promise"


def by_viewer(run: RunSources) -> dict[str, Guarantee]:
    """Return the guarantees against all viewers, that of the budget first.

    The same guarantee stands in several places of the records. Where these disagree, a sentence in `run.damage` says
    so; the guarantee is shown as it stands.
    """
    main, where = stated(run)
    listed = run.result.part("guarantees")
    out = {} if main is None else {main.viewer: main}
    for viewer in listed.names():
        g = guarantee_of(listed.part(viewer))
        if g is None:
            continue
        if g.viewer != viewer:
            _disagree(run, f"{listed.name(viewer)} is about another viewer")
        elif main is not None and viewer == main.viewer and g != main:
            _disagree(run, f"{where} and guarantees.{viewer} differ")
        out.setdefault(viewer, g)
    if listed and main is not None and not listed.has(main.viewer):
        _disagree(run, f"{where} is about a viewer whom guarantees does not name")
    for viewer, g in out.items():
        _compare_with_accounting(run, viewer, g)
    return out


def _compare_with_accounting(run: RunSources, viewer: str, guarantee: Guarantee) -> None:
    """Note it if accounting.json has another delta, unit or relation than a guarantee."""
    file = run.accounting
    part, delta = file.part("viewers").part(viewer), file.number("delta", 0.0, 1.0)
    named = {name: part.text(name) for name in ("unit", "relation")}
    if delta is not None and not math.isclose(delta, guarantee.delta):
        _disagree(run, f"{file.name('delta')} is {delta:g}, but the guarantee says {guarantee.delta:g}")
    for name, text in named.items():
        if text and text != getattr(guarantee, name):
            _disagree(run, f"{part.name(name)} is {text}, but the guarantee says {getattr(guarantee, name)}")


def _disagree(run: RunSources, what: str) -> None:
    sentence = f"{one_line(what)}. One of them is not as the run wrote it; the guarantee is shown as it stands."
    if sentence not in run.damage:
        run.damage.append(sentence)
