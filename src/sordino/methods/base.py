"""What every method is: four verbs. And the public plan that every verb may read.

    costs     public plan -> events             what one participation releases, of whose data, to whom
    train     clients' data -> rows, own state  inside the clients (DP-SGD clips and noises here)
    release   rows [clients, dim] -> same       leaves the clients: clip, local noise
    merge     what arrived -> new state         at the server: average, central noise

`train` and `release` see whole cohorts; row i must depend on client i and the state alone (tests/laws). What a client
keeps for itself between rounds (`own`) is stored by the engine and leaves the client through `train`'s rows only.

A method says where is clipped and noised; what is computed from a gradient and from the mean message is the plan's
algorithm (algorithms/base.py), which can be any. Write one in a file of its own: docs/methods.md walks through it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sordino.algorithms.base import Algorithm, Server
from sordino.algorithms.fedavg import FedAvg
from sordino.algorithms.local import Local
from sordino.core.rng import Ints, RowStream, Stream
from sordino.core.types import Batch, Model, Rows, State
from sordino.core.vector import Layout
from sordino.methods.stragglers import Stragglers
from sordino.privacy.claims import Claim
from sordino.privacy.events import Cost
from sordino.privacy.samplers import Sampler

__all__ = ["Claim", "Local", "Method", "Plan"]


@dataclass(frozen=True)
class Public:
    """Records that are public, held by the server, and the model to try on them."""

    model: Model
    batch: Batch  # of one client, the server


@dataclass(frozen=True)
class Plan:
    """Everything public about a run. Nothing in here depends on private data."""

    rounds: int
    population: int
    sampler: Sampler
    algorithm: Algorithm = field(default_factory=FedAvg)
    local: Local = field(default_factory=Local)
    noise_multiplier: float | None = None  # set by calibration
    multipliers: tuple[float, ...] = ()  # each client's own, where clients have budgets that mean noise
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
    epsilon: float = 1.0  # what the user asked for,
    delta: float = 1e-5  # in total
    channel: str = "direct"
    colluders: int = 0  # clients that the viewer is assumed to be in league with
    dim: int = 1  # parameters of the model
    layers: int = 1  # that they lie in
    public: Public | None = None  # data that the server may use
    capped: bool = False  # whether clients' own budgets may keep them out of rounds

    @property
    def z(self) -> float:
        if self.noise_multiplier is None:
            raise ValueError("the plan has not been calibrated")
        return self.noise_multiplier

    def z_of(self, ids: Ints, like: Tensor) -> Tensor:
        """These clients' own noise multipliers [clients, 1]."""
        own = [self.multipliers[int(i)] for i in ids]
        return torch.tensor(own, dtype=like.dtype, device=like.device)[:, None]

    @property
    def noise_share(self) -> float:
        """Of the noise, that one client adds: in a secure sum all honest clients add it together."""
        return 1.0 if self.channel == "direct" else (self.population - self.colluders) ** -0.5

    @property
    def everyone(self) -> bool:
        """Whether every client answers in every round, so that the noise of all of them is always there."""
        always = self.share >= 1 and self.participations >= self.rounds and not self.stragglers.joining[0]
        return always and self.stragglers.none and not self.capped

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
        return self.stragglers.answers(self.share, self.population, round)

    def server(self, heard: float, noisy: bool = True) -> Server:
        """What the server's step may read; `heard` is the share of the clients whose messages are in the mean."""
        return Server(self.server_lr, heard, noisy, self.local, self.mean_steps)

    def now(self, state: State) -> Local:
        """How clients train in the round that begins with this state: the schedule sets the learning rate."""
        return replace(self.local, learning_rate=self.local.rate_in(state.round, self.rounds))


