"""Page one: the guarantee of a run, what it leaves to an attacker, what it does not cover, and how it is sealed."""

from __future__ import annotations

import math
from typing import Any

from sordino.core.rounding import down, up
from sordino.privacy.guarantee import Guarantee, who
from sordino.report.document import Block, DataTable, FactSheet, FigureTile, Paragraph, Section, Tiles
from sordino.report.run import sealed
from sordino.report.run.fields import RunSources
from sordino.report.run.guarantee_words import (
    Statement,
    claim_of,
    nothing_against,
    sentences,
    standing_note,
    statement,
)  # fmt: skip
from sordino.report.run.not_covered import not_covered
from sordino.report.run.pricing import AttackBound, attack_bound
from sordino.report.run.words import percent_up, question, small

FALSE_ALARMS = 0.01
TITLES = {
    "guarantee": "The guarantee",
    "promise": "The promise",
    "none": "No guarantee",
    "unread": "No guarantee that can be read",
}
FOUND = {  # of whom an attacker finds a share
    "label": "of the records with the label recognised, at most",
}


def section(run: RunSources) -> Section:
    """Return the first page."""
    said = statement(run)
    blocks: list[Block] = []
    if note := standing_note(run):
        blocks.append(Paragraph(note, "warning"))
    blocks += _alarm(said)
    blocks.append(Paragraph(" ".join(sentences(run, said)), "lead"))
    if text := nothing_against(said):
        blocks.append(Paragraph(text, "warning"))
    blocks += _claim(run, said)
    if said.main is not None:
        blocks += _scale(said, said.main)
    if topics := not_covered(run, said):
        what = "promise" if said.standing == "promise" else "guarantee"
        blocks += [Paragraph(f"What this {what} does not cover:"), FactSheet(topics, _where(run))]
    return Section("first", TITLES[said.standing], (*blocks, *sealed.blocks(run)))


def _where(run: RunSources) -> str:
    names = ["public/plan.json", "public/spec.toml", "public/inputs.json", *(["public/seal.json"] if run.seal else [])]
    return ", ".join(["public/result.json: guarantee" if run.finished else "public/plan.json: promise", *names])


def _alarm(said: Statement) -> list[Block]:
    if said.audit is None or not said.audit.alarm:
        return []
    text = (
        "Do not rely on this guarantee: an audit has refuted it. An attack on made-up records succeeded more often "
        "than the accounted epsilon allows, so the proof, the code or a plug-in is wrong."
    )
    return [Paragraph(text, "warning")]


# --- what an attacker may achieve


def bound_of(said: Statement) -> AttackBound | None:
    """Return what the guarantee of the first page allows an attacker; None if it cannot be read."""
    return None if said.main is None else attack_bound(said.main, said.price, f"{said.source}: epsilon, delta")


def _scale(said: Statement, main: Guarantee) -> list[Block]:
    bound = bound_of(said)
    if bound is None:
        return []
    finite = math.isfinite(main.epsilon)
    delta = f"delta = {main.delta:g}" + (f", {small(main.delta)}" if 0 < main.delta < 0.5 else "")
    found = FOUND.get(main.unit, f"of the {main.unit}s in the data recognised, at most")
    tiles = [
        FigureTile(up(main.epsilon), "epsilon, in total", delta if finite else "nothing is promised"),
        FigureTile(
            percent_up(bound.sure_after_alarm(FALSE_ALARMS)) if finite else "no limit",
            "certainty after an alarm, at most",
            f"50 % before it. Without protection: {percent_up(1 / (1 + FALSE_ALARMS))}.",
        ),
        FigureTile(
            percent_up(bound.found(FALSE_ALARMS)) if finite else "no limit",
            found,
            "By guessing: 1 %. Without protection: 100 %.",
        ),
        _audit_tile(said),
    ]
    place = f", in the place of {who(main.viewer, main.channel)}," if len({g.epsilon for g in said.viewers}) > 1 else ""
    text = (
        f"An attacker{place} who knows all other data, who asks {question(main.unit, main.relation)}, and who raises a "
        "false alarm in 1 of 100 cases, can do no better than this:"
    )
    sources = f"{bound.source} ({bound.formula})" + (f"; {said.audit.source}" if said.audit is not None else "")
    blocks: list[Block] = [Tiles(tuple(tiles), sources)]
    return [Paragraph(text), *blocks] if finite else blocks


