"""`sordino epsilon`: the total epsilon of a mechanism, by every accountant that can compute one."""

from __future__ import annotations

import json as jsonlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from sordino.cli import epsilon_plot as picture
from sordino.cli.events import EventQuestion, ReleaseBlock, question, with_flags
from sordino.core.errors import UnsupportedEvent
from sordino.privacy import algebra, shuffle, tightest, written
from sordino.privacy.events import Event, Pure, Repeated
from sordino.privacy.guarantee import RELATIONS, UNITS, who
from sordino.privacy.tightest import AccountantBound

LABEL = "approximate, not a promise"
CLONES = {
    "clones": "shuffled reports: the clones' pair, summed exactly",
    "clones-2021": "shuffled reports: closed form, Feldman, McMillan, Talwar (2021), Theorem 3.1",
    "clones-2023": "shuffled reports: closed form of 2023, for k-ary randomized response",
}


def digits(epsilon: float) -> str:
    """Return epsilon rounded up to at least four figures; an excess below 1e-6 of the last place is dropped."""
    if math.isinf(epsilon):
        return "infinite"
    places = 3 if epsilon >= 1 or epsilon <= 0 else min(3 - math.floor(math.log10(epsilon)), 300)
    if epsilon >= 1e12 or places > 15:
        unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
        return f"{math.ceil(epsilon / unit - 1e-9) * unit:.3g}"
    text = f"{math.ceil(epsilon * 10**places - 1e-6) / 10**places:.{places}f}"
    return text.rstrip("0").rstrip(".")


def priced(asked: EventQuestion) -> dict[str, Any]:
    """Return the answer to a question as a JSON object: epsilon by accountant, notes and the sentence."""
    event = asked.event()
    with np.errstate(all="ignore"):
        answers = _explained(event, asked.delta)
        valid = {a.accountant: a.epsilon for a in answers if a.valid and a.epsilon is not None}
        extra = _shuffled(asked, min(valid.values()))
        if extra:
            valid |= extra["shuffle"]["bounds"]
        best = min(valid, key=lambda name: valid[name])
        others = {v: tightest.epsilon(asked.event(v), asked.delta) for v in ("server", "public") if asked.draws_clients}
    out: dict[str, Any] = {
        "epsilon": _finite(valid[best]),
        "infinite": math.isinf(valid[best]),
        "delta": asked.delta,
        "total": True,
        "steps": asked.steps,
        "unit": asked.unit,
        "group": asked.group,
        "relation": asked.relation,
        "viewer": asked.viewer,
        "accountant": best,
        "by_accountant": {name: _finite(value) for name, value in valid.items()},
        "approximate": {a.accountant: a.epsilon for a in answers if not a.valid and a.epsilon is not None},
        "why": {a.accountant: _why(a) for a in answers} | {n: t for n, t in CLONES.items() if n in valid},
        "sensitivity": asked.sensitivity,
        "notes": asked.notes(),
        "event": written.to_json(event),
    }
    if others:
        out["by_viewer"] = {v: _finite(value) for v, value in others.items()}
    out |= extra
    if extra:
        out["notes"].append(_of_shuffler(extra["shuffle"], asked))
    return out | {"sentence": sentence(asked, valid[best])}


def _explained(event: Event, delta: float) -> list[AccountantBound]:
    try:
        return tightest.explain(event, delta)
    except (ArithmeticError, ValueError, MemoryError) as error:  # losses beyond the range of float64
        raise UnsupportedEvent(f"no accountant can compute a number for such an extreme release ({error}).") from error


def _why(answer: AccountantBound) -> str:
    return f"{LABEL}: {answer.note}" if not answer.valid and answer.epsilon is not None else answer.note


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None


def _shuffled(asked: EventQuestion, composed: float) -> dict[str, Any]:
    """Return the amplification by shuffling if the question is one block of shuffled reports, else {}."""
    block = asked.blocks[0]
    if len(asked.blocks) > 1 or block.shuffle is None:
        return {}
    level = float(_level(block))
    bounds: dict[str, float] = {}
    if block.steps == 1 and asked.group == 1:
        reports, delta = block.shuffle, asked.delta
        bounds["clones"] = shuffle.numerical(reports, level, delta, block.randomizer)
        bounds["clones-2021"] = shuffle.closed_2021(reports, level, delta)
        if block.randomizer == "response":
            bounds["clones-2023"] = shuffle.closed_2023(reports, level, delta)
    without = tightest.epsilon(algebra.grouped(Repeated(Pure(level), block.steps), asked.group), asked.delta)
    best = min([composed, *bounds.values()])
    amplification = {
        "reports": block.shuffle,
        "local_epsilon": level,
        "randomizer": block.randomizer,
        "without_shuffler": without,
        "amplified": best < 0.999 * without,
        "bounds": {name: value for name, value in bounds.items() if value < level},
        "closed_form_applies": level <= math.log(block.shuffle / (16 * math.log(2 / asked.delta))),
    }
    return {"shuffle": amplification}


