"""`sordino evaluate`: exact figures of a finished run on records that the user names."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path

import click

from sordino.core.errors import SpecError
from sordino.core.record import plain
from sordino.runs.load import load


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("data", metavar="DATA", type=click.Path(path_type=Path))
@click.option("--public", is_flag=True, help="State that the records are public.")
@click.option("--mine", is_flag=True, help="State that only people who may see the records will see the figures.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(folder: Path, data: Path, public: bool, mine: bool, as_json: bool) -> None:
    """Evaluate the model of RUN on DATA (a table, an .npz file or a folder of pictures, with labels).

    The figures are exact and covered by no epsilon; the first line says whose records they are. Private records of this
    run, or of other runs in your ledger, are refused without --mine. Nothing is written."""
    if public and mine:
        raise SpecError("--public says that anyone may see the records, --mine that only some may: give one of them.")
    figures = load(folder).evaluate(data, records="public" if public else "mine" if mine else None)
    if as_json:
        told = {"records": figures.records, "whose": figures.whose, "metrics": figures.metrics}
        click.echo(jsonlib.dumps(plain(told), indent=2, allow_nan=False))
        return
    click.echo(figures.whose)
    for name, value in figures.metrics.items():
        click.echo(f"{name.replace('_', ' ')}: {value:.4g}")
