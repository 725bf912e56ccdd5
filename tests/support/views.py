"""Made-up run folders for tests of views, and a view of them that is served in a thread."""

from __future__ import annotations

import fcntl
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sordino.core.record import RoundRecord
from sordino.ui.api import ViewAnswers
from sordino.ui.server import ViewServer

GUARANTEE = {
    "epsilon": 2.0, "delta": 1e-5, "unit": "record", "relation": "add/remove", "viewer": "server", "rounds": 20,
    "mode": "research", "reason": None, "channel": "direct", "public": [], "exact": False, "infinite": False,
    "total": True, "sentence": "In total over 20 rounds, any single record is protected with epsilon = 2.",
}  # fmt: skip


def line(number: int, viewer: str = "server", accuracy: float | None = None) -> str:
    """Return a line of public records."""
    accuracy = 0.5 + 0.4 * number / (number + 5) if accuracy is None else accuracy
    spent = {viewer: 0.4 * number**0.5, "public": 0.2 * number**0.5}
    record = RoundRecord(number, spent, 1 / number, accuracy, evaluated_on="public test data", noise=1.2)
    return record.to_line() + "\n"


def make_run(
    folder: Path,
    name: str,
    rounds: int = 20,
    done: int | None = None,
    method: str = "dp-sgd",
    dataset: str = "breast-cancer",
    **guarantee: Any,
) -> Path:
    """Write the folder of a run.

    Args:
        folder: where.
        name: the name of the run.
        rounds: planned rounds.
        done: rounds on record; None: all, and the run has finished.
        method: its method.
        dataset: its data.
        guarantee: what differs from GUARANTEE.
    """
    run, promise = folder / name, GUARANTEE | {"rounds": rounds} | guarantee
    public, private = run / "public", run / "private"
    public.mkdir(parents=True)
    private.mkdir(mode=0o700)
    plan = {
        "method": method,
        "promise": promise,
        "claim": None,
        "channel": "direct",
        "evaluated_on": "public test data",
    }
    (public / "plan.json").write_text(json.dumps(plan))
    (public / "spec.toml").write_text(
        f"method = {json.dumps(method)}\ndataset = {json.dumps(dataset)}\nrounds = {rounds}\n"
    )
    numbers = range(1, (rounds if done is None else done) + 1)
    (public / "records.jsonl").write_text("".join(line(k, str(promise["viewer"])) for k in numbers))
    (private / "lock").touch()
    if done is None:
        result = {"guarantee": promise, "guarantees": {promise["viewer"]: promise}, "rounds": rounds, "accuracy": 0.82}
        (public / "result.json").write_text(json.dumps(result))
    return run


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold the lock of a run, as the process that trains it does."""
    with (run / "private" / "lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def served(*folders: Path, **options: Any) -> Iterator[ViewServer]:
    """Serve a view of some folders."""
    with ViewServer(ViewAnswers(folders, **options)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def id_of(server: ViewServer, name: str) -> str:
    """Return the id of a run."""
    return next(item.id for item in server.answers.shelf.items() if item.name == name)
