"""What clients make of a gradient and the server of the mean message: one file an algorithm, FedAvg unless overridden.

An algorithm never sees data. In order, in a round:

    start     what a client's training begins with
    correct   a gradient (noisy where the method is private) -> the direction of a local step
    aside     a personal model that stays with the client, trained beside the shared one
    message   what a client sends, and what it keeps for itself
    update    the mean message -> the server's new state

Whatever `correct`, `message` and `update` compute from noisy gradients or noisy means is post-processing. What they are
given beyond that is named by `needs`, so that a private method can release and charge it, or refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor

from sordino.core import plugin
from sordino.core.local_training import Local
from sordino.core.types import Batch, Rows, State, Vector
from sordino.core.vector import Layout

Gradient = Callable[[Tensor, Batch, int], Rows]  # weights, batch, number of the step -> mean gradients [clients, dim]


@dataclass(frozen=True)
class LocalWork:
    """What a client did in a round, beside moving its weights."""

    steps: Tensor  # [clients, 1]: local steps it took
    local: Local
    losses: Tensor | None = None  # [clients, 1]: mean loss of the received model on its records, where needed


@dataclass(frozen=True)
class Server:
    """What the server's step may read of the public plan."""

    lr: float = 1.0
    share: float = 1.0  # of all clients, that was heard (or is expected to be) in this round
    noisy: bool = True  # whether the mean message has noise in it
    local: Local = field(default_factory=Local)
    steps: float = 1.0  # local steps of a client, on average over the records


class Algorithm:
    server_lr: ClassVar[float] = 1.0  # unless the user says otherwise
    needs: ClassVar[tuple[str, ...]] = ()  # "losses": of the received model on the client's records
    mirrored: ClassVar[bool] = False  # whether the server's state must stay the mean of what the clients keep
    plain_sgd: ClassVar[bool] = False  # whether its formula holds for plain local SGD steps only
    needs_steps: ClassVar[bool] = False  # whether it is FedAvg where clients take one local step
    personal: ClassVar[bool] = False  # whether clients end up with models of their own
    condition: ClassVar[str] = ""  # what it asks of a run, in words
    with_noisy_gradients: ClassVar[str] = ""  # what holds it together with a method that noises gradients,
    with_clipped_message: ClassVar[str] = ""  # and with one that clips the message
    note: ClassVar[str] = ""  # what whoever uses it should know
    loss_clip: float = 0.0  # where it needs losses that are released with noise: a record's counts up to this much

    def local(self, local: Local) -> Local:
        """How clients train, given what the user asked for."""
        return local

    def check_steps(self, least: int) -> None:
        """Refuse a number of local steps (the least that a client takes) with which nothing would be learnt."""

    def variables(self, state: State, layout: Layout) -> Any:
        """Return the server's public variables before the first round: a frozen dataclass of tensors, or None."""
        return None

    def keeps(self, state: State, clients: int) -> Rows:
        """Return what clients keep before their first round [clients, k]; k = 0: nothing, ever."""
        return state.params.new_zeros(clients, 0)

    def numbers_down(self, state: State) -> int:
        """How many numbers the server sends to a client that takes part."""
        return state.params.numel()

    def start(self, state: State, own: Rows) -> Tensor:
        """[dim], the same for all, or [clients, dim]."""
        return state.params

    def correct(self, gradient: Rows, weights: Tensor, own: Rows, state: State, number: int, local: Local) -> Rows:
        return gradient

    def aside(self, own: Rows, state: State, batches: Iterable[Batch], gradient: Gradient, local: Local) -> Rows:
        """Train what stays with the client; `gradient` is exact here, so nothing of this may reach `message`."""
        return own

    def message(self, moved: Rows, own: Rows, state: State, work: LocalWork) -> tuple[Rows, Rows]:
        """What each client would send, given what its weights moved by; and what it keeps."""
        return moved, own

    def update(self, state: State, mean: Vector, server: Server) -> State:
        return replace(state, params=state.params + server.lr * mean)

    def own_models(self, state: State, own: Rows) -> Tensor:
        """The models that clients use themselves: [dim] or [clients, dim]."""
        return state.params


plugin.derive_from("algorithms", Algorithm)
