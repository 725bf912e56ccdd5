"""Tables of one's own: what is declared is used, what is not is told, and nothing is fitted."""

import gzip

import numpy as np
import pandas as pd
import pytest
import torch

from sordino.core.errors import DataError, SpecError
from sordino.data.load import Columns, Declared, load
from sordino.data.schema import Category, Number
from sordino.data.tables import SCHEMA_NOTE, table
from support.errors import one_line_error

TABLE = """age,sex,gain,hospital,patient,part,income
17,F,0,north,ann,train,<=50K
90,M,100,south,bob,train,>50K
200,X,1000,north,ann,test,<=50K
53.5,M,10,west,cid,train,>50K
"""
SCHEMA = """
[age]
min = 17
max = 90
[sex]
values = ["F", "M"]
[gain]
min = 0
max = 1000
log = true
[income]
values = ["<=50K", ">50K"]
"""
ROLES = {"label": "income", "client": "hospital", "user": "patient", "split": "part"}


def read(tmp_path, text=TABLE, schema=SCHEMA, name="it.csv", **roles):
    data = text if isinstance(text, bytes) else text.encode()
    (tmp_path / name).write_bytes(data)
    if schema is not None:
        (tmp_path / "it.toml").write_text(schema)
        roles["schema"] = str(tmp_path / "it.toml")
    return load(name, str(tmp_path), columns=Columns(**roles))


def refused(match, tmp_path, *args, **roles):
    with one_line_error(DataError, match):
        read(tmp_path, *args, **roles)


def test_declared_columns_are_clamped_scaled_and_one_hot(tmp_path):
    data = read(tmp_path, **ROLES)
    log = [2 * np.log1p(v) / np.log1p(1000) - 1 for v in (0, 100, 10, 1000)]
    expected = torch.tensor([[-1, 1, 0, 0, log[0]], [1, 0, 1, 0, log[1]], [0, 0, 1, 0, log[2]]])
    torch.testing.assert_close(data.x_train, expected.float())
    torch.testing.assert_close(data.x_test, torch.tensor([[1, 0, 0, 1, 1]]).float())  # clamped; another sex
    assert data.y_train.tolist() == [0, 1, 1] and data.y_test.tolist() == [0]
    assert data.classes == 2 and data.names == ("<=50K", ">50K") and not data.public and data.task == "classification"
    assert data.client_train.tolist() == [0, 1, 2] and data.client_test.tolist() == [0]
    assert len(set(data.user_train.tolist())) == 3
    assert data.notes == (SCHEMA_NOTE,)
    assert data.owner_notes == (
        "it.csv, 4 rows: values outside the bounds of the schema are clamped (age: 1).",
        "it.csv, 4 rows: values that the schema does not declare share the slot for other values (sex: 1).",
    )


def test_a_schema_beside_the_table_is_found(tmp_path):
    expected = read(tmp_path, **ROLES)
    data = load("it.csv", str(tmp_path), columns=Columns(schema="it.toml", **ROLES))
    assert torch.equal(data.x_train, expected.x_train)


def test_the_rows_of_others_change_no_record_and_no_users_number(tmp_path):
    data = read(tmp_path, **ROLES)
    more = read(tmp_path, TABLE + "5,F,7,east,abe,train,<=50K\n", **ROLES)
    assert torch.equal(more.x_train[:3], data.x_train) and more.user_train[:3].tolist() == data.user_train.tolist()


@pytest.mark.parametrize("kind", ["csv.gz", "parquet"])
def test_other_kinds_of_files_hold_the_same(kind, tmp_path):
    expected = read(tmp_path, **ROLES)
    frame = pd.read_csv(tmp_path / "it.csv")
    if kind == "parquet":
        frame.to_parquet(tmp_path / "it.parquet")
        text = (tmp_path / "it.parquet").read_bytes()
    else:
        text = gzip.compress(TABLE.encode())
    data = read(tmp_path, text, name=f"it.{kind}", **ROLES)
    assert torch.equal(data.x_train, expected.x_train) and torch.equal(data.y_test, expected.y_test)
    assert data.user_train.tolist() == expected.user_train.tolist()
    assert data.client_test.tolist() == expected.client_test.tolist()


