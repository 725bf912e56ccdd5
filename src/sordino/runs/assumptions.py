"""The assumptions of a guarantee in words: what it treats as public. They end the sentence that a run promises.

A statement is listed only if it is true of the run, and no statement depends on a private record."""

from __future__ import annotations

from collections.abc import Iterator

from sordino.contract.method import Method
from sordino.core.types import Batch
from sordino.data.dataset import Dataset
from sordino.measures.settings import Evaluation
from sordino.runs.initial_weights import InitialWeights
from sordino.spec.spec import Spec


def of_data(data: Dataset, spec: Spec) -> tuple[str, ...]:
    """Return what the guarantee treats as public in the data.

    This is what the owner of the data declared or what was read from the data, followed by the test records, if these
    come from the data or belong to a shipped benchmark.
    """
    return tuple(_of_data(data, spec))


def _of_data(data: Dataset, spec: Spec) -> Iterator[str]:
    yield from data.assumed
    if data.test_from:
        unit = spec.unit or spec.method_object().units[0]
        anyone = unit in ("user", "client") and spec.public_share is None
        yield data.test_from + (", whosever they are" if anyone else "")
    elif data.public and len(data.y_test) and not spec.public_data:
        yield f"the {len(data.y_test):,} test records"


def of_run(
    spec: Spec,
    method: Method,
    server: Batch | None,
    evaluation: Evaluation,
    initial: InitialWeights | None = None,
) -> tuple[str, ...]:
    """Return the facts about the clients that the rounds use free of charge, and the weights that they start from.

    The number of records (or users) of each client is always among them, since the noise depends on it.
    """
    by_user = spec.unit == "user" and method.viewer == "server"
    facts = [f"how many {'users' if by_user else 'records'} each client has"]
    if spec.unit == "user" and evaluation.text:  # for records, it follows from the sizes and the seed
        facts.append("how many users are held out")
    if server is not None:
        facts.append(f"the {len(server.y):,} records that the server holds")
    if spec.budgets is not None:
        facts.append("the clients' own budgets")
    return (*facts, *(() if initial is None else initial.assumed()))
