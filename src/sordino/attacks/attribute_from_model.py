"""Attribute inference from the model: which value of a hidden attribute makes the known label most likely?

The attacker fills in every value and takes the one with the best product of prior and likelihood, exp(-loss), of the
label under the model: Fredrikson et al. (2014), "Privacy in pharmacogenetics", Figure 4, with the loss in the place of
their confusion matrix as in Yeom et al. (2018), arXiv:1709.01604, Section 5. The prior is what an imputation without
the label says (Jayaraman and Evans 2022, arXiv:2209.01292); compare the attack with an imputation that has the label.

A model that fits everybody of a population well gives a better guess about non-members too. That is no leak of a
member's record; only the difference between members and others is (Yeom et al., Definition 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from sordino.attacks._imputation import imputer
from sordino.attacks._questions import AttributeQuestion, answers_prior, losses
from sordino.attacks.base import INFERENCE, MODELS, Knowledge, last_model, require
from sordino.core import check
from sordino.core.rng import Floats
from sordino.core.view import View

__all__ = ["AttributeFromModel"]

PRIORS = ("imputed", "shares", "uniform")


@dataclass(frozen=True)
class AttributeFromModel:
    """Score every answer by its prior and by the loss of the completed record."""

    prior: str = "imputed"  # imputed (from the other columns), shares (of the answers) or uniform

    name: ClassVar[str] = "attribute-from-model"
    kind: ClassVar[str] = INFERENCE
    sees: ClassVar[tuple[str, ...]] = ("public", "client", "server")
    reads: ClassVar[str] = MODELS
    needs: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check.one_of(PRIORS, prior=self.prior)

    def infer(self, views: Sequence[View], knowledge: Knowledge, question: AttributeQuestion) -> Floats:
        """Return log prior minus loss for every record and answer [records, answers]."""
        require(self, views, knowledge)
        params, model = last_model(views), knowledge.model
        answers = range(len(question.candidates))
        fit = -torch.stack([losses(model, params, question.filled(a)) for a in answers], dim=1).double().cpu()
        if self.prior != "uniform":
            knowledge.need(self.name, auxiliary="know how common each answer is")
        if knowledge.auxiliary is not None and self.prior == "imputed":
            fit += imputer(question, knowledge.auxiliary).log_probabilities(question, question.batch).cpu()
        elif knowledge.auxiliary is not None and self.prior == "shares":
            counts = torch.bincount(question.answer_of(knowledge.auxiliary), minlength=len(answers))
            fit += answers_prior(counts).cpu()
        out: Floats = fit.numpy()
        return out
