"""What an attack found, and how well a membership attack tells members from other records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from sordino.attacks.base import Bools, Knowledge
from sordino.audits import game
from sordino.audits.bounds import clopper_pearson
from sordino.audits.roc import Roc, RocBound
from sordino.core.errors import SpecError
from sordino.core.rng import Floats
from sordino.red_team import words
from sordino.red_team.case import AttackCase
from sordino.red_team.words import AttackFigure

RATES = (0.01, 0.001)  # false positive rates at which true positive rates are shown
CONFIDENCE = 0.95  # of the intervals that are shown
ENOUGH = 100  # members, and others, below which no bound on epsilon is shown
SURE = 0.9999  # confidence with which a guarantee is called violated


@dataclass(frozen=True)
class Answer:
    """What an attack found: figures, and what files and pictures are made of."""

    figures: tuple[AttackFigure, ...]
    what: str = ""  # question of an inference attack, in words
    scores: Floats | None = None  # of a membership attack
    members: Bools | None = None
    made: Tensor | None = None  # of a reconstruction attack, with the originals beside
    true: Tensor | None = None


def membership(attack: Any, case: AttackCase, knowledge: Knowledge) -> Answer:
    """Return how well an attack tells members from other records."""
    scores = np.asarray(attack.score(case.views, knowledge, case.targets), dtype=np.float64)
    if scores.shape != case.members.shape or np.isnan(scores).any():
        raise SpecError(f"{attack.name} must return one number for each of {len(case.members)} records.")
    figures = _membership_figures(Roc.of(scores, case.members))
    if min(case.members.sum(), (~case.members).sum()) >= ENOUGH:
        figures = (*figures, epsilon_figure(scores, case.members, case.job.spec.delta))
    return Answer(figures, scores=scores, members=case.members)


def epsilon_figure(scores: Floats, members: Bools, delta: float) -> AttackFigure:
    """Return the least epsilon with which a run can have such scores: an audit from outside, as by LiRA.

    Half of the records choose the threshold, the other half are counted. The records are taken for independent trials,
    which records of one model are only nearly."""
    trials = game.Trials(scores[members, None], scores[~members, None])
    found = game.play(trials, lambda _: math.inf, delta, CONFIDENCE)
    return AttackFigure(words.EPSILON, found.lower.epsilon, chance=0.0, unit=words.NUMBER)


def _membership_figures(roc: Roc) -> tuple[AttackFigure, ...]:
    area = roc.auc(CONFIDENCE)
    figures = [AttackFigure(words.AUC, area.value, area.low, area.high, 0.5, words.NUMBER)]
    for rate in RATES:
        if rate * roc.negatives >= 1 - 1e-9:  # fewer records cannot show so low a rate
            at = roc.tpr_at(rate, CONFIDENCE)
            figures.append(AttackFigure(words.rate_name(rate), at.value, at.low, at.high, rate))
    return (*figures, _balanced(roc))


def _balanced(roc: Roc) -> AttackFigure:
    """Return the balanced accuracy at the best threshold.

    Its interval combines the exact ones of both rates: Zou and Donner (2008), Statistics in Medicine 27."""
    at = int(np.argmax(roc.true / roc.positives - roc.false / roc.negatives))
    found = share("", int(roc.true[at]), roc.positives)
    spared = share("", int(roc.negatives - roc.false[at]), roc.negatives)
    value, sides = roc.balanced_accuracy(), (found, spared)
    down, up = (math.hypot(*(s.value - getattr(s, end) for s in sides)) / 2 for end in ("low", "high"))
    return AttackFigure(words.BALANCED, value, max(0.0, value - down), min(1.0, value + up), 0.5)


def beyond(answer: Answer, epsilon: float, delta: float) -> RocBound | None:
    """Return where a membership attack finds more than (epsilon, delta) allows, with confidence `SURE`; else None."""
    if answer.scores is None or answer.members is None or not math.isfinite(epsilon):
        return None
    bound = Roc.of(answer.scores, answer.members).within(epsilon, delta, SURE)
    return None if bound.holds else bound


def share(metric: str, hits: int, trials: int, chance: float | None = None) -> AttackFigure:
    """Return a share with its exact interval."""
    low, high = clopper_pearson(hits, trials, CONFIDENCE)
    return AttackFigure(metric, hits / trials, float(low), float(high), chance)
