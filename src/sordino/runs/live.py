"""A live bar while `sordino.train` runs: in notebooks by itself, in a terminal if it is asked for.

It shows the public record of the last round. The time that rounds take is not shown in a notebook, whose outputs are
passed on with it: it tells who was drawn.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from sordino.core import html
from sordino.core.record import RoundRecord
from sordino.core.rounding import up
from sordino.runs.job import Job

Watch = Callable[[RoundRecord], None]


class Bar(Protocol):
    """Something that shows how far a run is."""

    def show(self, done: int, total: int, text: str) -> None: ...


def in_notebook() -> bool:
    """Return whether this code runs in the kernel of a notebook."""
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return ask is not None and getattr(ask(), "kernel", None) is not None


class NotebookBar:
    """A bar in the output of a cell, which is replaced as the run goes on."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, done: int, total: int, text: str) -> None:
        """Replace the bar by one that is filled up to `done` of `total`."""
        from IPython.display import display

        shown = {"text/html": html.progress(done, total, text), "text/plain": f"{done}/{total} {text}"}
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


class TerminalBar:
    """A bar on standard error."""

    def __init__(self, progress: Any) -> None:
        self._progress, self._task = progress, progress.add_task("", total=None)

    def show(self, done: int, total: int, text: str) -> None:
        """Fill the bar up to `done` of `total`."""
        self._progress.update(self._task, completed=done, total=total, description=text)


@contextmanager
def progress_bar(wanted: bool | None) -> Iterator[Bar | None]:
    """Provide a bar, or None if nothing shall be shown.

    Args:
        wanted: True: show it wherever this is, in a terminal too; False: do not; None: in notebooks only.
    """
    if wanted is False or (wanted is None and not in_notebook()):
        yield None
    elif in_notebook():
        yield NotebookBar()
    else:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        with Progress(BarColumn(24), TextColumn("{task.description}"), console=Console(stderr=True)) as progress:
            yield TerminalBar(progress)


def watching(job: Job, shown: Bar | None, watch: Watch | None) -> Watch | None:
    """Return a function that shows every round in the bar and then calls `watch`; `watch` itself without a bar."""
    if shown is None:
        return watch
    shown.show(0, job.plan.rounds, "before the first round")

    def after_round(record: RoundRecord) -> None:
        shown.show(record.round, job.plan.rounds, state(job, record))
        if watch is not None:
            watch(record)

    return after_round


def state(job: Job, record: RoundRecord) -> str:
    """Return the public record of a round in a few words."""
    parts = [f"round {record.round} of {job.plan.rounds}", *(["lost"] if record.lost is not None else [])]
    if record.accuracy is not None:
        parts.append(f"accuracy {100 * record.accuracy:.2f} %")
    elif "rmse" in (record.metrics or {}):
        parts.append(f"RMSE {(record.metrics or {})['rmse']:.4g}")
    elif record.loss is not None:
        parts.append(f"loss {record.loss:.4g}")
    spent = record.epsilon[job.viewer]
    if job.method.claim(job.plan) is not None:
        parts.append(f"epsilon {job.spec.epsilon:g} claimed, {up(spent)} accounted")
    else:
        parts.append("epsilon infinite" if math.isinf(spent) else f"epsilon {up(spent)} of {job.spec.epsilon:g}")
    return ", ".join(parts)
