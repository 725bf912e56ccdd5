"""Questions of inference attacks: a hidden attribute of records, or the make-up of a client's data.

An inference attack answers with scores [records or clients, answers]; the answer with the highest score is its guess.
It sees the question and never the truth: whoever asks keeps that (red_team/attributes.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.func import functional_call

from sordino.attacks.base import Attack, Knowledge
from sordino.core.errors import SpecError
from sordino.core.rng import Floats
from sordino.core.types import Batch, Model, Vector
from sordino.core.view import View

RECORDS = 2000  # records that a model is evaluated on at once
NUMBERS = 2**25  # numbers of per-record gradients that are held at once


@dataclass(frozen=True)
class AttributeQuestion:
    """Records of which some columns are hidden, and the values that these may have.

    Labels and all other columns are known, as in Fredrikson et al. (2014) and Yeom et al. (2018).
    """

    batch: Batch  # records [records, columns] with zeros in the hidden columns; sizes[k] belong to clients[k]
    clients: tuple[int, ...]
    columns: tuple[int, ...]  # the hidden columns: one number, or the slots of one category
    candidates: Tensor  # [answers, hidden columns]: the encoding of every possible answer

    def __post_init__(self) -> None:
        if self.batch.x.ndim != 2:
            raise SpecError(f"a hidden attribute is a column of a table, not of records {list(self.batch.x.shape)}.")
        if self.candidates.shape[1:] != (len(self.columns),):
            raise SpecError(f"{len(self.columns)} columns are hidden; candidates must have as many numbers each.")

    @property
    def owners(self) -> list[int]:
        """The client of every record."""
        return [c for c, size in zip(self.clients, self.batch.sizes, strict=True) for _ in range(size)]

    def filled(self, answer: int) -> Batch:
        """Return the records with one answer in the place of the hidden attribute."""
        x = self.batch.x.clone()
        x[:, list(self.columns)] = self.candidates[answer].to(x)
        return replace(self.batch, x=x)

    def answer_of(self, records: Batch) -> Tensor:
        """Return the answer [records] that is nearest to what complete records have in these columns."""
        shown = records.x[:, list(self.columns)]
        return torch.cdist(shown.double(), self.candidates.to(shown).double()).argmin(dim=1)

    def without(self, records: Batch) -> Tensor:
        """Return the columns [records, others] of complete records that are not hidden."""
        keep = torch.ones(records.x.shape[1], dtype=torch.bool)
        keep[list(self.columns)] = False
        return records.x[:, keep.to(records.x.device)]


@dataclass(frozen=True)
class PropertyQuestion:
    """Which share of its records each of these clients has in each class."""

    clients: tuple[int, ...]


class AttributeAttack(Attack, Protocol):
    """An attack that guesses a hidden attribute of records."""

    def infer(self, views: Sequence[View], knowledge: Knowledge, question: AttributeQuestion) -> Floats:
        """Return one score for each record and answer [records, answers]; the highest one is the guess."""


class PropertyAttack(Attack, Protocol):
    """An attack that estimates the make-up of clients' data."""

    def infer(self, views: Sequence[View], knowledge: Knowledge, question: PropertyQuestion) -> Floats:
        """Return the estimated share of every class at every client [clients, classes]."""


def losses(model: Model, params: Vector, batch: Batch) -> Tensor:
    """Return the loss of every record [records] under a model with these parameters."""
    weights, parts = model.layout.views(params), []
    fixed = dict(model.module.named_buffers())
    was_training = model.module.training
    model.module.eval()
    try:
        with torch.no_grad():
            for i in range(0, len(batch.y), RECORDS):
                x, y = (part[i : i + RECORDS].to(params.device) for part in (batch.x, batch.y))
                parts.append(model.loss(functional_call(model.module, {**fixed, **weights}, (x,)), y))
    finally:
        model.module.train(was_training)
    return torch.cat(parts) if parts else params.new_zeros(0)


def record_gradients(model: Model, params: Vector, batch: Batch) -> Iterator[tuple[slice, Tensor]]:
    """Yield the gradients of the records' losses [some records, dim] and the place of these records in the batch."""
    size = max(1, NUMBERS // max(1, model.layout.dim))
    for i in range(0, len(batch.y), size):
        x, y = (part[i : i + size].to(params.device) for part in (batch.x, batch.y))
        alone = Batch(x, y, (1,) * len(y))  # every record is treated as a client
        yield slice(i, i + len(y)), model.gradients.sums(params, alone, None, seeds=[0] * len(y))


def class_means(model: Model, params: Vector, batch: Batch, classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean gradient of the records of each class [classes, dim], and how many there are [classes]."""
    order = batch.y.argsort(stable=True)
    counts = torch.bincount(batch.y, minlength=classes)[:classes]
    by_class = Batch(batch.x[order].to(params.device), batch.y[order].to(params.device), tuple(counts.tolist()))
    sums = model.gradients.sums(params, by_class, None, seeds=[0] * classes)
    return sums / counts.to(sums).clamp(min=1)[:, None], counts


def last_layer(model: Model) -> slice:
    """Return the place of the parameters of the last layer."""
    return list(model.layout.layers().values())[-1]


def gradient_scale(knowledge: Knowledge, view: View, rounds: int) -> float:
    """Return the factor from an update to the sum of a client's gradients, if all its steps were at the broadcast.

    It is exact for one full step of plain SGD, and a first-order approximation for several.
    """
    local, size = knowledge.local, knowledge.client_size
    if local is None or size is None:
        raise SpecError("the scale of updates needs the settings of the clients' training, and their size.")
    rate = local.rate_in(view.round - 1, max(rounds, view.round))
    return -size / (rate * max(1, local.count(size)))


def answers_prior(counts: Tensor) -> Tensor:
    """Return log shares [answers] of counted answers, each counted once more."""
    shares = (counts.double() + 1) / (counts.double().sum() + len(counts))
    return shares.log()
