"""`sordino explain`: what the method of a run decided during training, and why, in words and numbers."""

from __future__ import annotations

import json as jsonlib
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from sordino.cli.run import accounted
from sordino.core.errors import RunError, SpecError
from sordino.core.parts import PRIVATE, PUBLIC, locate, runs_below
from sordino.core.record import OwnerRecord, RoundRecord, plain
from sordino.core.rounding import up
from sordino.run_folder.folder import RunFolder
from sordino.runs.loop import FAILED
from sordino.runs.returned import Checked
from sordino.runs.run import stored_spec

NAMED = 8  # largest number of runs that a message lists
RECORDS, RESULT, PLAN = "records.jsonl", "result.json", "plan.json"
R = TypeVar("R", RoundRecord, OwnerRecord)
LACKING = (KeyError, IndexError, TypeError, ValueError, AttributeError, ZeroDivisionError)  # raised by damaged files


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--client", type=int, default=None, help="Show only what concerns this client, if the method records it.")
@click.option("--rounds", default=None, metavar="A-B", help="Show only these rounds, such as 1-10.")
@click.option(
    "--owner",
    is_flag=True,
    help="Also show what only the owner may know: who was drawn, what was decided. Do not pass it on.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(folder: Path, client: int | None, rounds: str | None, owner: bool, as_json: bool) -> None:
    """Explain a run: its guarantee, its claim, and what its method chose in every round and why."""
    _check_folder(folder)
    wanted = stored_spec(folder)
    plan = RunFolder(folder).read_json(PLAN, PUBLIC)
    seen = owner or (isinstance(plan, dict) and bool(plan.get("public_data")))
    result = _result(folder, seen)
    all_records = _records(folder, result)
    low, high = _range(rounds, max((r.round for r in all_records), default=0))
    records = _merged([r for r in all_records if low <= r.round <= high], _owners(folder) if seen else {})
    method, where = wanted.method_object(), locate(folder, PUBLIC, PLAN)
    head = _read(where, lambda: _promise(wanted.method, plan, result))
    if client is not None and not 0 <= client < plan["clients"]:
        raise SpecError(f"there is no client {client}; clients are numbered 0 to {plan['clients'] - 1}.")
    chose = [r for r in records if r["decided"] is not None]
    if client is not None and not any(isinstance(r["decided"].get("clients"), dict) for r in chose):
        way = "Drop --client." if seen else "What it decided is for the owner only: add --owner, or drop --client."
        raise SpecError(f"{wanted.method} makes no decisions for single clients, or none were recorded. {way}")
    noisy = (
        "a client's message" if method.viewer == "server" else "the sum, as if every client had contributed its part"
    )
    text = [*head, *_read(where, lambda: _noise(records, noisy, plan.get("budgets") or []))]
    checked = Checked(method, wanted.method)
    private = locate(folder, PRIVATE, RECORDS)
    explanation = _read(private, lambda: checked.explain([_for_client(r, client) for r in chose]))
    failed = _failure(folder) if seen else ""
    if as_json:
        output = {"method": wanted.method, "plan": plan, "rounds": records, "text": text + explanation}
        output |= {"guarantee": result["guarantee"] if result else None} | ({"error": failed} if failed else {})
        click.echo(jsonlib.dumps(plain(output), indent=2, allow_nan=False))
        return
    if failed:
        text.append(f"The run stopped after round {max((r.round for r in all_records), default=0)}: {failed}")
    for line in text + explanation:
        click.echo(line)
    if not seen and records:
        click.echo("Who took part and what the method decided in each round is for the owner only: add --owner.")
    elif not explanation and records:
        click.echo(f"{wanted.method} makes no decisions during the run: what it does was set before the first round.")


def _check_folder(folder: Path) -> None:
    """Raise RunError if a folder is not a run folder; the message lists the runs inside it."""
    if not folder.is_dir() or locate(folder, PUBLIC, PLAN).is_file():
        return  # missing or damaged files are reported where they are read
    runs = [str(run) for at in (folder, folder / "cells") for run in runs_below(at)]
    if not runs:
        raise RunError(f"{folder} is not a run folder: it has no {PLAN}.")
    more = f" and {len(runs) - NAMED} more" if len(runs) > NAMED else ""
    raise RunError(f"{folder} is not a run folder; runs in it: {', '.join(runs[:NAMED])}{more}.")


def _failure(folder: Path) -> str:
    path = locate(folder, PRIVATE, FAILED)
    if not path.is_file():
        return ""
    failure = RunFolder(folder).read_json(FAILED)
    return _read(path, lambda: [str(failure["error"])])[0]


def _read(path: Path, make: Callable[[], list[str]]) -> list[str]:
    """Return the lines that `make` computes from a file; raise RunError if the file is damaged."""
    try:
        return make()
    except LACKING as error:
        raise RunError(f"{path} is damaged, or of another version: {type(error).__name__}: {error}.") from error


def _result(folder: Path, seen: bool) -> dict[str, Any] | None:
    """Return the final guarantee and the rounds of a finished run; None if the run is not finished.

    If `seen`, the guarantee is the owner's, for the draws that happened.
    """
    path = locate(folder, PUBLIC, RESULT)
    if not path.is_file():
        return None
    result = RunFolder(folder).read_json(RESULT, PUBLIC)
    try:
        spent = result["guarantee"]
        if seen and (folder / PRIVATE / RESULT).is_file():
            spent = RunFolder(folder).read_json(RESULT)["guarantees"][spent["viewer"]]
        spent = spent | {"sentence": str(spent["sentence"])}
        return {"guarantee": spent, "rounds": int(result["rounds"])}
    except LACKING as error:
        raise RunError(f"{path} is damaged: its guarantee or its rounds are missing.") from error


def _records(folder: Path, result: dict[str, Any] | None) -> list[RoundRecord]:
    """Return all rounds on file.

    An incomplete last line, the start of a record, may come from a crash; anything else is damage.
    """
    path = locate(folder, PUBLIC, RECORDS)
    good = _lines(path, _record)
    if result is not None and len(good) < result["rounds"]:
        raise RunError(f"{path} is damaged: it has {len(good)} of the run's {result['rounds']} rounds.")
    return good


def _owners(folder: Path) -> dict[int, OwnerRecord]:
    """Return the owner's records by round; empty if the folder is only the public part."""
    return {r.round: r for r in _lines(locate(folder, PRIVATE, RECORDS), _owner)}


def _lines(path: Path, read: Callable[[str], R | None]) -> list[R]:
    try:
        text = path.read_text(errors="replace") if path.is_file() else ""
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}.") from error
    lines = text.splitlines()
    records = [read(line) for line in lines]
    if (
        records
        and records[-1] is None
        and lines[-1].startswith("{")
        and not _complete(lines[-1])
        and not text.endswith("\n")
    ):
        records.pop()
    good = [r for r in records if r is not None]
    if len(good) < len(records):
        raise RunError(f"{path} is damaged: line {records.index(None) + 1} is not the record of a round.")
    return good


