"""Public facts of the clients' data: all that plan, calibration and checks may know of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sordino.core.rng import Ints


@dataclass(frozen=True)
class Facts:
    """Numbers of records and users are public (docs/boundary.md says so); so is what a record looks like."""

    population: int
    records: Ints  # [clients], or every number that occurs where clients are made when asked for
    mean: float  # records of a client
    x: tuple[tuple[int, ...], torch.dtype]  # shape and type of one record
    y: tuple[tuple[int, ...], torch.dtype]  # and of its target
    users: Ints | None = None  # [clients]: users of a client, where records have users
    people: int = 0  # users over all clients
    spread: int = 1  # clients that one user's records lie in, at most
    tags: int | None = None  # the highest group of private attributes that a record belongs to; None: not marked

    def sizes(self, by_user: bool = False) -> Ints:
        """Return how many records (or users) clients have."""
        return self.users if by_user and self.users is not None else self.records

    def units(self, unit: str) -> int:
        """Return how many there are of what a guarantee protects: clients, users or single records."""
        if unit in ("client", "report"):
            return self.population
        if unit == "user" and self.users is not None:
            return self.people
        return round(self.population * self.mean)

    @property
    def known(self) -> bool:
        """Whether every client's size is known, not only which sizes occur."""
        return len(self.records) == self.population

    def smallest(self) -> int:
        return int(np.min(self.records))
