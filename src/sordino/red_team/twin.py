"""The twin of a run: the same clients, model, rounds and channel without clipping and noise, to be attacked beside it.

The twin reads the records without any protection. It therefore lies in the private part of the run folder only while
the attacks last, is charged to a ledger of its own that is deleted with it, and nothing of it leaves but the owner's
figures.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sordino.core.record import RoundRecord
from sordino.runs import baseline, build, run
from sordino.runs.job import Job

PLACE = "without_privacy"
Step = Callable[[str, int, int], None]  # called with what is done, how many parts of it are, and of how many


@contextmanager
def without_privacy(place: Path, job: Job, step: Step) -> Iterator[tuple[Path, Job]]:
    """Train the twin of a run with recorded views; yield its folder and its job, and delete it in the end.

    Args:
        place: the folder, in the private part of the run, in which the twin may lie.
        job: the job of the run.
        step: called after every round.
    """
    at = place / PLACE
    shutil.rmtree(at, ignore_errors=True)  # of an attack that was interrupted
    at.mkdir(parents=True)
    try:
        step("choosing a learning rate without privacy", 0, 1)
        plain = baseline.without_privacy(job)
        spec = replace(plain.spec, record_views=True, out=str(at), ledger=str(at / "ledger.sqlite"), name="twin")
        twin = replace(plain, spec=spec, viewer=job.viewer if "+" in job.viewer else plain.viewer)

        def watch(record: RoundRecord) -> None:
            step("training without privacy", record.round, twin.plan.rounds)

        result = run.execute(twin, own_model=True, watch=watch, owner=lambda text: None)
        yield result.folder, build.again(twin) if twin.statistics else twin
    finally:
        shutil.rmtree(at, ignore_errors=True)
