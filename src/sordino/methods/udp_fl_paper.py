"""UDP-FL as printed.  Feng et al. (2025), "Harmonizing Differential Privacy Mechanisms for Federated Learning: Boosting
Accuracy and Convergence", CODASPY, Sections 3 to 5, and the authors' public code (github.com/datasec-lab/UDP-FL).

Claims (epsilon, delta) for a record against the server, with Gaussian, Laplace or staircase noise on each coordinate of
gradients that are clipped in L2. How noise follows from epsilon is ambiguous, so it is an option:

`reading = 1-d`: every coordinate gets the noise of a query of one number whose sensitivity is the whole clip norm, with
the exact one-dimensional accountant (Poisson batches, all steps). Only so does staircase noise fall below Gaussian
noise at epsilon = 6, where Table 3 has the two cross; the paper's place for Laplace, behind both, it does not give. The
paper never treats the vector. What holds:
- gaussian: the claim. This is plain DP-SGD, and there is nothing to correct;
- laplace: the L2 law, 1/(2 b^2)-zCDP, so more than was claimed as b is less than the Gaussian multiplier;
- staircase: any shift of a coordinate can cost lambda, so d D_a(C / sqrt(d)): hundreds after a single step of the
  setting "epsilon = 6" in 26,010 dimensions. It is accounted so (finite, and no protection).

`reading = code`: the defaults of the code as published. No accountant exists in it and epsilon is not used. One clip of
2 on the mean gradient of a batch (a record moves it by up to 4 whatever the batch size), then Gaussian noise of
standard deviation 0.1, Laplace noise of scale 1 or a staircase with step 0.01, lambda = 5, gamma = 0.498, whose sampler
subtracts 1 from a geometric variable that starts at 0 already. What holds: Gaussian noise of multiplier 0.1 / 4 a step;
Laplace noise of 1 / 4; nothing for the staircase.

`mechanism = auto` (reading 1-d): the Harmonizer as printed. Every client looks at exact statistics of its own private
gradients, picks the mechanism with the best score and clips at the sensitivity it measured; _printed_harmonizer.py has
the rules and what the text leaves open. Profile, compute and what is declared of the data may differ by client
(_kinds.py). A client chooses again after `reselect` rounds, or (0) once, in the first round that it takes part in.
Every mechanism is calibrated to the client's (epsilon, delta). Nothing holds: which noise a client adds, and how much,
is a function of its records. The paper's experiments fix the mechanism by hand (Section 5.2); so does the default here.

Clients with budgets of their own (key `budgets`) have scales of their own, each calibrated as above to its epsilon_k;
with `auto`, the multiplier that a run shows is that of the Gaussian version, whose claim the other mechanisms match.
From there on epsilon_k is the claim at the run's delta, so that budgets with other deltas compare.
Accounted is what holds for the client with the least noise. `penalty`: w <- w - eta (g + lambda_k (w - w_max)),
lambda_k = (eps_max - eps_k) / eps_max, for clients with less than the largest budget (Section 3.3). Printed is g^c, the
gradient before noise; read as the noisy one, or nothing private would be left. w_max has no definition: the mean of the
last messages of those with the largest budget, as in udp_fl.py, but here nothing keeps a step from going past it.
`path`: the server's low-loss path (Section 3.2, step 4), on the records of `server_data`, as in udp_fl.py. Penalty and
path use public numbers and what was released: they cost nothing.

"Adjusts [the noise] multiplier throughout training by computing Renyi Divergence at each iteration": a multiplier that
is calibrated to all rounds has nothing to adjust.

Theorems 1 to 3 of the paper do not hold either: privacy/claims.py. Differs from the code: clients have their own data,
and learning rate, optimiser and model are those of the run. Sound form: udp_fl.py."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream, Stream
from sordino.core.types import Batch, Model, Rows, State
from sordino.core.vector import Layout
from sordino.methods import _kinds, harmonizer, low_loss_path
from sordino.methods import _printed_harmonizer as printed
from sordino.methods import _udp_fl_code as code
from sordino.methods import local as training
from sordino.methods._udp_fl_code import MAX_NORM, SCALE, STD, STEP
from sordino.methods.augment import augment
from sordino.methods.base import Claim, Plan
from sordino.methods.dp_sgd import DpSgd, Groups
from sordino.methods.udp_fl import UdpFl, pulled
from sordino.privacy.clip import Bounded, clip_rows
from sordino.privacy.events import Composed, Cost, Event, NonPrivate, Repeated, Sampled
from sordino.privacy.events import Gaussian as GaussianEvent
from sordino.privacy.mechanisms.laplace import LaplaceL2Event
from sordino.privacy.mechanisms.staircase import PerCoordinateStaircaseEvent, best_gamma

__all__ = ["UdpFlPaper"]

OPEN = (
    "every client picks its mechanism and its clip by exact statistics of its private gradients, and both show in the "
    "shape and the size of its noise"
)
KEPT = len(printed.KEPT)  # columns that a client keeps of its last choice
TOLD = 2 + KEPT  # and that it tells: 1, which client it is, what it keeps


@dataclass(frozen=True)
class UdpFlPaper(DpSgd):
    mechanism: str = "staircase"  # gaussian, laplace, staircase, or auto (every client picks by its gradients)
    reading: str = "1-d"  # 1-d (each coordinate a query of its own) or code (the published code's defaults)
    profile: str = "standard"  # auto: whose weights the score takes: standard, medical, iot, or a mixture: iot:0.3,...
    resources: str = "standard"  # auto: the clients' compute: limited, standard, high, or a mixture
    data: str = "measured"  # auto: measured, or one more description of Table 2 that is declared, or a mixture
    prior: float = 0.5  # auto: how much Table 2 counts, 0 to 1
    reselect: int = 0  # auto: rounds after which a client chooses again; 0: never
    penalty: bool = True  # pull clients with smaller budgets to the models of those with the largest
    path: str = "none"  # intermediate models: none, pairs, polygon, bezier or tuned (no path, to compare)
    path_steps: int = 10  # SGD steps on public data that optimise a path
    path_lr: float = 0.1  # their learning rate
    path_pairs: int = 4  # paths at most

    private: ClassVar[bool] = False
    own_noise: ClassVar[bool] = True
    units: ClassVar[tuple[str, ...]] = ("record",)
    algorithms: ClassVar[tuple[str, ...]] = (
        "fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox", "scaffold", "q-fedavg",
    )  # fmt: skip
    channels: ClassVar[tuple[str, ...]] = ("direct",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check.one_of(("auto", *printed.MECHANISMS), mechanism=self.mechanism)
        check.one_of(("1-d", "code"), reading=self.reading)
        _kinds.parse("profile", self.profile, tuple(harmonizer.PROFILES))
        _kinds.parse("resources", self.resources, tuple(harmonizer.RESOURCES))
        _kinds.parse("data", self.data, ("measured", *harmonizer.DATA))
        check.non_negative(prior=self.prior, reselect=self.reselect)
        if self.prior > 1:
            raise SpecError(f"prior must lie in [0, 1], not {self.prior!r}.")
        if self.reselect and self.mechanism != "auto":
            raise SpecError(f"reselect needs mechanism = auto; {self.mechanism} was asked for.")
        if self.mechanism == "auto" and self.reading == "code":
            raise SpecError("mechanism = auto: the published code has no Harmonizer. Use reading = 1-d.")
        if self.batch_sampling != "poisson":
            raise SpecError("udp-fl-paper calibrates its noise for Poisson batches: use batch_sampling = poisson.")
        self._server()  # looks at the keys of the path

    # --- how much noise, and what it costs

    def multiplier(self, plan: Plan, round: int) -> float:
        """Noise scale over the clip, as of one number: b = z C, and lambda = 1 / z with step C.

        The least of all clients; with auto, that of the Gaussian version."""
        if plan.multipliers:
            return min(plan.multipliers)
        if plan.noise_multiplier is not None:
            return plan.noise_multiplier
        return harmonizer.calibrated(self._run(plan), printed.leaf(self._calibrated), float(plan.epsilon), plan.delta)

    def _run(self, plan: Plan) -> Event:
        """All that a client releases, with Gaussian noise of multiplier one."""
        (cost,) = super().costs(replace(plan, noise_multiplier=1.0, multipliers=()))
        return Repeated(cost.event, plan.participations)

    @property
    def _calibrated(self) -> str:
        """Whose noise the multipliers are of."""
        return "gaussian" if self.mechanism == "auto" else self.mechanism

    def budgets(self, plan: Plan) -> dict[float, float]:
        """By the clients' multipliers: the epsilon that is claimed for them."""
        if not plan.multipliers and plan.noise_multiplier is None:
            return {self.multiplier(plan, 0): float(plan.epsilon)}
        own = sorted(set(plan.multipliers) or {plan.z})
        return {z: printed.claimed(self._run(plan), self._calibrated, z, plan.delta) for z in own}

    def strengths(self, plan: Plan) -> dict[float, float]:
        """By the clients' multipliers: lambda_k = (eps_max - eps_k) / eps_max."""
        found = self.budgets(plan)
        most = max(found.values())
        return {z: (most - e) / most for z, e in found.items()}

    def costs(self, plan: Plan, round: int = 0) -> tuple[Cost, ...]:
        if self.mechanism == "auto":
            return (Cost("record", "add/remove", "server", NonPrivate(OPEN)),)
        if self.reading == "1-d":
            return tuple(replace(c, event=self._true(c.event, plan.dim)) for c in super().costs(plan, round))
        event: Event
        if self.mechanism == "staircase":
            event = NonPrivate(
                f"a record moves a batch's gradient by up to {2 * MAX_NORM / STEP:g} steps of the staircase, in every "
                "coordinate"
            )
        else:
            noise = GaussianEvent(STD / (2 * MAX_NORM)), LaplaceL2Event(SCALE / (2 * MAX_NORM))
            event = Repeated(noise[self.mechanism == "laplace"], max(plan.local.count(n) for n in plan.sizes))
            if "losses" in plan.algorithm.needs:
                event = NonPrivate("the clients' losses are sent as they are")
        return (Cost("record", "replace", "server", event),)

    def _true(self, event: Event, dim: int) -> Event:
        """The noise of one number, on each of dim numbers: what it costs under an L2 clip."""
        match event:
            case GaussianEvent(z) if self.mechanism == "staircase" and dim > 1:
                lam = min(printed.STEEPEST, 1 / z)
                return PerCoordinateStaircaseEvent(lam, best_gamma(lam), dim, 2)
            case GaussianEvent(z) if self.mechanism == "laplace" and dim > 1:
                return LaplaceL2Event(z)
            case Repeated(inner, count):
                return Repeated(self._true(inner, dim), count)
            case Sampled(inner, rate, relation):
                return Sampled(self._true(inner, dim), rate, relation)
            case Composed(events):
                return Composed(tuple(self._true(e, dim) for e in events))
            case _:
                return harmonizer.of(event, printed.leaf(self.mechanism))

    def claim(self, plan: Plan) -> Claim | None:
        source = "Feng et al. (2025), UDP-FL, Sections 3.3 and 5.2"
        if self.reading == "code":
            why = (
                f"the code uses no epsilon and no accountant; it clips the mean gradient of a batch to "
                f"{MAX_NORM:g}, so one record moves it by up to {2 * MAX_NORM:g} whatever the batch size"
            )
            return Claim(plan.epsilon, plan.delta, source + ", as in the public code", why)
        most = min(plan.epsilon, max(self.budgets(plan).values())) if plan.multipliers else plan.epsilon
        if self.mechanism == "auto":
            return Claim(most, plan.delta, "Feng et al. (2025), UDP-FL, Section 3.3 and Algorithm 1", OPEN)
        if self.mechanism == "gaussian" or plan.dim == 1:
            return None  # it holds
        why = {
            "laplace": "the scale is that of one number with the clip norm as its sensitivity; on the "
            f"{plan.dim:,} numbers of a gradient Laplace noise under an L2 clip protects no better than Gaussian noise "
            "with that multiplier, which is less than epsilon needs",
            "staircase": "the step and lambda are those of one number with the clip norm as its sensitivity; any shift "
            f"of any of the {plan.dim:,} coordinates can cost lambda, so a single step already costs far more than the "
            "total that was claimed",
        }[self.mechanism]
        return Claim(most, plan.delta, source, why)

    # --- clients

    def _server(self) -> UdpFl:
        """The sound form's penalty and path, which ask for nothing but what was released."""
        way = {k: getattr(self, k) for k in ("penalty", "path", "path_steps", "path_lr", "path_pairs")}
        return UdpFl(mechanism="gaussian", clip=self.clip, **way)

    def uses_public(self) -> bool:
        return self.path in low_loss_path.CURVES

    def begin(self, state: State, layout: Layout, plan: Plan) -> State:
        if self.reading == "code" and plan.multipliers:
            raise SpecError("budgets: the published code uses no epsilon, so no client's either. Use reading = 1-d.")
        return self._server().begin(state, layout, plan)

    def fresh(self, state: State, clients: int, plan: Plan) -> Rows:
        """With auto the last columns are the client's last choice; -1: none yet."""
        theirs = super().fresh(state, clients, plan)
        mine = KEPT if self.mechanism == "auto" else 0
        return torch.cat([theirs, theirs.new_full((clients, mine), -1.0)], dim=1)

    def add(self, sums: Bounded, z: float | Tensor, state: State, plan: Plan, rng: RowStream) -> Rows:
        if isinstance(z, float):
            return printed.add(self.mechanism, z, sums, rng)
        wide = sums.value.new_full((len(z), 1), sums.bound)
        return printed.add_each(sums.value, [self.mechanism] * len(z), z[:, 0].tolist(), wide, rng)

    def _noise_of(self, state: State, plan: Plan, rng: RowStream) -> float | Tensor:
        if plan.multipliers:
            return plan.z_of(rng.ids, torch.zeros(0, dtype=torch.float64))
        return self.multiplier(plan, state.round)

    def train(
        self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream
    ) -> tuple[Rows, Rows]:
        """After the algorithm's message: columns that penalty and path need, then (auto) what was chosen."""
        server, within = self._server(), plan
        if server._pulls(plan):
            strength, goal = self.strengths(plan), state.extra["w_max"]
            pull = goal.new_tensor([strength[plan.multipliers[int(i)]] for i in rng.ids])[:, None]
            within = replace(plan, algorithm=pulled(plan.algorithm, lambda w: pull * (w - goal)))
        if self.mechanism != "auto":
            way = self._as_in_the_code if self.reading == "code" else super().train
            rows, own = way(state, data, own, model, within, rng)
            return torch.cat([rows, *server._columns(data, rows, plan, rng)], dim=1), own
        asked = self._asked(plan, rng.ids.tolist())
        kept = self._choices(state, data, own[:, -KEPT:], model, plan, rng)
        names = [printed.MECHANISMS[int(i)] for i in kept[:, 0].tolist()]
        scales = [printed.terms(a)[name].scale for a, name in zip(asked, names, strict=True)]
        once = _Once(**vars(self), names=tuple(names), scales=tuple(scales), bounds=printed.bounds(kept, self.clip))
        rows, own = DpSgd.train(once, state, data, own[:, :-KEPT], model, within, rng)
        ids = torch.from_numpy(rng.ids).to(kept)[:, None]
        told = torch.cat([torch.ones_like(ids), ids, kept], dim=1)
        columns = server._columns(data, rows, plan, rng)
        return torch.cat([rows, *columns, told], dim=1), torch.cat([own, kept], dim=1)

    def _asked(self, plan: Plan, clients: list[int]) -> list[printed.Asked]:
        """What is asked of these clients' noise."""
        budgets, run = self.budgets(plan), self._run(plan)
        own = plan.multipliers or tuple(budgets) * plan.population
        dealt = _kinds.deal(self.profile, self.resources, self.data, plan.population)
        kinds = [dealt.kinds[dealt.of[i]] for i in clients]
        return [
            printed.Asked(run, budgets[own[i]], plan.delta, k.profile, k.resources, float(self.prior), k.data)
            for i, k in zip(clients, kinds, strict=True)
        ]

    def _choices(self, state: State, data: Batch, kept: Rows, model: Model, plan: Plan, rng: RowStream) -> Rows:
        """The clients' last choices, after those for whom it is time have chosen again."""
        due = kept[:, 0] < 0
        if self.reselect:
            due |= state.round + 1 - kept[:, printed.KEPT.index("round")] >= self.reselect
        if not bool(due.any()):
            return kept
        found = printed.statistics(state.params, data, model, rng.at("look").integers())
        asked, features = self._asked(plan, rng.ids.tolist()), math.prod(data.x.shape[1:])
        every = zip(found.tolist(), data.sizes, asked, strict=True)
        words = [printed.words(one[0], one[1], n, features, plan.population, a.data) for one, n, a in every]
        return torch.where(due[:, None], printed.chosen(kept, state.round + 1, asked, words, found), kept)

    def _as_in_the_code(
        self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream
    ) -> tuple[Rows, Rows]:
        local = plan.now(state)

        def gradient(weights: Tensor, batch: Batch, number: int) -> Rows:
            """The mean gradient of the batch, clipped as a whole, with the code's noise."""
            seen, groups = augment(batch, local.augment, local.views, rng.at("augment", number))
            seeds = rng.at("model", number).integers()
            sums = model.gradients.sums(weights, seen, None, seeds=seeds, groups=groups)
            size = torch.tensor(batch.sizes, device=sums.device, dtype=sums.dtype)[:, None].clamp_min(1)
            return code.add(self.mechanism, clip_rows(sums / size, MAX_NORM), rng.at("noise", number))

        rows, own = training.sgd(state, data, own, model, plan, rng, gradient)
        weights = torch.tensor(data.sizes, device=rows.device, dtype=rows.dtype) / plan.mean_client
        return rows * weights[:, None], own

    # --- server, and the record

    def merge(self, state: State, rows: Rows, plan: Plan, rng: Stream) -> State:
        if self.mechanism != "auto":
            return self._server().merge(state, rows, plan, rng)
        after = self._server().merge(state, rows[:, :-TOLD], plan, rng)
        told = rows[:, -TOLD:].double().cpu()
        told = told / told[:, :1]  # whatever an answer counts (stragglers), what it says stays
        return replace(after, extra=after.extra | {"told": told})

    def noise(self, state: State, plan: Plan) -> float | None:
        if self.mechanism == "auto" or (plan.multipliers and self.mechanism == "staircase"):
            return None  # not in proportion to the multipliers: see `decided`
        if self.reading == "code":
            steps = plan.local.count(plan.smallest_client)
            return plan.now(state).learning_rate * math.sqrt(steps) * code.deviation(self.mechanism)
        own = plan.multipliers or (self.multiplier(plan, state.round),)
        return self._in_message(sum(printed.deviation(self.mechanism, z) for z in own) / len(own), state, plan)

    def _in_message(self, deviation: float, state: State, plan: Plan) -> float:
        """In a client's message, of noise with this deviation times the clip in every step."""
        local = plan.now(state)
        steps, batch = local.count(plan.smallest_client), local.expected_batch(plan.mean_client)
        return local.learning_rate * math.sqrt(steps) * deviation * self.clip / batch

    def decided(self, state: State, plan: Plan) -> dict[str, Any] | None:
        out: dict[str, Any] = {}
        before = replace(state, round=max(0, state.round - 1))
        if "told" in state.extra:
            asked = self._asked(plan, [round(c) for c in state.extra["told"][:, 1].tolist()])
            found, deviation = printed.record(state.extra["told"][:, 1:], asked, self.clip)
            one = {} if deviation is None or plan.multipliers else {"std": self._in_message(deviation, before, plan)}
            out |= found | one
        if plan.multipliers and self.mechanism == "staircase":
            each = {z: printed.deviation("staircase", z) for z in sorted(set(plan.multipliers))}
            out["deviations"] = {f"{z:.6g}": self._in_message(d, before, plan) for z, d in each.items()}
        if self._server()._pulls(plan) and state.round <= 1:
            out["penalty"] = {f"{z:.6g}": s for z, s in self.strengths(plan).items()}
        if "path" in state.extra:
            out["path_loss"], out["straight_loss"] = state.extra["path"].tolist()
        return out or None

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        out: list[str] = []
        last = None
        for record in rounds:
            found, number = record.get("decided") or {}, record["round"]
            for z, strength in found.get("penalty", {}).items():
                out.append(f"Clients with noise multiplier {z} are pulled with lambda = {strength:.3f}.")
            if (each := found.get("deviations")) and each != last:
                stds = "; ".join(f"{std:.4g} with noise multiplier {z}" for z, std in each.items())
                out.append(f"Round {number}: noise in a message, standard deviation a coordinate: {stds}.")
            last = each
            out += printed.told(number, found) if "clients" in found else []
            if "path_loss" in found:
                along, straight = (sum(found[k]) / len(found[k]) for k in ("path_loss", "straight_loss"))
                told = f"mean loss between the first two models {along:.4g} on the path, {straight:.4g} straight across"
                out.append(f"Round {number}: {told}.")
        return out


