"""FedAvgM: heavy-ball momentum at the server.  Hsu, Qi, Brown (2019), arXiv:1909.06335, Section 4."""

from dataclasses import dataclass, replace

from sordino.algorithms.base import Algorithm, Server
from sordino.core import check
from sordino.core.types import State, Vector
from sordino.core.vector import Layout

__all__ = ["FedAvgM"]


@dataclass(frozen=True)
class Momentum:
    velocity: Vector


@dataclass(frozen=True)
class FedAvgM(Algorithm):
    server_momentum: float = 0.9  # beta: the share of the last step that goes on

    def __post_init__(self) -> None:
        check.fraction(server_momentum=self.server_momentum)

    def variables(self, state: State, layout: Layout) -> Momentum:
        return Momentum(0 * state.params)

    def update(self, state: State, mean: Vector, server: Server) -> State:
        velocity = self.server_momentum * state.algorithm.velocity + mean
        state = replace(state, algorithm=Momentum(velocity))
        return super().update(state, velocity, server)
