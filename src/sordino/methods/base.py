"""The Method protocol: four verbs. And the public plan that every verb may read.

    costs     public plan -> events             what one participation releases, of whose data, to whom
    train     clients' data -> rows, own state  inside the clients (DP-SGD clips and noises here)
    release   rows [clients, dim] -> same       leaves the clients: clip, local noise
    merge     what arrived -> new state         at the server: average, central noise

`train` and `release` see whole cohorts; row i must depend on client i and the state alone (tests/laws). What a client
keeps for itself between rounds (`own`) is stored by the engine and leaves the client through `train`'s rows only.

A method says where is clipped and noised; what is computed from a gradient and from the mean message is the plan's
algorithm (algorithms/base.py), which can be any.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from sordino.algorithms.base import Algorithm, Server
from sordino.algorithms.fedavg import FedAvg
from sordino.algorithms.local import Local
from sordino.core.rng import RowStream, Stream
from sordino.core.types import Batch, Model, Rows, State
from sordino.core.vector import Layout
from sordino.methods.stragglers import Stragglers
from sordino.privacy.events import Cost
from sordino.privacy.samplers import Sampler

__all__ = ["Local", "Method", "Plan"]


@dataclass(frozen=True)
class Plan:
    """Everything public about a run. Nothing in here depends on private data."""

    rounds: int
    population: int
    sampler: Sampler
    algorithm: Algorithm = field(default_factory=FedAvg)
    local: Local = field(default_factory=Local)
    noise_multiplier: float | None = None  # set by calibration
    max_participations: int | None = None
    sizes: tuple[int, ...] = (
        1,
    )  # how many records (or users) clients have: every number that occurs, ascending; public
    mean_client: float = 1.0
    mean_steps: float = 1.0  # local steps of a client, on average over the records
    server_lr: float = 1.0
    stragglers: Stragglers = field(default_factory=Stragglers)
    unit: str | None = None  # whose data are protected; None: as the method says
    clients_per_user: int = 1  # in how many clients one user's records lie at most

    @property
    def z(self) -> float:
        if self.noise_multiplier is None:
            raise ValueError("the plan has not been calibrated")
        return self.noise_multiplier

    @property
    def smallest_client(self) -> int:
        return self.sizes[0]

    @property
    def participations(self) -> int:
        """In how many rounds one client can take part at most."""
        return min(self.rounds, self.max_participations or self.rounds)

    @property
    def share(self) -> float:
        """Of the clients that a round is expected to draw."""
        return self.sampler.probability(self.population)

    @property
    def expected_cohort(self) -> float:
        return self.share * self.population

    def expected_answers(self, round: int) -> float:
        """Public divisor of a sum of messages: what is expected to arrive, by the law of the stragglers."""
        return self.stragglers.expected(self.share, round) * self.population

    def server(self, heard: float, noisy: bool = True) -> Server:
        """What the server's step may read; `heard` is the share of the clients whose messages are in the mean."""
        return Server(self.server_lr, heard, noisy, self.local, self.mean_steps)

    def now(self, state: State) -> Local:
        """How clients train in the round that begins with this state: the schedule sets the learning rate."""
        return replace(self.local, learning_rate=self.local.rate_in(state.round, self.rounds))


class Method(Protocol):
    viewer: ClassVar[str]  # the viewer an epsilon is meant against unless the user says otherwise
    private: ClassVar[bool]
    units: ClassVar[tuple[str, ...]]  # whose data it can protect, the usual one first

    def costs(self, plan: Plan) -> tuple[Cost, ...]: ...

    def begin(self, state: State, layout: Layout, plan: Plan) -> State:
        """Put the method's own public variables into the state before the first round."""

    def train(
        self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream
    ) -> tuple[Rows, Rows]:
        """What each client would send, and what it keeps for itself."""

    def release(self, rows: Rows, sizes: tuple[int, ...], state: State, plan: Plan, rng: RowStream) -> Rows: ...

    def merge(self, state: State, rows: Rows, plan: Plan, rng: Stream) -> State: ...
