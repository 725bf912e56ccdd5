"""DP-SGD with one of several noise mechanisms, chosen from public numbers: UDP-FL's clients and their accounting.

Each mechanism has its own geometry: the gradients of records are clipped in its norm, and noise is added to their sum.
C is the clip bound. C_1, close to C sqrt(2 d / pi), is the L1 norm of a dense gradient of L2 norm C in d dimensions
(harmonizer.py), so that dense gradients keep the same length under either clip.
    gaussian     clipped to L2 norm C,    N(0, (z C)^2) per coordinate;
    l2-laplace   clipped to L2 norm C,    Lap(z C): 1/(2 z^2)-zCDP in every dimension (privacy/mechanisms/laplace.py);
    laplace      clipped to L1 norm C_1,  Lap(z C_1): 1/z-DP;
    staircase    clipped to L1 norm C_1,  noise of density e^{-level / z} on L1 balls, step C_1: 1/z-DP.

Re-selection (`reselect`, a number of rounds): between rounds the Harmonizer examines the released mean update and
estimates how sparse and how heavy-tailed it is behind the known noise (seen.py). This is sound however often the
mechanism changes, because all mechanisms then share one scale z, and each is charged as a release of which only
rho = 1/(2 z^2) is known. Proof. Given the transcript so far, the next mechanism is fixed, and one step of it has
D_a <= a / (2 z^2) at every order a > 1: Gaussian noise with equality; L2-Laplace noise as stated above; L1-Laplace and
staircase noise because they are 1/z-DP, and epsilon-DP implies epsilon^2/2-zCDP (Bun and Steinke 2016, Proposition
3.3). Renyi divergences of adaptively chosen releases add up at every order (Mironov 2017, Proposition 1), so K steps
have D_a <= K a / (2 z^2), the curve of K Gaussians, whatever was chosen. Accounting for sampled batches would need to
know more than rho, so batches must be full.

Kinds of clients: `profile`, `resources` and `data` may be mixtures (kinds.py), and the Harmonizer then chooses for each
kind with the weights of that kind. A record belongs to one client, whose steps satisfy the conditions of the proof.
Kinds of clients therefore also need full batches and one scale, and are charged by rho alone.

Managed multipliers (`managed`): before every round a client's multiplier is computed from the remainder of its own
budget and its remaining participations (managed.py), all of which are public numbers. This is sound: a participation
of K steps at multiplier z_t has rho_t = K / (2 z_t^2); a client's rho_t are fixed before each of its rounds and never
sum to more than rho = 1/(2 z^2), where z is the calibrated multiplier of the whole run. At every order a the
divergences then sum to at most rho a, and a filter on that sum gives D_a <= rho a (Feldman and Zrnic 2021; filters:
Rogers et al. 2016). If all noise in a run is Gaussian, its rounds together are 1/z-GDP (Smith and Thakurta 2022), which
costs less; a run is charged in one way or the other. A filter on rho alone cannot use amplification by sampling, so
batches must be full. Nor can it use what L1-Laplace and staircase noise guarantee beyond rho, which costs these about a
sixth more noise when no client is ever absent."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sordino.algorithms.base import Algorithm
from sordino.contract import clipped_steps
from sordino.contract.method import Method, Own, Plan, Release, Site
from sordino.contract.site import units as units_of
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.rng import Ints
from sordino.core.types import Batch, Model, Rows, State
from sordino.methods.udp_fl import harmonizer
from sordino.methods.udp_fl import kinds as _kinds
from sordino.methods.udp_fl import managed as _managed
from sordino.methods.udp_fl.noises import ByRho, noise
from sordino.privacy import derive
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event, Repeated
from sordino.privacy.mechanisms.gaussian import Gaussian

FILTER = "filter"  # name under which clients store their spent budget if multipliers are managed
Allowed = list[tuple[int, _managed.Kept]]  # per client: budget units it may spend now, and its filter afterwards


@dataclass(frozen=True)
class UdpState:
    """The server's state besides the model: public numbers, or values computed from releases."""

    mechanism: Tensor | None = None  # [kinds]: mechanism of the coming round, with re-selection
    used: Tensor | None = None  # [kinds]: mechanism of the last round
    look: Tensor | None = None  # [5]: statistics of the released update at the last selection (seen.py)
    merged: int | None = None  # managed: number of merged rounds, from which lost rounds are inferred
    reference: Tensor | None = None  # managed: filter of a client that took part in every round
    heard: Tensor | None = None  # [clients, 5]: the noise that the clients of the last round reported (managed.py)
    w_max: Tensor | None = None  # [dim]: model that clients with smaller budgets are pulled towards
    path: Tensor | None = None  # [2, points]: losses along the server's path, and along the straight line


