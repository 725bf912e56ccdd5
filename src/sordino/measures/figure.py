"""A noisy evaluation on the clients' records: accuracy, or the absolute error for regression."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordino.contract.method import Method, Own, Plan, Release, Site
from sordino.core.message import Message
from sordino.core.types import State
from sordino.gradients.predict import predict
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import Unproven
from sordino.tasks.losses import accuracy

RECORDS = 2000  # records evaluated at once


@dataclass(frozen=True)
class Figure(Method):
    """The sum over units of a value in [0, 1], released once with noise; one unit changes it by at most 1."""

    unit: str = "record"
    multiplier: float | None = None  # noise multiplier; None: exact
    regression: bool = False
    central: bool = False  # whether one party adds the noise to the sum over all clients

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare one Gaussian release of the sum; without a multiplier, an exact release that has no proof."""
        exact = Unproven("statistics and evaluations on clients' records are released without noise")
        noise = exact if self.multiplier is None else Gaussian(self.multiplier)
        where, key = "server" if self.central else "client", f"evaluation {round}"
        return (
            Release("figure", noise, self.unit, 1.0, where=where, swing=1, terms=plan.sizes[-1], rows=False, key=key),
        )

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Return the sum over the units of each client [clients, 1]; a unit counts by the mean over its records."""
        module = copy.deepcopy(site.model.module).eval()
        site.model.layout.write(module, state.params.to(next(module.parameters()).device))
        values = _values(module, site.data.x, site.data.y, self.regression)
        runs = [n for client in site.data.groups or () for n in client]
        lengths = torch.tensor(runs, dtype=torch.int64)
        owner = torch.arange(len(runs)).repeat_interleave(lengths)
        means = torch.zeros(len(runs), dtype=torch.float64).index_add_(0, owner, values) / lengths
        units = [len(client) for client in site.data.groups or ()]
        sums = torch.stack([part.sum() for part in means.split(units)])[:, None]
        return Message({"figure": site.out["figure"](Bounded(sums, 1.0))}), site.own


def _values(module: nn.Module, x: Tensor, y: Tensor, regression: bool) -> Tensor:
    """Return the value of each record, in [0, 1]: shape [records]."""
    device = next(module.parameters()).device
    values = [torch.zeros(0, dtype=torch.float64)]
    with torch.inference_mode():
        for some, target in zip(x.split(RECORDS), y.split(RECORDS), strict=True):
            out, target = predict(module, some.to(device)), target.to(device)
            if regression:
                error = (out.reshape(len(target), -1) - target.reshape(len(target), -1)).abs().mean(dim=1)
                values.append(torch.nan_to_num(error, nan=1.0).clamp(0, 1).cpu().double())
            else:
                values.append(accuracy(out, target).cpu().double())
    return torch.cat(values)
