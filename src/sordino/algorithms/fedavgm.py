"""FedAvgM: heavy-ball momentum at the server.

Hsu, Qi, Brown (2019), arXiv:1909.06335, Section 4.
"""

from dataclasses import dataclass, replace

from sordino.algorithms.base import Algorithm, Server
from sordino.core import check
from sordino.core.types import State, Vector
from sordino.core.vector import Layout

__all__ = ["FedAvgM"]


@dataclass(frozen=True)
class Momentum:
    """The server's velocity."""

    velocity: Vector


@dataclass(frozen=True)
class FedAvgM(Algorithm):
    """FedAvg with momentum at the server."""

    server_momentum: float = 0.9  # beta: fraction of the last step that is carried over

    def __post_init__(self) -> None:
        check.fraction(server_momentum=self.server_momentum)

    def variables(self, state: State, layout: Layout) -> Momentum:
        """Return a velocity of zero."""
        return Momentum(0 * state.params)

    def update(self, state: State, mean: Vector, server: Server) -> State:
        """Add the mean message to the decayed velocity and move by the result."""
        velocity = self.server_momentum * state.algorithm.velocity + mean
        state = replace(state, algorithm=Momentum(velocity))
        return super().update(state, velocity, server)
