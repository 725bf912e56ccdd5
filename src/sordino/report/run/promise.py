"""The guarantee of a run as its records state it, with every field of it checked."""

from __future__ import annotations

import math

from sordino.privacy.guarantee import Guarantee
from sordino.report.run.fields import Fields, RunSources


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
    """Return the guarantees against all viewers, that of the budget first."""
    main, _ = stated(run)
    listed = run.result.part("guarantees")
    found = {viewer: guarantee_of(listed.part(viewer)) for viewer in listed.names()}
    out = {} if main is None else {main.viewer: main}
    return out | {viewer: g for viewer, g in found.items() if g is not None and viewer not in out}
