"""`sordino export`: copy the public part of a run, and nothing else."""

from __future__ import annotations

from pathlib import Path

import click

from sordino.run_folder.export import export as export_run


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("target", metavar="TARGET", type=click.Path(path_type=Path))
@click.option("--anyway", is_flag=True, help="Export even if the run has no guarantee against whoever sees it.")
def export(folder: Path, target: Path, anyway: bool) -> None:
    """Copy the public part of RUN (a run or a comparison) to TARGET: a new folder, or a .zip or .tar.gz archive.

    Every field is checked again against the list of what may be public. File times are not copied."""
    names = export_run(folder, target, anyway)
    click.echo(f"{target}: {len(names)} files, {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}")
