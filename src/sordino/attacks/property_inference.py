"""Property inference: the share of every class at a client, from the update of its last layer.

Wang et al. (2019), "Eavesdrop the composition proportion of training labels in federated learning", arXiv:1910.06044,
Section 4, and Ganju et al. (2018), "Property inference attacks on fully connected neural networks". Gradients of the
last layer tell the classes apart, so a client's mean gradient is the mean of those of the classes, weighted by their
shares. With one local step of plain SGD this is a linear system, in which auxiliary records give the classes' gradients
at the broadcast model, and no attack model is trained. With several steps the attacker trains clients of its own that
have known shares, from the same broadcast, and a ridge regression maps their updates to their shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sordino.attacks._questions import PropertyQuestion, class_means, gradient_scale, last_layer
from sordino.attacks.base import INFERENCE, ROWS, Knowledge, require, single_rows
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.local_training import Local
from sordino.core.rng import Floats
from sordino.core.types import Batch, Vector
from sordino.core.view import View

__all__ = ["PropertyInference"]


@dataclass(frozen=True)
class PropertyInference:
    """Estimate the class shares of clients from the updates of the last layer."""

    shadows: int = 64  # clients of the attacker's own, where several local steps are taken
    ridge: float = 1e-3  # penalty of the regression, relative to the mean square of its inputs
    field: str = "update"  # field of the message that holds the change of the weights

    name: ClassVar[str] = "property-inference"
    kind: ClassVar[str] = INFERENCE
    sees: ClassVar[tuple[str, ...]] = ("server", "wire")
    reads: ClassVar[str] = ROWS
    needs: ClassVar[tuple[str, ...]] = ("auxiliary", "local", "client_size", "classes")

    def __post_init__(self) -> None:
        check.count(shadows=self.shadows)
        check.positive(ridge=self.ridge)

    def infer(self, views: Sequence[View], knowledge: Knowledge, question: PropertyQuestion) -> Floats:
        """Return the mean over the rounds of the estimated shares [clients, classes]; they sum to one."""
        require(self, views, knowledge)
        place = {client: k for k, client in enumerate(question.clients)}
        total = torch.zeros(len(place), int(knowledge.classes or 0), dtype=torch.float64)
        heard = torch.zeros(len(place), 1, dtype=torch.float64)
        for view in views:
            ids, rows = single_rows(self.name, view, self.field)
            asked = [k for k, client in enumerate(ids) if int(client) in place]
            if asked:
                at = [place[int(ids[k])] for k in asked]
                total[at] += self._round(view, knowledge, rows[asked], len(views)).cpu()
                heard[at] += 1
        if not bool(heard.all()):
            missing = question.clients[int((heard[:, 0] == 0).nonzero()[0])]
            raise SpecError(f"{self.name}: no view holds a row of client {missing}. Record more rounds.")
        out: Floats = (total / heard).numpy()
        return out

    def _round(self, view: View, knowledge: Knowledge, rows: Tensor, rounds: int) -> Tensor:
        """Return the estimated shares [clients, classes] from the updates of one round."""
        local, size, auxiliary = knowledge.local, knowledge.client_size, knowledge.auxiliary
        if local is None or size is None or auxiliary is None or knowledge.classes is None:
            raise SpecError(f"{self.name} needs auxiliary records and the settings of the clients' training.")
        where = last_layer(knowledge.model)
        if local.count(size) == 1 and local.optimizer == "sgd":
            means, _ = class_means(knowledge.model, view.state.params, auxiliary, knowledge.classes)
            seen = gradient_scale(knowledge, view, rounds) / size * rows[:, where]
            return on_simplex(_mixture(means[:, where].double(), seen.double(), self.ridge))
        shares, updates = self._own_clients(knowledge, local, size, view.state.params, view.round, rounds)
        return on_simplex(_regression(updates[:, where].double(), shares, rows[:, where].double(), self.ridge))

    def _own_clients(
        self, knowledge: Knowledge, local: Local, size: int, params: Vector, round: int, rounds: int
    ) -> tuple[Tensor, Tensor]:
        """Return class shares and updates of clients that the attacker makes up from its records."""
        if knowledge.auxiliary is None or knowledge.classes is None:
            raise SpecError(f"{self.name} needs auxiliary records.")
        draw = np.random.default_rng([knowledge.seed, round])
        labels = knowledge.auxiliary.y.cpu().numpy()
        wanted = draw.dirichlet(np.ones(knowledge.classes), self.shadows)
        have = [np.flatnonzero(labels == c) for c in range(knowledge.classes)]
        odds = wanted * np.array([len(h) > 0 for h in have])
        classes = [draw.choice(knowledge.classes, size, p=p / p.sum()) for p in odds]
        index = torch.from_numpy(np.concatenate([[have[c][draw.integers(len(have[c]))] for c in k] for k in classes]))
        shares = np.stack([np.bincount(k, minlength=knowledge.classes) / size for k in classes])
        data = knowledge.auxiliary.pick(index.to(knowledge.auxiliary.y.device), (size,) * self.shadows)
        data = Batch(data.x.to(params.device), data.y.to(params.device), data.sizes)
        rate = local.rate_in(round - 1, max(rounds, round))
        weights = params.expand(self.shadows, -1).clone()
        for _ in range(local.count(size)):
            batch = _drawn(data, size, max(1, np.rint(local.expected_batch(size)).astype(int)), draw)
            sums = knowledge.model.gradients.sums(weights, batch, None, seeds=[0] * self.shadows)
            weights = weights - rate * sums / (len(batch.y) / self.shadows)
        return torch.from_numpy(shares).to(params.device), weights - params


def _drawn(data: Batch, size: int, batch: int, draw: np.random.Generator) -> Batch:
    """Return a batch of records of each client, all clients having `size` records."""
    if batch >= size:
        return data
    clients = len(data.sizes)
    places = np.concatenate([k * size + draw.permutation(size)[:batch] for k in range(clients)])
    return data.pick(torch.from_numpy(places).to(data.y.device), (batch,) * clients)


def _mixture(means: Tensor, seen: Tensor, ridge: float) -> Tensor:
    """Return weights [clients, classes] that sum to one, with which the classes' means best add up to what was seen."""
    first, others = means[0], means[1:] - means[0]  # the last condition removes one unknown
    square = others @ others.T
    square = square + ridge * square.diagonal().mean() * torch.eye(
        len(others), dtype=square.dtype, device=square.device
    )
    right = (seen - first) @ others.T
    rest = torch.linalg.solve(square, right.T).T
    return torch.cat([1 - rest.sum(dim=1, keepdim=True), rest], dim=1)


def _regression(inputs: Tensor, targets: Tensor, asked: Tensor, ridge: float) -> Tensor:
    """Return the ridge regression of targets on inputs, at the rows that are asked for."""
    shift, middle = inputs.mean(dim=0), targets.mean(dim=0)
    centred = inputs - shift
    kernel = centred @ centred.T
    kernel = kernel + ridge * kernel.diagonal().mean() * torch.eye(
        len(kernel), dtype=kernel.dtype, device=kernel.device
    )
    guessed: Tensor = middle + (asked - shift) @ centred.T @ torch.linalg.solve(kernel, targets - middle)
    return guessed


def on_simplex(rows: Tensor) -> Tensor:
    """Return the nearest rows whose numbers are not negative and sum to one (Duchi et al. 2008, Figure 1)."""
    ordered = rows.sort(dim=1, descending=True).values
    excess = (ordered.cumsum(dim=1) - 1) / torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype, device=rows.device)
    last = (ordered > excess).sum(dim=1, keepdim=True) - 1
    return (rows - excess.gather(1, last)).clamp(min=0)
