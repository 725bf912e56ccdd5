"""What a guarantee takes as public, in words: the last sentence of what a run promises.

A statement stands here only if it is true of the run; none depends on a private record."""

from __future__ import annotations

from collections.abc import Iterator

from sordino.contract.method import Method
from sordino.core.types import Batch
from sordino.data.dataset import Dataset
from sordino.runs.evaluation import Evaluation
from sordino.runs.spec import Spec


def of_data(data: Dataset, spec: Spec) -> tuple[str, ...]:
    """What the owner of the data declared, or what was read from it; of a benchmark, its test records."""
    return tuple(_of_data(data, spec))


def _of_data(data: Dataset, spec: Spec) -> Iterator[str]:
    yield from data.assumed
    if data.test_from:
        unit = spec.unit or spec.method_object().units[0]
        anyone = unit in ("user", "client") and spec.public_share is None
        yield data.test_from + (", whosever they are" if anyone else "")
    elif data.public and len(data.y_test) and not spec.public_data:
        yield f"the {len(data.y_test):,} test records"


def of_run(spec: Spec, method: Method, server: Batch | None, evaluation: Evaluation) -> tuple[str, ...]:
    """What the rounds use of the clients without charge: the noise follows how much data each has."""
    by_user = spec.unit == "user" and method.viewer == "server"
    found = [f"how many {'users' if by_user else 'records'} each client has"]
    if spec.unit == "user" and evaluation.text:  # of records it follows from the sizes and the seed
        found.append("how many users are held out")
    if server is not None:
        found.append(f"the {len(server.y):,} records that the server holds")
    if spec.budgets is not None:
        found.append("the clients' own budgets")
    return tuple(found)
