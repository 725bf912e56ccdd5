"""`sordino plan`: compare units, viewers and noise before training, with the accuracy that each would keep."""

from __future__ import annotations

import json as jsonlib
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sordino.advice import planner
from sordino.advice.planner import PlanQuestion, Recommendation, TrustSetting

HEADS = ("protects", "from", "noise by", "method", "relation", "rounds", "noise mult.", "NSR round", "NSR run", "keeps")
WORDS = {
    "clients": "{:,.0f} clients",
    "records": "{:,.0f} records per client",
    "parameters": "a model of {:,.0f} parameters",
    "epsilon": "epsilon {:g}",
}


NEEDED = ("clients", "records", "parameters", "epsilon", "delta")  # without a file


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--clients", type=int, default=None, help="Number of clients.")
@click.option("--records", type=int, default=None, help="Number of records of each client.")
@click.option("--parameters", type=int, default=None, help="Trainable parameters of the model.")
@click.option("--epsilon", type=float, default=None, help="Total privacy budget of the whole run.")
@click.option("--delta", type=float, default=None, help="Total delta of the whole run.")
@click.option("--rounds", type=int, default=None, help="Federated rounds (default: the best of a few).")
@click.option("--client-rate", type=float, default=None, help="Share of the clients in a round (default 1).")
@click.option("--batch-rate", type=float, default=None, help="Share of a client's records in a step (default 1).")
@click.option("--method", default=None, help="Show only what this method offers.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(file: Path | None, method: str | None, as_json: bool, **asked: Any) -> None:
    """Estimate before training what would work: unit, trust model, noise, rounds, accuracy.

    With FILE (TOML), for the run that it describes; flags override its keys. Nothing is trained or charged."""
    given = {name: value for name, value in asked.items() if value is not None}
    if file is not None:
        from sordino.cli import plan_file  # imports torch

        plan_file.tell(file, given | ({} if method is None else {"method": method}), as_json)
        return
    if missing := [name for name in NEEDED if name not in given]:
        raise click.UsageError(f"Missing option '--{missing[0]}'. Or name a run file: sordino plan my.toml")
    question = PlanQuestion(**given)
    recommendations = planner.answers(question, method)
    if as_json:
        click.echo(jsonlib.dumps(as_object(question, recommendations), indent=2, allow_nan=False))
    else:
        show(question, recommendations)


def as_object(question: PlanQuestion, recommendations: list[Recommendation]) -> dict[str, Any]:
    """Return all recommendations as one JSON object."""
    return {
        "question": asdict(question),
        "settings": [_row(a) for a in recommendations],
        "verdicts": _verdicts(question, recommendations),
        "notes": _notes(question, recommendations),
        "measured": _measured(),
    }


def _row(a: Recommendation) -> dict[str, Any]:
    s = a.setting
    return {
        "unit": s.unit,
        "viewer": s.viewer,
        "noise_by": s.noise,
        "methods": list(s.methods),
        "offered": bool(s.methods),
        "feasible": a.feasible,
        "reason": a.reason,
        "guarantee": None if a.guarantee is None else a.guarantee.to_json(),
        "noise_multiplier": a.noise_multiplier,
        "rounds": a.rounds,
        "nsr_round": a.nsr,
        "nsr_run": a.run_nsr,
        "accuracy_kept": None if a.band is None else list(a.band),
        "verdict": a.verdict,
        "would_work": dict(a.needed),
    }


def _measured() -> dict[str, Any]:
    runs = planner.measured()
    return {
        "on": "MNIST, held-out training records, by benchmarks/plan_bands.py",
        "runs": len(runs),
        "parameters": [min(m.parameters for m in runs), max(m.parameters for m in runs)],
        "rounds": [min(m.rounds for m in runs), max(m.rounds for m in runs)],
        "nsr_run": {u: [planner.levels(u)[0], planner.levels(u)[-1]] for u in ("record", "client")},
        "works_up_to_nsr_run": {u: planner.useful(u) for u in ("record", "client")},
    }


def show(question: PlanQuestion, recommendations: list[Recommendation]) -> None:
    """Print the table of recommendations, and what they mean in words."""
    rate = "" if question.client_rate == 1 else f", {question.client_rate:g} of them per round"
    click.echo(
        f"{question.clients:,} clients with {question.records:,} records each{rate}; {question.parameters:,} "
        f"parameters; total epsilon = {question.epsilon:g}, delta = {question.delta:g}\n"
    )
    rows = [list(HEADS), *([*_cells(a)] for a in recommendations)]
    widths = [max(len(r[i]) for r in rows) for i in range(len(HEADS))]
    for row in rows:
        click.echo("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())
    click.echo("")
    for sentence in (*_verdicts(question, recommendations), "", *_notes(question, recommendations)):
        click.echo(sentence)


def _cells(a: Recommendation) -> tuple[str, ...]:
    s = a.setting
    head = (f"a {s.unit}", s.viewer, s.noise, s.methods[0] if s.methods else "(price only)")
    if a.guarantee is None:
        return (*head, *("-",) * 6)
    accuracy = "not measured" if a.band is None else f"{100 * a.band[0]:.0f} to {100 * a.band[1]:.0f} %"
    noise = (f"{a.noise_multiplier:.3g}", _short(a.nsr or 0.0), _short(_noise(a)))
    return (*head, a.guarantee.relation, str(a.rounds), *noise, f"{accuracy}: {a.verdict}")


def _verdicts(question: PlanQuestion, recommendations: list[Recommendation]) -> list[str]:
    """Return one sentence per setting: what it promises, whether it works and, if not, what would work."""
    works = [a for a in recommendations if a.verdict == "works"]
    out = [_verdict(question, a, works) for a in recommendations]
    feasible = [a for a in recommendations if a.run_nsr is not None]
    if not works and feasible:
        near = min(feasible, key=_noise)
        out.append(
            f"Nothing here is sure to work as asked; closest: {_name(near.setting)} (NSR {_short(_noise(near))})."
        )
    return out


def _verdict(question: PlanQuestion, a: Recommendation, works: list[Recommendation]) -> str:
    name, budget = _name(a.setting), f"total epsilon = {question.epsilon:g}, delta = {question.delta:g}"
    if a.guarantee is None:
        return f"Not feasible: {name}, {budget}. {a.reason}"
    said = f"{a.verdict.capitalize()}: {name} ({a.guarantee.relation}), {budget}: NSR {_short(_noise(a))}."
    if a.verdict == "works":
        return said
    options = [WORDS[what].format(value) for what, value in a.needed]
    if works:
        best = min(works, key=_noise)
        options.append(f"{_name(best.setting)} (NSR {_short(_noise(best))})")
    start = f" With {question.clients:,} clients this epsilon is {a.verdict} here; this would work: "
    return said + start + (", or ".join(options) or "nothing that was tried") + "."


def _noise(a: Recommendation) -> float:
    return math.inf if a.run_nsr is None else a.run_nsr


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _name(setting: TrustSetting) -> str:
    where = {"records": "noise inside the clients", "updates": "noise on every update"}.get(setting.where)
    where = where or ("secure sum" if setting.viewer == "server" else "noise by a trusted server")
    return f"a {setting.unit} against the {setting.viewer}, {where}"


def _notes(question: PlanQuestion, recommendations: list[Recommendation]) -> list[str]:
    facts = _measured()
    out = [
        "NSR: L2 norm of all noise in the averaged update, divided by the clip, its greatest length; of the run: that "
        "divided by sqrt(rounds).",
        f"'keeps' is accuracy relative to the same run without privacy, measured on MNIST ({facts['runs']} runs; "
        "lowest and highest at the noise levels on both sides); your data may differ.",
    ]
    if question.rounds is None:
        out.append(
            f"Rounds: the fewest of {', '.join(map(str, planner.ROUNDS))} whose NSR of the run is within 5 % of the "
            "least; no data are looked at."
        )
    low, high = facts["parameters"]
    if not low <= question.parameters <= high:
        out.append(
            f"Models of {low:,} to {high:,} parameters were measured; yours is outside this range: treat the bands "
            "as a guess."
        )
    if any(a.verdict != "hopeless" and (a.nsr or 0) > 0.3 for a in recommendations):
        out.append("Learning rate: use one that works without noise, divided by sqrt(1 + NSR^2) of a round.")
    for unit, units in (("record", question.clients * question.records), ("client", question.clients)):
        if question.delta * units >= 1 and any(a.setting.unit == unit for a in recommendations):
            out.append(f"delta = {question.delta:g} is not below 1/{units:,}: too large to protect {units:,} {unit}s.")
    return out
