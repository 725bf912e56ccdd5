"""Missing values: an error unless the schema says what to do; what was done is counted for the owner alone."""

import pandas as pd
import pytest

from sordino.core.errors import DataError
from sordino.data.load import Columns, load

TABLE = "age,sex,site,y\n30,F,a,0\n,M,a,1\n50,NA,b,0\n99,,b,1\n40,?,c,1\n"
NUMBER, CATEGORY = "[age]\nmin = 20\nmax = 80\n", '[sex]\nvalues = ["F", "M"]\n'


def read(folder, schema, table=TABLE):
    (folder / "it.csv").write_text(table)
    (folder / "it.toml").write_text(schema)
    return load("it.csv", str(folder), columns=Columns(label="y", client="site", schema=str(folder / "it.toml")))


def test_the_error_names_column_and_row_and_the_way_out(tmp_path):
    with pytest.raises(DataError, match=r"column 'age', row 2: the value is missing.*\[age\], missing = \"drop\""):
        read(tmp_path, NUMBER + CATEGORY)


def test_values_are_filled_in(tmp_path):
    data = read(tmp_path, NUMBER + "missing = 50\n" + CATEGORY + 'missing = "M"\n')
    assert data.x_train[:, 0].tolist() == pytest.approx([-2 / 3, 0, 0, 1, -1 / 3])
    assert data.x_train[:, 1:].argmax(1).tolist() == [0, 1, 1, 1, 1]
    assert data.assumed[0] == "the bounds and categories of the schema" and "lack" not in " ".join(data.assumed)
    assert data.owner_notes == (
        "it.csv, 5 rows: missing values are filled in (age: 1, sex: 3).",
        "it.csv, 5 rows: values outside the bounds of the schema are clamped (age: 1).",
    )


def test_rows_are_left_out_and_the_sentence_says_so(tmp_path):
    data = read(tmp_path, NUMBER + 'missing = "drop"\n' + CATEGORY + 'missing = "drop"\n')
    assert data.y_train.tolist() == [0] and data.client_train.tolist() == [0] and data.raw.forms[0].rows == 1
    assert "which rows lack a value of age, sex: they are left out" in data.assumed
    assert data.owner_notes == ("it.csv, 5 rows: 4 rows are left out, since a value is missing (age: 1, sex: 3).",)
    assert not any("4" in note for note in data.notes)  # the count is the owner's
    with pytest.raises(DataError, match="row 5: 'x' is not a finite number"):  # rows are counted as in the file
        read(tmp_path, NUMBER + 'missing = "drop"\n' + CATEGORY + 'missing = "drop"\n', TABLE.replace("40", "x"))
    with pytest.raises(DataError, match="no row is left"):
        read(tmp_path, CATEGORY + 'missing = "drop"\n', TABLE.replace("F", "").replace(",M,", ",,"))


def test_a_declared_value_is_not_missing_and_labels_can_only_be_dropped(tmp_path):
    data = read(tmp_path, '[sex]\nvalues = ["NA", "M", "?"]\nmissing = "M"\n', TABLE.replace("F", "M"))
    assert data.x_train.argmax(1).tolist() == [1, 1, 0, 1, 2]
    dropped = read(
        tmp_path, CATEGORY + 'missing = "F"\n[y]\nclasses = 2\nmissing = "drop"\n', TABLE.replace("30,F,a,0", "30,F,a,")
    )
    assert dropped.y_train.tolist() == [1, 0, 1, 1]
    for schema, match in (
        (CATEGORY + "[y]\nclasses = 2\nmissing = 0\n", 'missing must be "drop"'),
        (NUMBER + "missing = 19\n", 'missing must be "drop" or a number from min to max, not 19'),
        (CATEGORY + 'missing = "X"\n', 'missing must be "drop" or one of the values'),
    ):
        with pytest.raises(DataError, match=match):
            read(tmp_path, schema)


def test_gaps_of_a_parquet_file(tmp_path):
    pd.DataFrame({"a": [1.0, None, 3.0], "b": ["u", None, "v"], "y": [0, 1, 1]}).to_parquet(tmp_path / "it.parquet")
    (tmp_path / "it.toml").write_text('[a]\nmin = 1\nmax = 3\nmissing = 2\n[b]\nvalues = ["u", "v"]\nmissing = "v"\n')
    data = load("it.parquet", str(tmp_path), columns=Columns(label="y", schema=str(tmp_path / "it.toml")))
    assert data.x_train.tolist() == [[-1, 1, 0, 0], [0, 0, 1, 0], [1, 0, 1, 0]]
