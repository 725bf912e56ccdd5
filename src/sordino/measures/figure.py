"""A noisy evaluation on the clients' records, by a measure of single records (see `measure`)."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sordino.contract.method import Method, Own, Plan, Release, Site
from sordino.core.message import Message
from sordino.core.types import State
from sordino.gradients.predict import predict
from sordino.measures.measure import Measure
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import Unproven

RECORDS = 2000  # records evaluated at once


@dataclass(frozen=True)
class Figure(Method):
    """The sum over units of the rows of a measure, released once with noise; one unit's row has a norm of at most 1."""

    unit: str = "record"
    multiplier: float | None = None  # noise multiplier; None: exact
    measure: Measure = field(default_factory=Measure)
    central: bool = False  # whether one party adds the noise to the sum over all clients

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare one Gaussian release of the sum; without a multiplier, an exact release that has no proof."""
        exact = Unproven("statistics and evaluations on clients' records are released without noise")
        noise = exact if self.multiplier is None else Gaussian(self.multiplier)
        where, key = "server" if self.central else "client", f"evaluation {round}"
        swing, terms = self.measure.swing, plan.sizes[-1]
        return (Release("figure", noise, self.unit, 1.0, where=where, swing=swing, terms=terms, rows=False, key=key),)

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Return the sum over the units of each client [clients, cells]; a unit has the mean over its records."""
        module = copy.deepcopy(site.model.module).eval()
        site.model.layout.write(module, state.params.to(next(module.parameters()).device))
        rows = _rows(module, site.data.x, site.data.y, self.measure)
        runs = [n for client in site.data.groups or () for n in client]
        lengths = torch.tensor(runs, dtype=torch.int64)
        owner = torch.arange(len(runs)).repeat_interleave(lengths)
        means = rows.new_zeros(len(runs), self.measure.cells).index_add_(0, owner, rows) / lengths[:, None]
        units = [len(client) for client in site.data.groups or ()]
        sums = torch.stack([part.sum(0) for part in means.split(units)])
        return Message({"figure": site.out["figure"](Bounded(sums, 1.0))}), site.own


def _rows(module: nn.Module, x: Tensor, y: Tensor, measure: Measure) -> Tensor:
    """Return the row of each record: shape [records, cells]."""
    device = next(module.parameters()).device
    rows = [torch.zeros(0, measure.cells, dtype=torch.float64)]
    with torch.inference_mode():
        for some, target in zip(x.split(RECORDS), y.split(RECORDS), strict=True):
            rows.append(measure.rows(predict(module, some.to(device)), target.to(device)))
    return torch.cat(rows)
