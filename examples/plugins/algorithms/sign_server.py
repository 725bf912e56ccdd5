"""The server moves every weight by the same amount, in the direction that the mean message points to.

After Bernstein et al. (2018), "signSGD", arXiv:1802.04434, at the server alone. What the server makes of a noisy mean
is post-processing, so any private method goes with it at the same price.

    SORDINO_PLUGINS=examples/plugins sordino run --algorithm sign-server --server-step 0.01
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sordino.algorithms import Algorithm, Server, State
from sordino.core import check
from sordino.core.types import Vector

__all__ = ["SignServer"]


@dataclass(frozen=True)
class SignServer(Algorithm):
    server_step: float = 0.01  # how far every weight moves in a round

    def __post_init__(self) -> None:
        check.positive(server_step=self.server_step)

    def update(self, state: State, mean: Vector, server: Server) -> State:
        """Return the state after a step of fixed length along the sign of the mean message."""
        return replace(state, params=state.params + server.lr * self.server_step * mean.sign())
