"""Attribute inference from updates: which value of a hidden attribute gives a gradient that its client's update holds?

The server completes a record with every value and compares the gradients with the client's update, as in the attribute
reconstruction of Lyu and Chen (2021), arXiv:2108.06910, Section 4, but over a list of values instead of by descent:

    cosine       the cosine of the candidate's gradient and the sum of the client's gradients, as they match it
    likelihood   the client's sum of gradients is that of the candidate and of size - 1 others, whose mean and
                 covariance the auxiliary records tell, and of noise, which all rows together tell; the score is the
                 Gaussian log likelihood of the candidate

Scores are averaged over the rounds, since a client's other records hide the one that is asked for in all of them alike;
the log prior of an imputation is added. One local step of plain SGD gives the sum of gradients exactly; for more steps
it is approximated to first order. Clipped gradients are taken for plain ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sordino.attacks._imputation import imputer
from sordino.attacks._questions import AttributeQuestion, gradient_scale, record_gradients
from sordino.attacks.base import INFERENCE, ROWS, Knowledge, require, single_rows
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import Floats
from sordino.core.types import Batch
from sordino.core.view import View

__all__ = ["AttributeFromUpdates"]

MATCHES = ("likelihood", "cosine")
MOST = 3000  # parameters up to which covariances are inverted; larger models are compared by variances alone


@dataclass(frozen=True)
class AttributeFromUpdates:
    """Score every answer by how well the gradient of the completed record explains its client's updates."""

    match: str = "likelihood"  # likelihood (needs auxiliary records) or cosine
    ridge: float = 0.05  # part of the mean variance that is added to the variance of every direction
    prior: bool = True  # whether the log prior of an imputation is added; needs auxiliary records
    field: str = "update"  # field of the message that holds the change of the weights

    name: ClassVar[str] = "attribute-from-updates"
    kind: ClassVar[str] = INFERENCE
    sees: ClassVar[tuple[str, ...]] = ("server", "wire")
    reads: ClassVar[str] = ROWS
    needs: ClassVar[tuple[str, ...]] = ("local", "client_size")

    def __post_init__(self) -> None:
        check.one_of(MATCHES, match=self.match)
        check.positive(ridge=self.ridge)

    def infer(self, views: Sequence[View], knowledge: Knowledge, question: AttributeQuestion) -> Floats:
        """Return one score for every record and answer [records, answers]."""
        require(self, views, knowledge)
        if self.match == "likelihood":
            knowledge.need(self.name, auxiliary="know what the gradients of others look like; or use match = cosine")
        owners, answers = question.owners, len(question.candidates)
        scores, heard = torch.zeros(len(owners), answers, dtype=torch.float64), np.zeros(len(owners))
        for view in views:
            ids, rows = single_rows(self.name, view, self.field)
            at = {int(client): k for k, client in enumerate(ids)}
            asked = [r for r, client in enumerate(owners) if client in at]
            if asked:
                sums = gradient_scale(knowledge, view, len(views)) * rows[[at[owners[r]] for r in asked]]
                scores[asked] += self._round(view, knowledge, question, sums, torch.tensor(asked))
                heard[asked] += 1
        if not heard.all():
            missing = min(np.asarray(owners)[heard == 0].tolist())
            raise SpecError(f"{self.name}: no view holds a row of client {missing}. Record more rounds.")
        scores /= torch.from_numpy(heard)[:, None]
        if self.prior and knowledge.auxiliary is not None:
            scores += imputer(question, knowledge.auxiliary).log_probabilities(question, question.batch).cpu()
        out: Floats = scores.numpy()
        return out

    def _round(
        self, view: View, knowledge: Knowledge, question: AttributeQuestion, sums: Tensor, asked: Tensor
    ) -> Tensor:
        """Return the scores of one round [asked records, answers], given the sums of gradients of their clients."""
        params, model, size = view.state.params, knowledge.model, int(knowledge.client_size or 1)
        if self.match == "likelihood" and knowledge.auxiliary is not None:
            pieces = record_gradients(model, params, knowledge.auxiliary)
            others = torch.cat([piece for _, piece in pieces]).double()
            whiten = _Whitening(others, self.ridge, _noise(sums.double(), others, size))
            rest = whiten(sums.double() - (size - 1) * others.mean(dim=0))
        out = torch.zeros(len(asked), len(question.candidates), dtype=torch.float64)
        for answer in range(len(question.candidates)):
            filled = question.filled(answer)
            batch = Batch(filled.x[asked], filled.y[asked], (len(asked),))
            for part, gradients in record_gradients(model, params, batch):
                if self.match == "cosine":
                    score = torch.cosine_similarity(gradients, sums[part], dim=1).double()
                else:
                    mine = whiten(gradients.double())
                    score = ((mine * rest[part]).sum(dim=1) - 0.5 * mine.square().sum(dim=1)) / max(1, size - 1)
                out[part, answer] = score.cpu()
        return out


class _Whitening:
    """The map after which gradients of auxiliary records have unit covariance (long ones: unit variances)."""

    def __init__(self, gradients: Tensor, ridge: float, noise: float) -> None:
        centred = gradients - gradients.mean(dim=0)
        floor = ridge * centred.square().mean() + noise + 1e-12
        self._scale = (centred.square().mean(dim=0) + floor).rsqrt()
        self._root: Tensor | None = None
        if gradients.shape[1] <= MOST:
            covariance = centred.T @ centred / len(centred)
            covariance.diagonal().add_(floor)
            self._root = torch.linalg.cholesky(covariance)

    def __call__(self, rows: Tensor) -> Tensor:
        if self._root is None:
            return rows * self._scale
        white: Tensor = torch.linalg.solve_triangular(self._root, rows.T, upper=False).T
        return white


def _noise(sums: Tensor, gradients: Tensor, size: int) -> float:
    """Return the variance per record and coordinate by which sums vary more than sums of such gradients would."""
    more = (sums - size * gradients.mean(dim=0)).square().mean() / size - gradients.var(dim=0).mean()
    return max(0.0, float(more))
