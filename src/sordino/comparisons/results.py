"""The results of a comparison: the files that it publishes, and `sordino.compare`, which runs one from Python."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.comparisons import compare as comparing
from sordino.comparisons.bill import Bill, bill
from sordino.comparisons.compare import Cell, News
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.html import PublicNames
from sordino.core.parts import PUBLIC
from sordino.report import cells as reading
from sordino.report import figures, files, html, tables
from sordino.report.comparison import document
from sordino.report.page import page
from sordino.report.summary import Line, lines
from sordino.run_folder.boundary import check_file, public_reason
from sordino.run_folder.folder import RunFolder
from sordino.runs import live

REPORT = files.NAME


@dataclass(frozen=True)
class Comparison(PublicNames):
    """Many runs that differ in method, epsilon and seed alone. Every field may be handed out with the runs' models."""

    folder: Path
    lines: tuple[Line, ...]  # one per method and epsilon: `accuracy` and others over seeds, `accounted`, `claim`
    failures: dict[str, str]  # the reason of every cell that failed, by name
    about: str  # what was compared and what the numbers are

    def table(self) -> str:
        """Return the tables as Markdown text."""
        return tables.markdown(f"Comparison {self.folder.name}", self.about, self.lines)

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary per line, as a data frame takes them."""
        return tables.line_rows(self.lines)

    def report(self, out: str | Path | None = None) -> Path:
        """Write the page of the comparison for the browser, and return its file.

        Args:
            out: the file; by default report.html in the public part of the comparison.
        """
        path = self.folder / PUBLIC / REPORT if out is None else Path(out)
        files.write(path, page(document(self.folder)))
        return path

    def _repr_html_(self) -> str:
        """Return the comparison for a notebook."""
        return html.of_comparison(self.folder.name, self.lines, self.about)


def compare(
    methods: Sequence[str],
    *,
    epsilon: float | Sequence[float] = 2.0,
    seeds: int = 3,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    jobs: int = 1,
    out: str | Path = "runs",
    name: str | None = None,
    progress: bool | None = None,
    **keys: Any,
) -> Comparison:
    """Compare methods at the same total budget: one run per method, epsilon and seed, with all else equal.

    Args:
        methods: The names of the methods; "none" is the reference without privacy.
        epsilon: The total epsilon of a run, or several of them.
        seeds: The number of seeds.
        settings: Keys for single methods, by method, such as {"dp-sgd": {"clip": 0.5}}.
        jobs: How many runs at a time, in processes.
        out: Where the folder of the comparison is made.
        name: The name of the folder. The same call with the same name continues, and does nothing twice.
        progress: Whether to show a live bar; by default in notebooks only.
        **keys: Any key of a run file, for the methods that have it, such as `dataset`, `rounds`, `clients`.

    Returns:
        A `Comparison`, which a notebook shows as tables and a figure. On your own data every run is charged; the total
        is printed to standard error before the first of them.
    """
    names, budgets = _list(methods), _list(epsilon)
    if strange := [name for name in names if not isinstance(name, str)]:
        raise SpecError(f"methods must be names, such as 'dp-sgd', not {strange[0]!r}.")
    if strange := [e for e in budgets if isinstance(e, bool) or not isinstance(e, int | float)]:
        raise SpecError(f"epsilon must be a number or a list of numbers, not {strange[0]!r}.")
    chosen = comparing.cells(names, [float(e) for e in budgets], seeds, keys, settings or {})
    check_jobs(jobs, chosen)
    sketched = comparing.sketch(chosen)
    folder = comparing.open_folder(str(out), name, chosen)
    try:
        charged = bill(folder, chosen, sketched)
        if charged is not None:
            print(charged.sentence(where=False), file=sys.stderr)
        with live.progress_bar(progress) as bar:
            announce(folder, chosen, charged)
            failures = comparing.execute(folder, chosen, jobs, _Told(bar, len(chosen)))
        return publish(folder, chosen, failures, charged)[0]
    finally:
        folder.close()


def check_jobs(jobs: int, cells: Sequence[Cell]) -> None:
    """Raise SpecError if the cells cannot run so many at a time."""
    check.count(jobs=jobs)
    if jobs > 1 and (apart := [cell.spec.federation for cell in cells if cell.spec.in_workers]):
        raise SpecError(
            f"jobs = {jobs} runs cells in processes, which cannot start those of federation = {apart[0]}: use "
            "--jobs 1, or federation = simulator."
        )


def announce(folder: RunFolder, cells: Sequence[Cell], charged: Bill | None) -> None:
    """Publish what will be run and what it is charged, before the first run.

    A report then knows of runs that have not begun, also in a comparison that goes on or died.
    """
    listed = [{"name": c.name, "method": c.method, "epsilon": c.epsilon, "seed": c.seed} for c in cells]
    said = None if charged is None else {"runs": charged.runs, "sentence": charged.sentence(where=False)}
    folder.publish_json("cells.json", {"cells": listed, "charged": said})


def publish(
    folder: RunFolder, cells: Sequence[Cell], failures: dict[str, str], charged: Bill | None
) -> tuple[Comparison, list[str]]:
    """Write the public tables and figures of a comparison; return its results and the names of the files.

    Args:
        folder: the folder of the comparison.
        cells: the cells that were run.
        failures: the reason of every cell that failed, by name.
        charged: the charge of all cells; None if the data are public.
    """
    folder.write_json("failures.json", failures)
    if charged is not None:
        failures = {cell: public_reason(reason) for cell, reason in failures.items()}
    read = reading.read(folder.path, failures)
    comparison = Comparison(folder.path, tuple(lines(read)), failures, _about(cells, charged))
    texts = {
        "results.csv": tables.to_csv([tables.cell_row(c) for c in read]),
        "summary.csv": tables.to_csv(comparison.rows()),
        "table.md": comparison.table(),
    }
    for name, text in texts.items():
        folder.publish(name, text.encode())
    drawn = figures.draw(folder.public, comparison.lines) if figures.ready() else []
    for path in drawn:
        check_file(path.name)
    return comparison, [*texts, *(path.name for path in drawn), *_report(folder)]


def _report(folder: RunFolder) -> list[str]:
    """Write the page of a comparison; the results of a finished comparison never fail for their page."""
    with contextlib.suppress(Exception):
        folder.publish(REPORT, page(document(folder.path)).encode())
        return [REPORT]
    return []


def _about(cells: Sequence[Cell], charged: Bill | None) -> str:
    first = cells[0].spec
    return (
        f"{Path(first.dataset).name}, delta = {first.delta:g}, seeds 0 to {max(c.seed for c in cells)}; all settings "
        f"are in {comparing.COMPARISON}. Accuracy (or error): mean ± standard deviation over n seeds. Accounted "
        "epsilon: in total, the largest over the seeds. All noise came from seeds: these are experiments."
        + ("" if charged is None else f" {charged.sentence(where=False)}")
    )


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


class _Told:
    """Shows in a bar how many cells are finished, and in which round the last one is."""

    def __init__(self, bar: live.Bar | None, cells: int) -> None:
        self.bar, self.cells, self.done = bar, cells, 0

    def __call__(self, news: News) -> None:
        self.done += news.kind in ("done", "failed")
        if self.bar is not None:
            where = f", {news.cell}: round {news.round} of {news.rounds}" if news.kind == "round" else ""
            self.bar.show(self.done, self.cells, f"{self.done} of {self.cells} runs{where}")
