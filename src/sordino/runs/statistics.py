"""Scaling of features by statistics of the private data: released once, with noise, and charged with the plan.

The first layer of the model holds what follows from them as constants, so a user of the model needs nothing else. It is
`UnitRows` for tables by default (`normalise`), and `Standardise` where the spec asks for it (`standardise`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from sordino.core.errors import SpecError
from sordino.core.saved import Saved
from sordino.core.types import State
from sordino.data import moments
from sordino.measures import beside
from sordino.measures.feature_moments import planned
from sordino.measures.row_moments import RowMoments, RowNoise, units
from sordino.models._rows import UnitRows
from sordino.runs.job import Job
from sordino.spec.spec import Spec


@dataclass(frozen=True)
class Inputs:
    """The constants of the first layer, as part of the state."""

    shift: Tensor
    scale: Tensor


@dataclass(frozen=True)
class RowInputs(Inputs):
    """The constants of unit rows, as part of the state."""

    last: Tensor


class Standardise(nn.Module):
    """The layer (x - shift) / scale, column by column; both are constants that are set once."""

    shift: Tensor
    scale: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        """Return the standardised features [records, features]."""
        return (x - self.shift) / self.scale


def standardised(module: nn.Module, x: Tensor) -> nn.Module:
    """Return the module with a `Standardise` layer in front of it, for records shaped like `x`."""
    if x.ndim != 2 or not x.is_floating_point():
        raise SpecError(f"standardise is for rows of numbers [records, features], not {list(x.shape)} of {x.dtype}.")
    return nn.Sequential(Standardise(x.shape[1]), module)


def require_rows(spec: Spec, module: nn.Module) -> None:
    """Raise SpecError if rows are to be normalised, but the model is the caller's own and has no layer for it."""
    if spec.normalise in (None, "none"):
        return
    if not isinstance(module, nn.Sequential) or not isinstance(module[0], UnitRows):
        raise SpecError(
            f"normalise = {spec.normalise} is for tables that `sordino run` reads, with its own models. With a model "
            "of yours, drop normalise, and scale the columns by public bounds or use standardise = true."
        )


def first_layer(module: nn.Module) -> Standardise | UnitRows:
    """Return the layer that holds the statistics."""
    return cast(Standardise | UnitRows, cast(nn.Sequential, module)[0])


def reset(module: nn.Module) -> nn.Module:
    """Return a copy of a module whose first layer is as before anything was released."""
    fresh = copy.deepcopy(module)
    layer = first_layer(fresh)
    if isinstance(layer, UnitRows):
        layer.reset()
        return fresh
    with torch.no_grad():
        layer.shift.zero_()
        layer.scale.fill_(1.0)
    return fresh


def release(job: Job, saved: Saved | None) -> None:
    """Set the constants in the job's model: from the checkpoint if there is one, else from a new noisy release."""
    layer = first_layer(job.model.module)
    if saved is not None:
        constants = {name: saved.tensors[f"inputs.{name}"] for name, _ in layer.named_buffers()}
    else:
        constants = _noisy_rows(job, job.rows) if job.rows else dict(zip(("shift", "scale"), _noisy(job), strict=True))
    with torch.no_grad():
        for name, buffer in layer.named_buffers():
            buffer.copy_(constants[name])


def noted(job: Job, state: State) -> State:
    """Return the state with the constants of the first layer added, for the checkpoint."""
    buffers = {name: value.clone() for name, value in first_layer(job.model.module).named_buffers()}
    return replace(state, inputs=Inputs(**buffers) if job.rows is None else RowInputs(**buffers))


def _noisy_rows(job: Job, rows: RowNoise) -> dict[str, Tensor]:
    """Release the means of rows and, to scale columns, of their squares; return the constants of the first layer."""
    features = job.federation.facts.x[0][0]
    shift = _mean(job, rows.releases(features))
    squares = _mean(job, rows.releases(features, tuple(shift.tolist()))) if rows.scaled else None
    middle, scale = rows.constants(shift, squares)
    return {"shift": shift, "scale": scale, "last": torch.tensor([0.0, middle])}


def _mean(job: Job, method: RowMoments) -> Tensor:
    """Return the noisy mean over all units of what a small method releases."""
    state = State(job.model.layout.read(job.model.module).cpu())
    total = beside.released(job.federation, method, job.model, job.plan, state, job.rng)["rows"][0]
    return total.double().cpu() / units(job.plan, method.unit, method.central)


def _noisy(job: Job) -> tuple[Tensor, Tensor]:
    """Release the noisy sums and return the shift and scale [features] computed from them."""
    facts, spec = job.federation.facts, job.spec
    if not facts.known:
        raise SpecError("standardise needs clients whose records are in memory.")
    made = planned(spec, job.method, facts.x[0][0])
    state = State(job.model.layout.read(job.model.module).cpu())
    total = beside.released(job.federation, made, job.model, job.plan, state, job.rng)["moments"]
    by_user = made.unit == "user" and not made.central
    weight = facts.records.sum() if made.unit == "record" else facts.sizes(True).sum() if by_user else facts.population
    first, second = total[0].chunk(2)
    shift, scale = moments.standardise(first, second, int(weight), spec.feature_bound)
    return shift.float(), scale.float()
