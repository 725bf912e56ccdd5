"""The progress bar of commands that do several things in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from sordino.red_team.twin import Step


@contextmanager
def steps(quiet: bool) -> Iterator[Step]:
    """Show what is being done on standard error, if that is a terminal, with the time that is left."""
    console = Console(stderr=True, quiet=quiet)
    if quiet or not console.is_terminal:
        yield lambda what, done, of: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=console, refresh_per_second=5) as bar:
        tasks: dict[str, TaskID] = {}

        def step(what: str, done: int, of: int) -> None:
            if what not in tasks:
                for task in tasks.values():  # whatever comes next is another step
                    total = bar.tasks[bar.task_ids.index(task)].total
                    bar.update(task, completed=total)
                tasks[what] = bar.add_task(what, total=of)
            bar.update(tasks[what], completed=done, total=of)

        yield step