def numeric(rows=200, label=lambda i: i % 3):
    return "a,b,y\n" + "".join(f"{i / 7},{i * i},{label(i)}\n" for i in range(rows))


def test_without_a_schema_numbers_go_in_as_they_are_and_the_classes_are_a_note(tmp_path):
    data = read(tmp_path, numeric(), None, label="y")
    assert data.classes == 3 and any("3) was read from the labels" in n for n in data.notes)
    assert data.x_train[:, 1].max() == 199**2 and len(data.x_train) == 200
    assert not len(data.x_test) and not data.test_from  # nobody said that any row is public
    assert data.assumed == (
        "whether the label is a class or a number",
        "the number of classes",
        "the names of the columns",
    )
    declared = read(tmp_path, numeric(), "[a]\nmin = 0\nmax = 9\n[y]\nclasses = 5", label="y")
    assert declared.classes == 5 and declared.notes[0] == SCHEMA_NOTE
    assert declared.owner_notes[0].endswith("columns that are not in the schema are left out: b.")  # not public
    assert declared.x_train.shape[1] == 1


def test_a_decimal_target_is_regression(tmp_path):
    data = read(tmp_path, numeric(label=lambda i: i / 10), None, label="y")
    assert data.task == "regression" and data.classes is None and data.y_train.dtype == torch.float32
    scaled = read(tmp_path, numeric(label=lambda i: i), "[a]\nmin = 0\nmax = 9\n[y]\nmin = 0\nmax = 100", label="y")
    assert scaled.task == "regression" and scaled.y_train.max() == 1 and scaled.y_train.min() == 0


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (TABLE.replace("90,", ",", 1), r"column 'age', row 2: the value is missing"),
        (TABLE.replace("17,F", "17,", 1), r"column 'sex', row 1: the value is missing"),
        (TABLE.replace("17,", "old,", 1), r"column 'age', row 1: 'old' is not a finite number"),
        (TABLE.replace("17,", "inf,", 1), r"column 'age', row 1: 'inf' is not a finite number"),
        (TABLE.replace("bob,", ",", 1), r"column 'patient', row 2: the value is missing"),
        (TABLE.replace("south,", ",", 1), r"column 'hospital', row 2: the value is missing"),
        (TABLE.replace(">50K", "rich", 1), r"column 'income', row 2: 'rich' is not among the declared label values"),
        (TABLE.replace("gain", "age"), "column 'age' appears twice"),
        (TABLE.replace("gain", "gains"), "has no column 'gain'. Did you mean 'gains'. There are: age, sex, gains"),
        (TABLE.replace("test", "train"), "no row has 'test' in column 'part'"),
        (TABLE.replace("train", "test"), "every row has 'test'"),
        (TABLE.splitlines()[0], "has no rows"),
        (TABLE + "1,2,3,4,5,6,7,8,9\n", "cannot read .*line 6"),
        (TABLE + "1,F,3\n", "the value is missing"),
        ("", "is empty"),
        ("\n\n", "is empty"),
        (TABLE.encode("utf-16"), "not UTF-8"),
        (TABLE.replace("north", "nörd").encode("latin-1"), "not UTF-8"),
        (b"\x00" * 100, "DataError|has no|appears twice|cannot read"),
    ],
)
def test_a_bad_table_is_refused_in_one_line(text, match, tmp_path):
    refused(match, tmp_path, text, **ROLES)


