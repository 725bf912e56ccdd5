"""Imputation: what anybody with records from the same source guesses about a hidden attribute, without any model.

It is the honest baseline of attribute inference. Jayaraman and Evans (2022), arXiv:2209.01292, find that black-box
attacks seldom learn more than imputation does; an attack that does not beat it has learned nothing about the person.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sordino.attacks._questions import AttributeQuestion
from sordino.core.types import Batch

STEPS = 60  # of L-BFGS


@dataclass(frozen=True)
class Imputer:
    """Multinomial logistic regression from the columns that are not hidden to the answers."""

    weights: Tensor  # [columns + 1, answers]
    shift: Tensor  # [columns]
    scale: Tensor  # [columns]
    classes: int  # labels are inputs too if there are more than 0

    def log_probabilities(self, question: AttributeQuestion, records: Batch) -> Tensor:
        """Return the log probability of every answer for every record [records, answers]."""
        inputs = (_inputs(question, records, self.classes).to(self.shift) - self.shift) / self.scale
        return F.log_softmax(_with_one(inputs) @ self.weights, dim=1)


def imputer(question: AttributeQuestion, auxiliary: Batch, classes: int = 0, ridge: float = 1e-3) -> Imputer:
    """Fit the imputer to complete records.

    Args:
        question: which columns are hidden, and the answers.
        auxiliary: complete records from the same source.
        classes: the number of labels; labels are used as inputs if it is above 0.
        ridge: the penalty on the mean squared weights.
    """
    inputs, answers = _inputs(question, auxiliary, classes), question.answer_of(auxiliary)
    shift, scale = inputs.mean(dim=0), inputs.std(dim=0).clamp(min=1e-6)
    inputs = _with_one((inputs - shift) / scale)
    weights = torch.zeros(inputs.shape[1], len(question.candidates), dtype=inputs.dtype, device=inputs.device)
    weights.requires_grad_(True)
    steps = torch.optim.LBFGS([weights], max_iter=STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        steps.zero_grad()
        loss = F.cross_entropy(inputs @ weights, answers) + ridge * weights.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        steps.step(closure)
    return Imputer(weights.detach(), shift, scale, classes)


def _inputs(question: AttributeQuestion, records: Batch, classes: int) -> Tensor:
    columns = question.without(records).double()
    return torch.cat([columns, F.one_hot(records.y, classes).to(columns)], dim=1) if classes else columns


def _with_one(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], dim=1)
