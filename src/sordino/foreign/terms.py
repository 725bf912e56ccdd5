"""What the server announces to clients with every training message: the terms of the whole run, all of them public."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sordino.core import check
from sordino.core.errors import SpecError

PREFIX = "sordino-"  # of the keys in a message's config
ONLY_CLIENTS = (
    "a foreign app's training code can be protected by whole clients only: nobody can bound what one record does to "
    "code that Sordino does not run"
)


@dataclass(frozen=True)
class RunTerms:
    """The public terms of a run with client-level privacy."""

    job: str  # id of the run in the server's ledger
    clients: int
    rounds: int
    clip: float  # largest L2 norm of one client's update
    noise_multiplier: float  # noise of a round's sum / clip
    delta: float
    unit: str = "client"
    client_rate: float = 1.0  # probability with which each client is drawn for a round

    def __post_init__(self) -> None:
        check.count(clients=self.clients, rounds=self.rounds)
        check.positive(clip=self.clip, noise_multiplier=self.noise_multiplier)
        check.below_one(delta=self.delta)
        check.probability(client_rate=self.client_rate)
        if not isinstance(self.job, str) or not self.job.isalnum() or len(self.job) > 64:
            raise SpecError("the id of a run is made of at most 64 letters and digits.")

    def config(self) -> dict[str, Any]:
        """Return the terms as entries of a Flower config."""
        return {PREFIX + name: value for name, value in asdict(self).items()}

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> RunTerms:
        """Return the terms in a Flower config; raise SpecError if it has none."""
        names = cls.__dataclass_fields__
        if any(PREFIX + name not in config for name in names):
            raise SpecError("the message does not hold the terms of a private run.")
        return cls(**{name: config[PREFIX + name] for name in names})
