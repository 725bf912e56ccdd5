"""Text tables: the header line decides the delimiter, the declaration the decimal mark, and no cell either."""

import gzip

import pytest
import torch

from sordino.core.errors import DataError
from sordino.data.load import Columns, load
from support.errors import one_line_error

ROWS = [("age", "height, cm", "sick"), ("40", "1.5", "0"), ("50", "2.25", "1"), ("60", "3.0", "0")]


def written(folder, name, mark, rows=ROWS, quote='"'):
    lines = [mark.join(f"{quote}{c}{quote}" if mark in c or "," in c else c for c in row) for row in rows]
    data = ("\n".join(lines) + "\n").encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return load(name, str(folder), columns=Columns(label="sick"))


@pytest.mark.parametrize(
    ("name", "mark"),
    [("a.csv", ","), ("a.csv", ";"), ("a.csv", "\t"), ("a.csv.gz", ";"), ("a.tsv", "\t"), ("A.TSV.GZ".lower(), "\t")],
)
def test_every_delimiter_gives_the_same_table(name, mark, tmp_path):
    data = written(tmp_path, name, mark)
    assert torch.equal(data.x_train, torch.tensor([[40, 1.5], [50, 2.25], [60, 3.0]]))
    assert data.y_train.tolist() == [0, 1, 0]


def test_the_cells_never_decide_the_delimiter(tmp_path):
    """Rows full of semicolons below a header with commas: the same error whatever the other rows say."""
    text = "a,b,y\n1;1;1,2,0\n3,4,1\n"
    (tmp_path / "t.csv").write_text(text)
    with one_line_error(DataError, "column 'a', row 1: '1;1;1' is not a finite number"):
        load("t.csv", str(tmp_path), columns=Columns(label="y"))


def test_a_header_with_two_delimiters_is_refused(tmp_path):
    with one_line_error(DataError, "the header line, which decides the delimiter, has commas and semicolons"):
        written(tmp_path, "a.csv", ";", quote="")


def test_decimal_commas_are_declared_or_refused(tmp_path):
    (tmp_path / "t.csv").write_text("a;b;y\n1,5;2;0\n-2,25;3;1\n,5;4;1\n")
    with one_line_error(DataError, r"column 'a', row 1: '1,5' is not .* set decimal = ','"):
        load("t.csv", str(tmp_path), columns=Columns(label="y"))
    data = load("t.csv", str(tmp_path), columns=Columns(label="y", decimal=","))
    assert data.x_train[:, 0].tolist() == [1.5, -2.25, 0.5] and data.classes == 2
    with one_line_error(DataError, "decimal must be"):
        Columns(decimal="'")


def test_a_mark_for_thousands_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("a;y\n1.234;0\n2,5;1\n")
    with one_line_error(DataError, r"column 'a', row 1: '1.234' has a point where decimal = ',' is declared"):
        load("t.csv", str(tmp_path), columns=Columns(label="y", decimal=","))


def test_a_category_keeps_its_comma(tmp_path):
    (tmp_path / "t.csv").write_text("dose;z;y\n1,5;1,5;0\n2,5;2,5;1\n")
    (tmp_path / "t.toml").write_text('[dose]\nvalues = ["1,5", "2,5"]\n[z]\nmin = 1\nmax = 3\n[y]\nclasses = 2\n')
    data = load("t.csv", str(tmp_path), columns=Columns(label="y", schema="t.toml", decimal=","))
    assert data.x_train.tolist() == [[1, 0, 0, -0.5], [0, 1, 0, 0.5]]


def test_a_ledger_knows_the_same_rows_with_either_mark(tmp_path):
    (tmp_path / "points.csv").write_text("a,y\n1.5,0\n2.5,1\n")
    (tmp_path / "commas.csv").write_text("a;y\n1,5;0\n2,5;1\n")
    one = load("points.csv", str(tmp_path), columns=Columns(label="y")).raw.forms
    two = load("commas.csv", str(tmp_path), columns=Columns(label="y", decimal=",")).raw.forms
    assert [f.kind for f in one] == [f.kind for f in two]
    assert all((a.block(0, 2) == b.block(0, 2)).all() for a, b in zip(one[:2], two[:2], strict=True))
