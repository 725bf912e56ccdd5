"""`sordino schema`: a draft never holds what was found in the table, and a test tells the owner what does not fit."""

import json
import tomllib

import pytest
from click.testing import CliRunner

from sordino.cli.schema import schema
from sordino.core.errors import DataError, RunError

TABLE = "age,sex,patient_id,resting pulse,ward,ill\n17,F,900,77,north,yes\n,M,901,88,south,no\n44,X,902,66,north,yes\n"
COMPLETE = '[age]\nmin = 18\nmax = 90\nmissing = 50\n[sex]\nvalues = ["F", "M"]\n[ill]\nvalues = ["no", "yes"]\n'


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text(TABLE)
    return tmp_path


def call(*args):
    return CliRunner().invoke(schema, list(args))


@pytest.mark.parametrize("sample", [0, 2])
def test_a_draft_holds_no_value_of_the_table(sample, here):
    done = call("init", "mine.csv", "--label", "ill", "--sample", str(sample))
    assert done.exit_code == 0, done.output
    text = (here / "mine.toml").read_text()
    looked = "the header and the first 2 rows" if sample else "the header alone"
    assert looked in done.output and looked in text
    drafted = tomllib.loads(text)
    assert list(drafted) == ["age", "sex", "resting pulse", "ward", "ill"]  # not the numbers of patients
    assert drafted["age"] == {"min": "DECLARE", "max": "DECLARE"} and set(drafted["sex"]) == {"values"}
    assert set(drafted["ward"]) == ({"values"} if sample else {"min", "max"})  # "ward" says nothing by itself
    assert not any(value in text for value in ("17", "44", "66", "77", "88", "900", "north", "south", '"F"', "yes"))
    done = call("check", "mine.csv", "mine.toml")
    assert isinstance(done.exception, DataError)
    assert "still to be declared are age (min, max), sex (values)" in str(done.exception)
    assert isinstance(call("init", "mine.csv").exception, RunError)  # never overwritten
    assert (here / "mine.toml").read_text() == text


def test_only_the_declared_rows_are_looked_at(here):
    texts = []
    for table in (TABLE, TABLE.replace("44,X,902,66,north", "old,X,902,slow,7")):
        (here / "mine.csv").write_text(table)
        call("init", "mine.csv", "--sample", "2", "-o", "it.toml")
        texts.append((here / "it.toml").read_text())
        (here / "it.toml").unlink()
    assert texts[0] == texts[1]


def test_a_complete_schema_is_tested_for_the_owner(here):
    (here / "it.toml").write_text(COMPLETE)
    done = call("check", "mine.csv", "it.toml", "--label", "ill")
    assert done.exit_code == 0 and "for the owner of the table alone" in done.output
    for line in ("age  number from 18 to 90, 1 missing (filled in by 50), 1 outside", "sex  2 values, 1 outside"):
        assert line in done.output
    assert "does not get them: patient_id, resting pulse, ward" in done.output
    columns = json.loads(call("check", "mine.csv", "it.toml", "--json").output)["columns"]
    assert [(c["column"], c["missing"], c["outside"]) for c in columns] == [("age", 1, 1), ("sex", 0, 1), ("ill", 0, 0)]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[sex]", "[ward]\nmin = 0\nmax = 9\n[sex]", "ward: column 'ward', row 1: 'north' is not a finite number"),
        ("[age]", "[agee]", "no column 'agee'. Did you mean 'age'?"),
        ("missing = 50\n", "", "age: 1 values are missing"),
        ('[sex]\nvalues = ["F", "M"]', "[sex]\nmin = 0\nmax = 1", "column 'sex', row 1: 'F' is not a finite number"),
        ('["no", "yes"]', '["no", "ill"]', "ill: 2 labels are not declared"),
    ],
)
def test_what_a_run_would_refuse_is_an_error(old, new, words, here):
    (here / "it.toml").write_text(COMPLETE.replace(old, new))
    done = call("check", "mine.csv", "it.toml", "--label", "ill")
    assert done.exit_code == 1 and "\nerror: " in done.output and words in done.output


def test_a_mistyped_label_or_file_is_one_line(here):
    (here / "it.toml").write_text(COMPLETE)
    assert "Did you mean 'ill'?" in str(call("check", "mine.csv", "it.toml", "--label", "il").exception)
    assert "Did you mean 'ill'?" in str(call("init", "mine.csv", "--label", "il", "-o", "x.toml").exception)
    assert not (here / "x.toml").exists()
    assert "there is no table" in str(call("init", "none.csv").exception)
