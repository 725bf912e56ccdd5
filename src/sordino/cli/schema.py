"""`sordino schema init` and `sordino schema check`: draft the schema of a table, and test it."""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sordino.core.errors import DataError, RunError
from sordino.data import draft
from sordino.data import schema as schemas
from sordino.data.tables import read

NOTICE = "These are exact counts of private cells, for the owner of the table alone: do not pass them on."
TABLE = click.Path(path_type=Path, dir_okay=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def schema() -> None:
    """Declare the columns of your own table: write a schema to be completed, and test it."""


@schema.command()
@click.argument("table", type=TABLE)
@click.option("-o", "--output", type=TABLE, metavar="FILE", help="File to write (default: beside the table, .toml).")
@click.option("--label", metavar="COLUMN", help="Name of the column to predict.")
@click.option("--sample", type=click.IntRange(0), default=0, metavar="ROWS", show_default=True,
              help="Number of first rows that you declare may be looked at, to guess types; 0: the header alone.",
              )  # fmt: skip
def init(table: Path, output: Path | None, label: str | None, sample: int) -> None:
    """Write a schema of TABLE to be completed: types are guessed, bounds and categories are yours to declare."""
    text = draft.draft(table.name, _cells(table), label, sample)
    path = output or table.with_name(table.name.split(".")[0] + ".toml")
    try:
        with path.open("x", encoding="utf-8") as handle:
            handle.write(text)
    except FileExistsError as error:
        raise RunError(f"{path} exists already; nothing was changed. Name another file by -o.") from error
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error
    rows = f"the header and the first {sample} rows, which you declared" if sample else "the header alone"
    click.echo(f"Wrote {path}. Looked at: {rows}; no bound and no category was taken from the table.")
    click.echo(f'Replace each "{schemas.TO_DECLARE}" in it, then try: sordino schema check {table} {path}')


@schema.command()
@click.argument("table", type=TABLE)
@click.argument("file", type=TABLE)
@click.option("--label", metavar="COLUMN", help="Name of the column to predict: all of its labels must be declared.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(table: Path, file: Path, label: str | None, as_json: bool) -> None:
    """Test whether the schema in FILE fits TABLE. The exit code is 1 if a run would refuse the table.

    The output holds exact counts of private cells. It is for the owner of the table alone.
    """
    declared, cells = schemas.read(file), _cells(table)
    columns = draft.compare(table.name, cells, declared, label)
    left = [str(c) for c in cells.columns if c not in declared]
    if as_json:
        out = {"rows": len(cells), "columns": [asdict(c) for c in columns], "not_declared": left, "notice": NOTICE}
        click.echo(jsonlib.dumps(out, indent=2))
    else:
        _print(len(cells), columns, left)
    sys.exit(1 if any(c.problem for c in columns) else 0)


def _cells(table: Path) -> Any:
    if not table.is_file():
        raise DataError(f"there is no table {table}.")
    return read(table)


def _print(rows: int, columns: list[draft.Compared], left: list[str]) -> None:
    click.echo(f"{rows:,} rows. {NOTICE}")
    width = max(len(c.column) for c in columns)
    for c in columns:
        parts = [c.declared]
        parts += [f"{c.missing:,} missing ({c.treatment})"] if c.missing else []
        parts += [f"{c.outside:,} outside"] if c.outside else []
        click.echo(f"  {c.column:<{width}}  {', '.join(parts)}")
    if left:
        click.echo(f"Not in the schema, so the model does not get them: {', '.join(left)}.")
    problems = [f"{c.column}: {c.problem}" for c in columns if c.problem]
    for text in problems:
        click.echo(f"error: {text}")
    if not problems:
        click.echo("The schema fits the table.")
