"""Among whom a client's message is hidden: public facts that a channel prices by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Crowd:
    population: int = 1
    everyone: bool = False  # whether every client answers in every round, so that nobody's noise is ever missing
    colluders: int = 0  # clients that tell the viewer all they know
    heaviest: float = 1.0  # the most that one row weighs in a sum of rows whose mean weight is one
    sure: int = 1  # clients that are sure to answer in a round in which a given one answers, that one included
    single: bool = False  # whether a unit is all that one client holds, so that a price for it is one for its message

    @property
    def honest(self) -> int:
        return max(1, self.population - self.colluders)
