"""Default of credit-card clients: Yeh and Lien (2009), Expert Systems with Applications 36(2); UCI.

Read from credit_default.csv.gz or from UCI_Credit_Card.csv; the numbers are verified after reading. Bounds are those of
the code book, with amounts (NT dollars) up to a million on a logarithmic scale; codes that it does not document share a
slot. The source has no split: a fifth of the rows, always the same, is the test part.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from sordino.core.errors import DataError
from sordino.data.dataset import Dataset
from sordino.data.schema import Category, Column, Number, encode, numbers
from sordino.data.sets._tables import cells
from sordino.data.sets.base import DatasetSource, File, FileLayout, digest, fixed_split, halves, verify

__all__ = ["SOURCE"]

CONTENT = "9c3c9ae60f343b5fba1102e0f539176c277cfd1065702542e5890fd4cf9f2f79"  # sha256 as float64, row by row
COMMIT = "5a06d9e4c4cd7ab97a5c8357828adbffaca87785"
URL = f"https://raw.githubusercontent.com/FederatedAI/FATE/{COMMIT}/examples/data/UCI_Credit_Card.csv"
TARGET = "default.payment.next.month"
MILLION = 1_000_000
SCHEMA: dict[str, Column] = {
    "LIMIT_BAL": Number(10_000, MILLION, log=True),
    "SEX": Category(("1", "2")),  # male, female
    "EDUCATION": Category(("1", "2", "3", "4")),  # graduate school, university, high school, others
    "MARRIAGE": Category(("1", "2", "3")),  # married, single, others
    "AGE": Number(20, 80),
    **{f"PAY_{i}": Number(-2, 9) for i in (0, 2, 3, 4, 5, 6)},  # months in arrears; -1: paid on time
    **{f"BILL_AMT{i}": Number(-MILLION, MILLION, log=True) for i in range(1, 7)},
    **{f"PAY_AMT{i}": Number(0, MILLION, log=True) for i in range(1, 7)},
}


def _read(paths: list[Path]) -> Dataset:
    table = cells(paths[0])
    missing = [c for c in (*SCHEMA, TARGET) if c not in table.columns]
    if missing:
        raise DataError(f"{paths[0]} lacks the column {missing[0]!r}.")
    values = np.stack([numbers(c, table[c]) for c in (*SCHEMA, TARGET)], axis=1)
    verify("credit-default", paths, digest(values), CONTENT)
    y = torch.from_numpy(values[:, -1].astype(np.int64))
    parts = fixed_split(len(table), 0.2, "credit-default")
    names = ("paid", "default")
    return Dataset("credit-default", *halves(encode(table, SCHEMA), y, parts), classes=2, names=names, public=True)


SOURCE = DatasetSource(
    name="credit-default",
    task="classification",
    records=(24_000, 6_000),
    clients=None,
    licence="CC BY 4.0 (UCI)",
    origin="It is in the examples of github.com/FederatedAI/FATE; the original is at archive.ics.uci.edu/dataset/350.",
    layouts=(
        FileLayout((File("credit_default/credit_default.csv.gz"),), _read),
        FileLayout((File("credit_default/UCI_Credit_Card.csv", url=URL),), _read),
    ),
)
