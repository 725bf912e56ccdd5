"""DP-FedSAM: sharpness-aware local steps, client-level noise.

Shi et al. (2023), arXiv:2303.11242, Algorithm 1.

Protects a client from the public, as DP-FedAvg does (see dp_fedavg.py): sound, and at the same cost. Only local
training differs: a step follows the gradient at w + rho g / |g| instead of that at w (Foret et al. 2021,
arXiv:2010.01412, Eq. 2 and 3), where g is the gradient of the same batch. The aim is a flatter minimum, where noise
does less harm to the model, and shorter updates, which lose less by clipping. A round needs twice as many gradients.

Differs from the paper: the paper adds noise of variance z^2 C^2 / m at each of m clients, we add the sum of it at the
server. `radius` is 0.5 in the authors' published runs; we have read the code, but did not have the paper's tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sordino.algorithms.base import Gradient
from sordino.contract import local_sgd
from sordino.contract.method import Own, Site
from sordino.core import check
from sordino.core.message import Message
from sordino.core.types import Batch, Rows, State
from sordino.methods.dp_fedavg import DpFedAvg

__all__ = ["DpFedSam"]


@dataclass(frozen=True)
class DpFedSam(DpFedAvg):
    """DP-FedAvg with sharpness-aware local steps."""

    radius: float = 0.5  # rho: distance, along the gradient, of the point at which a step takes its gradient

    def __post_init__(self) -> None:
        super().__post_init__()
        check.non_negative(radius=self.radius)

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Train with sharpness-aware gradients and send clipped updates."""
        plain = local_sgd.exact(site.model, site.plan.now(state), site.rng)
        update, mine = local_sgd.sgd(state, site, gradient=uphill(plain, self.radius))
        return self.message(update, state, site), site.kept(mine)


def uphill(gradient: Gradient, radius: float) -> Gradient:
    """Return a function that computes the gradient where the loss of the same batch has risen most within `radius`.

    That point is found to first order; where the gradient is zero, the weights do not move.
    """

    def sharp(weights: Tensor, batch: Batch, number: int) -> Rows:
        g = gradient(weights, batch, number)
        return gradient(weights + radius * g / g.norm(dim=1, keepdim=True).clamp_min(1e-12), batch, number)

    return sharp
