"""Records of single rounds, one line of JSON each: a public record, and one that only the owner may see."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class RoundRecord:
    """The public record of a round; nothing in it depends on which clients were drawn.

    Epsilon is the bound that was planned for this number of rounds: a bound computed from the actual participants would
    itself reveal the draw.
    """

    round: int  # from 1
    epsilon: dict[str, float]  # spent so far, by viewer
    loss: float | None = None  # loss on public test data
    accuracy: float | None = None  # on public test data, or noisy and charged on held-out records: see evaluated_on
    metrics: dict[str, float] | None = None  # further metrics: AUC, F1, gaps between clients, RMSE, perplexity
    clip: float | None = None  # current clip bound, where it is adaptive
    evaluated_on: str | None = None  # the data that loss and accuracy refer to; public data cost nothing
    noise: float | None = None  # planned standard deviation of the noise per coordinate of one client's message
    confusion: list[list[float]] | None = None  # number of evaluated records by class and predicted class
    lost: str | None = None  # why nothing of the round was released, if nothing was: the model did not change

    def to_line(self) -> str:
        """Return the record as one line of JSON; `lost` is left out of the usual round."""
        data = asdict(self)
        if self.lost is None:
            del data["lost"]
        return json.dumps(plain(data), allow_nan=False)

    @staticmethod
    def from_line(line: str) -> RoundRecord:
        """Parse a line that `to_line` wrote, also one of an earlier version."""
        data = json.loads(line)
        data["epsilon"] = {k: math.inf if v is None else v for k, v in data["epsilon"].items()}
        if data.get("metrics"):
            data["metrics"] = {k: math.nan if v is None else v for k, v in data["metrics"].items()}
        return RoundRecord(**{k: v for k, v in data.items() if k not in OWNERS})


@dataclass(frozen=True)
class OwnerRecord:
    """The private part of a round's record, for the owner of the run: the draw and everything that depends on it."""

    round: int
    clients: int  # number of clients that were drawn, and so are charged
    bytes_up: int  # of all clients together
    bytes_down: int
    seconds: float
    answers: int | None = None  # number of messages that arrived, where clients may fail or be late
    noise: float | None = None  # as injected; the mean over the clients of the round if each has its own
    decided: dict[str, Any] | None = None  # choices of the method in this round, with reasons: see its module
    measured: dict[str, Any] | None = None  # clips, signal and noise by layer: contract/round_meter.py
    by_client: dict[str, Any] | None = None  # in the last round: {"metric": ..., "clients": {client: [value, records]}}

    def to_line(self) -> str:
        """Return the record as one line of JSON; `by_client` is left out where it is not known."""
        data = asdict(self)
        if self.by_client is None:
            del data["by_client"]
        return json.dumps(plain(data), allow_nan=False)

    @staticmethod
    def from_line(line: str) -> OwnerRecord:
        """Parse a line that `to_line` wrote."""
        data = json.loads(line)
        return OwnerRecord(**{k: data[k] for k in OwnerRecord.__dataclass_fields__ if k in data})


OWNERS = {"clients", "bytes_up", "bytes_down", "seconds", "answers", "decided", "measured"}  # once in RoundRecord


def plain(value: Any) -> Any:
    """Return the value in a form that JSON can hold; an infinite epsilon or a diverged loss becomes null."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
