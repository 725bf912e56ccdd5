"""`sordino predict`: the predictions of a finished run for further records."""

from __future__ import annotations

from pathlib import Path

import click

from sordino.core.errors import RunError
from sordino.runs.load import load


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("data", metavar="DATA", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), help="The .csv file to write (default: standard output).")
@click.option("--keep", multiple=True, metavar="COLUMN", help="A column of DATA to copy in front, such as an id.")
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
def predict(folder: Path, data: Path, out: Path | None, keep: tuple[str, ...], force: bool) -> None:
    """Predict DATA (a table, an .npz file or a folder of pictures) with the model of RUN, a run or its public part.

    Records are read with the run's own schema, features and class names. DATA needs no label; columns that the model
    does not use are ignored. The probabilities of the classes follow the prediction; numbers have their own scale."""
    if out is not None:
        if out.exists() and not force:
            raise RunError(f"{out} exists already. Choose another name, or overwrite it with --force.")
        if out.exists() and data.exists() and out.samefile(data):
            raise RunError(f"{out} holds the records themselves and is not overwritten. Choose another name.")
    table = load(folder).predict_table(data, keep)
    if out is None:
        click.echo(table.to_csv(index=False), nl=False)
        return
    beside = out.with_name(out.name + ".tmp")
    try:
        table.to_csv(beside, index=False)
        beside.replace(out)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise RunError(f"cannot write {out}: {error.strerror or error}.") from error
    click.echo(f"{out}: {len(table)} predictions, columns {', '.join(map(str, table.columns[:8]))}")
