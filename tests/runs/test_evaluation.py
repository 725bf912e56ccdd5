"""Whose records a model is evaluated on: exact figures of private ones are for their owner alone."""

from __future__ import annotations

import shutil

import pandas as pd
import pytest

import sordino
from sordino.core.errors import DataError, RunError, SpecError
from support.tables import people, trained


def test_figures_say_whose_they_are_and_private_records_are_refused(tmp_path):
    result = trained(tmp_path)
    others = people(80, seed=5)
    fresh = result.evaluate(others)
    assert "are not among the data of this run; exact figures of 80 records, covered by no epsilon" in fresh.whose
    right = (result.predict(others) == others.ill).mean()
    assert fresh.records == 80 and fresh.metrics["accuracy"] == pytest.approx(right)
    public = result.evaluate(others, records="public")
    assert "which you declare public" in public.whose and public.metrics == fresh.metrics
    some = pd.concat([people().iloc[:30], others.iloc[:10]])  # in another order, with a column more
    for source in (tmp_path / "t.csv", some.drop(columns="score").assign(id=1)):
        for records in (None, "public"):
            with pytest.raises(RunError, match="are among the private data of this run"):
                result.evaluate(source, records=records)
    mine = result.evaluate(some, records="mine")
    assert mine.whose.startswith("30 of the records are among the private data of this run; exact figures of 40")
    with pytest.raises(SpecError, match="records must be one of public, mine"):
        result.evaluate(others, records="yes")


def test_records_of_another_run_in_the_ledger_are_known_too(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    trained(tmp_path / "one", table=people(60, seed=1))
    result = trained(tmp_path / "two", table=people(60, seed=2))
    with pytest.raises(RunError, match="60 of these 60 records are among the data of other runs in your ledger"):
        result.evaluate(people(60, seed=1))


def test_what_cannot_be_compared_is_said(tmp_path, monkeypatch):
    result = trained(tmp_path)
    shutil.copytree(result.folder / "public", tmp_path / "handout")
    monkeypatch.setenv("SORDINO_HOME", str(tmp_path / "elsewhere"))  # the machine of whoever was given the model
    shown = sordino.load(tmp_path / "handout").evaluate(people(20, seed=3))
    assert shown.whose.startswith("These records could not be compared with the data of this run; exact figures of 20")


def test_labels_are_read_by_the_names_of_the_run(tmp_path):
    result, new = trained(tmp_path), people(10, seed=4)
    with pytest.raises(DataError, match="'maybe' is not among the declared label values"):
        result.evaluate(new.assign(ill="maybe"))
    with pytest.raises(DataError, match="lacks the label column 'ill'"):
        result.evaluate(new.drop(columns="ill"))
    one = new.assign(ill="yes")  # a class alone keeps its number
    assert result.evaluate(one).metrics["accuracy"] == pytest.approx((result.predict(one) == "yes").mean())