@dataclass(frozen=True)
class Harmonised(Method):
    """Local DP-SGD whose noise mechanism is given, or chosen by the Harmonizer from public numbers."""

    clip: float = 1.0  # C: bound on the L2 norm of one record's (or user's) gradient
    batch_sampling: str = "poisson"  # or "fixed": batches of a fixed size, accounted under replace
    mechanism: str = "auto"  # auto (the Harmonizer picks), gaussian, l2-laplace, laplace or staircase
    profile: str = "standard"  # weights of the Harmonizer's score: standard, medical or iot; or medical:0.3,iot:0.7
    resources: str = "standard"  # the clients' compute: limited, standard or high; or a mixture
    data: str = "dense"  # as in the paper's Table 2: dense, sparse, complex, time-series, ...; or a mixture
    prior: float = 0.05  # weight of the paper's Table 2 in the score, 0 to 1
    pure: bool = False  # choose only among mechanisms whose releases all have delta = 0
    reselect: int = 0  # rounds after which the Harmonizer chooses again; 0: never
    managed: bool = False  # whether noise multipliers follow each client's remaining budget, round by round

    units: ClassVar[tuple[str, ...]] = ("record", "user")
    channels: ClassVar[tuple[str, ...]] = ("direct",)
    reads: ClassVar[str] = "rows"
    by_records: ClassVar[bool] = True
    noisy_steps: ClassVar[bool] = True
    own_noise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.positive(clip=self.clip)
        check.one_of(clipped_steps.SAMPLINGS, batch_sampling=self.batch_sampling)
        check.one_of(("auto", *harmonizer.MECHANISMS), mechanism=self.mechanism)
        _kinds.parse("profile", self.profile, tuple(harmonizer.PROFILES))
        _kinds.parse("resources", self.resources, tuple(harmonizer.RESOURCES))
        _kinds.parse("data", self.data, harmonizer.DATA)
        check.non_negative(prior=self.prior, reselect=self.reselect)
        if self.prior > 1:
            raise SpecError(f"prior must lie in [0, 1], not {self.prior!r}.")
        if self.reselect and self.mechanism != "auto":
            raise SpecError(f"reselect needs mechanism = auto; {self.mechanism} was asked for.")
        if self.mixed and self.mechanism != "auto":
            raise SpecError(f"clients of several kinds need mechanism = auto; {self.mechanism} was asked for.")
        if self.mechanism == "l2-laplace" and self.batch_sampling == "fixed":
            raise SpecError(
                "l2-laplace noise has no accounting for batches of a fixed size: use batch_sampling = poisson."
            )
        if self.pure and self.mechanism not in ("auto", *harmonizer.PURE):
            raise SpecError(f"pure = true, but {self.mechanism} noise has a delta: use laplace, staircase or auto.")

    @property
    def mixed(self) -> bool:
        """Whether clients are of several kinds."""
        return _kinds.mixed(self.profile, self.resources, self.data)

    @property
    def free(self) -> bool:
        """Whether mechanisms may differ by client or by round; all are then charged by rho alone."""
        return self.reselect > 0 or self.mixed

    def kinds(self, plan: Plan) -> _kinds.Dealt:
        """Return the kinds of clients in this plan, and the kind of each client."""
        return _kinds.deal(self.profile, self.resources, self.data, plan.population)

    # --- the choice

    def chosen(self, plan: Plan, data: str | None = None, kind: int = 0) -> harmonizer.Choice:
        """Choose the mechanism for a kind of clients from the public plan and a description of the data.

        Args:
            plan: the public plan of the run.
            data: the description of the data suggested by released updates; None: the one declared for the kind.
            kind: index of the kind of clients.
        """
        run, who = gaussian_run(plan, self.batch_sampling), self.kinds(plan).kinds[kind]
        what = (who.profile, who.resources, data or who.data, float(self.prior), self.pure, self.free, self.managed)
        return harmonizer.choose(harmonizer.HarmonizerSetting(run, plan.dim, float(plan.epsilon), plan.delta, *what))

    def noises(self, plan: Plan, state: State | None = None) -> tuple[str, ...]:
        """Return the mechanism of each kind of clients in the round that starts from `state` (None: the first)."""
        kinds = range(len(self.kinds(plan).kinds))
        if self.mechanism != "auto":
            return tuple(self.mechanism for _ in kinds)
        if self.reselect and state is not None:
            return tuple(harmonizer.MECHANISMS[i] for i in state.method.mechanism.tolist())
        return tuple(self.chosen(plan, kind=kind).mechanism for kind in kinds)

    def noise_of(self, state: State, plan: Plan, kind: int = 0) -> str:
        """Return the mechanism of one kind of clients in the round that starts from `state`."""
        return self.noises(plan, state)[kind]

    def _indices(self, plan: Plan, data: str | None = None) -> Tensor:
        """Return the mechanism chosen for each kind, as indices into MECHANISMS."""
        names = [self.chosen(plan, data, kind).mechanism for kind in range(len(self.kinds(plan).kinds))]
        return torch.tensor([harmonizer.MECHANISMS.index(name) for name in names])

    # --- releases

    def bound(self, name: str, plan: Plan) -> float:
        """Return the clip bound of a record's gradient, in the norm of the named mechanism."""
        return self.clip * harmonizer.bound(name, plan.dim)

    def _sums(self, plan: Plan) -> int:
        """Return the number of noisy sums that a client releases in one participation."""
        return plan.local.count(plan.smallest_client) + ("losses" in plan.algorithm.needs)

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare the noisy sums of a participation.

        With managed multipliers, they are declared with the smallest noise that any participation in the round may
        have. With clients of several kinds, there is one release for each mechanism in use; a record belongs to one
        client, and so to one of these releases."""
        names = tuple(dict.fromkeys(self.noises(plan, state)))
        by_rho = self.free or (self.managed and names != ("gaussian",))
        z = _managed.least(round, plan, self._sums(plan)) if self.managed else plan.z
        total = None if not self.managed else ByRho(plan.z) if by_rho else Gaussian(plan.z)
        releases: list[Release] = []
        for name in names:
            vector, number = noise(name, z, plan.dim, by_rho), noise(name, z, 1, by_rho)
            declared = clipped_steps.releases(plan, vector, self.bound(name, plan), self.batch_sampling, number, total)
            apart = [replace(r, name=f"{r.name} {name}", part=name) for r in declared]
            releases += apart if len(names) > 1 else declared
        return tuple(releases)

    def require(self, plan: Plan) -> None:
        """Refuse sampled batches if mechanisms may differ or multipliers are managed."""
        if (self.free or self.managed) and any(plan.local.rate(n) < 1 for n in plan.sizes):
            name = "reselect" if self.reselect else "managed" if self.managed else "a mixture of kinds of clients"
            raise SpecError(
                f"{name} charges every mechanism by its Renyi divergence alone, which drawn batches do not amplify: "
                "use batch_rate = 1, or reselect = 0, managed = false and one kind of clients."
            )

    def keeps(self, state: State, clients: int, plan: Plan) -> Own:
        """Return each client's empty privacy filter if multipliers are managed."""
        return {FILTER: torch.zeros(clients, _managed.KEPT, dtype=torch.int64)} if self.managed else {}

    # --- clients

    def clipped(
        self,
        name: str,
        weights: Tensor,
        batch: Batch,
        model: Model,
        seeds: list[int],
        groups: clipped_steps.Groups = None,
    ) -> Bounded:
        """Return each client's sum of gradients, clipped for the named mechanism."""
        norm, bound = harmonizer.NORMS[name], self.clip * harmonizer.bound(name, weights.shape[-1])
        return Bounded(model.gradients.sums(weights, batch, bound, seeds=seeds, groups=groups, norm=norm), bound, norm)

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Send the noisy update, and report its noise if multipliers are managed or clients are of several kinds."""
        plan, like, more = site.plan, state.params, dict[str, Tensor]()
        allowed = None
        if self.managed:
            allowed = [_managed.allow(_managed.counters(row), state, plan) for row in site.own[FILTER].cpu()]
        scales, multiplier = self._scales(plan, site.rng.ids, allowed), None
        if allowed is not None:
            each = [z or math.inf for z in scales]
            multiplier = torch.tensor(each, dtype=like.dtype, device=like.device)[:, None]
        rows, mine = self._by_noise(state, site, multiplier)
        weight = clipped_steps.weights(site, rows)
        if allowed is not None and multiplier is not None:  # a client without budget sends zeros and keeps its rows
            silent = torch.isinf(multiplier)
            rows, mine = torch.where(silent, 0.0, rows), torch.where(silent, site.mine, mine)
            weight = torch.where(silent[:, 0], 0.0, weight)
            filters = torch.tensor([after for _, after in allowed], dtype=torch.int64)
            more[FILTER] = filters.reshape(-1, _managed.KEPT)
        reported = self._reported(state, site, scales, allowed) if self.tells else {}
        return Message({"update": rows} | self._fields(site) | reported, weight), site.kept(mine, **more)

    def _scales(self, plan: Plan, ids: Ints, allowed: Allowed | None) -> list[float]:
        """Return each client's noise multiplier per step; 0 if it has no budget left."""
        run_multipliers = [plan.multipliers[int(i)] if plan.multipliers else plan.z for i in ids]
        if allowed is None:
            return run_multipliers
        return [
            _managed.noise_for(units, self._sums(plan), z)
            for (units, _), z in zip(allowed, run_multipliers, strict=True)
        ]

    def _by_noise(self, state: State, site: Site, multiplier: Tensor | None) -> tuple[Rows, Rows]:
        """Train clients that use the same mechanism together."""
        names = self.noises(site.plan, state)
        if len(set(names)) == 1:
            return self._alike(state, site, names[0], "", multiplier)
        numbers = np.array([harmonizer.MECHANISMS.index(name) for name in names])
        mine, done = numbers[self.kinds(site.plan).of[site.rng.ids]], []
        order = [np.flatnonzero(mine == number) for number in np.unique(mine)] or [np.arange(0)]
        for at in order:
            name = harmonizer.MECHANISMS[int(mine[at[0]])] if len(at) else names[0]
            group_multiplier = None if multiplier is None else multiplier[torch.from_numpy(at).to(multiplier.device)]
            done.append(self._alike(state, site.only(at), name, f" {name}", group_multiplier))
        back = torch.from_numpy(np.argsort(np.concatenate(order))).to(state.params.device)
        rows, client_state = (torch.cat([part[j] for part in done])[back] for j in (0, 1))
        return rows, client_state

    def _alike(self, state: State, site: Site, name: str, outlet: str, multiplier: Tensor | None) -> tuple[Rows, Rows]:
        """Train clients with the named mechanism, through the outlets whose names end in `outlet`."""

        def clipped(weights: Tensor, batch: Batch, seeds: list[int], groups: clipped_steps.Groups) -> Bounded:
            return self.clipped(name, weights, batch, site.model, seeds, groups)

        return clipped_steps.steps(
            state,
            site,
            clipped,
            lambda sums: site.out["gradient" + outlet](sums, multiplier),
            self.batch_sampling,
            self._algorithm(state, site),
            lambda sums: site.out["losses" + outlet](sums, multiplier),
        )

    def _algorithm(self, state: State, site: Site) -> Algorithm | None:
        """Return the algorithm that these clients use instead of the plan's; None: the plan's."""
        return None

    def _fields(self, site: Site) -> dict[str, Tensor]:
        """Return the public message fields that the server needs besides the update."""
        return {}

    # --- reported noise

    @property
    def tells(self) -> bool:
        """Whether messages report the noise that they contain."""
        return self.managed or self.mixed

    def _reported(self, state: State, site: Site, scales: list[float], allowed: Allowed | None) -> dict[str, Tensor]:
        """Return the message fields in which clients report their noise."""
        plan, ids, total = site.plan, site.rng.ids, _managed.UNITS
        steps, unit = plan.local.count(plan.smallest_client), self.unit_noise(state, plan)
        names = self.noises(plan, state)
        mechanisms = [names[k] for k in self.kinds(plan).of[ids]]
        stds = [
            unit * harmonizer.deviation(name, z, plan.dim) if z else 0.0
            for name, z in zip(mechanisms, scales, strict=True)
        ]
        fourths = [0.0 if n == "gaussian" else 3 * std**4 / steps for n, std in zip(mechanisms, stds, strict=True)]
        shares = [(u / total, (total - after[0]) / total) for u, after in allowed or ()] or [(0.0, 1.0)] * len(scales)
        records = units_of(site.data, plan)
        return _managed.remarks(records, shares, scales, stds, fourths, state.params.device)

    def unit_noise(self, state: State, plan: Plan, multiplier: float = 1.0) -> float:
        """Return the standard deviation per coordinate, in a weighted message, of Gaussian noise with `multiplier`."""
        local = plan.now(state)
        steps, batch = local.count(plan.smallest_client), local.expected_batch(plan.mean_client)
        return local.learning_rate * math.sqrt(steps) * multiplier * self.clip / batch


def gaussian_run(plan: Plan, sampling: str) -> Event:
    """Return the event of all that a client releases in a run of noisy steps, with Gaussian noise of multiplier 1."""
    setting = derive.Setting(plan.channel, plan.crowd, plan.sampler, plan.clients_per_user)
    (cost,) = derive.costs(clipped_steps.releases(plan, Gaussian(1.0), 1.0, sampling), setting)
    return Repeated(cost.event, plan.participations * cost.copies)
