"""`sordino explain`: what a run's method decided on the way, and why, in words and numbers."""

from __future__ import annotations

import json as jsonlib
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sordino.core.errors import SpecError
from sordino.core.record import RoundRecord, plain
from sordino.privacy.guarantee import up
from sordino.runs.folder import RunFolder
from sordino.runs.run import stored_spec


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--client", type=int, default=None, help="Only what concerns this client, where the method says it.")
@click.option("--rounds", default=None, metavar="A-B", help="Only these rounds, such as 1-10.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(folder: Path, client: int | None, rounds: str | None, as_json: bool) -> None:
    """Explain a run: its guarantee, its claim, and what its method chose in every round and why."""
    wanted = stored_spec(folder)
    plan = RunFolder(folder).read_json("plan.json")
    records = [r for r in RunFolder(folder).records() if _inside(r.round, rounds)]
    method = wanted.method_object()
    if not records and rounds is not None:
        raise SpecError(f"rounds {rounds}: the run has none of them. Its rounds are 1 to {_last(folder)}.")
    if client is not None and not 0 <= client < int(plan.get("clients", 0)):
        raise SpecError(f"there is no client {client}; clients are numbered 0 to {int(plan['clients']) - 1}.")
    where = "a client's message" if method.viewer == "server" else "the sum, as if every client had brought its part"
    text = [*_promise(wanted.method, plan), *_noise(records, where)]
    known = [_for_client(asdict(r), client) for r in records if r.decided is not None]
    told = method.explain(known)
    if as_json:
        found = {"method": wanted.method, "plan": plan, "rounds": [asdict(r) for r in records], "text": text + told}
        click.echo(jsonlib.dumps(plain(found), indent=2, allow_nan=False))
        return
    for line in text + told:
        click.echo(line)
    if not told:
        click.echo(f"{wanted.method} decides nothing on the way: what it does was set before the first round.")


def _promise(name: str, plan: dict[str, Any]) -> list[str]:
    out = [f"Method {name} with {plan.get('algorithm')}, {plan.get('clients')} clients."]
    if plan.get("claim"):
        out.append(plan["claim"]["sentence"])
    out.append("Accounted: " + plan["promise"]["sentence"])
    for kind in plan.get("budgets") or []:
        how = (
            f"noise multiplier {kind['noise_multiplier']:.4g}"
            if "noise_multiplier" in kind
            else f"at most {kind['participations']} rounds"
            if "participations" in kind
            else ""
        )
        who = f"{kind['clients']} clients with a budget of epsilon = {up(kind['epsilon'])}"
        out.append(f"{who}, delta = {kind['delta']:g}: {how}.")
    return out


def _last(folder: Path) -> int:
    return max((r.round for r in RunFolder(folder).records()), default=0)


def _noise(records: list[RoundRecord], where: str) -> list[str]:
    found = [(r.round, r.noise) for r in records if r.noise is not None and math.isfinite(r.noise)]
    if not found:
        return []
    first, last = found[0], found[-1]
    low, high = min(found, key=lambda p: p[1]), max(found, key=lambda p: p[1])
    if math.isclose(low[1], high[1], rel_tol=1e-6):
        return [f"Noise in {where}: standard deviation {first[1]:.4g} a coordinate in every round shown."]
    return [
        f"Noise in {where}, standard deviation a coordinate: {first[1]:.4g} in round {first[0]}, "
        f"{last[1]:.4g} in round {last[0]}; least {low[1]:.4g} (round {low[0]}), most {high[1]:.4g} (round {high[0]})."
    ]


def _inside(number: int, rounds: str | None) -> bool:
    if rounds is None:
        return True
    low, dash, high = rounds.partition("-")
    try:
        return int(low) <= number <= int(high if dash else low)
    except ValueError as error:
        raise click.BadParameter(f"{rounds!r} is not a round or a range of rounds such as 1-10.") from error


def _for_client(record: dict[str, Any], client: int | None) -> dict[str, Any]:
    """Entries that are there for every client (`{"clients": {...}}`) cut down to one of them."""
    decided = record["decided"]
    if client is None or "clients" not in decided:
        return record
    own = {k: v for k, v in decided["clients"].items() if str(k) == str(client)}
    return record | {"decided": decided | {"clients": own}}
