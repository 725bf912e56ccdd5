"""`sordino plan FILE`: the planner's advice for the run that a file describes, from public facts of its data."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sordino.advice import case, planner, tables
from sordino.advice.case import Case
from sordino.advice.planner import PlanQuestion
from sordino.advice.tables import TableAdvice
from sordino.cli import plan as general
from sordino.core.errors import SpecError
from sordino.spec import spec

FIXED = ("records", "parameters")  # facts of the data and the model, which no flag can change


def tell(file: Path, given: dict[str, Any], as_json: bool) -> None:
    """Print what the planner says of the run in a file.

    Args:
        file: the run file.
        given: keys that override those of the file.
        as_json: whether to print one JSON object.
    """
    if named := [name for name in FIXED if name in given]:
        raise SpecError(f"{named[0]} follows from the data and the model of {file}: drop --{named[0]}.")
    examined = case.of_spec(spec.from_dict(spec.read(file) | given))
    if examined.problem is not None:
        raise examined.problem
    table, question = tables.advice(examined), _question(examined)
    if as_json:
        click.echo(jsonlib.dumps(_as_json(examined, table, question), indent=2, allow_nan=False))
        return
    click.echo(_facts(examined))
    if table is not None:
        for sentence in sentences(examined, table):
            click.echo(sentence)
    elif examined.spec.method in {m for s in planner.SETTINGS for m in s.methods}:
        general.show(question, planner.answers(question, examined.spec.method))
    else:
        raise SpecError(f"the planner does not cover {examined.spec.method}. Try dp-sgd or dp-fedavg.")


def _question(examined: Case) -> PlanQuestion:
    wanted, job = examined.spec, examined.job
    clients = examined.clients or 1
    return PlanQuestion(
        clients=clients,
        records=max(1, round((examined.records or 1) / clients)),
        parameters=1 if job is None else job.model.layout.dim,
        epsilon=wanted.epsilon,
        delta=wanted.delta,
        rounds=wanted.rounds,
        client_rate=wanted.client_rate,
        batch_rate=wanted.batch_rate or 1.0,
    )


def _facts(examined: Case) -> str:
    """Return the public facts of a run as one line."""
    wanted, question = examined.spec, _question(examined)
    name = wanted.dataset if examined.public_data else wanted.data_name or "your own data"
    inputs = "" if examined.sample is None else f", {examined.sample[0].numel():,} features"
    classes = None if examined.data is None else examined.data.classes
    return (
        f"{name}: {question.clients:,} clients with about {question.records:,} records each{inputs}"
        + ("" if classes is None else f", {classes:,} classes")
        + f"; {wanted.model} with {question.parameters:,} parameters, {wanted.method} over {wanted.channel}, "
        f"{wanted.rounds} rounds; total epsilon = {wanted.epsilon:g}, delta = {wanted.delta:g}"
    )


def sentences(examined: Case, advice: TableAdvice) -> list[str]:
    """Return the advice for a table, in words."""
    limit = f"above {tables.DROWNS:g} noise drowns the signal"
    out = [f"{advice.verdict.capitalize()}. Noise ratio {advice.ratio:.2g}; {limit}."]
    if advice.band is None:
        out.append("So much noise was never measured, so there is no band.")
    else:
        low, high = (f"{100 * end:.0f}" for end in advice.band)
        share = f"{low} %" if low == high else f"{low} to {high} %"
        names = ", ".join(dict.fromkeys(run.dataset for run in advice.near))
        out.append(
            f"Runs with about this ratio kept {share} of what logistic regression without privacy gains over guessing "
            f"the most frequent class ({len(advice.near)} measured, on {names})."
        )
    same = [run for run in advice.near if run.dataset == examined.spec.dataset]
    if same and examined.public_data:
        run = min(same, key=lambda r: abs(r.ratio - advice.ratio))
        out.append(
            f"On {run.dataset} itself: {100 * run.accuracy:.1f} % at epsilon {run.epsilon:g} with {run.clients} "
            f"clients over {run.channel}; the most frequent class has {100 * run.majority:.1f} %, logistic regression "
            f"without privacy {100 * run.without:.1f} %."
        )
    if advice.needed:
        out.append(f"This would work: {', or '.join(_change(*change) for change in advice.needed)}.")
    return [
        *out,
        f"Measured by {tables.measured().made_by}. Your table may differ. Only public facts of the data were used.",
    ]


def _change(what: str, value: float) -> str:
    return {
        "channel": "channel = secure-sum, with which clients share the noise",
        "epsilon": f"epsilon {value:g}",
        "records": f"{value:,.0f} records in total",
    }[what]


def _as_json(examined: Case, table: TableAdvice | None, question: PlanQuestion) -> dict[str, Any]:
    covered = examined.spec.method in {m for s in planner.SETTINGS for m in s.methods}
    out: dict[str, Any] = {"facts": _facts(examined), "question": asdict(question), "table": None}
    if table is not None:
        out["table"] = asdict(table) | {"needed": dict(table.needed), "sentences": sentences(examined, table)}
    elif covered:
        out |= general.as_object(question, planner.answers(question, examined.spec.method))
    return out
