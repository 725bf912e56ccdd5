"""A noisy release of the sums of the clients' features and of their squares, used to standardise features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.contract.method import Method, Own, Plan, Release, Site
from sordino.core.message import Message
from sordino.core.types import State
from sordino.data import moments
from sordino.measures.settings import STATISTICS
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import Unproven
from sordino.spec.spec import Spec


@dataclass(frozen=True)
class FeatureMoments(Method):
    """Sums of bounded features and of their squares, released once.

    The noise is added where the training method adds its noise: inside the clients or by a trusted server.
    """

    unit: str = "record"
    features: int = 1
    feature_bound: float = 1.0
    multiplier: float | None = STATISTICS  # noise multiplier; None: exact
    central: bool = False  # whether a trusted server adds the noise

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare one Gaussian release of the sums; without a multiplier, an exact release that has no proof."""
        exact = Unproven("statistics and evaluations on clients' records are released without noise")
        noise = exact if self.multiplier is None else Gaussian(self.multiplier)
        where = "server" if self.central else "client"
        return (
            Release(
                "moments",
                noise,
                self.unit,
                moments.reach(self.features),
                where=where,
                terms=plan.sizes[-1],
                key="statistics",
            ),
        )

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Return the sums of each client [clients, 2 * features]; nothing is trained."""
        rows = [self._row(x, runs) for x, runs in zip(*self._clients(site), strict=True)]
        sums = site.out["moments"](Bounded(torch.stack(rows), moments.reach(self.features)))
        return Message({"moments": sums}), site.own

    def _clients(self, site: Site) -> tuple[list[Tensor], list[tuple[int, ...]]]:
        data = site.data
        each = list(data.x.split(list(data.sizes)))
        users = data.groups if self.unit == "user" and not self.central else None
        return each, [(len(x),) for x in each] if users is None else list(users)

    def _row(self, x: Tensor, runs: tuple[int, ...]) -> Tensor:
        """Return one client's sums; a user or client contributes its mean, so no more than a single record would."""
        if self.unit == "record":
            first, second, _ = moments.sums(x, self.feature_bound)
            return torch.cat([first, second])
        row = torch.zeros(2 * self.features, dtype=torch.float64)
        for part in x.split(runs):
            first, second, _ = moments.sums(part, self.feature_bound)
            row += torch.cat([first, second]) / len(part)
        return row


def planned(spec: Spec, method: Method, features: int) -> FeatureMoments:
    """Return the method that releases the statistics by which a run standardises features."""
    noise = (spec.release_noise or STATISTICS) if method.private else None
    unit = spec.unit or method.units[0]
    return FeatureMoments(unit, features, spec.feature_bound, noise, central=method.viewer == "public")
