"""FedRep: a shared body and a personal head.

Collins et al. (2021), arXiv:2102.07078, Algorithm 1.

A client first trains its own head on the received body, then the body under that head; it sends only the body, and the
head never leaves it. Which parameters are personal is decided by their names. Differs from the paper: both phases use
the plan's batches and learning rate. Under a method that adds noise to gradients, the head is trained with noisy
gradients too: an exact head would carry the influence of one record into the gradients of all others.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sordino.algorithms.base import Algorithm, LocalWork, Server
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.local_training import Local
from sordino.core.types import Rows, State, Vector
from sordino.core.vector import Layout

__all__ = ["FedRep"]


@dataclass(frozen=True)
class Head:
    """The partition of the parameters into head and body."""

    head: Tensor  # [dim]: mask of the parameters that stay with the client


@dataclass(frozen=True)
class FedRep(Algorithm):
    """FedAvg on the body of the model, with a personal head at every client."""

    personal_layers: str = ""  # comma-separated names or prefixes of personal parameters; "": the last layer
    head_steps: int = 1  # number of local steps of a round that train the head; the others train the body

    personal: ClassVar[bool] = True
    condition: ClassVar[str] = "local optimizer sgd, local_steps above head_steps"
    with_noisy_gradients: ClassVar[str] = (
        "personal layers are trained with noisy gradients too, and stay with the client"
    )
    note: ClassVar[str] = (
        "loss and accuracy are of the shared layers under the initial head; each client has a head of its own"
    )
    plain_sgd: ClassVar[bool] = True  # momentum would keep moving the head while the body is trained

    def __post_init__(self) -> None:
        check.count(head_steps=self.head_steps)

    def check_steps(self, least: int) -> None:
        """Refuse runs in which a client has no local step left to train the body."""
        if least <= self.head_steps:
            raise SpecError(
                f"fedrep trains the head for head_steps = {self.head_steps} of the local steps, but some client takes "
                f"{least}. Use local_steps above head_steps."
            )

    def variables(self, state: State, layout: Layout) -> Head:
        """Return which parameters form the head, by `personal_layers`."""
        names = [s.name for s in layout.slots]
        if not self.personal_layers and "." not in names[-1]:
            raise SpecError(
                "fedrep needs a model of several layers, or personal_layers: parameters that stay with the client."
            )
        wanted = [w.strip() for w in self.personal_layers.split(",") if w.strip()] or [names[-1].rpartition(".")[0]]
        unknown = [w for w in wanted if not any(under(n, w) for n in names)]
        if unknown:
            raise SpecError(f"personal_layers: no parameter begins with {unknown[0]!r}; there are {', '.join(names)}.")
        head = torch.zeros(layout.dim, dtype=torch.bool, device=state.params.device)
        for slot in layout.slots:
            head[slot.start : slot.stop] = any(under(slot.name, w) for w in wanted)
        if head.all():
            raise SpecError("personal_layers names every parameter: nothing would be shared.")
        return Head(head)

    def keeps(self, state: State, clients: int) -> Rows:
        """Return the initial heads: those of the shared model."""
        return state.params[state.algorithm.head].expand(clients, -1).clone()

    def numbers_down(self, state: State) -> int:
        """Return the size of the body."""
        return int((~state.algorithm.head).sum())

    def start(self, state: State, client_state: Rows) -> Tensor:
        """Return the shared body with each client's own head."""
        return self.own_models(state, client_state)

    def correct(
        self, gradient: Rows, weights: Tensor, client_state: Rows, state: State, number: int, local: Local
    ) -> Rows:
        """Restrict the first `head_steps` steps to the head and the others to the body."""
        moves = state.algorithm.head if number < self.head_steps else ~state.algorithm.head
        return torch.where(moves, gradient, 0.0)

    def message(self, moved: Rows, client_state: Rows, state: State, work: LocalWork) -> tuple[Rows, Rows]:
        """Return the change of the body, and the new heads."""
        head = state.algorithm.head
        return moved[:, ~head], client_state + moved[:, head]

    def update(self, state: State, mean: Vector, server: Server) -> State:
        """Move the body by the mean message; the head of the shared model does not change."""
        step = torch.zeros_like(state.params)
        step[~state.algorithm.head] = mean
        return super().update(state, step, server)

    def own_models(self, state: State, client_state: Rows) -> Tensor:
        """Return the shared body with each client's own head."""
        models = state.params.expand(len(client_state), -1).clone()
        models[:, state.algorithm.head] = client_state
        return models


def under(name: str, start: str) -> bool:
    """Return whether a parameter name equals `start` or lies below it."""
    return name == start or name.startswith(start + ".")
