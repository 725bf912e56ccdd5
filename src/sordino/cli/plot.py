"""`sordino plot`: the figures of a report as pictures."""

from __future__ import annotations

from pathlib import Path

import click

from sordino.cli.report import documents, file_name, folder_of
from sordino.core.parts import PRIVATE
from sordino.report import chart_pictures, files
from sordino.report.reading import harmless


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(chart_pictures.FORMATS), default="png", show_default=True)
@click.option(
    "--for",
    "audience",
    type=click.Choice(("public", "owner")),
    default="public",
    show_default=True,
    help="Whose report has these figures: the owner's has some that were not released.",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder to write to, which is made if need be. Default: figures/ in the folder of the run; the owner's in "
    "its private part.",
)
def plot(runs: tuple[Path, ...], form: str, audience: str, out: Path | None) -> None:
    """Write every figure of the report of RUN, a run or a comparison, as a picture; its file has the figure's name.

    \b
    sordino plot runs/first                          writes runs/first/figures/*.png
    sordino plot runs/first --format svg --out fig   writes fig/*.svg
    """
    owner = audience == "owner"
    chart_pictures.ready()
    plans = []
    for run, document in zip(runs, documents(runs, owner), strict=True):
        folder = _folder(run, owner) if out is None else out / file_name(run) if len(runs) > 1 else out
        charts = list(document.charts())
        plans.append((run, charts, [folder / name for name in chart_pictures.names(charts, form)], folder))
    for _, charts, targets, folder in plans:
        files.check_reader(folder, owner)
        for path in targets if charts and folder.is_dir() else ():
            files.check_target(path, owner)
    for run, charts, targets, folder in plans:
        if not charts:
            click.echo(f"{harmless(str(run))}: its records have no figure to draw.")
            continue
        files.make_folder(folder, owner)
        for chart, path in zip(charts, targets, strict=True):
            files.write(path, chart_pictures.picture(chart, form), owner)
        click.echo(f"{folder}: {', '.join(path.name for path in targets)}")


def _folder(path: Path, owner: bool) -> Path:
    return (folder_of(path) / PRIVATE if owner else folder_of(path)) / "figures"
