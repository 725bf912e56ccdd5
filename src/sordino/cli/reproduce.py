"""`sordino reproduce`: a figure or table of a paper, as printed and sound, with the honest epsilon beside each."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from sordino.cli.compare import FLAGS, Board
from sordino.core.errors import SpecError
from sordino.experiments import page, pictures
from sordino.experiments import run as running
from sordino.report import figures
from sordino.runs import spec

RESULTS = Path("docs/results")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", required=False, metavar="[PAPER/ITEM]")
@click.option(
    "--scale", default=1.0, show_default=True, help="1: as on docs/results; less: fewer rounds, clients, seeds."
)
@click.option(
    "--set", "own", multiple=True, metavar="KEY=VALUE", help="Any key of a run file, for all runs (repeatable)."
)
@click.option("--jobs", default=1, show_default=True, help="Runs at once, in processes.")
@click.option(
    "--minutes",
    type=float,
    default=8.5,
    show_default=True,
    help="Stop after so many (inf: never); the same command goes on.",
)
@click.option("--out", default="runs/reproduce", show_default=True, metavar="FOLDER", help="Where runs are kept.")
@click.option(
    "--pages",
    default=None,
    metavar="FOLDER",
    help="Where the results page goes: PAPER.md, PNG, CSV.  [default: docs/results; of runs at another scale or with "
    "--set, beside the runs]",
)
def reproduce(
    name: str | None, scale: float, own: tuple[str, ...], jobs: int, minutes: float, out: str, pages: str | None
) -> None:
    """Reproduce a figure or table: without a name, or with a paper's alone, list them."""
    if name is None or name.strip("/") in running.PAPERS:
        _list("" if name is None else f"{name.strip('/')}/", bool(own or pages or scale != 1))
        return
    experiment = running.find(name)
    overrides = _overrides(own)
    if jobs < 1:
        raise SpecError(f"jobs must be at least 1, not {jobs}.")
    if not minutes > 0:
        raise SpecError(f"minutes must be a number above 0, not {minutes:g}.")
    board = Board()
    try:
        trials = running.cells(experiment, scale, overrides)
    except SpecError as error:
        if not own:
            raise
        raise SpecError(f"{str(error).rstrip('.')} (set by you: {', '.join(own)}; the rest by {name}).") from error
    folder = running.open_folder(Path(out), experiment, scale, trials)
    failures: dict[str, str] = {}
    stopped = False
    try:
        with board.watching([c for _, c in trials], jobs):
            failures = running.execute(folder, trials, jobs, board.hear, minutes)
    except (running.TimeUpError, KeyboardInterrupt):
        stopped = True
    finally:
        folder.close()
    results = running.outcomes(folder.path, trials)
    where = Path(pages) if pages is not None else RESULTS if scale == 1 and not own else folder.path
    _write(where, experiment, results, page.How(_command(name, scale, own), scale, own, failures, len(trials)))
    for line in page.table(experiment, results):
        click.echo(line)
    for trial, reason in failures.items():
        click.echo(f"failed: {trial}: {reason}")
    click.echo(f"{len(results)} of {len(trials)} runs are finished. Page: {where / _page(experiment)}")
    if stopped and len(results) + len(failures) < len(trials):
        click.echo(f"Stopped, after {minutes:g} minutes or by hand; the same command goes on.")
        sys.exit(3)
    if failures:
        sys.exit(1)


def _list(start: str, asked: bool) -> None:
    """What there is, of one paper or of all; nobody who asks for a run gets a list in its place."""
    names = [n for n in running.EXPERIMENTS if n.startswith(start)]
    if asked:
        raise SpecError(f"name the one to reproduce: {', '.join(names)}.")
    for name in names:
        click.echo(f"{name:12}  {running.EXPERIMENTS[name].title}")


def _page(experiment: Any) -> str:
    return f"{experiment.name.split('/')[0]}.md"


def _command(name: str, scale: float, own: tuple[str, ...]) -> str:
    parts = [f"sordino reproduce {name}"] + ([f"--scale {scale:g}"] if scale != 1 else [])
    return " ".join(parts + [f"--set {text}" for text in own])


def _overrides(texts: tuple[str, ...]) -> dict[str, Any]:
    out = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise SpecError(f"set takes KEY=VALUE, such as rounds=5, not {text!r}.")
        if key not in FLAGS:
            near = get_close_matches(key, FLAGS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else " `sordino init` lists them all."
            raise SpecError(f"set {text}: unknown key {key!r}.{hint}")
        out[key] = spec.parse(key, value.strip(), FLAGS[key][0])
    return out


def _write(where: Path, experiment: Any, results: Any, how: page.How) -> None:
    paper, item = experiment.name.split("/")
    picture = None
    if results and figures.ready():
        (where / paper).mkdir(parents=True, exist_ok=True)
        if pictures.draw(where / paper / f"{item}.png", experiment, results):
            picture = f"{paper}/{item}.png"
    if results:
        (where / paper).mkdir(parents=True, exist_ok=True)
        (where / paper / f"{item}.csv").write_text(page.csv(experiment, results), encoding="utf-8")
    text = page.section(experiment, results, how, picture)
    page.put(where / _page(experiment), experiment, text, running.PAPERS[paper])
