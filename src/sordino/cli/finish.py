"""`sordino finish`: stop an interrupted run here and keep its model."""

from __future__ import annotations

from pathlib import Path

import click

from sordino.core.parts import PUBLIC
from sordino.report import files
from sordino.runs.run import execute, may_finish, resume_spec


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
def finish(folder: Path) -> None:
    """Stop an interrupted run here: keep the model of its last checkpoint and write its final files.

    What was planned stays charged, and the guarantee is that of the whole plan. It covers the choice of when to stop
    only if you choose by what is public. A run of your own model: sordino.train(..., resume=RUN, finish=True)."""
    may_finish(folder)
    result = execute(resume_spec(folder), own_model=False, at=folder, finish=True)
    for note in result.notes:
        click.echo(f"Note: {note}")
    click.echo(result.guarantee.sentence())
    click.echo(f"Model: {folder / PUBLIC / 'model.safetensors'}")
    click.echo(files.automatic(folder))
