"""Remarks on what a run has learnt, at its end: from metrics on public test records alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sordino.core.record import RoundRecord
from sordino.runs.job import Job


def remarks(job: Job, history: Sequence[RoundRecord]) -> Iterator[str]:
    """Yield a warning if the model predicts one class for every test record.

    Figures on held-out records are noisy, so nothing is concluded from them.
    """
    confusion = history[-1].confusion if history and job.test is not None else None
    if confusion is None or len(confusion) < 2:
        return
    predicted = [number for number, column in enumerate(zip(*confusion, strict=True)) if sum(column) > 0]
    present = sum(sum(row) > 0 for row in confusion)
    if len(predicted) != 1 or present < 2:
        return
    names = job.form.class_names if job.form is not None else ()
    which = f"{names[predicted[0]]!r}" if names else f"{predicted[0]}"
    way = "a larger epsilon, more records or channel = secure-sum" if job.method.private else "another learning_rate"
    yield f"the model predicts class {which} for every test record: it has learnt nothing else. Try {way}"
