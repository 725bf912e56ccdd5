"""Standardisation of features by statistics of the private data: released once, with noise, and charged with the plan.

The first layer of the model holds shift and scale as constants, so a user of the model needs nothing else.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from sordino.core.errors import SpecError
from sordino.core.types import State
from sordino.data import moments
from sordino.measures import beside
from sordino.measures.feature_moments import planned
from sordino.run_folder.saved import Saved
from sordino.runs.job import Job


@dataclass(frozen=True)
class Inputs:
    """The shift and scale of the features, as part of the state."""

    shift: Tensor
    scale: Tensor


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


def reset(module: nn.Module) -> nn.Module:
    """Return a copy of a standardised module with shift 0 and scale 1, as before anything was released."""
    fresh = copy.deepcopy(module)
    layer = cast(Standardise, cast(nn.Sequential, fresh)[0])
    with torch.no_grad():
        layer.shift.zero_()
        layer.scale.fill_(1.0)
    return fresh


def release(job: Job, saved: Saved | None) -> None:
    """Set shift and scale in the job's model: from the checkpoint if there is one, else from a new noisy release."""
    layer = cast(Standardise, cast(nn.Sequential, job.model.module)[0])
    if saved is not None:
        shift, scale = saved.tensors["inputs.shift"], saved.tensors["inputs.scale"]
    else:
        shift, scale = _noisy(job)
    with torch.no_grad():
        layer.shift.copy_(shift)
        layer.scale.copy_(scale)


def noted(job: Job, state: State) -> State:
    """Return the state with shift and scale added, for the checkpoint."""
    layer = cast(Standardise, cast(nn.Sequential, job.model.module)[0])
    return replace(state, inputs=Inputs(layer.shift.clone(), layer.scale.clone()))


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
