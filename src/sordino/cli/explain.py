"""`sordino explain`: what a run's method decided on the way, and why, in words and numbers."""

from __future__ import annotations

import json as jsonlib
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sordino.cli.run import accounted
from sordino.core.errors import RunError, SpecError
from sordino.core.record import RoundRecord, plain
from sordino.core.rounding import up
from sordino.runs.folder import RunFolder
from sordino.runs.loop import FAILED
from sordino.runs.returned import Checked
from sordino.runs.run import stored_spec

NAMED = 8  # runs that a message lists


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--client", type=int, default=None, help="Only what concerns this client, where the method says it.")
@click.option("--rounds", default=None, metavar="A-B", help="Only these rounds, such as 1-10.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(folder: Path, client: int | None, rounds: str | None, as_json: bool) -> None:
    """Explain a run: its guarantee, its claim, and what its method chose in every round and why."""
    _check_folder(folder)
    wanted = stored_spec(folder)
    plan = RunFolder(folder).read_json("plan.json")
    whole = RunFolder(folder).records()
    low, high = _range(rounds, max((r.round for r in whole), default=0))
    records = [r for r in whole if low <= r.round <= high]
    method = wanted.method_object()
    if client is not None and not 0 <= client < int(plan.get("clients", 0)):
        raise SpecError(f"there is no client {client}; clients are numbered 0 to {int(plan['clients']) - 1}.")
    chose = [r for r in records if r.decided is not None]
    if client is not None and not any(isinstance((r.decided or {}).get("clients"), dict) for r in chose):
        raise SpecError(f"{wanted.method} decides nothing for single clients, or none was recorded. Drop --client.")
    where = "a client's message" if method.viewer == "server" else "the sum, as if every client had brought its part"
    text = [*_promise(wanted.method, plan), *_noise(records, where, plan.get("budgets") or [])]
    told = Checked(method, wanted.method).explain([_for_client(asdict(r), client) for r in chose])
    failed = _failure(folder)
    if as_json:
        found = {"method": wanted.method, "plan": plan, "rounds": [asdict(r) for r in records], "text": text + told}
        found |= {"error": failed} if failed else {}
        click.echo(jsonlib.dumps(plain(found), indent=2, allow_nan=False))
        return
    if failed:
        text.append(f"The run stopped after round {max((r.round for r in whole), default=0)}: {failed}")
    for line in text + told:
        click.echo(line)
    if not told and records:
        click.echo(f"{wanted.method} decides nothing on the way: what it does was set before the first round.")


def _check_folder(folder: Path) -> None:
    """Whoever names the folder above is told what lies in it."""
    if not folder.is_dir() or (folder / "plan.json").is_file():
        return  # what is missing or damaged is told by whoever reads it
    runs = sorted(str(p.parent) for at in (folder, folder / "cells") for p in at.glob("*/plan.json"))
    if not runs:
        raise RunError(f"{folder} is no run folder: it has no plan.json.")
    more = f" and {len(runs) - NAMED} more" if len(runs) > NAMED else ""
    raise RunError(f"{folder} is no run folder; runs in it: {', '.join(runs[:NAMED])}{more}.")


def _failure(folder: Path) -> str:
    if not (folder / FAILED).is_file():
        return ""
    return str(RunFolder(folder).read_json(FAILED).get("error", ""))


def _promise(name: str, plan: dict[str, Any]) -> list[str]:
    out = [f"Method {name} with {plan.get('algorithm')}, {plan.get('clients')} clients."]
    if plan.get("claim"):
        out.append(plan["claim"]["sentence"])
    promise = plan["promise"]
    out.append("Accounted: " + accounted(promise["sentence"], promise.get("reason"), bool(plan.get("claim"))))
    for kind in plan.get("budgets") or []:
        how = (
            f"noise multiplier {kind['noise_multiplier']:.4g}"
            if "noise_multiplier" in kind
            else f"at most {kind['participations']} rounds"
            if "participations" in kind
            else ""
        )
        out.append(f"{_who(kind)}, delta = {kind['delta']:g}: {how}.")
    return out


def _who(kind: dict[str, Any]) -> str:
    return f"{kind['clients']} clients with a budget of epsilon = {up(kind['epsilon'])}"


def _noise(records: list[RoundRecord], where: str, budgets: list[dict[str, Any]]) -> list[str]:
    found = [(r.round, r.noise) for r in records if r.noise is not None and math.isfinite(r.noise)]
    if not found:
        return []
    own = [k for k in budgets if k.get("noise_multiplier")]  # the record has the mean over clients
    mean = sum(k["clients"] * k["noise_multiplier"] for k in own) / max(1, sum(k["clients"] for k in own))
    if not own:
        return [_level(found, where)]
    told = [r.decided or {} for r in records]
    if any("std" in d or d.get("mechanism") == "staircase" for d in told):  # no foreseen figure, or not in proportion
        return [_level(found, f"{where}, on average over clients")]
    return [_level([(r, n * k["noise_multiplier"] / mean) for r, n in found], f"{where}, of {_who(k)}") for k in own]


def _level(found: list[tuple[int, float]], where: str) -> str:
    first, last = found[0], found[-1]
    low, high = min(found, key=lambda p: p[1]), max(found, key=lambda p: p[1])
    if math.isclose(low[1], high[1], rel_tol=1e-6):
        when = f"in round {first[0]}" if first == last else f"in rounds {first[0]} to {last[0]}"
        return f"Noise in {where}: standard deviation {first[1]:.4g} a coordinate {when}."
    return (
        f"Noise in {where}, standard deviation a coordinate: {first[1]:.4g} in round {first[0]}, "
        f"{last[1]:.4g} in round {last[0]}; least {low[1]:.4g} (round {low[0]}), most {high[1]:.4g} (round {high[0]})."
    )


def _range(rounds: str | None, last: int) -> tuple[int, int]:
    """The first and the last round to show."""
    if rounds is None:
        return 1, last
    low, dash, high = rounds.partition("-")
    try:
        found = int(low), int(high if dash else low)
    except ValueError as error:
        raise click.BadParameter(f"{rounds!r} is not a round or a range of rounds such as 1-10.") from error
    if not 1 <= found[0] <= found[1] <= last:
        raise SpecError(f"rounds {rounds}: the run has rounds 1 to {last}." if last else "the run has no rounds yet.")
    return found


def _for_client(record: dict[str, Any], client: int | None) -> dict[str, Any]:
    """Entries that are there for every client (`{"clients": {...}}`) cut down to one of them."""
    decided = record["decided"]
    if client is None or not isinstance(decided.get("clients"), dict):
        return record
    own = {k: v for k, v in decided["clients"].items() if str(k) == str(client)}
    return record | {"decided": decided | {"clients": own}}
