"""Which metrics of a run are printed: the accuracy, the AUC of two classes; of a regression RMSE and R2.

All others are in records.jsonl and result.json, and in `result.metrics` in Python. `metric = NAME`, or a metric of
one's own, is printed first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from sordino.core.record import RoundRecord
from sordino.runs.job import Job
from sordino.runs.run import Result

WORDS = {"auc": "AUC", "rmse": "RMSE", "r2": "R2", "mae": "mean absolute error", "f1": "F1", "macro_f1": "macro F1"}
USUAL = ("accuracy", "rmse", "mae")  # the first of these that is known is shown in every round
BESIDE = ("r2", "micro_f1", "perplexity")  # shown beside it at the end; and the AUC of two classes
LABELLED = ("worst_client",)  # shown on a line of its own at the end


def first(record: RoundRecord, job: Job) -> str:
    """Return the metric of a round that is shown while the run goes on; "" if nothing was measured."""
    values = _values(record.accuracy, record.metrics)
    for name in (*_asked(job), *USUAL):
        if values.get(name) is not None:
            return words(name, values[name])
    return f"loss {record.loss:.4g}" if record.loss is not None else ""


def lines(job: Job, result: Result) -> Iterator[str]:
    """Yield the lines on the metrics of a finished run."""
    values, where = _values(result.accuracy, result.metrics), _where(result)
    head = next((name for name in (*_asked(job), *USUAL) if name in values), None)
    if head is not None:
        two = result.confusion is not None and len(result.confusion) == 2
        names = [*USUAL[:2], *(("auc",) if two or job.task == "multi-label" else ()), *BESIDE]
        more = [words(name, values[name]) for name in names if name in values and name != head]
        label = _label(head)[0].upper() + _label(head)[1:] + _privacy(job, result)
        yield f"{label}: {', '.join([_number(head, values[head]), *more])}{where}"
    for name, value in values.items():
        if name in LABELLED or name.startswith("personal_"):
            yield words(name, value)


def words(name: str, value: float) -> str:
    """Return a metric in words, such as "accuracy 84.20 %"."""
    return f"{_label(name)} {_number(name, value)}"


def _label(name: str) -> str:
    return WORDS.get(name, name.replace("_", " "))


def _number(name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if name == "accuracy" else f"{value:.4g}"


def _values(accuracy: float | None, metrics: Any) -> dict[str, float]:
    return ({} if accuracy is None else {"accuracy": accuracy}) | dict(metrics or {})


def _asked(job: Job) -> tuple[str, ...]:
    """Return the metric that the user named or brought, in a tuple; empty if there is none."""
    own = job.own_metric.name if job.own_metric is not None else None
    return tuple(name for name in (job.spec.metric, own) if name is not None)


def _privacy(job: Job, result: Result) -> str:
    if job.method.claim(job.plan) is not None:
        return ", as printed"
    return " with privacy" if math.isfinite(result.guarantee.epsilon) else " without privacy"


def _where(result: Result) -> str:
    """Return the records that the figures are computed on, in parentheses; "" if they are public."""
    where = result.history[-1].evaluated_on if result.history else None
    return f" ({where})" if where and not where.startswith("public") else ""
