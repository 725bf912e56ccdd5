"""The base class of algorithms: how clients use gradients and how the server uses the mean message.

Each algorithm is one file and overrides parts of FedAvg, which this class implements. An algorithm never sees data. Its
hooks, in the order in which a round calls them:

    start     the weights from which a client's training starts
    correct   a gradient (noisy if the method is private) -> the direction of a local step
    aside     trains a personal model, which stays with the client, beside the shared one
    message   what a client sends, and what it keeps
    update    the mean message -> the server's new state

Whatever `correct`, `message` and `update` compute from noisy gradients or noisy means is post-processing. Any other
input they are given is named in `needs`, so that a private method can release and charge it, or refuse.
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

Gradient = Callable[[Tensor, Batch, int], Rows]  # weights, batch, step number -> mean gradients [clients, dim]


@dataclass(frozen=True)
class LocalWork:
    """The local work of clients in a round, apart from the change of their weights."""

    steps: Tensor  # [clients, 1]: number of local steps taken
    local: Local
    losses: Tensor | None = None  # [clients, 1]: mean loss of the received model on the client's records, if needed


@dataclass(frozen=True)
class Server:
    """The part of the public plan that the server's step may read."""

    lr: float = 1.0
    share: float = 1.0  # fraction of all clients that answered (or are expected to answer) in this round
    noisy: bool = True  # whether the mean message is noisy
    local: Local = field(default_factory=Local)
    steps: float = 1.0  # local steps of a client, averaged over records


class Algorithm:
    """Base class of algorithms, which implements FedAvg; subclasses are frozen dataclasses of their options."""

    server_lr: ClassVar[float] = 1.0  # default learning rate of the server
    needs: ClassVar[tuple[str, ...]] = ()  # "losses": the loss of the received model on the client's records
    mirrored: ClassVar[bool] = False  # whether the server's state must equal the mean of the clients' state
    plain_sgd: ClassVar[bool] = False  # whether it requires plain local SGD steps
    needs_steps: ClassVar[bool] = False  # whether it equals FedAvg if clients take one local step
    personal: ClassVar[bool] = False  # whether clients end up with personal models
    condition: ClassVar[str] = ""  # requirements on a run, in words
    with_noisy_gradients: ClassVar[str] = ""  # remark for methods that add noise to gradients
    with_clipped_message: ClassVar[str] = ""  # remark for methods that clip the message
    note: ClassVar[str] = ""  # remark for users
    loss_clip: float = 0.0  # cap on the loss of one record, if losses are released with noise

    def local(self, local: Local) -> Local:
        """Return how clients train, given the user's settings; raise an error if they are not supported."""
        return local

    def check_steps(self, least: int) -> None:
        """Raise an error if nothing would be learnt with `least` local steps, the fewest that a client takes."""

    def variables(self, state: State, layout: Layout) -> Any:
        """Return the server's public variables before the first round: a frozen dataclass of tensors, or None."""
        return None

    def keeps(self, state: State, clients: int) -> Rows:
        """Return the clients' rows before their first round [clients, k]; k = 0 if nothing is ever kept."""
        return state.params.new_zeros(clients, 0)

    def numbers_down(self, state: State) -> int:
        """Return how many numbers the server sends to a client that takes part."""
        return state.params.numel()

    def start(self, state: State, client_state: Rows) -> Tensor:
        """Return the initial weights of local training: [dim] if the same for all clients, or [clients, dim]."""
        return state.params

    def correct(
        self, gradient: Rows, weights: Tensor, client_state: Rows, state: State, number: int, local: Local
    ) -> Rows:
        """Return the direction [clients, dim] of local step `number`, given the gradient at `weights`."""
        return gradient

    def aside(
        self, client_state: Rows, state: State, batches: Iterable[Batch], gradient: Gradient, local: Local
    ) -> Rows:
        """Train the personal part that stays with the client and return the clients' new rows.

        `gradient` is exact here, so nothing computed from it may reach `message`.
        """
        return client_state

    def message(self, moved: Rows, client_state: Rows, state: State, work: LocalWork) -> tuple[Rows, Rows]:
        """Return what each client would send, given the change of its weights, and the rows that it keeps."""
        return moved, client_state

    def update(self, state: State, mean: Vector, server: Server) -> State:
        """Return the server's new state, given the mean message."""
        return replace(state, params=state.params + server.lr * mean)

    def own_models(self, state: State, client_state: Rows) -> Tensor:
        """Return the models that the clients themselves use: [dim] or [clients, dim]."""
        return state.params


plugin.derive_from("algorithms", Algorithm)