class Method:
    """Subclass it as a frozen dataclass whose fields are its options; `costs` and `train` are the least to write."""

    viewer: ClassVar[str] = "server"  # against whom an epsilon is meant unless the user says otherwise
    private: ClassVar[bool] = True  # whether its noise is calibrated to the total budget of the run
    units: ClassVar[tuple[str, ...]] = ("record",)  # whose data it can protect, the usual one first
    algorithm: ClassVar[str] = "fedavg"  # unless the user says otherwise
    algorithms: ClassVar[tuple[str, ...]] = ()  # those it goes with; none named: any
    channels: ClassVar[tuple[str, ...]] = ("direct",)  # those it can send through
    steady: ClassVar[bool] = False  # whether `merge` gets the same stream in every round, to repeat its noise
    tagged: ClassVar[bool] = False  # whether it must know which records carry private attributes
    own_noise: ClassVar[bool] = False  # whether clients' own budgets mean noise of their own, not fewer rounds

    def costs(self, plan: Plan, round: int = 0) -> tuple[Cost, ...]:
        """What taking part in that round costs; by the public plan alone."""
        raise NotImplementedError

    def whole(self, plan: Plan) -> tuple[Cost, ...] | None:
        """Where noise is chosen on the way (from what was released): the cost of the run that no choice exceeds.

        The calibrated noise multiplier is then that of the whole run, and a filter keeps to it."""
        return None

    def now_costs(self, state: State, plan: Plan) -> tuple[Cost, ...]:
        """What the coming round costs, given what was released before it; this is what the ledger writes down."""
        return self.whole(plan) or self.costs(plan, state.round)

    def over(self, state: State, plan: Plan) -> bool:
        """Whether training ends here, before the rounds do; by what was released alone."""
        return False

    def claim(self, plan: Plan) -> Claim | None:
        """What the paper says, where that does not hold; such a method is not private (in our sense)."""
        return None

    def require(self, plan: Plan) -> None:
        """Refuse a plan that the method cannot follow, with one clear error."""

    def check_groups(self, highest: int) -> None:
        """Refuse data whose records belong to more groups of private attributes than the method knows of."""

    def uses_public(self) -> bool:
        """Whether it looks at data that the server holds (key `server_data`)."""
        return False

    def remarks(self, plan: Plan) -> tuple[str, ...]:
        """What whoever runs it with this plan should know."""
        return ()

    def begin(self, state: State, layout: Layout, plan: Plan) -> State:
        """Put the method's own public variables into the state before the first round."""
        return plan.algorithm.begin(state, layout)

    def fresh(self, state: State, clients: int, plan: Plan) -> Rows:
        """What clients keep before their first round [clients, k]: the algorithm's columns first, then the method's."""
        return plan.algorithm.fresh(state, clients)

    def train(
        self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream
    ) -> tuple[Rows, Rows]:
        """What each client would send, and what it keeps for itself."""
        raise NotImplementedError

    def release(self, rows: Rows, sizes: tuple[int, ...], state: State, plan: Plan, rng: RowStream) -> Rows:
        return rows

    def merge(self, state: State, rows: Rows, plan: Plan, rng: Stream) -> State:
        """The sum over what is expected to arrive, handed to the algorithm."""
        answers = plan.expected_answers(state.round)
        return plan.algorithm.update(state, rows.sum(dim=0) / answers, plan.server(answers / plan.population))

    def noise(self, state: State, plan: Plan) -> float | None:
        """Standard deviation of the noise in one client's message, a coordinate, in the round that began so; None where
        it is known afterwards only (`decided` may have it) or not at all. The record shows it."""
        return None

    def step_noise(self, plan: Plan) -> float:
        """Foreseen: the deviation of the noise of one release, a coordinate, over the L2 bound of one contribution."""
        return plan.z

    def decided(self, state: State, plan: Plan) -> dict[str, Any] | None:
        """What was chosen in the round that led to this state, for the record: plain numbers and text.

        Names that others read: `std`, the mean over clients of the deviation that `noise` tells of, which the record
        shows as its noise where `noise` is None; `clients`, a dict by client, of which `explain --client` keeps one."""
        return None

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        """In words, for `sordino explain`: what was `decided`, round by round, and why."""
        return []
