"""FedNova: updates normalised by the amount of each client's local work.

Wang et al. (2020), arXiv:2007.07481, Eq. (8).

Clients that take more steps pull the average towards their own optimum; dividing by |a_i|_1 (tau_i for SGD) undoes
this. Differs from the paper: the server multiplies by the public expectation of tau over all clients, not by the mean
over those who took part, so that nothing but the normalised update is released.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sordino.algorithms.base import Algorithm, LocalWork, Server
from sordino.core.errors import SpecError
from sordino.core.local_training import Local
from sordino.core.types import Rows, State, Vector

__all__ = ["FedNova"]


@dataclass(frozen=True)
class FedNova(Algorithm):
    """FedAvg on updates normalised by local work."""

    needs_steps: ClassVar[bool] = True
    condition: ClassVar[str] = "local optimizer sgd or momentum"

    def local(self, local: Local) -> Local:
        """Refuse optimisers other than SGD and momentum."""
        if local.optimizer not in ("sgd", "momentum"):
            raise SpecError(f"fednova can count the work of sgd and momentum steps, but not of {local.optimizer}.")
        return local

    def message(self, moved: Rows, client_state: Rows, state: State, work: LocalWork) -> tuple[Rows, Rows]:
        """Return the change of each client's weights divided by its amount of work."""
        return moved / amount(work.steps.clamp_min(1), work.local), client_state

    def update(self, state: State, mean: Vector, server: Server) -> State:
        """Move by the mean normalised update times the expected amount of work."""
        typical = float(amount(mean.new_tensor(server.steps), server.local))
        return super().update(state, typical * mean, server)


def amount(steps: Tensor, local: Local) -> Tensor:
    """Return |a|_1, the length of `steps` steps along one gradient; with momentum rho, Section 4 of the paper."""
    if local.optimizer == "sgd" or local.momentum == 0:
        return steps
    rho = local.momentum
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
