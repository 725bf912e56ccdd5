"""UDP-FL as printed.  Feng et al. (2025), "Harmonizing Differential Privacy Mechanisms for Federated Learning: Boosting
Accuracy and Convergence", CODASPY, Sections 3 to 5, and the authors' public code (github.com/datasec-lab/UDP-FL).

Claims (epsilon, delta) for a record against the server, with Gaussian, Laplace or staircase noise on each coordinate of
gradients that are clipped in L2. How the noise follows from epsilon is ambiguous, so it is an option:

`reading = 1-d`: every coordinate gets the noise of a query of one number whose sensitivity is the whole clip bound,
with the exact one-dimensional accountant (Poisson batches, all steps). Only in this reading does staircase noise fall
below Gaussian noise at epsilon = 6, where the two cross in Table 3; it does not reproduce the paper's rank of Laplace
noise, behind both. The paper never treats the vector. What holds:
- gaussian: the claim. This is plain DP-SGD, and there is nothing to correct;
- laplace: the bound for L2-clipped vectors, 1/(2 b^2)-zCDP, which costs more than was claimed, as b is less than the
  Gaussian multiplier;
- staircase: any shift of a coordinate can cost lambda, so d D_a(C / sqrt(d)): hundreds after a single step of the
  setting "epsilon = 6" in 26,010 dimensions. It is accounted in this way (finite, but no protection).

`reading = code`: the defaults of the published code. It has no accountant, and epsilon is not used. The mean gradient
of a batch is clipped to 2 (a record moves it by up to 4, whatever the batch size). It then gets Gaussian noise of
standard deviation 0.1, Laplace noise of scale 1 or a staircase with step 0.01, lambda = 5, gamma = 0.498, whose sampler
subtracts 1 from a geometric variable that already starts at 0. What holds: Gaussian noise of multiplier 0.1 / 4 per
step; Laplace noise of multiplier 1 / 4; nothing for the staircase.

`mechanism = auto` (reading 1-d): the Harmonizer as printed. Every client computes exact statistics of its own private
gradients, picks the mechanism with the best score and clips to the sensitivity it measured; printed_harmonizer.py has
the rules and the choices that the text leaves open. Profile, compute and declared data may differ by client (kinds.py).
A client chooses again after `reselect` rounds, or, if that is 0, only once, in the first round that it takes part in.
Every mechanism is calibrated to the client's (epsilon, delta). Nothing holds: which noise a client adds, and how much,
is a function of its records. The paper's experiments fix the mechanism by hand (Section 5.2); so does the default here.

Clients with their own budgets (key `budgets`) have their own scales, each calibrated as above to its epsilon_k; with
`auto`, the multiplier that a run shows is that of the Gaussian version, whose claim the other mechanisms match. After
calibration, epsilon_k is the claim at the run's delta, so that budgets with other deltas are comparable. The accounting
states what holds for the client with the least noise. `penalty`: w <- w - eta (g + lambda_k (w - w_max)),
lambda_k = (eps_max - eps_k) / eps_max, for clients with less than the largest budget (Section 3.3). The paper prints
g^c, the gradient before noise; we read it as the noisy gradient, as otherwise nothing would be private. The paper does
not define w_max: we take the mean of the last messages of the clients with the largest budget, as in udp_fl/method.py,
but here a step may go past it. `path`: the server's low-loss path (Section 3.2, step 4), on the records of
`server_data`, as in udp_fl/method.py. Penalty and path use public numbers and releases only: they cost no privacy.

"Adjusts [the noise] multiplier throughout training by computing Renyi Divergence at each iteration": a multiplier that
is calibrated to all rounds needs no adjustment.

Theorems 1 to 3 of the paper do not hold either: see methods/_claims.py. How this differs from the code: clients have
their own data, and learning rate, optimiser and model are those of the run. The sound form is udp_fl/method.py."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sordino.algorithms.base import Algorithm
from sordino.contract import clipped_steps
from sordino.contract import local_sgd as training
from sordino.contract.augment import augment
from sordino.contract.method import Claim, Method, Own, Plan, Release, Site
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.types import Batch, Rows, State
from sordino.core.vector import Layout
from sordino.methods.udp_fl import harmonizer
from sordino.methods.udp_fl import kinds as _kinds
from sordino.methods.udp_fl import printed_harmonizer as printed
from sordino.methods.udp_fl import published_code as code
from sordino.methods.udp_fl.harmonised import gaussian_run
from sordino.methods.udp_fl.published_code import MAX_NORM
from sordino.methods.udp_fl.server import Guide
from sordino.privacy.clip import Bounded, clip_rows
from sordino.privacy.events import Event
from sordino.privacy.release import Unproven

__all__ = ["UdpFlPaper"]

OPEN = (
    "each client chooses its mechanism and its clip bound from exact statistics of its private gradients, and the "
    "shape and the scale of its noise reveal both"
)
CHOICE = "choice"  # name under which clients store and report their last choice


@dataclass(frozen=True)
class PaperState:
    """The server's state besides the model."""

    told: Tensor | None = None  # [clients, 1 + KEPT]: each client of the last round and its choice
    w_max: Tensor | None = None  # [dim]: model that clients with smaller budgets are pulled towards
    path: Tensor | None = None  # [2, points]: losses along the server's path, and along the straight line


