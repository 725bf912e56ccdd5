"""No privacy: clients send the algorithm's messages unchanged.

Protects no one from anyone: this is the reference that shows the cost of privacy. Messages are averaged with weights
proportional to the records of the clients that took part (McMahan et al. 2017, arXiv:1602.05629, Algorithm 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from sordino.contract import local_sgd
from sordino.contract.method import Method, Own, Plan, Release, Site
from sordino.core.message import Message
from sordino.core.types import State
from sordino.privacy.release import Unproven

__all__ = ["NoPrivacy"]


@dataclass(frozen=True)
class NoPrivacy(Method):
    """Federated learning without clipping or noise."""

    private: ClassVar[bool] = False
    units: ClassVar[tuple[str, ...]] = ("record", "client", "user")
    channels: ClassVar[tuple[str, ...]] = ("direct", "secure-sum")

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare the updates as not private."""
        return (Release("update", Unproven("no noise is added"), plan.unit or "record"),)

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Send the updates unchanged, weighted by records."""
        update, mine = local_sgd.sgd(state, site)
        weight = torch.tensor(site.data.sizes, dtype=update.dtype, device=update.device)
        return Message({"update": site.out["update"](update)}, weight), site.kept(mine)

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        return by_records(state, seen, plan, noisy=False)


def by_records(state: State, seen: Message, plan: Plan, noisy: bool) -> State:
    """Return the state after a round whose mean is weighted by the records of the clients that answered."""
    total = seen.total("update")
    weight = total.weight
    if weight is None or not float(weight[0]) > 0:  # nobody answered
        return state
    heard = float(weight[0]) / (plan.population * plan.mean_client)
    return plan.algorithm.update(state, total["update"][0] / weight[0], plan.server(heard, noisy=noisy))