def _level(block: ReleaseBlock) -> float:
    leaf = block.one_use()
    pure = (leaf if block.local else algebra.replaced(leaf)).pure()
    return math.inf if pure is None else pure  # a mechanism without a pure level was refused before


def _of_shuffler(amplification: dict[str, Any], asked: EventQuestion) -> str:
    level, without = amplification["local_epsilon"], digits(amplification["without_shuffler"])
    text = f"Local level {level:g} per report, {without} without the shuffler"
    if not amplification["amplified"]:
        return f"{text}: no amplification here, too few reports for this level."
    how = "summed exactly" if asked.steps == 1 else "composed over the rounds after shuffling"
    closed = (
        "" if amplification["closed_form_applies"] else " (the closed form of 2021 does not apply to so few reports)"
    )
    kind = "any pure randomizer" if amplification["randomizer"] == "any" else "k-ary randomized response"
    return f"{text}; the bound that applied: clones of {kind}, {how}{closed}."


def sentence(asked: EventQuestion, epsilon: float) -> str:
    """Return the guarantee in words: whom it protects, in which relation and against which viewer."""
    whom = UNITS[asked.unit] if asked.group == 1 else f"any {asked.group} {asked.unit}s together"
    against = f"against {who(asked.viewer)}"
    if any(b.shuffle is not None for b in asked.blocks):
        against += ", but not who sent which report"
    relation = f"the {asked.unit} being {RELATIONS[asked.relation]}; relation {asked.relation}"
    if math.isinf(epsilon):
        return f"No guarantee (epsilon is infinite) for {whom} at delta = {asked.delta:g} ({relation}) {against}."
    return (
        f"In total over {asked.length}, {whom} {'is' if asked.group == 1 else 'are'} "
        f"protected with epsilon = {digits(epsilon)}, delta = {asked.delta:g} ({relation}) {against}."
    )


def table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        click.echo("  ".join([*cells, row[-1]]).rstrip())


def tell(asked: EventQuestion, answer: dict[str, Any], explain: bool) -> None:
    """Print the answer that `priced` returned; with `explain`, the result of every accountant as well."""
    rows = []
    for i, block in enumerate(asked.blocks, 1):
        mark = f" {i}" if len(asked.blocks) > 1 else ""
        rows += [(key + mark, value) for key, value in block.words().items()]
    total = "infinite" if answer["infinite"] else f"{digits(answer['epsilon'])} in total, by {answer['accountant']}"
    table([*rows, ("epsilon", f"{total} (delta {asked.delta:g})")])
    if explain:
        click.echo("")
        names = dict.fromkeys([*answer["by_accountant"], *answer["why"]])
        table([("accountant", "epsilon", ""), *(_line(name, answer) for name in names)])
    click.echo("")
    for note in answer["notes"]:
        click.echo(note)
    click.echo(answer["sentence"])
    for viewer, other in answer.get("by_viewer", {}).items():
        if viewer != asked.viewer:
            click.echo(f"Against the {viewer}: epsilon = {digits(math.inf if other is None else other)}.")


def _line(name: str, answer: dict[str, Any]) -> tuple[str, str, str]:
    why = answer["why"][name]
    if name in answer["by_accountant"]:
        value = answer["by_accountant"][name]
        return name, "infinite" if value is None else digits(value), why
    value = answer["approximate"].get(name)
    return name, "-" if value is None else f"~{value:.4g}", why


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@with_flags
@click.option("--explain", is_flag=True, help="Show the result of every accountant, or why it has none.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw delta(epsilon) and the trade-off.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def epsilon(explain: bool, plot: Path | None, as_json: bool, **flags: Any) -> None:
    """Compute the total epsilon of a mechanism that is sampled, repeated, shuffled or in a schedule of blocks."""
    asked = question(flags)
    if plot is not None:
        picture.ready(plot)
    answer = priced(asked)
    if plot is not None:
        picture.draw(plot, asked, answer["epsilon"], digits(answer["epsilon"] or 0.0))
        answer["plot"] = str(plot)
    if as_json:
        click.echo(jsonlib.dumps(answer, indent=2, allow_nan=False))
    else:
        tell(asked, answer, explain)
        if plot is not None:
            click.echo(f"Wrote {plot}.")
