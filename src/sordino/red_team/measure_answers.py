"""How often an inference attack answers rightly: a hidden attribute of records, or the make-up of clients' data.

The right answers about members are shown beside those about others: only what exceeds both these and an imputation from
the other columns is a leak of the member's record (see red_team/attributes.py).
"""

from __future__ import annotations

import typing
from typing import Any

import numpy as np
import torch

from sordino.attacks._questions import PropertyQuestion
from sordino.attacks.base import Knowledge
from sordino.core.errors import SpecError
from sordino.core.rng import Floats
from sordino.core.types import Batch
from sordino.data import schema as schemas
from sordino.red_team import attributes, words
from sordino.red_team.case import AttackCase, training_data
from sordino.red_team.measure import Answer, share
from sordino.red_team.words import AttackFigure

CLIENTS = 100  # clients whose make-up is asked for, at most


def inference(attack: Any, case: AttackCase, knowledge: Knowledge, attribute: str | None) -> Answer:
    """Return how often the answers of an attack are right.

    Args:
        attack: the attack.
        case: the run that is attacked.
        knowledge: what the attacker knows.
        attribute: the column that is hidden from it, if it asks for an attribute.
    """
    if asks_for_property(attack):
        return _make_up(attack, case, knowledge)
    what = hidden_column(case, attribute)
    batch, auxiliary = case.targets.batch, knowledge.auxiliary
    question, truth = attributes.hidden(batch, case.targets.clients, what)
    right = np.asarray(attack.infer(case.views, knowledge, question)).argmax(axis=1) == truth
    guessed = None
    if auxiliary is not None:
        guessed = attributes.imputed(question, auxiliary, knowledge.classes or 1).argmax(axis=1) == truth
    figures = []
    for name, who in ((words.RIGHT, case.members), (words.RIGHT_OTHERS, ~case.members)):
        chance = None if guessed is None else float(guessed[who].mean())
        figures.append(share(name, int(right[who].sum()), int(who.sum()), chance))
    return Answer(tuple(figures), what=f"{what.name} of members")


def asks_for_property(attack: Any) -> bool:
    """Return whether an attack asks for the make-up of clients' data, and not for an attribute of records."""
    return typing.get_type_hints(type(attack).infer).get("question") is PropertyQuestion


def hidden_column(case: AttackCase, name: str | None) -> attributes.Attribute:
    """Return the column of the run's table that is hidden from the attacker."""
    code = None if case.job.form is None else case.job.form.code
    if code is None:
        raise SpecError("an attribute is a column of a table with a schema; the records of this run have none.")
    known = schemas.columns({c: code.schema[c] for c in code.columns if c in code.schema}, "the schema of the run")
    if name is None:
        raise SpecError(f"say which attribute is hidden: --attribute COLUMN, one of {', '.join(known)}.")
    return attributes.attribute(known, name)


def _make_up(attack: Any, case: AttackCase, knowledge: Knowledge) -> Answer:
    """Return how well the shares of classes at single clients are estimated."""
    clients, classes = case.clients[:CLIENTS], knowledge.classes or 1
    made = np.asarray(attack.infer(case.views, knowledge, PropertyQuestion(clients)))
    data = training_data(case.job).fetch(clients, case.job.device)
    true = np.stack([_shares(y, classes) for y in data.y.split(data.sizes)])
    known = knowledge.auxiliary
    usual = _shares(_labels(known, case), classes)
    figures = (
        _named(made, true, usual),
        AttackFigure(words.SHARE_ERROR, _error(made, true), chance=_error(usual[None], true)),
    )
    return Answer(figures, what="the largest class of a client")


def _named(made: Floats, true: Floats, usual: Floats) -> AttackFigure:
    """Return for how many clients the largest class is named rightly."""
    largest = true >= true.max(axis=1, keepdims=True)
    hits = largest[np.arange(len(true)), made.argmax(axis=1)]
    return share(words.RIGHT, int(hits.sum()), len(true), float(largest[:, int(usual.argmax())].mean()))


def _error(made: Floats, true: Floats) -> float:
    """Return the mean share of records whose class would have to change for the estimate to be right."""
    return float(np.abs(made - true).sum(axis=1).mean() / 2)


def _labels(known: Batch | None, case: AttackCase) -> torch.Tensor:
    return case.targets.batch.y if known is None else known.y


def _shares(labels: torch.Tensor, classes: int) -> Floats:
    counts = torch.bincount(labels.reshape(-1).cpu(), minlength=classes)[:classes].double()
    shares: Floats = (counts / max(1.0, float(counts.sum()))).numpy()
    return shares
