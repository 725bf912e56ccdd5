"""`sordino ledger`: set budgets, show what was spent, and verify that the ledger was not changed."""

from __future__ import annotations

import csv
import io
import json as jsonlib
import math
import os
import sys
from pathlib import Path
from typing import Any

import click

from sordino.cli.registry import COMMANDS, HELP, PATH, chosen, ledger_option, name
from sordino.core.errors import RunError, SpecError
from sordino.core.parts import PRIVATE, locate
from sordino.core.rounding import up
from sordino.ledger import home
from sordino.ledger.account import ids
from sordino.ledger.chain import COLUMNS, Entry
from sordino.ledger.ledger import RELATIONS, UNITS, Budget, ChargeView, Ledger
from sordino.privacy import trust
from sordino.privacy.filters import THEORIES

SHOWN = tuple(c for c in COLUMNS if c != "nonce")
_old = click.argument("old", metavar="", required=False, default=None, type=PATH)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(context_settings=HELP)
def ledger() -> None:
    """Manage budgets over all runs on the same people's data, and show what was spent.

    All runs are charged to one registry: SORDINO_HOME, else $XDG_DATA_HOME/sordino, else ~/.local/share/sordino. Every
    command, and a run, takes another ledger by --ledger FILE, relative to the current folder. The registry recognises
    data that were used before by keyed hashes of the people in them, whatever the file, the order or the name of the
    data. This protects an honest owner from forgetting; it does not protect against an owner who lies.
    """


for command in COMMANDS:
    ledger.add_command(command)


@ledger.command(context_settings=HELP)
@click.option("--epsilon", type=float, required=True, help="What all jobs on the same data may spend in total.")
@click.option("--delta", type=float, required=True, help="Their total delta.")
@click.option("--data-name", "data", default=None, metavar="NAME", help="The budget of the data of this name.")
@click.option("--run", default=None, type=PATH, help="The budget of the data of this run folder.")
@click.option(
    "--theory", type=click.Choice(THEORIES), default="plans", show_default=True, help="How the costs of jobs add up."
)
@click.option(
    "--unit", type=click.Choice(UNITS), default=None, help="Whom it protects (default: as for the first job)."
)
@click.option("--relation", type=click.Choice(RELATIONS), default=None, help="In which relation (default: the same).")
@click.option(
    "--viewer", default=None, metavar="VIEWER", help="Against whom: server, public, server+2 (default: the same)."
)
@ledger_option
@_json
def budget(
    epsilon: float,
    delta: float,
    data: str | None,
    run: Path | None,
    theory: str,
    unit: str | None,
    relation: str | None,
    viewer: str | None,
    file: Path | None,
    as_json: bool,
) -> None:
    """Set the budget of the people in a data set or (without a name or run) in each data set without its own budget.

    The budget applies to everyone in the data, under whatever name."""
    if data is not None and run is not None:
        raise SpecError("give --data-name or --run, not both.")
    given = (unit, relation, viewer)
    if any(given) and not all(given):
        raise SpecError("give --unit, --relation and --viewer together, or none of them.")
    reference = None if run is None else reference_of(run)
    path = chosen(file) if run is None or reference is None else home_of(run, reference)
    book = Ledger(path)
    try:
        label = _label(book, data, reference)
        view = ChargeView(unit, relation, str(trust.viewer(viewer))) if unit and relation and viewer else None
        entry = book.set_budget(Budget(epsilon, delta, theory, view), label)
    finally:
        book.close()
    whom = f"data {label}" if label else "each data set without a budget of its own"
    if as_json:
        click.echo(jsonlib.dumps(_plain(entry), indent=2))
    else:
        click.echo(
            f"{path}, row {entry.id}: total budget epsilon = {epsilon:g}, delta = {delta:g} ({theory}) for {whom}."
        )


