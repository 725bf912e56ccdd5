"""`sordino watch`: runs as they go on, in the terminal.

It reads the public parts of the runs. Times (the last round, the speed, the end) are shown on a terminal, which its
owner looks at; output that goes elsewhere has them only for runs on public data, since they tell who was drawn.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sordino.core.record import plain
from sordino.core.rounding import up
from sordino.report.live import LiveRow, LiveRun
from sordino.report.sparks import picture, spark
from sordino.ui.shelf import Shelf

WIDE = 200  # characters of a line that goes to no terminal
ROWS = 20  # runs that are shown where there is no terminal whose height counts
CURVE, BAR = 16, 10  # characters
HIGH = 6  # lines of a large curve
COLUMNS = (
    "run",
    "state",
    "method",
    "round",
    "done",
    "claimed",
    "epsilon",
    "score",
    "curve",
    "last",
    "a minute",
    "left",
)
LEFT = ("run", "state", "method", "done", "curve")
GOES = ("method", "a minute", "done", "last", "claimed", "left", "curve", "epsilon", "state", "score")  # in this order
GAP, NARROWEST = 3, 16  # characters between columns; width of names down to which they are cut
STYLES = {"running": "green", "finished": "", "stopped": "yellow", "unknown": "yellow"}
STATES = {"unknown": "copied"}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Print the state once and end, as when the output is no terminal.")
@click.option("--follow", is_flag=True, help="Go on when no run is running, and wait for new ones.")
@click.option("--all", "everything", is_flag=True, help="Print all runs, not only those that fit (with --once).")
@click.option("--page", default=1, show_default=True, type=click.IntRange(1), help="Which page of the list to show.")
@click.option("--every", default=1.0, show_default=True, type=click.FloatRange(0.1, 3600), metavar="SECONDS",
              help="How often to look.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and end.")
def watch(
    runs: tuple[Path, ...], once: bool, follow: bool, everything: bool, page: int, every: float, as_json: bool
) -> None:
    """Show RUN..., runs or folders of runs, as they go on: rounds, epsilon, score and curves, newest first.

    \b
    sordino watch runs                 all runs in a folder, until none is running
    sordino watch runs --follow        the same, and those that will begin
    sordino watch runs/first --once    print once, for scripts
    """
    console = Console(highlight=False, force_terminal=sys.stdout.isatty())  # whatever FORCE_COLOR says: see above
    if not console.is_terminal:
        console.width = max(console.width, WIDE)
    live = console.is_terminal and not once and not as_json
    view = WatchedRuns(Shelf(runs), console, page, everything and not live)
    if as_json:
        view.read()
        click.echo(json.dumps(view.to_json(), indent=2, allow_nan=False))
    elif not live:
        view.read()
        console.print(view)
    else:
        try:
            _live(view, every, follow)
        except KeyboardInterrupt:
            return


def _live(view: WatchedRuns, every: float, follow: bool) -> None:
    """Show the view until no run is running, or for ever."""
    view.read(glance=True)
    with Live(view, console=view.console, refresh_per_second=4, vertical_overflow="crop") as live:
        while True:
            began = time.monotonic()
            view.read()
            live.refresh()
            if not follow and not view.counts.get("running"):
                return
            time.sleep(max(0.05, every - (time.monotonic() - began)))


class WatchedRuns:
    """What is shown now: the runs of one page, and how many there are."""

    def __init__(self, shelf: Shelf, console: Console, page: int = 1, everything: bool = False) -> None:
        self.shelf, self.console, self.page, self.everything = shelf, console, page, everything
        self._runs: dict[str, LiveRun] = {}
        self.rows: list[LiveRow] = []
        self.shown: list[LiveRun] = []
        self.counts: dict[str, int] = {}
        self.count = 0
        self.clock = time.time

    def room(self) -> int:
        """Return how many runs one page has."""
        if not self.console.is_terminal:
            return ROWS
        return max(3, self.console.size.height - 9)

    def read(self, glance: bool = False) -> None:
        """Read what is new of the runs on the page; with `glance` of large records the end alone."""
        ordered = self._ordered()
        self.count, self.counts = len(ordered), dict(Counter(run.state for run in ordered))
        room = self.count if self.everything else self.room()
        first = min(self.page - 1, max(0, (self.count - 1) // max(1, room))) * room
        shown = ordered[first : first + room]
        for run in shown:
            if glance:
                run.glance()
            else:
                run.refresh()
        now = self.clock()
        rows = [run.row(now) for run in shown]
        if not self.console.is_terminal:
            rows = [row if row.public_data else run.row() for run, row in zip(shown, rows, strict=True)]
        self.shown, self.rows = shown, rows

    def _ordered(self) -> list[LiveRun]:
        """Return all runs, also those of comparisons: those that go on first, then the newest."""
        items = {item.id: (item, item.name) for item in self.shelf.items() if item.kind == "run"}
        for whole in self.shelf.items():
            items |= {cell.id: (cell, f"{whole.name}/{cell.name}") for cell in self.shelf.cells(whole)}
        self._runs = {id: self._runs.get(id) or LiveRun(item.path, name) for id, (item, name) in items.items()}
        for run in self._runs.values():
            run.look()

        def rank(id: str) -> tuple[bool, float, str]:
            return self._runs[id].state != "running", -items[id][0].changed, self._runs[id].name

        return [self._runs[id] for id in sorted(items, key=rank)]

    # --- for programs

    def to_json(self) -> dict[str, Any]:
        """Return what is shown as a JSON object."""
        rows = [plain(asdict(row)) | {"path": str(row.path), "curve": _thin(run)} for run, row in self._pairs()]
        for data, row in zip(rows, self.rows, strict=True):
            data["infinite"] = row.total == math.inf
            del data["loading"]
        return {"runs": rows, "count": self.count, "states": self.counts}

    def _pairs(self) -> list[tuple[LiveRun, LiveRow]]:
        return list(zip(self.shown, self.rows, strict=True))

    # --- for people

    def __rich__(self) -> RenderableType:
        pairs, width = self._pairs(), self.console.size.width
        parts: list[RenderableType] = [Text(self.headline(), style="bold", overflow="fold"), self.table(pairs, width)]
        parts += [Text(text, style="yellow") for text in (*self.shelf.missing(), *self.damages(pairs))]
        left = self.count - len(pairs)
        if left > 0:
            how = "--page N shows the others" if self.console.is_terminal else "--all shows them"
            parts.append(Text(f"and {left:,} more {_runs(left)}; {how}", style="dim"))
        if pairs and self.console.is_terminal:
            lines = self.console.size.height - len(pairs) - len(parts) - 4
            if lines >= HIGH + 2 and width >= 40:
                parts.append(self.curves(*pairs[0], width))
        return Group(*parts)

    def headline(self) -> str:
        """Return how many runs are in which state."""
        order = ("running", "finished", "stopped", "unknown")
        said = [f"{self.counts[s]:,} {STATES.get(s, s)}" for s in order if self.counts.get(s)]
        return f"{self.count:,} {_runs(self.count)}: {', '.join(said)}" if self.count else "No run yet."

    def damages(self, pairs: Sequence[tuple[LiveRun, LiveRow]]) -> list[str]:
        """Return what is damaged, in sentences."""
        said = [f"{row.name}: {text}" for _, row in pairs for text in row.damage]
        most = 2 if self.console.is_terminal else len(said)
        more = len(said) - most
        return [*said[:most], f"and {more:,} more on damaged records; --once says all"] if more > 0 else said

    def table(self, pairs: Sequence[tuple[LiveRun, LiveRow]], width: int) -> Table:
        """Return the table of the runs, with the columns for which there is room; no number is ever cut off."""
        cells = [self.cells(run, row) for run, row in pairs]
        columns = fitting(
            {
                name: max([len(name), *(c[name].cell_len for c in cells)])
                for name in COLUMNS
                if any(c[name].plain for c in cells)
            },
            width,
        )
        # the box itself puts one of the GAP characters between two columns
        out = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
        for name, wide in columns.items():
            out.add_column(name, justify="left" if name in LEFT else "right", no_wrap=True, width=wide)
        for row in cells:
            out.add_row(*(row[name] for name in columns))
        return out

    def cells(self, run: LiveRun, row: LiveRow) -> dict[str, Text]:
        """Return the fields of a run by the name of their column."""
        ascii_only = not (self.console.encoding or "").lower().startswith("utf")
        curve = "" if row.loading else spark(run.curve()[1], CURVE, ascii_only)
        rounds = f"{row.round:,}" + (f"/{row.planned:,}" if row.planned else "")
        texts = {
            "run": row.name,
            "state": STATES.get(row.state, row.state),
            "method": row.method,
            "round": rounds,
            "done": _bar(row, ascii_only),
            "claimed": "" if row.claimed is None else f"{row.claimed:g}",
            "epsilon": _epsilon(row),
            "score": _score(row),
            "curve": curve or ("reading ..." if row.loading else ""),
            "last": "" if row.since is None else f"{_duration(row.since)} ago",
            "a minute": "" if row.per_minute is None else _speed(row.per_minute),
            "left": "" if row.left is None else _duration(row.left),
        }
        out = {name: Text(text, overflow="ellipsis", no_wrap=True) for name, text in texts.items()}
        out["state"].stylize(STYLES[row.state])
        if row.damage:
            out["run"].stylize("yellow")
        return out

    def curves(self, run: LiveRun, row: LiveRow, width: int) -> RenderableType:
        """Return the score and the epsilon of one run as larger curves."""
        if not (self.console.encoding or "").lower().startswith("utf"):
            return Text("")
        wide = max(20, (width - 6) // 2 - 10)
        grid = Table.grid(padding=(0, 2, 0, 0))
        drawn = []
        for measure in (row.measure, "epsilon"):
            rounds, values = run.curve(measure) if measure else run.curve()
            known = values[~(values != values)]
            if not len(known) or not math.isfinite(float(known.max())):
                continue
            lines = picture(rounds, values, wide, HIGH, row.planned or None)
            low, high = _number(float(known.min()), measure), _number(float(known.max()), measure)
            edge = max(len(low), len(high))
            body = [
                f"{(high if k == 0 else low if k == HIGH - 1 else ''):>{edge}} {line}" for k, line in enumerate(lines)
            ]
            drawn.append(Text("\n".join([f"{row.name}: {measure} by round"[: wide + edge + 1], *body]), no_wrap=True))
        if drawn:
            grid.add_row(*drawn)
        return grid


def fitting(wanted: dict[str, int], width: int) -> dict[str, int]:
    """Return the columns that fit into a width, with their widths; the least important ones go first.

    Only the names of runs and methods may be cut.
    """
    columns = dict(wanted)
    for name in ("", *GOES):
        columns.pop(name, None) if name else None
        room = width - sum(GAP + wide for other, wide in columns.items() if other != "run")
        if columns.get("run", 0) <= room:
            return columns
        if room >= min(columns.get("run", 0), NARROWEST):
            return columns | {"run": room}
    return {"run": max(1, min(wanted.get("run", 1), width))}


def _bar(row: LiveRow, ascii_only: bool) -> str:
    if not row.planned:
        return ""
    full = BAR if row.round >= row.planned else int(BAR * row.round / row.planned)
    done, rest = ("#", ".") if ascii_only else ("━", "╌")
    return done * full + rest * (BAR - full)


def _epsilon(row: LiveRow) -> str:
    if row.total == math.inf:
        return "infinite"
    if row.total is None:
        return "-"
    if row.state == "finished":
        return up(row.total)
    return f"{'0' if row.epsilon is None else up(row.epsilon)} of {up(row.total)}"


def _number(value: float, measure: str) -> str:
    if measure == "epsilon":
        return up(value)
    return f"{100 * value:.1f} %" if measure == "accuracy" else f"{value:.3g}"


def _score(row: LiveRow) -> str:
    if row.value is None:
        return "-"
    shown = _number(row.value, row.measure)
    return shown if row.measure == "accuracy" else f"{row.measure} {shown}"


def _speed(per_minute: float) -> str:
    return f"{per_minute:,.0f}" if per_minute >= 10 else f"{per_minute:.2g}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} d"


def _runs(count: int) -> str:
    return "run" if count == 1 else "runs"


def _thin(run: LiveRun, most: int = 100) -> list[list[float | None]]:
    """Return at most about `most` points of the curve of a run."""
    return [[x, None if math.isnan(y) else y] for x, y in run.points(most=most)]