def _merged(records: list[RoundRecord], owners: dict[int, OwnerRecord]) -> list[dict[str, Any]]:
    """Return one mapping per round, as `Method.explain` expects; `decided` is None without the owner's record."""
    out = []
    for record in records:
        merged = asdict(record) | {"decided": None}
        if (owner := owners.get(record.round)) is not None:
            merged |= {k: v for k, v in asdict(owner).items() if k != "noise" or v is not None}
        out.append(merged)
    return out


def _record(line: str) -> RoundRecord | None:
    """Return the record on a line, or None if the line is not a record."""
    try:
        record = RoundRecord.from_line(line)
    except LACKING:
        return None
    return record if type(record.round) is int and isinstance(record.noise, int | float | None) else None


def _owner(line: str) -> OwnerRecord | None:
    try:
        record = OwnerRecord.from_line(line)
    except LACKING:
        return None
    kinds = isinstance(record.decided, dict | None) and isinstance(record.noise, int | float | None)
    return record if type(record.round) is int and kinds else None


def _complete(line: str) -> bool:
    """Return whether a line is complete JSON."""
    try:
        jsonlib.loads(line)
    except ValueError:
        return False
    return True


def _promise(name: str, plan: dict[str, Any], result: dict[str, Any] | None) -> list[str]:
    """Return what was promised before the first round and, if known and different, what was spent in the end."""
    out = [f"Method {name} with {plan['algorithm']}, {plan['clients']:d} clients."]
    if plan.get("claim"):
        out.append(plan["claim"]["sentence"])
    ends = (plan["promise"], plan["promise"] if result is None else result["guarantee"])
    promised, spent = (accounted(e["sentence"], e.get("reason"), bool(plan.get("claim"))) for e in ends)
    if promised != spent:
        out.append(f"Accounted, as promised before the first round: {promised}")
        out.append(f"Accounted, as spent when the run had ended: {spent}")
    else:
        how = "promised; the run is not finished" if result is None else "as promised, and as spent"
        out.append(f"Accounted{'' if ends[0].get('infinite') else f' ({how})'}: {promised}")
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


