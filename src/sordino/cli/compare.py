"""`sordino compare`: run several methods at the same budgets and write tables and figures."""

from __future__ import annotations

import json as jsonlib
import sys
import time
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table as RichTable

from sordino.cli.run import all_flags, with_flags
from sordino.cli.run_help import KeyCommand, help_all
from sordino.comparisons import compare as comparing
from sordino.comparisons.bill import bill
from sordino.comparisons.compare import Cell, News
from sordino.comparisons.results import REPORT, announce, check_jobs, publish
from sordino.core import plugin
from sordino.core.errors import SpecError
from sordino.core.record import plain as finite
from sordino.report import figures, tables
from sordino.report.summary import Line, Spread
from sordino.run_folder.boundary import public_reason
from sordino.spec import spec
from sordino.spec.values import parse

OURS = (*comparing.CHOSEN, "baseline")  # flags of `sordino run` that have another meaning here, or none

FLAGS = all_flags()
WIDTH = 200  # width of tables that are not printed to a terminal
FOLDED, LEAST = ("reason", "remark"), 20  # columns that may be folded, and their smallest width


@click.command(cls=KeyCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--methods", required=True, metavar="A,B,...", help="Methods to compare; none is the reference.")
@click.option("--epsilon", "epsilons", default="2", metavar="E,...", show_default=True, help="Total budgets.")
@click.option("--seeds", default="3", metavar="N", show_default=True, help="Number of seeds: 0 to N - 1.")
@click.option(
    "--set", "settings", multiple=True, metavar="METHOD.KEY=VALUE", help="A key for one method only (repeatable)."
)
@click.option(
    "--jobs",
    default="1",
    metavar="N",
    show_default=True,
    help="Number of cells that run at the same time, in processes.",
)
@click.option(
    "--out", default="runs", metavar="FOLDER", show_default=True, help="Where the folder of the comparison is created."
)
@click.option("--name", default=None, metavar="NAME", help="Name of the folder (default: derived from the time).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@help_all
@with_flags({k: v for k, v in FLAGS.items() if k not in OURS})
def compare(
    methods: str,
    epsilons: str,
    seeds: str,
    settings: tuple[str, ...],
    jobs: str,
    out: str,
    name: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Compare methods at the same total budget: one run per method, epsilon and seed, with all else equal.

    Each flag of `sordino run` is passed to the methods that have it. After an interruption, the same command with the
    same --name continues."""
    board = Board(quiet=as_json)
    with board.console.status("Checking all runs ..."):
        chosen = _names("methods", methods)
        budgets = [parse("epsilon", text, float) for text in _names("epsilon", epsilons)]
        cells = comparing.cells(
            chosen, budgets, parse("seeds", seeds, int), _common(flags), _overrides(settings, chosen)
        )
        workers = _jobs(jobs, cells)
        sketched = comparing.sketch(cells)
        folder = comparing.open_folder(out, name, cells)
        charged = bill(folder, cells, sketched)
    if charged is not None:  # also with --json, since it cannot be undone
        click.echo(charged.sentence(), err=True)
        board.private = True
    board.say(f"Comparison: {folder.path} (after an interruption: the same command with --name {folder.path.name})")
    try:
        with board.watching(cells, workers):
            announce(folder, cells, charged)
            failures = comparing.execute(folder, cells, workers, board.hear)
        comparison, written = publish(folder, cells, failures, charged)
        results, failures = comparison.lines, comparison.failures
    except KeyboardInterrupt:
        click.echo(f"\nsordino: stopped. To continue, use the same command with --name {folder.path.name}.", err=True)
        sys.exit(130)
    finally:
        folder.close()
    if as_json:
        rows = [finite(row) for row in tables.line_rows(results)]
        output: dict[str, Any] = {"folder": str(folder.path), "files": written, "failures": failures, "results": rows}
        output["charged"] = None if charged is None else charged.to_json()
        click.echo(jsonlib.dumps(output, indent=2, allow_nan=False))
    else:
        board.results(results)
        board.say(f"Written to {folder.public}: {', '.join(written)}")
        if not figures.ready():
            board.say(
                'No figures: matplotlib is not installed; try: pip install "sordino[plot]", then the same command.'
            )
        if REPORT in written:
            board.say(f"Report: {folder.public / REPORT}")
        else:
            board.say(f"Note: the report was not written. To try again: sordino report {folder.path}")
    if failures:
        sys.exit(1)


def _names(what: str, text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise SpecError(f"{what} must be names or numbers separated by commas, not {text!r}.")
    return names


def _jobs(text: str, cells: Sequence[Cell]) -> int:
    jobs: int = parse("jobs", text, int)
    check_jobs(jobs, cells)
    return jobs


def _common(flags: dict[str, Any]) -> dict[str, Any]:
    given = {k: v for k, v in flags.items() if v is not None}
    return {k: v if isinstance(v, bool) else parse(k, v, FLAGS[k][0]) for k, v in given.items()}


def _overrides(texts: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse texts of the form METHOD.KEY=VALUE into values by method and key."""
    out: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        method, dot, key = name.strip().partition(".")
        key = key.strip().replace("-", "_")
        if not equals or not dot or not key:
            raise SpecError(f"set takes METHOD.KEY=VALUE, such as dp-sgd.clip=0.5, not {text!r}.")
        if method not in methods:
            raise SpecError(f"set {text}: {method} is not among the methods that are compared: {', '.join(methods)}.")
        if key in out.setdefault(method, {}):
            raise SpecError(f"set gives {method}.{key} twice.")
        out[method][key] = parse(key, value.strip(), _hint(method, key))
    return out


def _hint(method: str, key: str) -> Any:
    """Return the type of a key; the method's own keys come before all others."""
    hints = typing.get_type_hints(plugin.load("methods", method))
    if key in {f.name for f in spec.plugin_fields("methods", method)}:
        return hints[key]
    if key not in FLAGS:
        raise SpecError(f"set {method}.{key}: unknown key {key!r}. `sordino methods` lists those of {method}.")
    return FLAGS[key][0]


# --- terminal output


class Board:
    """The live table that is shown while cells run; plain lines if there is no terminal."""

    def __init__(
        self, quiet: bool = False, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ):
        self.console = console or Console(quiet=quiet, highlight=False, soft_wrap=True)
        self.owner = console or Console(quiet=quiet, stderr=True, highlight=False, soft_wrap=True)
        self.private = False  # whether records are private: then plain lines, which may be passed on, show no times
        if not self.console.is_terminal:
            self.console.width = max(self.console.width, WIDTH)
        self.clock = clock
        self.cells: dict[str, Cell] = {}
        self.rounds: dict[str, tuple[int, int]] = {}  # running cells: current round, all rounds
        self.started: dict[str, float] = {}
        self.took: dict[str, float] = {}  # seconds; only of cells that this command ran
        self.accuracy: dict[str, float | None] = {}  # finished cells
        self.rmse: dict[str, float] = {}  # finished cells of a regression
        self.failed: dict[str, str] = {}
        self.jobs = 1

    def say(self, text: str) -> None:
        """Print a line to standard output."""
        self.console.print(text, markup=False)

    @contextmanager
    def watching(self, cells: Sequence[Cell], jobs: int) -> Iterator[None]:
        """Show the live table while the block runs, on standard error if that is a terminal."""
        self.cells, self.jobs = {c.name: c for c in cells}, jobs
        if not self.owner.is_terminal or self.owner.quiet:
            yield
            return
        with Live(get_renderable=self.table, console=self.owner, refresh_per_second=2, transient=True):
            yield

    def hear(self, news: News) -> None:
        """Take in what happened to a cell: it began, finished a round, finished or failed."""
        name = news.cell
        if news.kind == "began" and not self.started and (before := len(self.accuracy)):
            self.say(f"{before} of {len(self.cells)} cells were finished before")
        if news.kind in ("began", "round"):
            self.started.setdefault(name, self.clock())
            self.rounds[name] = (news.round, news.rounds)
            return
        self.rounds.pop(name, None)
        if name in self.started:
            self.took[name] = self.clock() - self.started[name]
        if news.kind == "failed":
            self.failed[name] = news.reason
        else:
            self.accuracy[name] = news.accuracy
            if news.rmse is not None:
                self.rmse[name] = news.rmse
        if not self.owner.is_terminal and (name in self.took or news.kind == "failed"):
            self.say(f"{self.progress(timed=not self.private)}: {name} {self._how(news)}")

    def _how(self, news: News) -> str:
        if news.kind == "failed":
            return f"failed: {public_reason(news.reason) if self.private else news.reason}"
        parts = [] if news.accuracy is None else [f"accuracy {100 * news.accuracy:.2f} %"]
        parts += [] if news.rmse is None else [f"rmse {news.rmse:.4g}"]
        parts += ["done"] if self.private else [f"{self.took[news.cell]:.3g} s"]
        return ", ".join(parts)

    def progress(self, timed: bool = True) -> str:
        """Return how many cells are done and, if `timed`, an estimate of the time left."""
        done = len(self.accuracy) + len(self.failed)
        text = f"{done}/{len(self.cells)} cells"
        left = self.time_left() if timed else None
        return text if left is None or done == len(self.cells) else f"{text}, about {_duration(left)} left"

    def time_left(self) -> float | None:
        """Return the estimated seconds left, or None before the first cell has finished.

        The estimate uses the cells that were run, those of the same method if there are any.
        """
        good = {n: t for n, t in self.took.items() if n not in self.failed}
        if not good:
            return None
        by_method: dict[str, list[float]] = {}
        for name, seconds in good.items():
            by_method.setdefault(self.cells[name].method, []).append(seconds)
        usual, total = sum(good.values()) / len(good), 0.0
        for name, cell in self.cells.items():
            if name in self.accuracy or name in self.failed:
                continue
            same = by_method.get(cell.method)
            expected = sum(same) / len(same) if same else usual
            ran = self.clock() - self.started[name] if name in self.started else 0.0
            total += max(0.0, expected - ran)
        return total / self.jobs

    def table(self) -> RichTable:
        """Return the live table."""
        out = RichTable(title=self.progress(), title_justify="left")
        for column in ("method", "epsilon", "done", "running", "mean rmse" if self.rmse else "mean accuracy, %"):
            out.add_column(column, overflow="fold", justify="left" if column in ("method", "running") else "right")
        groups: dict[str, dict[float | None, list[str]]] = {}
        for name, cell in self.cells.items():
            groups.setdefault(cell.method, {}).setdefault(cell.epsilon, []).append(name)
        for method, epsilon, names in ((m, e, n) for m, parts in groups.items() for e, n in parts.items()):
            scores = self.rmse if self.rmse else {n: 100 * a for n, a in self.accuracy.items() if a is not None}
            known = Spread.of(scores[n] for n in names if n in scores)
            running = [
                f"seed {self.cells[n].seed}: round {r[0]}/{r[1]}"
                for n in names
                if (r := self.rounds.get(n)) is not None
            ]
            failed = [n for n in names if n in self.failed]
            out.add_row(
                method,
                "-" if epsilon is None else f"{epsilon:g}",
                f"{sum(n in self.accuracy for n in names)}/{len(names)}"
                + (f", {len(failed)} failed" if failed else ""),
                "; ".join(running),
                f"{known.mean:{'.4g' if self.rmse else '.2f'}}" if known.n else "",
            )
        return out

    def results(self, results: Sequence[Line]) -> None:
        """Print the tables of results."""
        for table in tables.tables(results):
            self.say("")
            self.say(table.title)
            if table.note:
                self.say(table.note)
            if _breadth(table) > self.console.width:  # a truncated number would be wrong
                for row in table.rows:
                    self.say("  " + "; ".join(f"{h} {v}" for h, v in zip(table.header, row, strict=True)))
                continue
            shown = RichTable(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
            for column in table.header:
                folds = column in FOLDED
                left = column in (*FOLDED, "method", "claimed for", "unit", "relation", "viewer")
                shown.add_column(
                    column, overflow="fold", no_wrap=not folds, min_width=LEAST if folds else None,
                    justify="left" if left else "right",
                )  # fmt: skip
            for row in table.rows:
                shown.add_row(*row)
            self.console.print(shown, markup=False)


def _breadth(table: tables.Table) -> int:
    """Return the terminal width that a table needs at least; only reasons and remarks may be folded."""
    columns = [(h, h, *(row[i] for row in table.rows)) for i, h in enumerate(table.header)]
    return sum(2 + (LEAST if name in FOLDED else max(map(len, texts))) for name, *texts in columns)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
