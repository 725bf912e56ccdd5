"""One round of a run as one line of JSON: what anyone may see, and what the owner alone may see."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class RoundRecord:
    """What a round published; nothing in it depends on who was drawn.

    Epsilon is the bound that was planned for so many rounds: one computed from who really took part would itself tell
    of the draw."""

    round: int  # from 1
    epsilon: dict[str, float]  # spent so far, by viewer
    loss: float | None = None  # on public test data
    accuracy: float | None = None  # likewise, or noisy and charged on held-out records: see evaluated_on
    metrics: dict[str, float] | None = None  # further figures: worst class, gaps between clients, rmse, perplexity
    clip: float | None = None  # the bound in use, where it adapts
    evaluated_on: str | None = None  # whose data loss and accuracy are of; public data cost nothing
    noise: float | None = None  # standard deviation of the noise in one client's message, a coordinate, as planned

    def to_line(self) -> str:
        return json.dumps(plain(asdict(self)), allow_nan=False)

    @staticmethod
    def from_line(line: str) -> RoundRecord:
        data = json.loads(line)
        data["epsilon"] = {k: math.inf if v is None else v for k, v in data["epsilon"].items()}
        if data.get("metrics"):
            data["metrics"] = {k: math.nan if v is None else v for k, v in data["metrics"].items()}
        return RoundRecord(**{k: v for k, v in data.items() if k not in OWNERS})


@dataclass(frozen=True)
class OwnerRecord:
    """What the owner of a run may know of a round beside its record: the draw and all that follows from it."""

    round: int
    clients: int  # who was drawn, and pays
    bytes_up: int  # all clients together
    bytes_down: int
    seconds: float
    answers: int | None = None  # messages that arrived, where clients may fail or be late
    noise: float | None = None  # as it was injected: the mean over the clients of the round where each has its own
    decided: dict[str, Any] | None = None  # what the method chose in this round, and why: see its file

    def to_line(self) -> str:
        return json.dumps(plain(asdict(self)), allow_nan=False)

    @staticmethod
    def from_line(line: str) -> OwnerRecord:
        data = json.loads(line)
        return OwnerRecord(**{k: data[k] for k in OwnerRecord.__dataclass_fields__ if k in data})


OWNERS = {"clients", "bytes_up", "bytes_down", "seconds", "answers", "decided"}  # stood in the records once


def plain(value: Any) -> Any:
    """Return the value as JSON has it: null stands for an infinite epsilon and for a diverged loss."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
