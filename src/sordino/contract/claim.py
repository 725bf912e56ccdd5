"""What a paper claims for its method where that does not hold: shown beside the guarantee, never a promise."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

SCOPES = ("total", "round")


@dataclass(frozen=True)
class Claim:
    """The guarantee that a paper claims for its method, for the paper's own unit of privacy."""

    epsilon: float
    delta: float
    source: str  # paper, and location in it
    why_not: str  # reason why it does not hold
    scope: str = "total"  # or "round": for one round, not counting the others (SCOPES)
    unit: str = "record"
    viewer: str = "server"

    def sentence(self) -> str:
        """Return the claim as a sentence, with the reason why it does not hold."""
        per = "in total" if self.scope == "total" else "for a single round, the others not counted"
        whom = "another client" if self.viewer == "client" else f"the {self.viewer}"
        return (
            f"Claimed by {self.source}: epsilon = {self.epsilon:g}, delta = {self.delta:g} {per}, for a {self.unit} "
            f"against {whom}. It does not hold: {self.why_not}."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the sentence as a dictionary."""
        return asdict(self) | {"sentence": self.sentence()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Claim:
        """Return the claim that `to_json` saved."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})
