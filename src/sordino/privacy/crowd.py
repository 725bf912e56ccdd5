"""Public facts about the clients among whom a client's message is hidden; channels use them to compute costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Crowd:
    """The clients among whom a client's message is hidden."""

    population: int = 1
    everyone: bool = False  # whether every client answers in every round, so that no client's noise is ever missing
    colluders: int = 0  # number of clients that share all they know with the viewer
    heaviest: float = 1.0  # largest weight of one row in a sum of rows whose mean weight is one
    sure: int = 1  # clients certain to answer in a round in which a given one does, including that one
    single: bool = False  # whether a unit is all data of a client, so that its cost is the cost of the client's message

    @property
    def honest(self) -> int:
        """Return the number of clients that do not collude, at least 1."""
        return max(1, self.population - self.colluders)
