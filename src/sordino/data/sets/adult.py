"""Adult (census income): Becker and Kohavi (1996), UCI Machine Learning Repository. Is an income above 50K or not?

Read from adult.csv.gz or from UCI's own adult.data and adult.test; the rows are verified after reading. Categories and
bounds are those of the code book (adult.names), widened to round numbers; "?" is a category of its own. The sampling
weight fnlwgt is left out, since it describes the survey, not the person.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from sordino.data.dataset import Dataset
from sordino.data.schema import Category, Column, Number, encode
from sordino.data.sets._tables import cells, text_digest
from sordino.data.sets.base import DatasetSource, File, FileLayout, halves, verify

__all__ = ["SOURCE"]

UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
CONTENT = "21e0ea2f925a00338929a8c86c27354c72ac1c79819bcca81c7d91c3d64218c2"  # sha256 of the cells, training rows first
COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
)  # fmt: skip
WORKCLASS = "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked ?"
EDUCATION = (
    "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters 1st-4th 10th "
    "Doctorate 5th-6th Preschool"
)
MARITAL = "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse"
OCCUPATION = (
    "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners Machine-op-inspct "
    "Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces ?"
)
RELATIONSHIP = "Wife Own-child Husband Not-in-family Other-relative Unmarried"
RACE = "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"
COUNTRY = (
    "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan Greece South "
    "China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
    "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand "
    "Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands ?"
)
SCHEMA: dict[str, Column] = {
    "age": Number(17, 90),
    "workclass": Category(tuple(WORKCLASS.split())),
    "education": Category(tuple(EDUCATION.split())),
    "education-num": Number(1, 16),
    "marital-status": Category(tuple(MARITAL.split())),
    "occupation": Category(tuple(OCCUPATION.split())),
    "relationship": Category(tuple(RELATIONSHIP.split())),
    "race": Category(tuple(RACE.split())),
    "sex": Category(("Female", "Male")),
    "capital-gain": Number(0, 100_000, log=True),
    "capital-loss": Number(0, 5_000, log=True),
    "hours-per-week": Number(1, 99),
    "native-country": Category(tuple(COUNTRY.split())),
}
INCOME = ("<=50K", ">50K")


def _csv(paths: list[Path]) -> Dataset:
    table = cells(paths[0])
    return _dataset(paths, table[list(COLUMNS)], (table["split"] == "test").to_numpy())


def _uci(paths: list[Path]) -> Dataset:
    import pandas as pd

    parts = [cells(p, header=None, names=list(COLUMNS), comment="|") for p in paths]
    table = pd.concat(parts, ignore_index=True)
    table["income"] = table["income"].str.rstrip(".")
    return _dataset(paths, table, np.arange(len(table)) >= len(parts[0]))


def _dataset(paths: list[Path], table: Any, test: np.ndarray[Any, Any]) -> Dataset:
    order = np.argsort(test, kind="stable")
    verify("adult", paths, text_digest(table.iloc[order]), CONTENT)
    y = torch.from_numpy(Category(INCOME).index(table["income"]))
    parts = np.flatnonzero(~test), np.flatnonzero(test)
    return Dataset("adult", *halves(encode(table, SCHEMA), y, parts), classes=2, names=INCOME, public=True)


SOURCE = DatasetSource(
    name="adult",
    task="classification",
    records=(32_561, 16_281),
    clients=None,
    licence="CC BY 4.0 (UCI)",
    origin="They are at https://archive.ics.uci.edu/dataset/2/adult.",
    layouts=(
        FileLayout((File("adult/adult.csv.gz"),), _csv),
        FileLayout(
            (File("adult/adult.data", url=f"{UCI}/adult.data"), File("adult/adult.test", url=f"{UCI}/adult.test")), _uci
        ),
    ),
)