@dataclass(frozen=True)
class UdpFlPaper(Method):
    """UDP-FL as printed; its claim holds for Gaussian noise in the reading 1-d, but not in general."""

    clip: float = 1.0  # C: bound on the L2 norm of one record's gradient
    batch_sampling: str = "poisson"  # the only sampling that the noise is calibrated for
    mechanism: str = "staircase"  # gaussian, laplace, staircase, or auto (every client picks by its gradients)
    reading: str = "1-d"  # 1-d (each coordinate a query of its own) or code (the published code's defaults)
    profile: str = "standard"  # auto: weights of the score: standard, medical, iot, or a mixture: iot:0.3,...
    resources: str = "standard"  # auto: the clients' compute: limited, standard, high, or a mixture
    data: str = "measured"  # auto: measured, or an additional declared description of Table 2, or a mixture
    prior: float = 0.5  # auto: weight of Table 2 in the score, 0 to 1
    reselect: int = 0  # auto: rounds after which a client chooses again; 0: never
    penalty: bool = True  # pull clients with smaller budgets towards the models of those with the largest
    path: str = "none"  # intermediate models: none, pairs, polygon, bezier or tuned (no path, to compare)
    path_steps: int = 10  # SGD steps on public data that optimise a path
    path_lr: float = 0.1  # learning rate of these steps
    path_pairs: int = 4  # largest number of paths

    private: ClassVar[bool] = False
    reads: ClassVar[str] = "rows"
    by_records: ClassVar[bool] = True
    noisy_steps: ClassVar[bool] = True
    own_noise: ClassVar[bool] = True
    units: ClassVar[tuple[str, ...]] = ("record",)
    algorithms: ClassVar[tuple[str, ...]] = (
        "fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox", "scaffold", "q-fedavg",
    )  # fmt: skip
    channels: ClassVar[tuple[str, ...]] = ("direct",)

    def __post_init__(self) -> None:
        check.positive(clip=self.clip)
        check.one_of(clipped_steps.SAMPLINGS, batch_sampling=self.batch_sampling)
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
        self.guide  # checks the options of the path  # noqa: B018

    @property
    def guide(self) -> Guide:
        """The sound form's penalty and path, which use only what was released."""
        return Guide(self.penalty, self.path, self.path_steps, self.path_lr, self.path_pairs)

    def uses_public(self) -> bool:
        return self.guide.curved

    # --- noise scale and privacy cost

    def multiplier(self, plan: Plan) -> float:
        """Return the noise scale z over the clip bound, for one number: b = z C, and lambda = 1 / z with step C.

        It is the smallest of all clients; with auto, that of the Gaussian version."""
        if plan.multipliers:
            return min(plan.multipliers)
        return self.claimed_noise(plan) if plan.noise_multiplier is None else plan.noise_multiplier

    def claimed_noise(self, plan: Plan) -> float:
        """Return the noise scale with which the method claims the plan's (epsilon, delta)."""
        return harmonizer.calibrated(self._run(plan), printed.leaf(self._calibrated), float(plan.epsilon), plan.delta)

    def _run(self, plan: Plan) -> Event:
        return gaussian_run(plan, self.batch_sampling)

    @property
    def _calibrated(self) -> str:
        """The mechanism that the multipliers are calibrated for."""
        return "gaussian" if self.mechanism == "auto" else self.mechanism

    def budgets(self, plan: Plan) -> dict[float, float]:
        """Return the claimed epsilon for each of the clients' noise multipliers."""
        if not plan.multipliers and plan.noise_multiplier is None:
            return {self.claimed_noise(plan): float(plan.epsilon)}
        multipliers = sorted(set(plan.multipliers) or {plan.z})
        return {z: printed.claimed(self._run(plan), self._calibrated, z, plan.delta) for z in multipliers}

    def strengths(self, plan: Plan) -> dict[float, float]:
        """Return lambda_k = (eps_max - eps_k) / eps_max for each of the clients' noise multipliers."""
        epsilons = self.budgets(plan)
        most = max(epsilons.values())
        return {z: (most - e) / most for z, e in epsilons.items()}

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare the noisy gradients of a participation, and what is known to hold for them."""
        if self.reading == "code":
            return code.releases(self.mechanism, plan)
        if self.mechanism == "auto":
            return clipped_steps.releases(
                plan, Unproven(OPEN, printed.EachItsOwn(OPEN)), self.clip, self.batch_sampling
            )
        noise = printed.OneNumber(self.multiplier(plan), self.mechanism, plan.dim)
        return clipped_steps.releases(plan, noise, self.clip, self.batch_sampling)

    def claim(self, plan: Plan) -> Claim | None:
        """Return the paper's claim; None where it holds."""
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
            return None  # the claim holds
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

    def variables(self, state: State, layout: Layout, plan: Plan) -> PaperState:
        if self.reading == "code" and plan.multipliers:
            raise SpecError("budgets: the published code uses no epsilon, so no client's either. Use reading = 1-d.")
        return PaperState(w_max=self.guide.start(state, plan))

    def keeps(self, state: State, clients: int, plan: Plan) -> Own:
        """Return the clients' last choices if the mechanism is auto; -1 means none yet."""
        if self.mechanism != "auto":
            return {}
        return {CHOICE: torch.full((clients, len(printed.KEPT)), -1.0, dtype=torch.float64)}

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Send the noisy update and, with auto, the client's choice."""
        within = self.guide.pull(state, site, self.strengths(site.plan)) if self.guide.pulls(site.plan) else None
        fields, choices = self.guide.fields(site), dict[str, Tensor]()
        if self.mechanism == "auto":
            choices = {CHOICE: self._choices(state, site)}
            rows, mine = self._harmonised(state, site, choices[CHOICE], within)
        elif self.reading == "code":
            rows, mine = self._as_in_the_code(state, site)
        else:
            rows, mine = self._alike(state, site, within)
        message = Message({"update": rows} | fields | choices, clipped_steps.weights(site, rows))
        return message, site.kept(mine, **choices)

    def _alike(self, state: State, site: Site, within: Algorithm | None) -> tuple[Rows, Rows]:
        """Train with one mechanism for all clients, which may have their own scales."""
        plan, multiplier = site.plan, None
        if plan.multipliers:
            multiplier = plan.z_of(site.rng.ids, torch.zeros(0, dtype=torch.float64))

        def clipped(weights: Tensor, batch: Batch, seeds: list[int], groups: clipped_steps.Groups) -> Bounded:
            sums = site.model.gradients.sums(weights, batch, self.clip, seeds=seeds, groups=groups)
            return Bounded(sums, self.clip)

        out = site.out
        return clipped_steps.steps(
            state,
            site,
            clipped,
            lambda sums: out["gradient"](sums, multiplier),
            self.batch_sampling,
            within,
            lambda sums: out["losses"](sums, multiplier),
        )

    def _harmonised(self, state: State, site: Site, choice: Tensor, within: Algorithm | None) -> tuple[Rows, Rows]:
        """Train with the mechanism, scale and bound that each client chose."""
        asked, like = self._asked(site.plan, site.rng.ids.tolist()), state.params
        names = tuple(printed.MECHANISMS[int(i)] for i in choice[:, 0].tolist())
        scales = tuple(printed.terms(a)[name].scale for a, name in zip(asked, names, strict=True))
        bounds = printed.bounds(choice, self.clip).to(like)
        wide = bounds.expand(-1, site.model.layout.dim).contiguous()

        def clipped(weights: Tensor, batch: Batch, seeds: list[int], groups: clipped_steps.Groups) -> Bounded:
            sums = site.model.gradients.sums(weights, batch, 1.0, seeds=seeds, groups=groups, scale=wide)
            return printed.Chosen(sums, self.clip, names=names, scales=scales, bounds=bounds)

        def losses(sums: Bounded) -> Rows:
            cap = sums.value.new_full((len(names), 1), sums.bound)
            return site.out["losses"](printed.Chosen(sums.value, sums.bound, names=names, scales=scales, bounds=cap))

        return clipped_steps.steps(state, site, clipped, site.out["gradient"], self.batch_sampling, within, losses)

    def _asked(self, plan: Plan, clients: list[int]) -> list[printed.NoiseRequest]:
        """Return the requirements on these clients' noise."""
        budgets, run = self.budgets(plan), self._run(plan)
        multipliers = plan.multipliers or tuple(budgets) * plan.population
        dealt = _kinds.deal(self.profile, self.resources, self.data, plan.population)
        kinds = [dealt.kinds[dealt.of[i]] for i in clients]
        return [
            printed.NoiseRequest(
                run, budgets[multipliers[i]], plan.delta, k.profile, k.resources, float(self.prior), k.data
            )
            for i, k in zip(clients, kinds, strict=True)
        ]

    def _choices(self, state: State, site: Site) -> Tensor:
        """Return the clients' last choices, after the clients that are due have chosen again."""
        data, plan, previous = site.data, site.plan, site.own[CHOICE].cpu()
        due = previous[:, 0] < 0
        if self.reselect:
            due |= state.round + 1 - previous[:, printed.KEPT.index("round")] >= self.reselect
        if not bool(due.any()):
            return previous
        measured = printed.statistics(state.params, data, site.model, site.rng.at("look").integers()).cpu()
        asked, features = self._asked(plan, site.rng.ids.tolist()), math.prod(data.x.shape[1:])
        every = zip(measured.tolist(), data.sizes, asked, strict=True)
        words = [printed.words(figures[0], figures[1], n, features, plan.population, a.data) for figures, n, a in every]
        return torch.where(due[:, None], printed.chosen(previous, state.round + 1, asked, words, measured), previous)

    def _as_in_the_code(self, state: State, site: Site) -> tuple[Rows, Rows]:
        """Train as the published code does."""
        plan, data, rng = site.plan, site.data, site.rng
        local = plan.now(state)

        def gradient(weights: Tensor, batch: Batch, number: int) -> Rows:
            """Return the mean gradient of the batch, clipped as a whole, with the code's noise."""
            seen, groups = augment(batch, local.augment, local.views, rng.at("augment", number))
            seeds = rng.at("model", number).integers()
            sums = site.model.gradients.sums(weights, seen, None, seeds=seeds, groups=groups)
            size = torch.tensor(batch.sizes, device=sums.device, dtype=sums.dtype)[:, None].clamp_min(1)
            return site.out["gradient"](clip_rows(sums / size, MAX_NORM))

        counts = plan.stragglers.steps([local.count(n) if n else 0 for n in data.sizes], rng.at("slow"))
        losses = None
        if "losses" in plan.algorithm.needs:
            losses = site.out["losses"](training.mean_losses(state, data, site.model))
        return training.run(state, site, counts, training.batches(data, local, counts, rng), gradient, losses)

    # --- server, and the record

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        """Average the updates, apply the path, and update w_max and the clients' reported choices."""
        answers = plan.expected_answers(state.round)
        mean, changes = self.guide.guided(state, seen, seen.total("update")["update"][0] / answers, plan)
        if self.mechanism == "auto" and seen.ids is not None:
            who = torch.from_numpy(seen.ids).double()[:, None]
            changes["told"] = torch.cat([who, seen[CHOICE].cpu()], dim=1)
        after = plan.algorithm.update(state, mean, plan.server(answers / plan.population))
        return replace(after, method=replace(state.method, **changes))

    def noise(self, state: State, plan: Plan) -> float | None:
        if self.mechanism == "auto" or (plan.multipliers and self.mechanism == "staircase"):
            return None  # not proportional to the multipliers: see `decided`
        if self.reading == "code":
            steps = plan.local.count(plan.smallest_client)
            return plan.now(state).learning_rate * math.sqrt(steps) * code.deviation(self.mechanism)
        multipliers = plan.multipliers or (self.multiplier(plan),)
        deviations = [printed.deviation(self.mechanism, z) for z in multipliers]
        return self._in_message(sum(deviations) / len(deviations), state, plan)

    def _in_message(self, deviation: float, state: State, plan: Plan) -> float:
        """Return the standard deviation in a client's message of noise that has `deviation` times C in every step."""
        local = plan.now(state)
        steps, batch = local.count(plan.smallest_client), local.expected_batch(plan.mean_client)
        return local.learning_rate * math.sqrt(steps) * deviation * self.clip / batch

    def decided(self, state: State, plan: Plan) -> dict[str, Any] | None:
        out: dict[str, Any] = {}
        known: PaperState = state.method
        before = replace(state, round=max(0, state.round - 1))
        if known.told is not None:
            asked = self._asked(plan, [round(c) for c in known.told[:, 0].tolist()])
            figures, deviation = printed.record(known.told, asked, self.clip)
            std = {} if deviation is None or plan.multipliers else {"std": self._in_message(deviation, before, plan)}
            out |= figures | std
        if plan.multipliers and self.mechanism == "staircase":
            each = {z: printed.deviation("staircase", z) for z in sorted(set(plan.multipliers))}
            out["deviations"] = {f"{z:.6g}": self._in_message(d, before, plan) for z, d in each.items()}
        if self.guide.pulls(plan) and state.round <= 1:
            out["penalty"] = {f"{z:.6g}": s for z, s in self.strengths(plan).items()}
        if known.path is not None:
            out["path_loss"], out["straight_loss"] = known.path.tolist()
        return out or None

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        out: list[str] = []
        last = None
        for record in rounds:
            decided, number = record.get("decided") or {}, record["round"]
            for z, strength in decided.get("penalty", {}).items():
                out.append(f"Clients with noise multiplier {z} are pulled with lambda = {strength:.3f}.")
            if (each := decided.get("deviations")) and each != last:
                stds = "; ".join(f"{std:.4g} with noise multiplier {z}" for z, std in each.items())
                out.append(f"Round {number}: noise in a message, standard deviation a coordinate: {stds}.")
            last = each
            out += printed.explain(number, decided) if "clients" in decided else []
            if "path_loss" in decided:
                along, straight = (sum(decided[k]) / len(decided[k]) for k in ("path_loss", "straight_loss"))
                text = f"mean loss between the first two models {along:.4g} on the path, {straight:.4g} straight across"
                out.append(f"Round {number}: {text}.")
        return out
