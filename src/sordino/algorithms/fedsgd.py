"""FedSGD: one gradient over all records of a client per round.

McMahan et al. (2017), arXiv:1602.05629, Section 2.

This is FedAvg with a single full-batch SGD step; the client's learning rate scales the gradient.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from sordino.algorithms.base import Algorithm
from sordino.core.errors import SpecError
from sordino.core.local_training import Local

__all__ = ["FedSgd"]


@dataclass(frozen=True)
class FedSgd(Algorithm):
    """FedAvg with one local step of plain SGD."""

    condition: ClassVar[str] = "one local step"

    def local(self, local: Local) -> Local:
        """Set one local step, and refuse other settings."""
        if (local.steps or 1) > 1 or local.epochs is not None:
            raise SpecError("fedsgd takes one step a round: drop local_steps and local_epochs, or use fedavg.")
        if local.optimizer != "sgd":
            raise SpecError(f"fedsgd sends one plain gradient: use optimizer = sgd, not {local.optimizer}.")
        return replace(local, steps=1, epochs=None)
