"""UDP-FL as printed.  Feng et al. (2025), "Harmonizing Differential Privacy Mechanisms for Federated Learning: Boosting
Accuracy and Convergence", CODASPY, Sections 3 to 5, and the authors' public code (github.com/datasec-lab/UDP-FL).

Claims (epsilon, delta) for a record against the server, with Gaussian, Laplace or staircase noise on each coordinate of
gradients that are clipped in L2. How noise follows from epsilon is ambiguous, so it is an option:

`reading = 1-d`: every coordinate gets the noise of a query of one number whose sensitivity is the whole clip norm, with
the exact one-dimensional accountant (Poisson batches, all steps). Only so does staircase
noise fall below Gaussian noise at epsilon = 6, where Table 3 has the two cross; the paper's place for Laplace, behind
both, it does not give. The paper never treats the vector. What holds:
- gaussian: the claim. This is plain DP-SGD, and there is nothing to correct;
- laplace: the L2 law, 1/(2 b^2)-zCDP, so more than was claimed as b is less than the Gaussian multiplier;
- staircase: any shift of a coordinate can cost lambda, so d D_a(C / sqrt(d)): hundreds after a single step of the
  setting "epsilon = 6" in 26,010 dimensions. It is accounted so (finite, and no protection).

`reading = code`: the defaults of the code as published. No accountant exists in it and epsilon is not used. One clip of
2 on the mean gradient of a batch (a record moves it by up to 4 whatever the batch size), then Gaussian noise of
standard deviation 0.1, Laplace noise of scale 1 or a staircase with step 0.01, lambda = 5, gamma = 0.498, whose sampler
subtracts 1 from a geometric variable that starts at 0 already. What holds: Gaussian noise of multiplier 0.1 / 4 a step;
Laplace noise of 1 / 4; nothing for the staircase.

Theorems 1 to 3 of the paper do not hold either: privacy/claims.py. Differs from the code: clients have their own data,
and learning rate, optimiser and model are those of the run. Sound form: udp_fl.py."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream
from sordino.core.types import Batch, Model, Rows, State
from sordino.methods import harmonizer
from sordino.methods import local as training
from sordino.methods.augment import augment
from sordino.methods.base import Claim, Plan
from sordino.methods.dp_sgd import DpSgd
from sordino.methods.udp_fl import laplace
from sordino.privacy.clip import Bounded, clip_rows
from sordino.privacy.events import Composed, Cost, Event, NonPrivate, Repeated, Sampled
from sordino.privacy.events import Gaussian as GaussianEvent
from sordino.privacy.mechanisms.laplace import LaplaceL2Event, plus
from sordino.privacy.mechanisms.staircase import PerCoordinateStaircaseEvent, Staircase, best_gamma

__all__ = ["UdpFlPaper"]

MAX_NORM, STD, SCALE = 2.0, 0.1, 1.0  # of the code: clip of a batch, Gaussian and Laplace noise
STEP, LAMBDA, GAMMA = 0.01, 5.0, 0.498  # of its staircase
STEEPEST = 500.0  # lambda beyond which there is no noise to speak of


@dataclass(frozen=True)
class UdpFlPaper(DpSgd):
    mechanism: str = "staircase"  # gaussian, laplace or staircase
    reading: str = "1-d"  # 1-d (each coordinate a query of its own) or code (the published code's defaults)

    private: ClassVar[bool] = False
    units: ClassVar[tuple[str, ...]] = ("record",)
    algorithms: ClassVar[tuple[str, ...]] = (
        "fedavg", "fedsgd", "fedavgm", "fedopt", "fedprox", "scaffold", "q-fedavg",
    )  # fmt: skip
    channels: ClassVar[tuple[str, ...]] = ("direct",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check.one_of(("gaussian", "laplace", "staircase"), mechanism=self.mechanism)
        check.one_of(("1-d", "code"), reading=self.reading)
        if self.batch_sampling != "poisson":
            raise SpecError("udp-fl-paper calibrates its noise for Poisson batches: use batch_sampling = poisson.")

    def multiplier(self, plan: Plan, round: int) -> float:
        """Noise scale over the clip, as of one number: b = z C, and lambda = 1 / z with step C."""
        if plan.noise_multiplier is not None:
            return plan.noise_multiplier
        (cost,) = super().costs(replace(plan, noise_multiplier=1.0))
        run, name = Repeated(cost.event, plan.participations), self.mechanism
        one = f"1-d {name}" if name == "staircase" else name
        return harmonizer.calibrated(run, one, float(plan.epsilon), plan.delta)

    def costs(self, plan: Plan, round: int = 0) -> tuple[Cost, ...]:
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
                lam = min(STEEPEST, 1 / z)
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
                return harmonizer.of(event, "1-d staircase" if self.mechanism == "staircase" else self.mechanism)

    def claim(self, plan: Plan) -> Claim | None:
        source = "Feng et al. (2025), UDP-FL, Sections 3.3 and 5.2"
        if self.reading == "code":
            why = (
                f"the code uses no epsilon and no accountant; it clips the mean gradient of a batch to "
                f"{MAX_NORM:g}, so one record moves it by up to {2 * MAX_NORM:g} whatever the batch size"
            )
            return Claim(plan.epsilon, plan.delta, source + ", as in the public code", why)
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
        return Claim(plan.epsilon, plan.delta, source, why)

    def add(self, sums: Bounded, z: float | Tensor, state: State, plan: Plan, rng: RowStream) -> Rows:
        if self.mechanism == "gaussian" or not isinstance(z, float):
            return super().add(sums, z, state, plan, rng)
        if self.mechanism == "laplace":
            return sums.value + z * sums.bound * laplace(rng, sums.value)
        noise = Staircase(min(STEEPEST, 1 / z), norm=2, per_coordinate=True)
        return noise.add(sums, rng)

    def train(
        self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream
    ) -> tuple[Rows, Rows]:
        if self.reading == "1-d":
            return super().train(state, data, own, model, plan, rng)
        local = plan.now(state)

        def gradient(weights: Tensor, batch: Batch, number: int) -> Rows:
            """The mean gradient of the batch, clipped as a whole, with the code's noise."""
            seen, groups = augment(batch, local.augment, local.views, rng.at("augment", number))
            seeds = rng.at("model", number).integers()
            sums = model.gradients.sums(weights, seen, None, seeds=seeds, groups=groups)
            size = torch.tensor(batch.sizes, device=sums.device, dtype=sums.dtype)[:, None].clamp_min(1)
            return self._code_noise(clip_rows(sums / size, MAX_NORM), rng.at("noise", number))

        rows, own = training.sgd(state, data, own, model, plan, rng, gradient)
        weights = torch.tensor(data.sizes, device=rows.device, dtype=rows.dtype) / plan.mean_client
        return rows * weights[:, None], own

    def _code_noise(self, means: Bounded, rng: RowStream) -> Rows:
        if self.mechanism == "gaussian":
            return means.value + STD * rng.normal(means.value.shape[1], like=means.value)
        if self.mechanism == "laplace":
            return means.value + SCALE * laplace(rng, means.value)
        return off_by_one(means, rng)

    def noise(self, state: State, plan: Plan) -> float | None:
        local = plan.now(state)
        steps = local.count(plan.smallest_client)
        if self.reading == "code":
            std = {"gaussian": STD, "laplace": math.sqrt(2) * SCALE, "staircase": off_by_one_std()}[self.mechanism]
            return local.learning_rate * math.sqrt(steps) * std
        z, batch = self.multiplier(plan, state.round), local.expected_batch(round(plan.mean_client))
        std = {"gaussian": z, "laplace": math.sqrt(2) * z}.get(self.mechanism) or math.sqrt(
            Staircase(min(STEEPEST, 1 / z)).variance(1.0)
        )
        return local.learning_rate * math.sqrt(steps) * std * self.bound(state, plan) / batch


def off_by_one(means: Bounded, rng: RowStream) -> Rows:
    """The code's staircase: step (k - 1 + part), k geometric from 0, so mostly reflected at k = 0."""
    n = means.value.shape[1]
    sign, start, part, spread = np.split(rng.uniform(4 * n), 4, axis=1)
    k = np.floor(-np.log(start) / LAMBDA) - 1
    upper = part < GAMMA / (GAMMA + math.exp(-LAMBDA) * (1 - GAMMA))
    size = k + np.where(upper, GAMMA * spread, GAMMA + (1 - GAMMA) * spread)
    return plus(means, STEP * np.where(sign < 0.5, -size, size))


def off_by_one_std() -> float:
    """E (k - 1 + part)^2 in steps, k and part being independent."""
    b = math.exp(-LAMBDA)
    width, odds = GAMMA + b * (1 - GAMMA), b / (1 - b)
    first = (GAMMA**2 + b * (1 - GAMMA**2)) / (2 * width)
    second = (GAMMA**3 + b * (1 - GAMMA**3)) / (3 * width)
    square = b * (1 + b) / (1 - b) ** 2 - 2 * odds + 1
    return STEP * math.sqrt(square + 2 * (odds - 1) * first + second)