@dataclass(frozen=True)
class _Once(UdpFlPaper):
    """The same for one round of training, with what every client chose."""

    names: tuple[str, ...] = ()
    scales: tuple[float, ...] = ()
    bounds: Tensor | None = field(default=None)  # [clients, 1]; None: the bound of what is noised

    def _noise_of(self, state: State, plan: Plan, rng: RowStream) -> Tensor:
        return torch.tensor(self.scales, dtype=torch.float64)[:, None]

    def _losses(self, state: State, data: Batch, model: Model, plan: Plan, rng: RowStream) -> Tensor:
        return super(_Once, replace(self, bounds=None))._losses(state, data, model, plan, rng)

    def clipped(
        self, weights: Tensor, batch: Batch, model: Model, state: State, plan: Plan, seeds: list[int], groups: Groups
    ) -> Bounded:
        if self.bounds is None:
            raise TypeError("a round of training needs the clients' bounds")
        scale = self.bounds.expand(-1, model.layout.dim).contiguous()
        return Bounded(model.gradients.sums(weights, batch, 1.0, seeds=seeds, groups=groups, scale=scale), self.clip)

    def add(self, sums: Bounded, z: float | Tensor, state: State, plan: Plan, rng: RowStream) -> Rows:
        wide = sums.value.new_full((len(self.names), 1), sums.bound) if self.bounds is None else self.bounds
        return printed.add_each(sums.value, self.names, self.scales, wide, rng)
