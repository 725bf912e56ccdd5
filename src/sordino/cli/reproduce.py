"""`sordino reproduce`: rerun a figure or table of a paper, as printed and made sound, with the accounted epsilon."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from sordino.cli.compare import FLAGS, Board
from sordino.core.errors import RunError, SpecError
from sordino.papers import curves, page, pictures, report
from sordino.papers import run as running
from sordino.papers import summary as all_figures
from sordino.papers.base import Experiment, Outcome
from sordino.report import figures, files
from sordino.report.page import page as html_page
from sordino.run_folder.folder import RunFolder
from sordino.spec.values import parse

RESULTS = Path("docs/results")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", required=False, metavar="[PAPER/ITEM]")
@click.option(
    "--scale", default=1.0, show_default=True, help="1: as in docs/results; less: fewer rounds, clients, seeds."
)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any key of a run file, for all runs (repeatable)."
)
@click.option("--jobs", default=1, show_default=True, help="Number of runs at the same time, in processes.")
@click.option(
    "--minutes",
    type=float,
    default=8.5,
    show_default=True,
    help="Stop after this many minutes (inf: never); the same command continues.",
)
@click.option("--out", default="runs/reproduce", show_default=True, metavar="FOLDER", help="Where runs are kept.")
@click.option(
    "--pages",
    default=None,
    metavar="FOLDER",
    help="Where the results page goes: PAPER.md, PNG, CSV.  [default: docs/results; for runs at another scale or with "
    "--set, and if docs/results has more, next to the runs]",
)
@click.option("--summary", is_flag=True, help="Write one page for all figures from the scores beside their pages.")
def reproduce(
    name: str | None,
    scale: float,
    settings: tuple[str, ...],
    jobs: int,
    minutes: float,
    out: str,
    pages: str | None,
    summary: bool,
) -> None:
    """Reproduce a figure or table of a paper; without a name, or with only a paper's name, list what there is."""
    if summary:
        _summarise(Path(pages) if pages is not None else RESULTS, name, bool(settings) or scale != 1)
        return
    if name is None or name.strip("/") in running.PAPERS:
        _list("" if name is None else f"{name.strip('/')}/", bool(settings or pages or scale != 1))
        return
    experiment = running.find(name)
    overrides = _overrides(settings)
    if jobs < 1:
        raise SpecError(f"jobs must be at least 1, not {jobs}.")
    if not minutes > 0:
        raise SpecError(f"minutes must be a number above 0, not {minutes:g}.")
    board = Board()
    try:
        trials = running.cells(experiment, scale, overrides)
    except SpecError as error:
        if not settings:
            raise
        raise SpecError(f"{str(error).rstrip('.')} (set by you: {', '.join(settings)}; the rest by {name}).") from error
    beside = running.place(Path(out), experiment)
    where = Path(pages) if pages is not None else RESULTS if scale == 1 and not settings else beside
    page.require(where, experiment)
    running.outcomes(beside, trials)  # reports damaged runs before anything changes
    failures: dict[str, str] = {}
    stopped = False
    if trials:
        with board.console.status("Checking all runs ..."):
            running.sketch(beside, trials)
        folder = running.open_folder(Path(out), experiment, scale, trials)
        failures, stopped = _execute(folder, trials, jobs, minutes, board)
    results = running.outcomes(beside, trials)
    how = page.Provenance(_command(name, scale, settings), scale, settings, failures, len(trials))
    for line in page.table(experiment, results):
        click.echo(line)
    if not trials and experiment.extra is not None:
        click.echo("\n".join(experiment.extra(results)))
    for trial, reason in failures.items():
        click.echo(f"failed: {trial}: {reason}")
    done = f"{len(results)} of {len(trials)} runs are finished. " if trials else ""
    click.echo(done + _write(where, beside, experiment, results, how))
    if stopped and len(results) + len(failures) < len(trials):
        click.echo(f"Stopped, after {minutes:g} minutes or by hand; the same command continues.")
        sys.exit(3)
    if failures:
        sys.exit(1)


def _summarise(folder: Path, name: str | None, more: bool) -> None:
    """Write the page for all figures into a folder of pages."""
    if name is not None or more:
        raise SpecError(
            "--summary is for all figures as they stand in a folder of pages: give it alone, or with --pages."
        )
    if not folder.is_dir():
        raise RunError(f"there is no folder {folder} with pages. Name it by --pages, or run in the folder above docs.")
    path = folder / "README.md"
    try:
        path.write_text(all_figures.page(folder, running.EXPERIMENTS, running.PAPERS), encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}.") from error
    click.echo(f"Page: {path}")


def _list(start: str, asked: bool) -> None:
    """Print the experiments of one paper or of all; raise SpecError if options show that a run was asked for."""
    names = [n for n in running.EXPERIMENTS if n.startswith(start)]
    if asked:
        raise SpecError(f"name the one to reproduce: {', '.join(names)}.")
    for name in names:
        click.echo(f"{name:18}  {running.EXPERIMENTS[name].title}")


def _execute(
    folder: RunFolder, trials: running.Trials, jobs: int, minutes: float, board: Board
) -> tuple[dict[str, str], bool]:
    """Run the trials; return the reasons of failed runs by name, and whether the rest was postponed."""
    try:
        with board.watching([c for _, c in trials], jobs):
            return running.execute(folder, trials, jobs, board.hear, minutes), False
    except (running.TimeUpError, KeyboardInterrupt):
        return {}, True
    finally:
        folder.close()


def _command(name: str, scale: float, settings: tuple[str, ...]) -> str:
    parts = [f"sordino reproduce {name}"] + ([f"--scale {scale:g}"] if scale != 1 else [])
    return " ".join(parts + [f"--set {text}" for text in settings])


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
        out[key] = parse(key, value.strip(), FLAGS[key][0])
    return out


def _write(where: Path, beside: Path, experiment: Experiment, results: Sequence[Outcome], how: page.Provenance) -> str:
    """Write the page, figure and data; return where the page is.

    They go beside the runs if the page at `where` has better results that would be lost.
    """
    more = "" if where.resolve() == beside.resolve() else page.better_results(where, experiment, len(results), how)
    notice = f"Kept {page.files(where, experiment)[0]}, which has {more}. " if more else ""
    where = beside if more else where
    path, drawing, numbers, drawn = page.files(where, experiment)
    picture = listed = None
    try:
        if results:
            numbers.parent.mkdir(parents=True, exist_ok=True)
            if figures.ready() and pictures.draw(drawing, experiment, results):
                picture = f"{drawing.parent.name}/{drawing.name}"
            numbers.write_text(page.csv(experiment, results), encoding="utf-8")
            if points := curves.csv(experiment, results):
                drawn.write_text(points, encoding="utf-8")
                listed = f"{drawn.parent.name}/{drawn.name}"
            else:
                drawn.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"cannot write into {numbers.parent}: {error.strerror or error}.") from error
    text = page.section(experiment, results, how, picture, listed)
    page.put(path, experiment, text, running.PAPERS[path.stem])
    return "\n".join([f"{notice}Page: {path}", *_report(beside, experiment, results, how)])


def _report(beside: Path, experiment: Experiment, results: Sequence[Outcome], how: page.Provenance) -> list[str]:
    """Write the page for the browser beside the runs, if there are any; return the line that names it."""
    if not beside.is_dir():
        return []
    path = beside / f"{experiment.name.replace('/', '-')}.html"
    files.write(path, html_page(report.document(experiment, results, how, running.PAPERS[experiment.name[:3]])))
    return [f"Report: {path}"]
