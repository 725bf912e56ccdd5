"""FedProx: a proximal term that pulls local weights to the received model.

Li et al. (2020), arXiv:1812.06127, Eq. (2).

Every local step follows the gradient of F_k(w) + mu/2 |w - w_t|^2; mu = 0 is FedAvg. The proximal term needs no data,
so it costs no privacy.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sordino.algorithms.base import Algorithm
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.local_training import Local
from sordino.core.types import Rows, State

__all__ = ["FedProx"]


@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAvg with a proximal term in local training."""

    mu: float = 0.01  # strength of the proximal term

    needs_steps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.non_negative(mu=self.mu)

    def local(self, local: Local) -> Local:
        """Refuse a step size with which the proximal term diverges."""
        if local.learning_rate * self.mu >= 2:
            raise SpecError(
                f"mu = {self.mu:g} with learning_rate = {local.learning_rate:g} overshoots: keep their product below 2."
            )
        return local

    def correct(
        self, gradient: Rows, weights: Tensor, client_state: Rows, state: State, number: int, local: Local
    ) -> Rows:
        """Add the gradient of the proximal term."""
        return gradient + self.mu * (weights - state.params)