def test_a_byte_order_mark_is_fine(tmp_path):
    assert len(read(tmp_path, TABLE.encode("utf-8-sig"), **ROLES).x_train) == 3


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (numeric(label=lambda i: i - 150), "label -150 in record 0 is negative"),
        (numeric(label=lambda i: 10**9 if i == 4 else 0), "label 1000000000 would make 1000000001 classes"),
        (numeric(label=lambda i: "mild"), "column 'y' holds one label alone. Declare the labels"),
        (numeric(label=lambda i: f"name {i}"), "column 'y' holds more than 100 different texts. Declare the labels"),
        (
            numeric(label=lambda i: "no" if i == 7 else 1),
            r"column 'y', row 8: 'no' is not a number, but row 1 holds one",
        ),
        (numeric(label=lambda i: "" if i == 7 else 1), r"column 'y', row 8: the value is missing"),
        (numeric().replace("16,1", "sixteen,1"), r"column 'b', row 5: 'sixteen' is not a finite number. Declare its"),
        (numeric().replace("16,1", "1e300,1"), "too large for a 32-bit float"),
        ("y\n0\n1\n", "no column left for the model"),
    ],
)
def test_bad_numbers_without_a_schema_are_refused(text, match, tmp_path):
    refused(match, tmp_path, text, None, label="y")


def test_labels_beyond_the_declared_classes_are_refused(tmp_path):
    refused("label 2 in record 2 is not below the declared 2 classes", tmp_path, numeric(),
            "[a]\nmin = 0\nmax = 1\n[y]\nclasses = 2", label="y")  # fmt: skip
    refused("labels must be whole numbers", tmp_path, numeric(label=lambda i: i / 2),
            "[a]\nmin = 0\nmax = 1\n[y]\nclasses = 200", label="y")  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        ("age = 3", "write a table"),
        ("[age]", "found nothing"),
        ("[age]\nmin = 0", "found min"),
        ("[age]\nmin = 1\nmax = 1", "min below max"),
        ("[age]\nmin = nan\nmax = 1", "finite"),
        ("[age]\nmin = 'a'\nmax = 1", "finite"),
        ("[age]\nmin = 0\nmax = 1\nlog = 3", "log true or false"),
        ("[sex]\nvalues = []", "at least one"),
        ("[sex]\nvalues = 'F'", "must be a list"),
        ("[sex]\nvalues = ['F', 'F']", "appears twice"),
        ("[income]\nclasses = 1", "from 2 to"),
        ("[income]\nclasses = 10000000000", "from 2 to"),
        ("[age]\nclasses = 3\n[income]\nvalues = ['<=50K', '>50K']", "classes is for the label"),
        ("[income]\nvalues = ['<=50K', '>50K']", "declares no column for the model"),
        ("[age\n", "cannot read the schema"),
        ("", "declares no column"),
    ],
)
def test_a_bad_schema_is_refused(schema, match, tmp_path):
    refused(match, tmp_path, TABLE, schema, **ROLES)


def test_bad_roles_are_refused(tmp_path):
    refused("say which column is the label; there are age, sex", tmp_path)
    refused("no column 'nobody'", tmp_path, client="nobody", label="income")
    for role, name, near in (("label", "incme", "income"), ("client", "Hospitl", "hospital"),
                             ("user", "patients", "patient"), ("split", "prt", "part")):  # fmt: skip
        refused(f"no column '{name}'. Did you mean '{near}'", tmp_path, **ROLES | {role: name})
    with pytest.raises(DataError, match="is the label and cannot be the client"):
        Columns(label="a", client="a")
    with pytest.raises(DataError, match="cannot read the schema"):
        load("it.csv", str(tmp_path), columns=Columns(label="income", schema=str(tmp_path / "none.toml")))


@pytest.mark.parametrize("cut", [1, 10, 60, -9, -1])
def test_a_truncated_gz_is_refused(cut, tmp_path):
    refused("cannot read .*(damaged|cut short)|is empty", tmp_path, gzip.compress(TABLE.encode())[:cut],
            name="it.csv.gz", **ROLES)  # fmt: skip


