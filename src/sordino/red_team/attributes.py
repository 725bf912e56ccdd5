"""Attribute inference on tables: which columns hold an attribute, what may stand there, and what attacks find out.

An attack is compared with imputation, and its success on members with that on people whose records nobody trained on.
Only what exceeds both is a leak of the record (Yeom et al. 2018, arXiv:1709.01604, Definition 5; Jayaraman and Evans
2022, arXiv:2209.01292, Section 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.attacks._imputation import imputer
from sordino.attacks._questions import AttributeQuestion
from sordino.core.errors import DataError
from sordino.core.rng import Floats
from sordino.core.types import Batch
from sordino.data.schema import Category, Column, Number

Answers = NDArray[np.int64]
BINS = 4  # answers of a column of numbers: the middles of so many equal parts of its declared range


@dataclass(frozen=True)
class Attribute:
    """A column of a table as a model takes it."""

    name: str
    columns: tuple[int, ...]  # its places among the numbers of a record
    candidates: Tensor  # [answers, columns]
    answers: tuple[str, ...]  # what the candidates stand for


def attribute(schema: Mapping[str, Column], name: str) -> Attribute:
    """Return the places and possible values of a declared column.

    The slot for undeclared values of a category is one of its places, but no possible value.
    """
    if name not in schema:
        raise DataError(f"there is no column {name!r}: the schema declares {', '.join(schema)}.")
    start = 0
    for known, column in schema.items():
        width = 1 if isinstance(column, Number) else len(column.values) + 1 if isinstance(column, Category) else 0
        if not width:
            raise DataError(f"column {known!r} is neither a number nor a category, so its places are not known.")
        if known == name:
            break
        start += width
    places = tuple(range(start, start + width))
    if isinstance(column, Category):
        return Attribute(name, places, torch.eye(width)[:-1], column.values)
    middles = (torch.arange(BINS) + 0.5) / BINS * 2 - 1
    ends = column.value(np.arange(BINS + 1) / BINS) if isinstance(column, Number) else np.arange(BINS + 1)
    words = tuple(f"{low:.3g} to {high:.3g}" for low, high in pairwise(ends.tolist()))
    return Attribute(name, places, middles[:, None], words)


def hidden(batch: Batch, clients: tuple[int, ...], what: Attribute) -> tuple[AttributeQuestion, Answers]:
    """Return the question for these records, with the attribute blanked, and the true answers, kept from attacks."""
    x = batch.x.clone()
    x[:, list(what.columns)] = 0.0
    question = AttributeQuestion(replace(batch, x=x), clients, what.columns, what.candidates.to(x))
    return question, question.answer_of(batch).cpu().numpy()


def imputed(question: AttributeQuestion, auxiliary: Batch, classes: int) -> Floats:
    """Return what imputation from all other columns and the label says: log probabilities [records, answers]."""
    out: Floats = imputer(question, auxiliary, classes).log_probabilities(question, question.batch).cpu().numpy()
    return out


@dataclass(frozen=True)
class Found:
    """How often the guesses of an attack are right."""

    accuracy: float
    balanced: float  # mean over the answers of the share found among those who have them
    error: float  # standard error of the accuracy
    records: int


def found(scores: Floats, truth: Answers) -> Found:
    """Compare the guesses of an attack with the truth."""
    right = scores.argmax(axis=1) == truth
    recalls = [float(right[truth == a].mean()) for a in np.unique(truth)]
    share = float(right.mean())
    return Found(share, float(np.mean(recalls)), float(np.sqrt(share * (1 - share) / len(right))), len(right))
