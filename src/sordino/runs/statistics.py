"""Features shifted and scaled by statistics of the private data: released once, with noise, and charged with the plan.

The first layer of the model holds shift and scale as constants, so whoever uses the model later needs nothing else.
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
from sordino.data.clients import ArrayClients
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.runs.evaluation import STATISTICS
from sordino.runs.job import Job
from sordino.runs.saved import Saved


@dataclass(frozen=True)
class Inputs:
    """What features are shifted and scaled by."""

    shift: Tensor
    scale: Tensor


class Standardise(nn.Module):
    """(x - shift) / scale, a column at a time; both are constants, set once."""

    shift: Tensor
    scale: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.shift) / self.scale


def standardised(module: nn.Module, x: Tensor) -> nn.Module:
    """The module behind such a layer."""
    if x.ndim != 2 or not x.is_floating_point():
        raise SpecError(f"standardise is for rows of numbers [records, features], not {list(x.shape)} of {x.dtype}.")
    return nn.Sequential(Standardise(x.shape[1]), module)


def reset(module: nn.Module) -> nn.Module:
    """A copy with shift and scale as they were before anything was drawn."""
    fresh = copy.deepcopy(module)
    layer = cast(Standardise, cast(nn.Sequential, fresh)[0])
    with torch.no_grad():
        layer.shift.zero_()
        layer.scale.fill_(1.0)
    return fresh


def release(job: Job, found: Saved | None) -> None:
    """Put shift and scale into the job's model: drawn now, or as the checkpoint has them."""
    layer = cast(Standardise, cast(nn.Sequential, job.model.module)[0])
    if found is not None:
        shift, scale = found.tensors["inputs.shift"], found.tensors["inputs.scale"]
    else:
        shift, scale = _noisy(job)
    with torch.no_grad():
        layer.shift.copy_(shift)
        layer.scale.copy_(scale)


def noted(job: Job, state: State) -> State:
    """The state with shift and scale, for the checkpoint."""
    layer = cast(Standardise, cast(nn.Sequential, job.model.module)[0])
    return replace(state, inputs=Inputs(layer.shift.clone(), layer.scale.clone()))


def _noisy(job: Job) -> tuple[Tensor, Tensor]:
    """Sums of bounded features and of their squares, one row a client, noisy where the method adds its noise."""
    if not isinstance(job.clients, ArrayClients):
        raise SpecError("standardise needs clients whose records are in memory.")
    spec, count = job.spec, job.clients.count
    unit = job.plan.unit or job.method.units[0]
    central = job.method.viewer == "public"
    rows, weight, bound = [], 0, 0.0
    for client in range(count):
        batch = job.clients.fetch([client], torch.device("cpu"))
        if unit == "record":
            first, second, bound = moments.sums(batch.x, spec.feature_bound)
            rows.append(torch.cat([first, second]))
            weight += len(batch.x)
            continue
        lengths = batch.groups[0] if unit == "user" and not central and batch.groups else (len(batch.x),)
        row = torch.zeros(2 * batch.x.shape[1], dtype=torch.float64)
        for part in batch.x.split(lengths):  # a unit counts by its mean, so with no more than a record would
            first, second, bound = moments.sums(part, spec.feature_bound)
            row += torch.cat([first, second]) / len(part)
        rows.append(row)
        weight += len(lengths)
    sums, noise, rng = torch.stack(rows), Gaussian(spec.release_noise or STATISTICS), job.rng.at("statistics")
    if job.method.private and not central:
        sums = noise.add(Bounded(sums, bound), rng.rows(range(count)))
    total = sums.sum(0, keepdim=True)
    if job.method.private and central:
        total = noise.add(Bounded(total, bound), rng.rows([0]))
    first, second = total[0].chunk(2)
    shift, scale = moments.standardise(first, second, weight, spec.feature_bound)
    return shift.float(), scale.float()
