"""`sordino export`: copy the public part of a run, and nothing else; or write its model with a privacy card."""

from __future__ import annotations

from pathlib import Path

import click

from sordino.run_folder.export import export as export_run

KINDS = ("onnx", "torch-export", "torchscript", "safetensors")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("target", metavar="[TARGET]", required=False, type=click.Path(path_type=Path))
@click.option("--model", type=click.Choice(KINDS), help="Write the model alone, in this format, and its privacy card.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="The same as TARGET.")
@click.option("--anyway", is_flag=True, help="Export even if the run has no guarantee against whoever sees it.")
def export(folder: Path, target: Path | None, model: str | None, out: Path | None, anyway: bool) -> None:
    """Copy the public part of RUN (a run or a comparison) to TARGET: a new folder, or a .zip or .tar.gz archive.

    Every field is checked again against the list of what may be public. File times are not copied. With --model, TARGET
    is the file of the model; TARGET's name with .card.md and .card.json are its privacy card."""
    if (target is None) == (out is None):
        raise click.UsageError("name one file or folder to write: TARGET, or -o FILE.")
    place = target or out or Path()
    if model is None:
        names = export_run(folder, place, anyway)
        click.echo(f"{place}: {len(names)} files, {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}")
        return
    from sordino.runs.model_files import export_model  # imports torch

    for path in export_model(folder, model, place, anyway):
        click.echo(str(path))