def _audit_tile(said: Statement) -> FigureTile:
    audit = said.audit
    if audit is None:
        return FigureTile("none", "audit on record", "`sordino audit RUN` tries to refute epsilon.")
    detail = audit.sure + (f"; {down(audit.gaussian)} if the noise is Gaussian" if audit.gaussian is not None else "")
    return FigureTile(f"≥ {down(audit.least)}", "epsilon by audit", detail)


# --- the claim of a paper


def _claim(run: RunSources, said: Statement) -> list[Block]:
    claim = claim_of(run)
    if not claim:
        return []
    epsilon, delta = claim.number("epsilon", 0.0), claim.number("delta", 0.0, 1.0)
    scope = "one round alone" if claim.text("scope") == "round" else "in total"
    claimed = (
        f"Claimed by {claim.text('source') or 'its paper'}", up(epsilon) if epsilon is not None else "unknown",
        f"{delta:g}" if delta is not None else "unknown", claim.text("unit"), claim.text("viewer"), scope,
    )  # fmt: skip
    rows = [claimed]
    for g in said.viewers:
        rows.append(("Accounted", up(g.epsilon), f"{g.delta:g}", f"{g.unit}, {g.relation}", g.viewer, "in total"))
    if said.audit is not None:
        a = said.audit
        rows.append((f"Audited ({a.sure})", f"≥ {down(a.least)}", "", a.unit, a.viewer, "in total"))
    else:
        rows.append(("Audited", "none", "", "", "", ""))
    why = claim.text("why_not")
    note = f"The claim does not hold{f': {why}' if why else ''}."
    if said.main is not None and claim.text("unit") and claim.text("unit") != said.main.unit:
        note += f" It is about a {claim.text('unit')} and the accounted bound about a {said.main.unit}: not comparable."
    source = f"{claim.file}: claim; {said.source}" + (f"; {said.audit.source}" if said.audit is not None else "")
    header = ("Number", "epsilon", "delta", "whose data", "against the", "over")
    return [DataTable("Claimed, accounted, audited", header, tuple(rows), note=note, source=source, caution=(0,))]


# --- for programs


def facts(run: RunSources) -> dict[str, Any]:
    """Return the numbers of the first page by name, for programs; null stands for infinite or unknown."""
    said = statement(run)
    main, audit, bound, claim = said.main, said.audit, bound_of(said), claim_of(run)
    limited = bound is not None and main is not None and math.isfinite(main.epsilon)
    return {
        "standing": said.standing,
        "state": run.records.state,
        "sentences": list(sentences(run, said)),
        "guarantee": None if main is None else _guarantee(main),
        "guarantees": {g.viewer: _guarantee(g) for g in said.viewers},
        "accountant": None if said.price is None else said.price.accountant,
        "attack": {
            "false_alarms": FALSE_ALARMS,
            "found": bound.found(FALSE_ALARMS) if bound is not None and limited else None,
            "sure_from_half": bound.sure_after_alarm(FALSE_ALARMS) if bound is not None and limited else None,
            "right": bound.right() if bound is not None and limited else None,
            "formula": "" if bound is None else bound.formula,
        },
        "claim": {"epsilon": claim.number("epsilon"), "source": claim.text("source")} if claim else None,
        "audit": None
        if audit is None
        else {"least": audit.least, "confidence": audit.confidence, "alarm": audit.alarm},
        "not_covered": dict(not_covered(run, said)),
        "together": run.result.text("together") or None,
        "hashes": sealed.hashes(run),
        "seal": sealed.hash_of_seal(run) or None,
        "commitments": sealed.commitments(run),
        "signed": run.records.signed,
    }


def _guarantee(g: Guarantee) -> dict[str, Any]:
    infinite = math.isinf(g.epsilon)
    return {
        "epsilon": None if infinite else g.epsilon,
        "infinite": infinite,
        "delta": g.delta,
        "unit": g.unit,
        "relation": g.relation,
        "viewer": g.viewer,
        "channel": g.channel,
        "rounds": g.rounds,
        "mode": g.mode,
        "reason": g.reason,
    }