@ledger.command(context_settings=HELP)
@_old
@ledger_option
@_json
def show(old: Path | None, file: Path | None, as_json: bool) -> None:
    """Show what each job spent on which data, the totals, and what is left."""
    book = Ledger(chosen(file, old), "read")
    try:
        summary = _summary(book)
    finally:
        book.close()
    if as_json:
        click.echo(jsonlib.dumps(summary, indent=2, allow_nan=False))
        return
    click.echo(f"{book.path}: {summary['entries']} entries, head {summary['head'][:12]}")
    for data in summary["data"]:
        click.echo(f"\ndata {data['data']}")
        heads = ("job", "kind", "purpose", "run", "mode", "unit", "relation", "viewer", "epsilon", "delta", "rounds")
        rows = [[_cell(h, job[h]) for h in heads] for job in data["jobs"]]
        widths = [max(len(r[i]) for r in [list(heads), *rows]) for i in range(len(heads))]
        for row in [list(heads), *rows]:
            click.echo("  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())
        for total in data["totals"]:
            click.echo("  " + total["sentence"])
        if data["budget"]:
            click.echo("  " + data["budget"]["sentence"])


@ledger.command(context_settings=HELP)
@_old
@click.option("--against", multiple=True, type=PATH, help="A run folder, or its ledger.json.")
@ledger_option
@_json
def verify(old: Path | None, against: tuple[Path, ...], file: Path | None, as_json: bool) -> None:
    """Verify the hash chain and, with --against, that it still has the entries a run saw. The exit code is 1 if not."""
    heads, homes = [], []
    for path in against:
        reference = reference_of(path)
        heads.append((str(path), int(reference["entries"]), str(reference["head"])))
        homes.append(home_of(path, reference))
    file = homes[0] if homes and file is None and old is None else chosen(file, old)
    book = Ledger(file, "read")
    try:
        problems = book.chain.verify(heads)
        entries, head = book.chain.head()
    finally:
        book.close()
    if as_json:
        click.echo(
            jsonlib.dumps({"ledger": str(file), "entries": entries, "head": head, "problems": problems}, indent=2)
        )
    elif not problems:
        seen = f" and contain what {len(heads)} run(s) saw" if heads else ""
        click.echo(f"{file}: {entries} entries are intact{seen}; head {head}")
    else:
        for problem in problems:
            click.echo(f"sordino: {file}: {problem}.", err=True)
    if problems:
        sys.exit(1)


@ledger.command(context_settings=HELP)
@click.argument("target", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--format", "kind", type=click.Choice(["csv", "json"]), default="csv", show_default=True)
@ledger_option
def export(target: Path, kind: str, file: Path | None) -> None:
    """Write all entries to FILE; their secret nonces stay in the ledger."""
    book = Ledger(chosen(file), "read")
    try:
        rows = [_plain(e) for e in book.chain.select()]
    finally:
        book.close()
    if kind == "json":
        text = jsonlib.dumps(rows, indent=2, allow_nan=False) + "\n"
    else:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(SHOWN)
        writer.writerows([_csv(row[c]) for c in SHOWN] for row in rows)
        text = out.getvalue()
    temporary = target.with_name(f"{target.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror}.") from error
    click.echo(f"{target}: {len(rows)} entries.")


# --- helpers


def reference_of(path: Path) -> dict[str, Any]:
    """Return what a run folder (or its ledger.json) says about its ledger."""
    file = locate(path, PRIVATE, "ledger.json") if path.is_dir() else path
    try:
        if file.exists() and not file.is_file():
            raise OSError("it is not a plain file")
        content = jsonlib.loads(file.read_text())
        content = content.get("ledger", content)
        if {"path", "job", "entries", "head"} <= content.keys():
            return dict(content)
    except (OSError, ValueError, AttributeError) as error:
        raise RunError(f"cannot read {file}: {error}") from error
    raise RunError(f"{file} does not say which ledger a run was charged to.")


def home_of(path: Path, reference: dict[str, Any]) -> Path:
    if reference["path"] is None:
        return home.registry()
    run = path if path.is_dir() else path.parent.parent if path.parent.name == PRIVATE else path.parent
    return Path(os.path.relpath(run / reference["path"]))


def _label(book: Ledger, data: str | None, reference: dict[str, Any] | None) -> str:
    """Return the name of the data in the ledger; it may be the name of data that are not used yet."""
    if reference is not None:
        entry = next(book.chain.select("job = ? AND kind = 'plan'", [reference["job"]]), None)
        if entry is None:
            raise RunError(f"{book.path} has no job {reference['job']}.")
        return entry.data
    return "" if data is None else data if data in book.data() else name(data)


def _summary(book: Ledger) -> dict[str, Any]:
    entries, head = book.chain.head()
    out = []
    for data in book.data():
        budget, jobs = book.budget(data), []
        for entry in book.charges(data):
            what = entry.details()
            here = entry.kind == "plan" and "origin" not in what  # rounds of imported jobs stay in their ledgers
            done = book.chain.count("job = ? AND kind = 'round'", [entry.job]) if here else None
            jobs.append(
                {
                    "job": entry.job,
                    "kind": entry.kind,
                    "purpose": what.get("purpose", ""),
                    "run": what.get("run", ""),
                    "mode": what.get("mode", ""),
                    "unit": entry.unit,
                    "relation": entry.relation,
                    "viewer": entry.viewer,
                    "epsilon": _number(entry.epsilon),
                    "delta": entry.delta,
                    "rounds": None if done is None else f"{done} of {what['rounds']}",
                    "owners": None if entry.owners is None else len(ids(entry.owners)),
                }
            )
        totals = []
        for total in book.totals(data):
            view = total["view"]
            over = f"{len(jobs)} charges" if len(jobs) > 1 else "1 charge"
            text = f"total over {over}: epsilon = {up(total['epsilon'])} at delta = {total['delta']:g} for {view}"
            text += f" (no guarantee there from {', '.join(total['without'])})" if total["without"] else ""
            totals.append(
                {
                    "total": True,
                    "unit": view.unit,
                    "relation": view.relation,
                    "viewer": view.viewer,
                    "epsilon": _number(total["epsilon"]),
                    "infinite": math.isinf(total["epsilon"]),
                    "delta": total["delta"],
                    "sentence": text + ".",
                }
            )
        limit = None
        if budget is not None:
            left = book.left(data) or {}
            words = ", ".join(f"{k} {v:.4g}" for k, v in left.items()) or "nothing"
            terms = {"plans": "", "rdp": "Renyi divergence by order: ", "gdp": "Gaussian "}[budget.theory]
            limit = {
                "epsilon": budget.epsilon,
                "delta": budget.delta,
                "theory": budget.theory,
                "left": left,
                "sentence": f"budget: total epsilon <= {budget.epsilon:g} at delta = {budget.delta:g} "
                f"({budget.theory}); left: {terms}{words}.",
            }
        out.append({"data": data, "jobs": jobs, "totals": totals, "budget": limit})
    return {"ledger": str(book.path), "entries": entries, "head": head, "data": out}


def _number(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value


def _plain(entry: Entry) -> dict[str, Any]:
    """Return an entry as a JSON object; null stands for an infinite epsilon, which JSON does not have."""
    row = {c: getattr(entry, c) for c in SHOWN}
    row |= {"what": entry.details(), "event": jsonlib.loads(entry.event) if entry.event else None}
    return row | {
        "owners": None if entry.owners is None else ids(entry.owners).tolist(),
        "epsilon": _number(entry.epsilon),
    }


def _csv(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return jsonlib.dumps(value) if isinstance(value, dict) else value


def _cell(name: str, value: Any) -> str:
    if name == "epsilon":
        return up(math.inf if value is None else value)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
