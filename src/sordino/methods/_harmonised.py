"""DP-SGD whose noise may be of several kinds, chosen by public numbers: what udp_fl.py and its accounting rest on.

Every mechanism has its own geometry: records' gradients are clipped in its norm, then their sum gets noise. C is the
clip; C_1, close to C sqrt(2 d / pi), is the L1 norm that a dense gradient of L2 norm C has in d dimensions
(harmonizer.py), so that dense gradients are as long under either clip.
    gaussian     clipped to L2 norm C,    N(0, (z C)^2) a coordinate;
    l2-laplace   clipped to L2 norm C,    Lap(z C): 1/(2 z^2)-zCDP in every dimension (privacy/mechanisms/laplace.py);
    laplace      clipped to L1 norm C_1,  Lap(z C_1): 1/z-DP;
    staircase    clipped to L1 norm C_1,  noise of density e^{-level / z} on L1 balls, step C_1: 1/z-DP.

Re-selection (`reselect` = every so many rounds): between rounds the Harmonizer looks at the released mean update, how
sparse and how heavy-tailed it is behind the known noise (_seen.py). Sound for whatever switching, because then all
mechanisms share one scale z and are charged as a release of which rho = 1/(2 z^2) is known and nothing else. Proof.
Given the transcript so far, the next mechanism is fixed, and one step of it has D_a <= a / (2 z^2) at every order a >
1: Gaussian noise with equality; L2-Laplace noise as said; L1-Laplace noise and the staircase are 1/z-DP, and epsilon-DP
implies epsilon^2/2-zCDP (Bun and Steinke 2016, Proposition 3.3). Renyi divergences of adaptively chosen releases add up
at every order (Mironov 2017, Proposition 1), so K steps have D_a <= K a / (2 z^2), the curve of K Gaussians, whatever
was chosen. Drawn batches would need more than rho, so batches must be full.

Kinds of clients: `profile`, `resources` and `data` may be mixtures (_kinds.py), and the Harmonizer then chooses for
every kind by its own weights. A record is in one client, whose steps have what the proof asks for; so kinds need full
batches and one scale too, and are charged by rho alone.

Managed multipliers (`managed`): before every round a client's multiplier follows from what is left of its own budget
and the participations that are still to come (_managed.py), public numbers all. Sound: a participation of K steps at
multiplier z_t has rho_t = K / (2 z_t^2); a client's rho_t are fixed before each of its rounds and never sum to more
than rho = 1/(2 z^2), z being the calibrated multiplier of the whole run. At every order a the divergences then sum to
rho a at most, and a filter on that sum gives D_a <= rho a (Feldman and Zrnic 2021; filters: Rogers et al. 2016). Where
all of a run's noise is Gaussian its rounds are 1/z-GDP together (Smith and Thakurta 2022), which is less; `whole`
charges the one or the other. A filter of rho alone knows no amplification: batches must be full. Nor does it know what
L1-Laplace and staircase noise have beyond rho, which costs them about a sixth more noise where nobody is ever away."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import Ints, RowStream
from sordino.core.types import Batch, Model, Rows, State
from sordino.methods import _kinds, _managed, harmonizer
from sordino.methods.base import Plan
from sordino.methods.dp_sgd import DpSgd, Groups
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Cost, Event, Repeated
from sordino.privacy.events import Gaussian as GaussianEvent
from sordino.privacy.mechanisms.laplace import LaplaceL2Event

SCALES, NAMED = "scales of the cohort", "mechanism of the cohort"  # what `train` adds to the state that it works with

Allowed = list[tuple[int, _managed.Kept]]  # by client: the units that it may spend now, and what it keeps then


@dataclass(frozen=True)
class Harmonised(DpSgd):
    mechanism: str = "auto"  # auto (the Harmonizer picks), gaussian, l2-laplace, laplace or staircase
    profile: str = "standard"  # whose weights the Harmonizer takes: standard, medical or iot; or medical:0.3,iot:0.7
    resources: str = "standard"  # the clients' compute: limited, standard or high; or a mixture
    data: str = "dense"  # as in the paper's Table 2: dense, sparse, complex, time-series, ...; or a mixture
    prior: float = 0.05  # how much the paper's Table 2 counts, 0 to 1
    pure: bool = False  # choose among mechanisms only whose every release has delta = 0
    reselect: int = 0  # rounds after which the Harmonizer chooses again; 0: never
    managed: bool = False  # noise multipliers follow what is left of each client's budget, round by round

    channels: ClassVar[tuple[str, ...]] = ("direct",)
    own_noise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
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
        """Whether there are clients of several kinds."""
        return _kinds.mixed(self.profile, self.resources, self.data)

    @property
    def free(self) -> bool:
        """Whether mechanisms differ, by client or by round: all are then charged by rho alone."""
        return self.reselect > 0 or self.mixed

    def kinds(self, plan: Plan) -> _kinds.Dealt:
        return _kinds.deal(self.profile, self.resources, self.data, plan.population)

    def chosen(self, plan: Plan, data: str | None = None, kind: int = 0) -> harmonizer.Choice:
        """For a kind of clients, by the public plan and what the data are declared (or were seen) to be."""
        (cost,) = super().costs(replace(plan, noise_multiplier=1.0))
        run, who = Repeated(cost.event, plan.participations * cost.copies), self.kinds(plan).kinds[kind]
        what = (who.profile, who.resources, data or who.data, float(self.prior), self.pure, self.free, self.managed)
        return harmonizer.choose(harmonizer.Setting(run, plan.dim, float(plan.epsilon), plan.delta, *what))

    def noise_of(self, state: State, plan: Plan, kind: int = 0) -> str:
        """The mechanism of the round that begins with this state."""
        if self.mechanism != "auto":
            return self.mechanism
        if NAMED in state.extra:
            return harmonizer.MECHANISMS[int(state.extra[NAMED])]
        if self.reselect:
            return harmonizer.MECHANISMS[int(state.extra["mechanism"].reshape(-1)[kind])]
        return self.chosen(plan, kind=kind).mechanism

    def step_noise(self, plan: Plan) -> float:
        name = self.mechanism if self.mechanism != "auto" else self.chosen(plan).mechanism
        return harmonizer.deviation(name, super().step_noise(plan), plan.dim)

    def _by_rho(self, plan: Plan) -> bool:
        """Whether a filter knows no more of a release than its rho."""
        return self.free or (self.mechanism if self.mechanism != "auto" else self.chosen(plan).mechanism) != "gaussian"

    def costs(self, plan: Plan, round: int = 0) -> tuple[Cost, ...]:
        if (whole := self.whole(plan)) is not None:
            return whole
        free = self.free
        name = "gaussian" if free else self.mechanism if self.mechanism != "auto" else self.chosen(plan).mechanism
        return tuple(
            replace(c, event=harmonizer.of(c.event, name, harmonised=free)) for c in super().costs(plan, round)
        )

    def whole(self, plan: Plan) -> tuple[Cost, ...] | None:
        return self._filtered(plan, plan.z) if self.managed else None

    def now_costs(self, state: State, plan: Plan) -> tuple[Cost, ...]:
        """Managed: what no participation in the coming round exceeds."""
        if not self.managed:
            return super().now_costs(state, plan)
        return self._filtered(plan, plan.z * math.sqrt(_managed.UNITS / _managed.most(state.round, plan)))

    def _filtered(self, plan: Plan, z: float) -> tuple[Cost, ...]:
        """All that a filter of multiplier z lets a client release; a user may lie in several clients."""
        (cost,) = super().costs(replace(plan, noise_multiplier=z))
        one: Event = LaplaceL2Event(z) if self._by_rho(plan) else GaussianEvent(z)
        return (replace(cost, event=one if cost.copies == 1 else Repeated(one, cost.copies)),)

    def require(self, plan: Plan) -> None:
        if (self.free or self.managed) and any(plan.local.rate(n) < 1 for n in plan.sizes):
            name = "reselect" if self.reselect else "managed" if self.managed else "a mixture of kinds of clients"
            raise SpecError(
                f"{name} charges every mechanism by its Renyi divergence alone, which drawn batches do not amplify: "
                "use batch_rate = 1, or reselect = 0, managed = false and one kind of clients."
            )
        super().require(plan)

    def _indices(self, plan: Plan, data: str | None = None) -> Tensor:
        """What is chosen for each kind, as numbers."""
        names = [self.chosen(plan, data, kind).mechanism for kind in range(len(self.kinds(plan).kinds))]
        return torch.tensor([harmonizer.MECHANISMS.index(name) for name in names])

    def fresh(self, state: State, clients: int, plan: Plan) -> Rows:
        first = super().fresh(state, clients, plan)
        return torch.cat([first, first.new_zeros(clients, _managed.KEPT)], dim=1) if self.managed else first

    def clipped(
        self, weights: Tensor, batch: Batch, model: Model, state: State, plan: Plan, seeds: list[int], groups: Groups
    ) -> Bounded:
        name = self.noise_of(state, plan)
        if harmonizer.NORMS[name] == 2:
            return super().clipped(weights, batch, model, state, plan, seeds, groups)
        bound = self.bound(state, plan) * harmonizer.bound(name, weights.shape[-1])
        sums = model.gradients.sums(weights, batch, bound, seeds=seeds, groups=groups, norm=1)
        return Bounded(sums, bound, norm=1)

    def add(self, sums: Bounded, z: float | Tensor, state: State, plan: Plan, rng: RowStream) -> Rows:
        name = self.noise_of(state, plan)
        if sums.value.shape[1] > 1:  # of one number all norms are the same
            sums.require(harmonizer.NORMS[name], name)
        if name == "gaussian":
            return super().add(sums, z, state, plan, rng)
        if name != "staircase":
            return sums.value + z * sums.bound * laplace(rng, sums.value)
        return staircase(sums, z, rng)

    def train(
        self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream
    ) -> tuple[Rows, Rows]:
        first, allowed, silent = own, None, None
        if self.managed:
            first, rest = own[:, : own.shape[1] - _managed.KEPT], own[:, own.shape[1] - _managed.KEPT :]
            allowed = [_managed.allow(_managed.kept(row), state, plan) for row in rest.cpu()]
            silent = torch.tensor([units == 0 for units, _ in allowed], dtype=torch.bool, device=own.device)[:, None]
        scales = self._scales(plan, rng, allowed)
        if allowed is not None:
            loud = torch.tensor([z or 1.0 for z in scales], dtype=own.dtype, device=own.device)[:, None]
            state = replace(state, extra=state.extra | {SCALES: loud})
        rows, mine = self._by_mechanism(state, data, first, model, plan, rng)
        rows = torch.cat([rows, *self._columns(data, rows, plan, rng)], dim=1)
        if allowed is not None and silent is not None:  # who has nothing left says nothing, and learns nothing
            rows, mine = torch.where(silent, 0.0, rows), torch.where(silent, first, mine)
            kept = torch.tensor([after for _, after in allowed], dtype=own.dtype, device=own.device)
            mine = torch.cat([mine, kept.reshape(-1, _managed.KEPT)], dim=1)
        return torch.cat([rows, *self._told(state, plan, rng, scales, allowed, rows)], dim=1), mine

    def _scales(self, plan: Plan, rng: RowStream, allowed: Allowed | None) -> list[float]:
        """Each client's noise multiplier of a step; 0: it has nothing left."""
        whole = [plan.multipliers[int(i)] if plan.multipliers else plan.z for i in rng.ids]
        if allowed is None:
            return whole
        return [
            _managed.noise_for(units, self._releases(plan), z) for (units, _), z in zip(allowed, whole, strict=True)
        ]

    def _releases(self, plan: Plan) -> int:
        """Noisy sums of a participation."""
        return plan.local.count(plan.smallest_client) + ("losses" in plan.algorithm.needs)

    def _noise_of(self, state: State, plan: Plan, rng: RowStream) -> float | Tensor:
        return state.extra[SCALES] if SCALES in state.extra else super()._noise_of(state, plan, rng)

    def _by_mechanism(
        self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream
    ) -> tuple[Rows, Rows]:
        """Clients of one mechanism are trained together."""
        if not self.mixed:
            return self._alike(state, data, own, model, plan, rng)
        dealt = self.kinds(plan)
        names = [harmonizer.MECHANISMS.index(self.noise_of(state, plan, k)) for k in range(len(dealt.kinds))]
        mine, done = np.array(names)[dealt.of[rng.ids]], []
        order = [np.flatnonzero(mine == number) for number in np.unique(mine)] or [np.arange(0)]
        for at in order:
            extra = state.extra | {NAMED: torch.tensor(int(mine[at[0]]) if len(at) else 0)}
            if SCALES in extra:
                extra[SCALES] = extra[SCALES][at]
            part = RowStream(rng.stream, rng.ids[at])
            done.append(self._alike(replace(state, extra=extra), _clients(data, at), own[at], model, plan, part))
        back = torch.from_numpy(np.argsort(np.concatenate(order))).to(own.device)
        rows, kept = (torch.cat([one[j] for one in done])[back] for j in (0, 1))
        return rows, kept

    def _alike(
        self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream
    ) -> tuple[Rows, Rows]:
        """Clients of one mechanism: DP-SGD."""
        return super().train(state, data, own, model, plan, rng)

    def _tells(self) -> bool:
        """Whether rows say what noise is in them."""
        return self.managed or self.mixed

    def _told(
        self, state: State, plan: Plan, rng: RowStream, scales: list[float], allowed: Allowed | None, like: Rows
    ) -> list[Rows]:
        """Public columns about each row's noise."""
        if not self._tells():
            return []
        local, dealt, whole = plan.now(state), self.kinds(plan), _managed.UNITS
        steps, over = local.count(plan.smallest_client), local.expected_batch(plan.mean_client)
        names = [self.noise_of(state, plan, k) for k in range(len(dealt.kinds))]
        unit = local.learning_rate * math.sqrt(steps) * self.bound(state, plan) / over
        own = [names[k] for k in dealt.of[rng.ids]]
        stds = [
            unit * harmonizer.deviation(name, z, plan.dim) if z else 0.0 for name, z in zip(own, scales, strict=True)
        ]
        fourths = [0.0 if n == "gaussian" else 3 * std**4 / steps for n, std in zip(own, stds, strict=True)]
        shares = [(u / whole, (whole - after[0]) / whole) for u, after in allowed or ()] or [(0.0, 1.0)] * len(scales)
        return [_managed.columns(rng.ids.tolist(), shares, scales, stds, fourths, like)]

    def _columns(self, data: Batch, rows: Rows, plan: Plan, rng: RowStream) -> list[Rows]:
        """Public columns behind a message that the server needs."""
        return []


