"""`sordino predict`, `evaluate` and `export --model`, called in this process."""

from __future__ import annotations

import contextlib
import json
import sys

import pandas as pd
import pytest

from sordino.cli import export, main
from sordino.runs import model_files
from support.tables import people, trained


@pytest.fixture
def call(monkeypatch, capsys):
    """call("predict", ...) returns what was printed, and the error line or ""."""

    def called(*words):
        monkeypatch.setattr(sys, "argv", ["sordino", *map(str, words)])
        with contextlib.suppress(SystemExit):
            main.main()
        shown = capsys.readouterr()
        return shown.out, shown.err

    return called


def test_a_run_is_used_from_the_command_line(call, tmp_path):
    folder, new, out = trained(tmp_path).folder, tmp_path / "new.csv", tmp_path / "out.csv"
    people(8, seed=1).assign(id=range(8)).to_csv(new, index=False)
    assert "out.csv: 8 predictions" in call("predict", folder, new, "-o", out, "--keep", "id")[0]
    written = pd.read_csv(out)
    assert list(written.columns) == ["id", "prediction", "probability_no", "probability_yes"]
    assert (written.iloc[:, 2:].sum(axis=1) - 1).abs().max() < 1e-6
    before = out.read_bytes()
    assert "out.csv exists already" in call("predict", folder, new, "-o", out)[1] and out.read_bytes() == before
    assert "8 predictions, columns prediction" in call("predict", folder, new, "-o", out, "--force")[0]
    assert out.read_bytes() != before and call("predict", folder, new)[0] == out.read_text()
    assert "holds the records themselves" in call("predict", folder, new, "-o", new, "--force")[1]
    few = tmp_path / "few.csv"
    people(3).drop(columns="age").to_csv(few, index=False)
    assert "few.csv lacks the column age" in call("predict", folder, few, "-o", tmp_path / "no.csv")[1]
    assert "cannot write" in call("predict", folder, new, "-o", tmp_path / "no" / "no.csv")[1]
    assert not list(tmp_path.glob("no*"))
    told = json.loads(call("evaluate", folder, new, "--json", "--mine")[0])
    assert told["records"] == 8 and "covered by no epsilon" in told["whose"] and 0 <= told["metrics"]["accuracy"] <= 1
    assert "accuracy: " in call("evaluate", folder, new, "--public")[0]
    assert "give one of them" in call("evaluate", folder, new, "--public", "--mine")[1]
    shown, error = call("evaluate", folder, tmp_path / "t.csv")
    assert "private data of this run" in error and not shown
    assert "m.card.json" in call("export", folder, "--model", "safetensors", "-o", tmp_path / "m")[0]
    assert "name one file or folder" in call("export", folder)[1]
    assert "inputs.json" in call("export", folder, "-o", tmp_path / "handout")[0]


def test_the_formats_of_the_command_are_those_of_the_code():
    assert set(export.KINDS) == set(model_files.KINDS)