def test_bad_parquet_files_are_refused(tmp_path):
    refused("cannot read", tmp_path, b"PAR1 nothing", name="it.parquet", **ROLES)
    frame = pd.DataFrame({"a": [1.0, None, 2.0], "y": [0, 1, 0]})
    frame.to_parquet(tmp_path / "x.parquet")
    refused("column 'a', row 2: the value is missing", tmp_path, (tmp_path / "x.parquet").read_bytes(), None,
            name="x.parquet", label="y")  # fmt: skip
    pd.DataFrame({"a": pd.to_datetime(["2020-01-01"] * 3), "y": [0, 1, 0]}).to_parquet(tmp_path / "x.parquet")
    refused("column 'a' holds datetime", tmp_path, (tmp_path / "x.parquet").read_bytes(), None,
            name="x.parquet", label="y")  # fmt: skip
    pd.DataFrame({"a": [[1], [2], [3]], "b": [1, 2, 3], "y": [0, 1, 0]}).to_parquet(tmp_path / "x.parquet")
    refused("column 'a'", tmp_path, (tmp_path / "x.parquet").read_bytes(), None, name="x.parquet", label="y")
    pd.DataFrame({"a": [1, 2, 3], "y": [True, False, True]}).to_parquet(tmp_path / "x.parquet")
    data = read(tmp_path, (tmp_path / "x.parquet").read_bytes(), None, name="x.parquet", label="y")
    assert data.classes == 2 and data.y_train.dtype == torch.int64


def test_numbers_written_differently_are_the_same_category():
    assert Category(("1", "2")).index(["2", "1", "3"]).tolist() == [1, 0, 2]
    assert Number(-10, 10, log=True).unit(np.array([-10.0, 0, 10, 99])).tolist() == [0, 0.5, 1, 1]


def test_a_number_with_and_without_its_point_is_one_user(tmp_path):
    """pandas writes 7.0 where a column once had a gap; the person is the same."""
    rows = [("1", "a"), ("7", "b"), ("7.0", "a"), ("1.00", "b"), ("7.5", "a"), ("7", "a")]
    text = "x,y,person,part\n" + "".join(
        f"{i},0,{p},{'test' if i == 5 else 'train'}\n" for i, (p, _) in enumerate(rows)
    )
    (tmp_path / "t.csv").write_text(text)
    users = table(tmp_path / "t.csv", Columns(label="y", user="person", split="part")).user_train
    assert users[1] == users[2] and users[0] == users[3] and len(set(users.tolist())) == 3


def test_a_slip_in_the_split_column_is_named(tmp_path):
    (tmp_path / "t.csv").write_text("x,y,part\n1,0,train\n2,1,tset\n3,1,test\n")
    with pytest.raises(DataError, match="'part', row 2: 'tset' is neither 'train' nor 'test'"):
        table(tmp_path / "t.csv", Columns(label="y", split="part"))


# --- which rows are public


def saved(folder, name, text):
    (folder / name).write_text(text)
    return folder / name


def test_a_second_table_brings_the_public_rows(tmp_path):
    text = TABLE.replace(",part", "").replace(",train", "").replace(",test", "")
    first = saved(tmp_path, "it.csv", text)
    (tmp_path / "it.toml").write_text(SCHEMA)
    roles = {k: v for k, v in ROLES.items() if k != "split"} | {"schema": str(tmp_path / "it.toml")}
    header = text.splitlines()[0].split(",")
    frame = pd.read_csv(first, dtype=str)[header[::-1]].iloc[[3, 0]]  # other order of columns, rows of its own
    frame.assign(hospital=["north", "aaa"]).to_csv(tmp_path / "shown.csv", index=False)
    data = load("it.csv", str(tmp_path), columns=Columns(**roles), declared=Declared(test="shown.csv"))
    assert len(data.x_train) == 4 and torch.equal(data.x_test, data.x_train[[3, 0]])
    assert data.y_test.tolist() == data.y_train[[3, 0]].tolist() and data.test_from == "the 2 rows of the test table"
    names = pd.read_csv(first)["hospital"].tolist()
    assert data.client_test[0] == data.client_train[names.index("north")] and data.client_test[1] == 0  # aaa is first
    assert data.user_test.tolist() == data.user_train[[3, 0]].tolist()
    frame.drop(columns=["hospital", "patient"]).to_csv(tmp_path / "bare.csv", index=False)
    bare = load("it.csv", str(tmp_path), columns=Columns(**roles), declared=Declared(test="bare.csv"))
    assert bare.client_test is None and bare.user_test is None and len(bare.user_train) == 4
    frame.drop(columns=["age"]).to_csv(tmp_path / "short.csv", index=False)
    for test, match in (("short.csv", "short.csv, unlike it.csv, has no column 'age'"), ("no.csv", "there is none")):
        with pytest.raises(DataError, match=match):
            load("it.csv", str(tmp_path), columns=Columns(**roles), declared=Declared(test=test))
    saved(tmp_path, "split.csv", TABLE)
    with pytest.raises(DataError, match="drop split_column or test"):
        load("split.csv", str(tmp_path), columns=Columns(**ROLES), declared=Declared(test="shown.csv"))


