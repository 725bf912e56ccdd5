"""Labels without a schema: what is read from them is named in the sentence, and none of it is in the public notes."""

import pandas as pd
import pytest

from sordino.core.errors import DataError
from sordino.data.labels import PAIRS
from sordino.data.load import Columns, Declared, load
from sordino.runs import assumptions
from sordino.spec import spec

READ = ("whether the label is a class or a number", "the set of labels", "the names of the columns")


def labelled(folder, labels, classes=None, schema=None, name="it.csv", **declared):
    (folder / name).write_text("a,y\n" + "".join(f"{i},{label}\n" for i, label in enumerate(labels)))
    if schema is not None:
        (folder / "it.toml").write_text(schema)
    columns = Columns(label="y", classes=classes, schema=None if schema is None else str(folder / "it.toml"))
    return load(name, str(folder), columns=columns, declared=Declared(**declared))


@pytest.mark.parametrize("pair", PAIRS, ids="/".join)
def test_yes_and_no_need_no_schema(pair, tmp_path):
    no, yes = pair
    for labels in ([no, yes, yes], [no.upper(), yes.title(), yes]):
        data = labelled(tmp_path, labels)
        assert data.y_train.tolist() == [0, 1, 1] and data.classes == 2 and data.names == pair
        assert data.assumed == READ
    alone = labelled(tmp_path, [yes, yes])  # the other one is known
    assert alone.y_train.tolist() == [1, 1] and alone.classes == 2


def test_the_sentence_says_that_the_set_of_labels_was_taken_as_public(tmp_path):
    data = labelled(tmp_path, ["secret-b", "secret-a", "secret-b"])
    assert data.y_train.tolist() == [1, 0, 1] and data.names == ("secret-a", "secret-b")
    assert "the set of labels" in assumptions.of_data(data, spec.Spec())
    assert not any("secret" in text for text in (*data.notes, *data.assumed))
    assert any("declare it by classes" in note for note in data.notes)
    (told,) = data.owner_notes
    assert 'classes = ["secret-a", "secret-b"]' in told


def test_declared_labels_are_numbered_as_declared_and_nothing_is_taken_as_public(tmp_path):
    for keys in (
        {"classes": ("mild", "bad", "none")},
        {"schema": '[a]\nmin=0\nmax=9\n[y]\nclasses=["mild","bad","none"]'},
    ):
        data = labelled(tmp_path, ["bad", "mild", "bad"], **keys)
        assert data.y_train.tolist() == [1, 0, 1] and data.classes == 3 and data.names == ("mild", "bad", "none")
        assert "the set of labels" not in data.assumed and READ[0] not in data.assumed
        assert not any("labels" in note for note in (*data.notes, *data.owner_notes))
    assert labelled(tmp_path, ["Yes", "no"], ("yes", "no")).y_train.tolist() == [0, 1]  # declared order, any case
    with pytest.raises(DataError, match="row 2: 'Bad' is not among the declared label values"):
        labelled(tmp_path, ["bad", "Bad"], ("mild", "bad"))
    with pytest.raises(DataError, match="the schema declares the label already"):
        labelled(tmp_path, ["bad"], ("mild", "bad"), '[a]\nmin=0\nmax=9\n[y]\nvalues=["bad","mild"]')


def test_numbers_that_do_not_begin_at_zero_are_numbered_in_order(tmp_path):
    data = labelled(tmp_path, [10, 2, 10])
    assert data.y_train.tolist() == [1, 0, 1] and data.names == ("2", "10") and data.assumed == READ
    assert labelled(tmp_path, [-1, 1, 1]).y_train.tolist() == [0, 1, 1]
    assert labelled(tmp_path, [1, 2, 1], ("1", "2")).assumed == ("the names of the columns",)
    usual = labelled(tmp_path, [0, 3, 1])
    assert usual.classes == 4 and usual.assumed == (READ[0], "the number of classes", READ[-1]) and not usual.names
    pd.DataFrame({"a": [1, 2, 3], "y": [2, 1, 2]}).to_parquet(tmp_path / "it.parquet")
    assert load("it.parquet", str(tmp_path), columns=Columns(label="y")).y_train.tolist() == [1, 0, 1]


def test_the_labels_of_a_second_table_are_those_of_the_first(tmp_path):
    labelled(tmp_path, ["b", "b"], name="shown.csv", classes=("a", "b"))
    assert labelled(tmp_path, ["a", "b", "c"], test="shown.csv").y_test.tolist() == [1, 1]
    labelled(tmp_path, ["d", "b"], name="shown.csv", classes=("b", "d"))
    with pytest.raises(DataError, match="row 1: 'd' is not among"):
        labelled(tmp_path, ["a", "b", "c"], test="shown.csv")
