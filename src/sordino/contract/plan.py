"""The public plan of a run, readable by clients, server and accounting. Nothing in it depends on private data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sordino.algorithms.base import Algorithm, Server
from sordino.algorithms.fedavg import FedAvg
from sordino.channels.base import Channel
from sordino.channels.direct import Direct
from sordino.contract.outlets import stream_along
from sordino.contract.presence import Stragglers
from sordino.contract.robust import RobustMerge
from sordino.core.local_training import Local
from sordino.core.rng import Ints, Stream
from sordino.core.types import Batch, Model, State
from sordino.privacy.crowd import Crowd
from sordino.privacy.release import DICE
from sordino.privacy.samplers import FixedSizeSampler, Sampler


@dataclass(frozen=True)
class Public:
    """Public records held by the server, and the model to evaluate on them."""

    model: Model
    batch: Batch  # with the server as its only client


ROOM = 1e-9  # fraction of delta: exceeds 2^-140 (1 + e^epsilon) per step over all steps that a run can have


@dataclass(frozen=True)
class Exact:
    """Facts about the sums to which exact noise is added."""

    gradients: float | None  # error of a float sum of clipped gradients over the clip bound; None: no known bound
    batch: int  # maximum number of records in a batch
    reason: str = ""  # why there is no bound, or what the bound is


@dataclass(frozen=True)
class Plan:
    """Everything that is public about a run. Nothing in here depends on private data."""

    rounds: int
    population: int
    sampler: Sampler
    algorithm: Algorithm = field(default_factory=FedAvg)
    local: Local = field(default_factory=Local)
    noise_multiplier: float | None = None  # set by calibration
    multipliers: tuple[float, ...] = ()  # of each client, if personal budgets determine noise
    max_participations: int | None = None
    sizes: tuple[int, ...] = (1,)  # distinct numbers of records (or users) per client, ascending; public
    mean_client: float = 1.0  # mean number of records (or users) per client
    mean_steps: float = 1.0  # local steps of a client, averaged over records
    server_lr: float = 1.0
    stragglers: Stragglers = field(default_factory=Stragglers)
    unit: str | None = None  # protected unit; None: the method's default
    clients_per_user: int = 1  # maximum number of clients that hold records of one user
    epsilon: float = 1.0  # total budget requested by the user
    delta: float = 1e-5  # total
    channel: Channel = field(default_factory=Direct)  # how messages travel
    colluders: int = 0  # number of clients assumed to collude with the viewer
    min_cohort: int | None = None  # rounds in which fewer clients are drawn are lost; None: what the sampler guarantees
    certain: bool = True  # whether a drawn client is sure to answer, or else nothing of its round is released
    allowed_dropouts: int = 0  # rounds in which more drawn clients do not answer are lost
    dim: int = 1  # number of model parameters
    layers: int = 1  # number of model layers
    public: Public | None = None  # data held by the server; removed from the clients' plan
    server_data: bool = False  # whether the server holds such data; also in the clients' plan
    exact: Exact | None = None  # in secure mode: facts that exact noise relies on
    capped: bool = False  # whether personal budgets may exclude clients from rounds
    robust: RobustMerge = field(default_factory=RobustMerge)  # how the server combines the rows of a round
    dice: Stream | None = None  # public randomness for the server's merges; not for clients, not for noise

    @property
    def z(self) -> float:
        """Return the calibrated noise multiplier."""
        if self.noise_multiplier is None:
            raise ValueError("the plan has not been calibrated")
        return self.noise_multiplier

    def z_of(self, ids: Ints, like: Tensor) -> Tensor:
        """Return the noise multipliers of these clients [clients, 1]."""
        multipliers = [self.multipliers[int(i)] for i in ids]
        return torch.tensor(multipliers, dtype=like.dtype, device=like.device)[:, None]

    @property
    def everyone(self) -> bool:
        """Return whether every client answers in every round, so that the noise of all clients is always present."""
        complete = not self.allowed_dropouts and (self.min_cohort is None or self.min_cohort >= self.population)
        return self.share >= 1 and self._nobody_missing and complete

    @property
    def thresholds(self) -> bool:
        """Return whether rounds with too few drawn clients, or with too many missing ones, are not released."""
        return self.min_cohort is not None or self.allowed_dropouts > 0

    @property
    def smallest_cohort(self) -> int:
        """Return the fewest clients in the cohort of a round that is released; 1 if no number is certain."""
        if self.min_cohort is not None:
            return self.min_cohort
        if not self.thresholds and not self._nobody_missing:
            return 1
        if self.share >= 1:
            return self.population
        return min(self.sampler.size, self.population) if isinstance(self.sampler, FixedSizeSampler) else 1

    @property
    def shares_noise(self) -> bool:
        """Return whether the noise in a sum of messages may be that of several clients, each with a share of it."""
        return self.everyone or self.split > 1

    @property
    def _nobody_missing(self) -> bool:
        """Return whether every drawn client takes part and answers in time, whatever was drawn before."""
        there = self.participations >= self.rounds and not self.stragglers.joining[0]
        return there and self.stragglers.none and not self.capped and self.certain

    @property
    def sure(self) -> int:
        """Return how many clients are certain to answer in a round that is released and in which a given client does.

        Poisson sampling guarantees only that client itself.
        """
        return max(1, self.smallest_cohort - self.allowed_dropouts)

    def spendable(self, delta: float) -> float:
        """Return the part of delta that releases may use; exact noise reserves a little for oversized batches."""
        drawn = self.exact is not None and self.exact.batch < self.sizes[-1]
        return delta * (1 - ROOM) if drawn else delta

    @property
    def split(self) -> int:
        """Return how many clients share the noise of a sum, if noise adds up in sums."""
        return self.channel.split(self.crowd)

    @property
    def crowd(self) -> Crowd:
        """Return the crowd among which the channel hides a client's message."""
        single = self.sizes == (1,) and self.clients_per_user == 1
        lightest, heaviest = self.sizes[0] / self.mean_client, self.sizes[-1] / self.mean_client
        return Crowd(
            self.population,
            self.everyone,
            self.colluders,
            heaviest,
            self.sure,
            single,
            self.smallest_cohort,
            self.allowed_dropouts,
            lightest,
        )

    @property
    def smallest_client(self) -> int:
        """Return the smallest number of records (or users) of any client."""
        return self.sizes[0]

    @property
    def participations(self) -> int:
        """Return the maximum number of rounds in which one client can take part."""
        return min(self.rounds, self.max_participations or self.rounds)

    @property
    def share(self) -> float:
        """Return the expected fraction of clients drawn in a round."""
        return self.sampler.probability(self.population)

    @property
    def expected_cohort(self) -> float:
        """Return the expected number of clients drawn in a round."""
        return self.share * self.population

    def expected_answers(self, round: int) -> float:
        """Return the public divisor of a sum of messages: the expected weight of the answers, given the stragglers."""
        return self.stragglers.answers(self.share, self.population, round)

    def server(self, heard: float, noisy: bool = True) -> Server:
        """Return what the server's step may read; `heard` is the fraction of clients whose messages are in the mean."""
        return Server(self.server_lr, heard, noisy, self.local, self.mean_steps)

    def merging(self, round: Stream) -> Plan:
        """Return the plan for the server's merge, given the stream of the round.

        The dice have their own stream, which no release of the server may use as its key.
        """
        return replace(self, dice=stream_along(round, DICE))

    def now(self, state: State) -> Local:
        """Return how clients train in the round that begins with this state, at its scheduled learning rate."""
        return replace(self.local, learning_rate=self.local.rate_in(state.round, self.rounds))
