"""The Method protocol: four verbs. And the public plan that every verb may read.

    costs     public plan -> events             what one participation releases, of whose data, to whom
    train     clients' data -> rows             inside the clients (DP-SGD clips and noises here)
    release   rows [clients, dim] -> same       leaves the clients: clip, local noise
    merge     what arrived -> new state         at the server: average, central noise

`train` and `release` see whole cohorts; row i must depend on client i and the state alone (tests/laws).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from sordino.core import check
from sordino.core.rng import RowStream, Stream
from sordino.core.types import Batch, Model, Rows, State
from sordino.privacy.events import Cost
from sordino.privacy.samplers import Sampler


@dataclass(frozen=True)
class Local:
    """How a client trains in one round."""

    steps: int | None = 1  # K local steps; or
    epochs: float | None = None  # E passes over the client's data
    batch_size: int | None = None  # expected records a step; or
    batch_rate: float | None = 1.0  # expected share of the client's records a step
    optimizer: str = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9  # of the momentum, Adam (beta1) and RMSprop (decay) optimisers

    def __post_init__(self) -> None:
        check.positive(learning_rate=self.learning_rate)
        check.fraction(momentum=self.momentum)

    def rate(self, size: int) -> float:
        """The share of a client's records that one step is expected to use."""
        if self.batch_rate is not None:
            return self.batch_rate
        return min(1.0, (self.batch_size or size) / max(size, 1))

    def expected_batch(self, size: int) -> float:
        """Public divisor of a gradient sum; at least one record, so that a step never explodes."""
        return max(1.0, self.rate(size) * size)

    def count(self, size: int) -> int:
        """Local steps of a client with that many records."""
        if self.steps is not None:
            return self.steps
        return max(1, round((self.epochs or 1.0) / self.rate(size)))


@dataclass(frozen=True)
class Plan:
    """Everything public about a run. Nothing in here depends on private data."""

    rounds: int
    population: int
    sampler: Sampler
    local: Local = field(default_factory=Local)
    noise_multiplier: float | None = None  # set by calibration
    max_participations: int | None = None
    sizes: tuple[int, ...] = (1,)  # how many records clients have: every number that occurs, ascending; public
    mean_client: float = 1.0
    server_lr: float = 1.0
    server_momentum: float = 0.0

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
    def expected_cohort(self) -> float:
        return self.sampler.probability(self.population) * self.population


class Method(Protocol):
    viewer: ClassVar[str]  # the viewer an epsilon is meant against unless the user says otherwise
    private: ClassVar[bool]

    def costs(self, plan: Plan) -> tuple[Cost, ...]: ...

    def begin(self, state: State, plan: Plan) -> State:
        """Put the method's own public variables into the state before the first round."""

    def train(self, state: State, data: Batch, model: Model, plan: Plan, rng: RowStream) -> Rows: ...

    def release(self, rows: Rows, sizes: tuple[int, ...], state: State, plan: Plan, rng: RowStream) -> Rows: ...

    def merge(self, state: State, rows: Rows, plan: Plan, rng: Stream) -> State: ...