def test_whole_numbers_of_a_second_table_are_a_regression_where_the_first_has_one(tmp_path):
    saved(tmp_path, "r.csv", numeric(label=lambda i: i / 10))
    saved(tmp_path, "t.csv", numeric(5))
    data = load("r.csv", str(tmp_path), columns=Columns(label="y"), declared=Declared(test="t.csv"))
    assert data.task == "regression" and data.y_test.tolist() == [0, 1, 2, 0, 1] and data.y_test.dtype == torch.float32
    with pytest.raises(DataError, match="labels are decimal numbers"):
        load("t.csv", str(tmp_path), columns=Columns(label="y"), declared=Declared(test="r.csv"))


def people(rows=300, users=40, clients=6):
    who = [(7 * i) % users for i in range(rows)]
    return "a,y,who,site\n" + "".join(f"{i},{i % 3},u{u},s{u % clients}\n" for i, u in enumerate(who))


@pytest.mark.parametrize("by", ["record", "user", "client"])
def test_a_declared_share_is_drawn_by_whole_units_each_for_itself(by, tmp_path):
    roles = Columns(label="y", user="who", client="site")

    def shared(text, share=0.3):
        saved(tmp_path, "p.csv", text)
        return load("p.csv", str(tmp_path), columns=roles, declared=Declared(share=share, by=by))

    data = shared(people())
    assert len(data.x_train) + len(data.x_test) == 300 and 30 < len(data.x_test) < 180 and not data.public
    assert data.test_from.startswith(f"{len(data.x_test)} of 300 records (public_share = 0.3")
    both = set(data.user_train.tolist()) & set(data.user_test.tolist())
    assert bool(both) == (by == "record")  # here all records of a user lie in one client
    rows = set(data.x_test[:, 0].tolist())
    lines = people().splitlines()
    changed = shared("\n".join([*lines[:6], lines[6].replace(",2,", ",0,"), *lines[7:]]))
    assert set(changed.x_test[:, 0].tolist()) == rows  # no label moves anything
    gone = shared("\n".join(line for line in lines if ",u3," not in line)) if by == "user" else shared(people(301))
    left = {float(line.split(",")[0]) for line in lines[1:] if by != "user" or ",u3," not in line}
    assert rows & left == set(gone.x_test[:, 0].tolist()) & left  # nobody else moves when one comes or goes
    with pytest.raises(DataError, match="takes none of them"):
        shared(people(), 1e-9)
    with pytest.raises(SpecError):
        Declared(share=1.0)
    with pytest.raises(DataError, match="not both"):
        Declared(share=0.1, test="x.csv")


def test_data_that_are_public_altogether_get_a_test_part(tmp_path):
    saved(tmp_path, "p.csv", numeric(300))
    data = load("p.csv", str(tmp_path), columns=Columns(label="y"), declared=Declared(everything=True))
    assert data.public and 10 < len(data.x_test) < 60 and "all records (public_data)" in data.assumed


def test_a_share_of_users_needs_users_and_of_a_benchmark_there_is_none(tmp_path):
    saved(tmp_path, "p.csv", numeric())
    with pytest.raises(DataError, match="does not say which user a record belongs to"):
        load("p.csv", str(tmp_path), columns=Columns(label="y"), declared=Declared(share=0.3, by="user"))
    with pytest.raises(DataError, match="has public test records of its own"):
        load("mnist", declared=Declared(share=0.3))
    saved(tmp_path, "s.csv", "x,y,part\n1,0,train\n2,1,train\n3,1,test\n")
    with pytest.raises(DataError, match="comes with 1 test records"):
        load("s.csv", str(tmp_path), columns=Columns(label="y", split="part"), declared=Declared(share=0.3))
