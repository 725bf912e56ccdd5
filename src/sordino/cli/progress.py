"""Terminal output during a run.

Standard output, which may be redirected and passed on, shows what the public part of the run folder holds. The progress
bar with the time left goes to standard error, and only if that is a terminal: how long a round takes tells who was
drawn. In rounds of more than two seconds the bar also shows the share of the round that is done. It is a share of what
the plan expects, by the number of records computed so far; never which clients they belong to.

The estimate of time and memory comes from made-up records (runs/estimate.py), so it may be in a log as well."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from sordino.cli import figures
from sordino.contract import pricing
from sordino.core import heartbeat
from sordino.core.record import RoundRecord
from sordino.core.rounding import up
from sordino.runs.describe import describe
from sordino.runs.estimate import estimate, idle_cores, records_of_a_round
from sordino.runs.job import Job

LONG = 2.0  # seconds of a round after which progress inside it is shown


class InsideRound(ProgressColumn):
    """The column that shows progress inside a long round, as a share of the records that the plan expects in it."""

    def __init__(self, expected: float) -> None:
        super().__init__()
        self.expected, self.records, self.start = max(1.0, expected), 0, time.monotonic()

    def next_round(self) -> None:
        """Start to count anew."""
        self.records, self.start = 0, time.monotonic()

    def beat(self, records: int) -> None:
        """Count records whose gradients were computed."""
        self.records += records

    def text(self) -> str:
        """Return what the column shows now; "" in the first seconds of a round."""
        seconds = time.monotonic() - self.start
        if seconds < LONG:
            return ""
        if not self.records:  # other processes compute them
            return f"this round: {seconds:.0f} s"
        return f"this round: {min(99, int(100 * self.records / self.expected))} %"

    def render(self, task: Task) -> Text:
        """Return the column for the bar."""
        return Text(self.text())


class RunProgress:
    """The output of one run, or of several runs in turn."""

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        self.console = console or Console(quiet=quiet, highlight=False, soft_wrap=True)
        self.owner = console or Console(quiet=quiet, stderr=True, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._plain_rounds = 0
        self._inside = InsideRound(1.0)

    def say(self, text: str) -> None:
        """Print a line to standard output."""
        self.console.print(text, markup=False)

    @contextmanager
    def preparing(self, text: str = "Preparing data, model and noise ...") -> Iterator[None]:
        """Show a status line while the job is prepared."""
        with self.owner.status(text):
            yield

    def start(self, job: Job) -> None:
        """Print the plan in a few lines, before the first round."""
        plan, spec = job.plan, job.spec
        how = spec.method if spec.algorithm == "fedavg" else f"{spec.method} with {spec.algorithm}"
        dataset = spec.dataset if job.public_data else spec.data_name or "your own data"
        who = f"{plan.expected_cohort:g} of {plan.population} clients per round"
        if later := plan.stragglers.joiners(plan.population):
            who += f" ({later} of them join after round {plan.stragglers.joining[1]})"
        self.say(
            f"{how}: {spec.model} ({job.model.layout.dim:,} parameters) on {dataset}, {who}, "
            f"{plan.rounds} rounds, on {job.device}; gradients by {job.model.gradients.path}"
        )
        if job.method.private:
            norm = pricing.step_noise(job.method, plan) * math.sqrt(job.model.layout.dim)
            noise = f"(noise norm {norm:,.0f} times one clipped contribution per step)"
            if job.whole_costs is not None:
                noise = "for the whole run, which its rounds share"
            hidden = "" if plan.channel.name == "direct" else f" behind a {plan.channel.name.replace('-', ' ')}"
            self.say(
                f"Budget: epsilon = {spec.epsilon:g}, delta = {spec.delta:g} against the {job.viewer}{hidden}, so "
                f"noise multiplier {plan.z:.4g} {noise}, {spec.mode} mode"
            )

        if text := job.evaluation.text:
            self.say(text[0].upper() + text[1:])
        if job.once and (released := describe(job)["evaluation"]) is not None:
            alone = released["epsilon"]
            what = [f"evaluation on {job.held_out.kind} records"] if job.held_out is not None else []
            what += ["private statistics"] if job.statistics else []
            self.say(f"Of this budget, {' and '.join(what)} alone would take epsilon = {up(alone)}")

    def estimate(self, job: Job) -> None:
        """Print what the run is expected to take, by made-up records, before anything is charged."""
        if not self.console.quiet and (expected := estimate(job)) is not None:
            self.say(expected.sentence())
            if (advice := idle_cores(job, expected)) is not None:
                self.say(advice)

    def began(self, folder: Path) -> None:
        """Print the run folder and how to resume the run."""
        self.say(f"Run folder: {folder} (after an interruption: sordino resume {folder})")

    @contextmanager
    def rounds(self, job: Job) -> Iterator[None]:
        """Show the progress bar while the rounds run."""
        if not self.owner.is_terminal:  # a log file gets ten lines, not a bar
            yield
            return
        self._inside = InsideRound(records_of_a_round(job))
        columns = (
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}"),
            self._inside,
            TimeRemainingColumn(),
            TextColumn("left"),
        )
        with Progress(*columns, console=self.owner, refresh_per_second=5) as self._bar:
            self._task = self._bar.add_task("round", total=job.plan.rounds, state="")
            heartbeat.set_hook(self._inside.beat)
            try:
                yield
            finally:
                heartbeat.set_hook(None)
        self._bar = None

    def after_round(self, job: Job, record: RoundRecord) -> None:
        """Show the public record of a round: in the bar or, without one, as a line every tenth of the rounds."""
        self._inside.next_round()
        spent = record.epsilon[job.viewer]
        parts = [shown] if (shown := figures.first(record, job)) else []
        if record.lost is not None:
            parts.insert(0, f"lost: {record.lost}")
        if job.method.claim(job.plan) is not None:
            parts.append(f"epsilon {job.spec.epsilon:g} claimed, {up(spent)} accounted")
        elif math.isinf(spent):
            parts.append("epsilon infinite")
        elif job.whole_costs is not None:
            parts.append(f"epsilon {up(spent)} charged for the whole run")
        else:
            left = max(0.0, job.spec.epsilon - spent)
            parts.append(f"epsilon {up(spent)} spent, {left:.3f} left")
        if self._bar is not None:
            self._bar.update(self._task, completed=record.round, state=", ".join(parts))
        if self._bar is None and record.round * 10 // job.plan.rounds > self._plain_rounds:
            self._plain_rounds = record.round * 10 // job.plan.rounds
            self.say(f"round {record.round}/{job.plan.rounds}: {', '.join(parts)}")
        if record.round == job.plan.rounds:
            self._plain_rounds = 0
