"""A total epsilon with everything it needs to mean something, and the sentence that says it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

UNITS = {"record": "any single record of any client", "client": "all data of any single client"}
RELATIONS = {"add/remove": "added or removed", "replace": "replaced by other data"}
VIEWERS = {
    "server": "a curious server that sees every message and who takes part",
    "public": "anyone who sees every released model but not who takes part",
}


@dataclass(frozen=True)
class Guarantee:
    epsilon: float
    delta: float
    unit: str
    relation: str
    viewer: str
    rounds: int
    mode: str  # "research": seeded, for experiments only; "secure"
    reason: str | None = None  # why epsilon is infinite, where it is

    def sentence(self) -> str:
        who = f"against {VIEWERS.get(self.viewer, self.viewer)}"
        if math.isinf(self.epsilon):
            return f"No guarantee (epsilon is infinite) {who}: {self.reason}."
        text = (
            f"In total over {self.rounds} rounds, {UNITS.get(self.unit, self.unit)} is protected with "
            f"epsilon = {up(self.epsilon)}, delta = {self.delta:g} (the {self.unit} being "
            f"{RELATIONS.get(self.relation, self.relation)}) {who}."
        )
        if self.mode == "research":
            text += " The noise came from a seed: an experiment, void against anyone who knows the seed."
        return text

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        data["epsilon"] = None if math.isinf(self.epsilon) else self.epsilon
        data["infinite"] = math.isinf(self.epsilon)
        return data | {"total": True, "sentence": self.sentence()}


def up(epsilon: float, digits: int = 3) -> str:
    """An epsilon for people: rounded up, never down; a hair above a round number is that number."""
    if math.isinf(epsilon):
        return "infinite"
    scale = 10**digits
    return f"{math.ceil(epsilon * scale - 1e-6) / scale:g}"
