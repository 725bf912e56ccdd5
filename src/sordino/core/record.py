"""One round of a run as one line of JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class RoundRecord:
    round: int  # from 1
    clients: int  # who was drawn, and pays
    epsilon: dict[str, float]  # spent so far, by viewer
    bytes_up: int  # all clients together
    bytes_down: int
    seconds: float
    loss: float | None = None  # on the test data, which is taken as public
    accuracy: float | None = None
    answers: int | None = None  # messages that arrived, where clients may fail or be late
    metrics: dict[str, float] | None = None  # further figures: worst class, gaps between clients, rmse, perplexity
    clip: float | None = None  # the bound in use, where it adapts
    evaluated_on: str | None = None  # whose data loss and accuracy are of; public data cost nothing
    noise: float | None = None  # standard deviation of the noise in one client's message, a coordinate
    decided: dict[str, Any] | None = None  # what the method chose in this round, and why: see its file

    def to_line(self) -> str:
        return json.dumps(plain(asdict(self)), allow_nan=False)

    @staticmethod
    def from_line(line: str) -> RoundRecord:
        data = json.loads(line)
        data["epsilon"] = {k: math.inf if v is None else v for k, v in data["epsilon"].items()}
        if data.get("metrics"):
            data["metrics"] = {k: math.nan if v is None else v for k, v in data["metrics"].items()}
        return RoundRecord(**data)


def plain(value: Any) -> Any:
    """JSON has no infinity: null stands for an infinite epsilon and for a diverged loss."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
