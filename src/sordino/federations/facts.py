"""Public facts about the clients' data: all that plan, calibration and checks may know about them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from sordino.core.rng import Ints


@dataclass(frozen=True)
class Facts:
    """Public facts: the numbers of records and users (see docs/boundary.md) and the format of a record."""

    population: int
    records: Ints  # [clients]; only the distinct numbers if clients are generated on demand
    mean: float  # mean number of records per client
    x: tuple[tuple[int, ...], torch.dtype]  # shape and type of one record
    y: tuple[tuple[int, ...], torch.dtype]  # shape and type of its target
    users: Ints | None = None  # [clients]: number of users of each client, if records have users
    people: int = 0  # number of users over all clients
    spread: int = 1  # maximum number of clients that hold records of one user
    tags: int | None = None  # highest group of private attributes of any record; None: records are not tagged

    def sizes(self, by_user: bool = False) -> Ints:
        """Return the numbers of records (or users) of the clients."""
        return self.users if by_user and self.users is not None else self.records

    def units(self, unit: str) -> int:
        """Return the number of protected units: clients, users or single records."""
        if unit in ("client", "report"):
            return self.population
        if unit == "user" and self.users is not None:
            return self.people
        return round(self.population * self.mean)

    @property
    def known(self) -> bool:
        """Return whether the size of every client is known, not only which sizes occur."""
        return len(self.records) == self.population

    def bytes(self) -> float:
        """Return the memory of all records; 0 if they are generated on demand."""
        each = sum(math.prod(shape) * dtype.itemsize for shape, dtype in (self.x, self.y))
        return float(self.records.sum()) * each if self.known else 0.0

    def smallest(self) -> int:
        """Return the smallest number of records of any client."""
        return int(np.min(self.records))