def laplace(rng: RowStream, like: Rows) -> Rows:
    """Lap(0, 1) of the shape of `like`, on its device: of independent normals X, Y, (X^2 + Y^2) / 2 is Exp(1), and the
    sign of X is independent of it."""
    dim = like.shape[1]
    x, y = rng.normal(2 * dim, like).chunk(2, dim=1)
    return torch.sign(x) * (x * x + y * y) / 2


def staircase(sums: Bounded, z: float | Tensor, rng: RowStream) -> Rows:
    """L1-ball staircase noise with epsilon = 1 / z of every row."""
    dim = sums.value.shape[1]
    if isinstance(z, float):
        return harmonizer.ball(1 / z, dim).add(Bounded(sums.value, sums.bound, norm=1), rng)
    out = sums.value.clone()
    for one in sorted(set(z[:, 0].tolist())):
        mask = z[:, 0] == one
        part = RowStream(rng.stream, rng.ids[mask.cpu().numpy()])
        out[mask] = harmonizer.ball(1 / one, dim).add(Bounded(sums.value[mask], sums.bound, norm=1), part)
    return out


def _clients(data: Batch, at: Ints) -> Batch:
    """The clients at these places."""
    ends = np.cumsum([0, *data.sizes])
    index = [np.arange(ends[k], ends[k + 1]) for k in at]
    sizes = tuple(data.sizes[k] for k in at)
    found = data.pick(torch.from_numpy(np.concatenate([np.arange(0), *index])).to(data.x.device), sizes)
    return found if data.groups is None else replace(found, groups=tuple(data.groups[k] for k in at))
