"""White-box membership inference from gradients, losses and outputs over the rounds.

Nasr, Shokri, Houmansadr (2019), arXiv:1812.00910, Sections III and IV: a participant, or the server, sees the model of
every round. For each of them the gradient of a record's loss (by layer), the loss and the outputs are features of the
record; a classifier learns from records whose membership the attacker knows. These are its own records (members) and
auxiliary ones (others); without either, records of the pool with shadow models, of which only the last model is known.

Differs from the paper: a gradient is described by the norms of its layers, and the classifier has one hidden layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sordino.attacks import _confidence as confidence
from sordino.attacks._classifier import fit
from sordino.attacks.base import MEMBERSHIP, MODELS, Knowledge, Targets, last_model, require
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import Floats
from sordino.core.types import Batch, Model, Vector
from sordino.core.view import View

__all__ = ["WhiteBoxGradient"]

NUMBERS = {"cpu": 20_000_000, "cuda": 2_000_000_000}  # of gradients that are held at a time
LEAST = 1e-12  # norms below this count as this


@dataclass(frozen=True)
class WhiteBoxGradient:
    """Score records by a classifier of gradient norms, losses and outputs."""

    rounds: int = 5  # recorded rounds that are used, spread over the run; the last one always is
    records: int = 2000  # largest number of records of either kind to learn from, for each model

    name: ClassVar[str] = "white-box-gradient"
    kind: ClassVar[str] = MEMBERSHIP
    sees: ClassVar[tuple[str, ...]] = ("public", "client", "server")
    reads: ClassVar[str] = MODELS
    needs: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check.count(rounds=self.rounds, records=self.records)

    def score(self, views: Sequence[View], knowledge: Knowledge, targets: Targets) -> Floats:
        """Return the log-odds of membership of every record, according to the classifier."""
        require(self, views, knowledge)
        confidence.check_classes(self.name, targets.batch)
        model, draw = knowledge.model, np.random.default_rng(knowledge.seed)
        if knowledge.own is not None and knowledge.auxiliary is not None:
            models = self._models(views)
            known = [_some(b, self.records, draw) for b in (knowledge.own, knowledge.auxiliary)]
            rows = [torch.cat([features(model, p, batch) for p in models], dim=1) for batch in known]
            examples, truth = torch.cat(rows), torch.cat([torch.ones(len(rows[0])), torch.zeros(len(rows[1]))])
        elif knowledge.shadows is not None:
            models = [last_model(views)]
            examples, truth = self._from_shadows(knowledge, draw)
        else:
            raise SpecError(
                f"{self.name} learns from records whose membership it knows: its own records and auxiliary ones (the "
                "view of a client or of server+t), or shadow models."
            )
        classifier = fit(examples, truth.to(examples), knowledge.seed)
        mine = torch.cat([features(model, p, targets.batch) for p in models], dim=1)
        return classifier(mine.to(examples)).double().cpu().numpy()

    def _models(self, views: Sequence[View]) -> list[Vector]:
        """Return the models of some rounds, spread evenly, the last one among them."""
        by_round = {view.round: view.state.params for view in views}
        numbers = sorted(by_round)[:-1]
        places = np.unique(np.linspace(0, len(numbers) - 1, min(self.rounds - 1, len(numbers))).astype(int))
        return [by_round[numbers[i]] for i in places] + [last_model(views)]

    def _from_shadows(self, knowledge: Knowledge, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
        shadows = confidence.known_shadows(self.name, knowledge)
        rows, truth = [], []
        for params, members in zip(shadows.params, shadows.members, strict=True):
            index = draw.permutation(len(members))[: max(2, 2 * self.records // len(shadows.params))]
            batch = Batch(shadows.pool.x[index], shadows.pool.y[index], (len(index),))
            rows.append(features(knowledge.model, params, batch))
            truth.append(torch.from_numpy(members[index]))
        return torch.cat(rows), torch.cat(truth)


def features(model: Model, params: Vector, batch: Batch) -> Tensor:
    """Return features [records, layers + 2]: logarithms of the layers' gradient norms, loss and log-odds."""
    device, dim = params.device, model.layout.dim
    width = max(1, NUMBERS["cuda" if device.type == "cuda" else "cpu"] // max(1, dim))
    parts = []
    for x, y in zip(batch.x.split(width), batch.y.split(width), strict=True):
        x, y = x.to(device), y.to(device)
        alone = Batch(x, y, (1,) * len(y))  # every record is treated as a client
        rows = model.gradients.sums(params, alone, None, seeds=[0] * len(y))
        norms = [rows[:, part].norm(dim=1) for part in model.layout.layers().values()]
        logits = confidence.outputs(model, params, x)
        with torch.no_grad():
            losses = model.loss(logits, y)
        parts.append(torch.stack([*norms, losses, confidence.log_odds(logits, y)], dim=1))
    found = torch.cat(parts)
    return torch.cat([found[:, :-1].clamp_min(LEAST).log(), found[:, -1:]], dim=1).nan_to_num()


def _some(batch: Batch, most: int, draw: np.random.Generator) -> Batch:
    index = draw.permutation(len(batch.y))[:most]
    return Batch(batch.x[index], batch.y[index], (len(index),))
