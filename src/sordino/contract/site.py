"""A group of clients as seen by `train`: their data, their state, and the outlets through which values may leave."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sordino.contract.outlets import Outlets
from sordino.contract.plan import Plan
from sordino.core.errors import DataError
from sordino.core.rng import Ints, RowStream
from sordino.core.types import Batch, Model, Rows

Own = dict[str, Tensor]  # state that clients keep between rounds, by name [clients, ...]
ALGORITHM = "algorithm"  # name of the algorithm's rows in `Own`


@dataclass(frozen=True)
class Site:
    """A group of clients during one phase of a round."""

    data: Batch
    own: Own
    model: Model
    plan: Plan
    rng: RowStream  # for batches and other draws; the outlets draw the noise
    out: Outlets
    phase: str = ""

    @property
    def mine(self) -> Rows:
        """Return the algorithm's rows at these clients [clients, k]; k = 0 if it keeps none."""
        rows = self.own.get(ALGORITHM)
        return torch.zeros(len(self.data.sizes), 0, device=self.data.x.device) if rows is None else rows

    def kept(self, algorithm: Rows | None = None, **fields: Tensor) -> Own:
        """Return the clients' state after this round: the algorithm's rows and the method's fields."""
        rows = {} if algorithm is None or not algorithm.shape[1] else {ALGORITHM: algorithm}
        return self.own | rows | fields

    def only(self, at: Ints) -> Site:
        """Return the site of the clients at these indices; outlets still count uses together with the others."""
        where = torch.from_numpy(at)
        return replace(
            self,
            data=clients(self.data, at),
            own={name: value[where.to(value.device)] for name, value in self.own.items()},
            rng=RowStream(self.rng.stream, self.rng.ids[at]),
            out=self.out.only(at),
        )


def clients(data: Batch, at: Ints) -> Batch:
    """Return the records of the clients at these indices."""
    ends = np.cumsum([0, *data.sizes])
    index = [np.arange(ends[k], ends[k + 1]) for k in at]
    sizes = tuple(data.sizes[k] for k in at)
    batch = data.pick(torch.from_numpy(np.concatenate([np.arange(0), *index])).to(data.x.device), sizes)
    return batch if data.groups is None else replace(batch, groups=tuple(data.groups[k] for k in at))


def units(data: Batch, plan: Plan) -> tuple[int, ...]:
    """Return the number of records, or of users if they are the unit, of each client."""
    if plan.unit != "user":
        return data.sizes
    if data.groups is None:
        raise DataError("unit = user, but the clients' data do not say which user each record belongs to.")
    return tuple(len(client) for client in data.groups)