def _noise(records: list[dict[str, Any]], where: str, budgets: list[dict[str, Any]]) -> list[str]:
    levels = [(r["round"], r["noise"]) for r in records if r["noise"] is not None and math.isfinite(r["noise"])]
    if not levels:
        return []
    decisions = [r["decided"] or {} for r in records]
    groups = [k for k in budgets if k.get("noise_multiplier")]  # the record holds the mean over clients
    # clients have different noise, which is not proportional to their multipliers
    if any("std" in d or (groups and d.get("mechanism") == "staircase") for d in decisions):
        return [_level(levels, f"{where}, on average over clients")]
    if not groups:
        return [_level(levels, where)]
    mean = sum(k["clients"] * k["noise_multiplier"] for k in groups) / sum(k["clients"] for k in groups)
    return [
        _level([(r, n * k["noise_multiplier"] / mean) for r, n in levels], f"{where}, of {_who(k)}") for k in groups
    ]


def _level(levels: list[tuple[int, float]], where: str) -> str:
    first, last = levels[0], levels[-1]
    low, high = min(levels, key=lambda p: p[1]), max(levels, key=lambda p: p[1])
    if math.isclose(low[1], high[1], rel_tol=1e-6):
        when = f"in round {first[0]}" if first == last else f"in rounds {first[0]} to {last[0]}"
        return f"Noise in {where}: standard deviation {first[1]:.4g} per coordinate {when}."
    return (
        f"Noise in {where}, standard deviation per coordinate: {first[1]:.4g} in round {first[0]}, "
        f"{last[1]:.4g} in round {last[0]}; least {low[1]:.4g} (round {low[0]}), most {high[1]:.4g} (round {high[0]})."
    )


def _range(rounds: str | None, last: int) -> tuple[int, int]:
    """Return the first and the last round to show."""
    if rounds is None:
        return 1, last
    low, dash, high = rounds.partition("-")
    try:
        span = int(low), int(high if dash else low)
    except ValueError as error:
        raise click.BadParameter(f"{rounds!r} is not a round or a range of rounds such as 1-10.") from error
    if not 1 <= span[0] <= span[1] <= last:
        raise SpecError(f"rounds {rounds}: the run has rounds 1 to {last}." if last else "the run has no rounds yet.")
    return span


def _for_client(record: dict[str, Any], client: int | None) -> dict[str, Any]:
    """Return a record whose entries per client (`{"clients": {...}}`) are reduced to those of one client."""
    decided = record["decided"]
    if client is None or not isinstance(decided.get("clients"), dict):
        return record
    entries = {k: v for k, v in decided["clients"].items() if str(k) == str(client)}
    return record | {"decided": decided | {"clients": entries}}
