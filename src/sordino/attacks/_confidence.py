"""Outputs of one or many models on many records, and what membership attacks make of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from sordino.attacks.base import Bools, Knowledge, Shadows, Targets
from sordino.core.errors import SpecError
from sordino.core.rng import Floats
from sordino.core.types import Batch, Model, Vector

RECORDS = {"cpu": 1000, "cuda": 10_000}  # records whose outputs are computed at a time
LEAST, MOST = -50.0, 50.0  # log-odds of confidences; float32 cannot tell larger ones from certainty


def records_at_once(device: torch.device) -> int:
    """Return how many records one pass takes."""
    return RECORDS["cuda" if device.type == "cuda" else "cpu"]


def evaluated(model: Model, device: torch.device) -> nn.Module:
    """Return a copy of the network on a device, as it is when it predicts (no dropout)."""
    return copy.deepcopy(model.module).to(device).eval()


def outputs(model: Model, params: Vector, x: Tensor, module: nn.Module | None = None) -> Tensor:
    """Return the outputs [records, ...] of a model with these parameters [dim]."""
    module = evaluated(model, params.device) if module is None else module
    views = model.layout.views(params)
    with torch.no_grad():
        parts = x.split(records_at_once(params.device))
        return torch.cat([functional_call(module, views, (part.to(params.device),)) for part in parts])


def each(model: Model, params: Tensor, x: Tensor) -> Iterator[Tensor]:
    """Yield the outputs [records, ...] of every model [models, dim]."""
    module, x = evaluated(model, params.device), x.to(params.device)
    for row in params:
        yield outputs(model, row, x, module)


def check_classes(name: str, batch: Batch) -> None:
    """Raise SpecError unless every record has one class."""
    if batch.y.dim() != 1 or batch.y.is_floating_point():
        raise SpecError(f"{name} is for classification with one label per record. loss-threshold works for every task.")


def log_odds(logits: Tensor, y: Tensor) -> Tensor:
    """Return log(p / (1 - p)) of the confidence p in the true class [records], without cancellation.

    Carlini et al. (2022), arXiv:2112.03570, Section VI.A: on this scale confidences are nearly Gaussian.
    """
    if logits.dim() != 2:
        raise SpecError(f"an attack on confidences needs outputs [records, classes], not {list(logits.shape)}.")
    true = logits.gather(1, y.to(logits.device)[:, None])[:, 0]
    others = logits.scatter(1, y.to(logits.device)[:, None], -torch.inf).logsumexp(dim=1)
    return (true - others).nan_to_num(nan=LEAST).clamp(LEAST, MOST)


def of_model(model: Model, params: Vector, x: Tensor, y: Tensor) -> Floats:
    """Return the log-odds of one model [records]."""
    return _host(log_odds(outputs(model, params, x), y))


def of_models(model: Model, params: Tensor, x: Tensor, y: Tensor) -> Floats:
    """Return the log-odds of many models [models, records]."""
    return np.stack([_host(log_odds(out, y)) for out in each(model, params, x)])


def probabilities(log_odds: Floats) -> Floats:
    """Return confidences of log-odds."""
    return np.asarray(1 / (1 + np.exp(-log_odds)), dtype=np.float64)


def losses(model: Model, params: Vector, batch: Batch) -> Floats:
    """Return the loss of every record [records]."""
    module, views = evaluated(model, params.device), model.layout.views(params)
    width, parts = records_at_once(params.device), []
    with torch.no_grad():
        for x, y in zip(batch.x.split(width), batch.y.split(width), strict=True):
            parts.append(model.loss(functional_call(module, views, (x.to(params.device),)), y.to(params.device)))
    return _host(torch.cat(parts))


def sorted_confidences(logits: Tensor, y: Tensor, keep: int) -> Tensor:
    """Return features of outputs [records, keep + 1]: the largest log-probabilities, then that of the true class."""
    logs = F.log_softmax(logits.float(), dim=1).clamp_min(LEAST)
    true = logs.gather(1, y.to(logs.device)[:, None])
    return torch.cat([logs.sort(dim=1, descending=True).values[:, :keep], true], dim=1)


def known_shadows(name: str, knowledge: Knowledge) -> Shadows:
    """Return the shadow models; raise SpecError if there are none."""
    knowledge.need(name, shadows="compare the attacked model with models whose members are known")
    if knowledge.shadows is None or len(knowledge.shadows.params) < 2:
        raise SpecError(f"{name} needs at least two shadow models.")
    return knowledge.shadows


def places(name: str, targets: Targets) -> NDArray[np.int64]:
    """Return where the targets stand in the pool of the shadow models; raise SpecError if that is not known."""
    if targets.pool is None or len(targets.pool) != len(targets.batch.y):
        raise SpecError(
            f"{name} needs shadow models some of which were trained on the targets: give their places in the pool "
            "(Targets.pool), or use the offline form, which compares with models that never saw a target."
        )
    return targets.pool


def inside(name: str, shadows: Shadows, targets: Targets, offline: bool) -> Bools:
    """Return which shadows were trained on which targets [models, targets]; nobody, if the targets are not of the pool.

    Raises SpecError if a target has no shadow that was trained on it (unless offline), or none that was not.
    """
    if offline and targets.pool is None:
        return np.zeros((len(shadows.params), len(targets.batch.y)), dtype=np.bool_)
    members = shadows.members[:, places(name, targets)]
    least = members.sum(axis=0)
    if (not offline and not least.all()) or (least == len(members)).any():
        raise SpecError(f"{name}: a target was in all shadow models, or in none. Train more of them.")
    return members


def views_of(x: Tensor, queries: int) -> list[Tensor]:
    """Return the records as they are, then mirrored, then shifted by a pixel, as many of these views as asked for."""
    if queries > 1 and (x.dim() != 4 or not x.is_floating_point()):
        raise SpecError("several queries per record are for pictures [channels, height, width]: use queries = 1.")
    shifts = [(0, 0), (0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1)]
    out = []
    for query in range(min(queries, 2 * len(shifts))):
        down, right = shifts[query // 2]
        out.append(torch.roll(x.flip(3) if query % 2 else x, (down, right), (2, 3)) if queries > 1 else x)
    return out


def _host(values: Tensor) -> Floats:
    return values.detach().double().cpu().numpy()
