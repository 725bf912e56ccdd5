"""`sordino init`: write a run file with every key."""

from pathlib import Path

import click

from sordino.core.errors import RunError
from sordino.spec import toml


@click.command()
@click.argument("file", default="sordino.toml", type=click.Path(path_type=Path, dir_okay=False))
def init(file: Path) -> None:
    """Write a commented run file with every key (default: sordino.toml)."""
    try:
        with file.open("x", encoding="utf-8") as handle:
            handle.write(toml.template())
    except FileExistsError as error:
        raise RunError(f"{file} exists already; nothing was changed. Name another file.") from error
    except OSError as error:
        raise RunError(f"cannot write {file}: {error.strerror}") from error
    click.echo(f"Wrote {file}. Try: sordino run {file}")
