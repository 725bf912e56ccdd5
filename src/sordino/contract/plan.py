"""The public plan of a run, which clients, server and pricing may read. Nothing in it depends on private data."""

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
from sordino.core.local_training import Local
from sordino.core.rng import Ints, Stream
from sordino.core.types import Batch, Model, State
from sordino.privacy.crowd import Crowd
from sordino.privacy.release import DICE
from sordino.privacy.samplers import FixedSizeSampler, Sampler


@dataclass(frozen=True)
class Public:
    """Records that are public, held by the server, and the model to try on them."""

    model: Model
    batch: Batch  # of one client, the server


ROOM = 1e-9  # of delta: more than 2^-140 (1 + e^epsilon) a step, for all the steps that a run can have


@dataclass(frozen=True)
class Exact:
    """What noise without floating point needs to know of the sums that it covers."""

    gradients: float | None  # error of a float sum of clipped gradients, relative to the clip; None: no bound is known
    batch: int  # records in a batch, at most
    reason: str = ""  # why there is no bound, or what it is


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
    channel: Channel = field(default_factory=Direct)  # how messages travel
    colluders: int = 0  # clients that the viewer is assumed to be in league with
    dim: int = 1  # parameters of the model
    layers: int = 1  # that they lie in
    public: Public | None = None  # data that the server may use; clients get a plan without it,
    server_data: bool = False  # which says whether there are any
    exact: Exact | None = None  # in secure mode: what exact noise may count on
    capped: bool = False  # whether clients' own budgets may keep them out of rounds
    dice: Stream | None = None  # public randomness of the server in a merge; clients get none, and no noise is from it

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
    def everyone(self) -> bool:
        """Whether every client answers in every round, so that the noise of all of them is always there."""
        return self.share >= 1 and self._nobody_missing

    @property
    def _nobody_missing(self) -> bool:
        """Whether every client that is drawn takes part and answers in time, whatever was drawn before."""
        there = self.participations >= self.rounds and not self.stragglers.joining[0]
        return there and self.stragglers.none and not self.capped

    @property
    def _sure(self) -> int:
        """How many clients are sure to answer in a round in which a given one does: a Poisson draw makes none sure."""
        if self.everyone:
            return self.population
        if isinstance(self.sampler, FixedSizeSampler) and self._nobody_missing:
            return min(self.sampler.size, self.population)
        return 1

    def spendable(self, delta: float) -> float:
        """Return the part of delta that releases may use; exact noise leaves a little of it for batches too large."""
        drawn = self.exact is not None and self.exact.batch < self.sizes[-1]
        return delta * (1 - ROOM) if drawn else delta

    @property
    def split(self) -> int:
        """How many clients add noise together where it adds up in a sum."""
        return self.channel.split(self.crowd)

    @property
    def crowd(self) -> Crowd:
        """Among whom the channel hides a client's message."""
        single = self.sizes == (1,) and self.clients_per_user == 1
        heaviest = self.sizes[-1] / self.mean_client
        return Crowd(self.population, self.everyone, self.colluders, heaviest, self._sure, single)

    @property
    def smallest_client(self) -> int:
        return self.sizes[0]

    @property
    def participations(self) -> int:
        """Return the number of rounds that one client can take part in at most."""
        return min(self.rounds, self.max_participations or self.rounds)

    @property
    def share(self) -> float:
        """Return the share of the clients that a round is expected to draw."""
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

    def merging(self, round: Stream) -> Plan:
        """Return the plan as the server has it while it merges, given the stream of the round.

        The dice have a stream of their own, which no release of the server may name as its key."""
        return replace(self, dice=stream_along(round, DICE))

    def now(self, state: State) -> Local:
        """How clients train in the round that begins with this state: the schedule sets the learning rate."""
        return replace(self.local, learning_rate=self.local.rate_in(state.round, self.rounds))
