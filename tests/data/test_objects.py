"""Data as Python programs hold them: tables of all kinds give the same clients, streams and samplers are refused."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, WeightedRandomSampler

import sordino
from sordino.core.errors import DataError, SpecError
from sordino.data import dense
from sordino.data.clients import adopt
from sordino.data.load import Columns, load
from sordino.data.objects import bring
from support.errors import one_line_error

FRAME = pd.DataFrame(
    {
        "age": [40.0, 50, 60, 70, 80, 90],
        "dose": [1, 2, 3, 1, 2, 3],
        "site": ["b", "a", "b", "a", "b", "b"],
        "who": ["x", "y", "x", "y", "z", "z"],
        "sick": [0, 1, 0, 1, 1, 0],
    }
)
ROLES = Columns(label="sick", client="site", user="who")
RECORDS = FRAME.to_dict("records")


class Records(Dataset):
    """A torch Dataset of dict records, as Hugging Face programs have them."""

    def __len__(self):
        return len(RECORDS)

    def __getitem__(self, i):
        return {k: torch.tensor(v) if not isinstance(v, str) else v for k, v in RECORDS[i].items()}


class Pairs(Dataset):
    """A torch Dataset of (x, y) pairs."""

    def __len__(self):
        return 6

    def __getitem__(self, i):
        return torch.full((2,), float(i)), i % 2


class Stream(IterableDataset):
    """A torch Dataset without numbered records."""

    def __iter__(self):
        return iter([(torch.zeros(2), 0)])


def hugging_face():
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_pandas(FRAME)


def polars():
    return pytest.importorskip("polars").DataFrame(RECORDS)


@pytest.mark.parametrize(
    "make", [lambda: FRAME, lambda: FRAME.set_index("age", drop=False), polars, hugging_face, lambda: RECORDS, Records]
)
def test_every_table_gives_the_clients_of_the_file(make, tmp_path):
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    data = load("t.csv", str(tmp_path), columns=ROLES)
    brought = bring(make(), ROLES)
    assert brought.clients.all_sizes().tolist() == [2, 4]  # by name: a, b
    order = np.argsort(data.client_train, kind="stable")
    assert torch.equal(brought.clients.x, data.x_train[order]) and torch.equal(brought.clients.y, data.y_train[order])
    assert np.concatenate(brought.users).tolist() == data.user_train[order].tolist()
    for mine, its in zip(brought.raw.forms, data.raw.forms, strict=True):  # a ledger knows the same rows again
        assert mine.kind == its.kind and (mine.block(0, 6) == its.block(0, 6)).all()


def test_one_table_per_client_keeps_order_and_names():
    parts = {"north": FRAME.iloc[4:].drop(columns="site"), "east": FRAME.iloc[:4].drop(columns="site")}
    brought = bring(parts, Columns(label="sick", user="who"))
    assert brought.clients.all_sizes().tolist() == [2, 4] and list(brought.names) == ["north", "east"]
    assert brought.clients.x[0].tolist() == [80, 2] and brought.raw.clients.tolist() == ["north", "east"]
    assert bring(list(parts.values()), Columns(label="sick", user="who")).clients.x.equal(brought.clients.x)


def test_dict_records_per_client_are_tables():
    plain = [{k: v for k, v in row.items() if k in ("age", "sick")} for row in RECORDS]
    pairs = bring([plain[:2], plain[2:]], Columns(label="sick"))  # two records are no (x, y) pair
    assert pairs.clients.all_sizes().tolist() == [2, 4]
    with one_line_error(DataError, "record 1 has other keys"):
        bring([plain[0], {"age": 3}], Columns(label="sick"))


def test_a_table_without_clients_is_one_client_and_says_so():
    brought = bring(FRAME[["age", "sick"]], Columns(label="sick"))
    assert brought.clients.count == 1 and any("all records are in one client" in n for n in brought.notes)
    assert any("label is a class or a number" in text for text in brought.public)


def test_a_declared_class_label_is_not_read_from_the_records():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"age": datasets.Value("float32"), "sick": datasets.ClassLabel(names=["n", "y", "?"])})
    brought = bring(datasets.Dataset.from_dict({"age": [1.0, 2.0], "sick": [0, 1]}, features=features), Columns("sick"))
    assert brought.public == ("the names of the columns",) and not any(
        "read from the labels" in n for n in brought.notes
    )
    with one_line_error(DataError, "a DatasetDict holds parts, not clients"):
        bring(datasets.DatasetDict({"train": hugging_face(), "test": hugging_face()}), ROLES)
    with one_line_error(DataError, "is a stream"):
        bring(hugging_face().to_iterable_dataset(), ROLES)


def test_a_column_of_arrays_is_the_record():
    frame = pd.DataFrame({"vector": [[1.0, 2], [3, 4], [5, 6]], "sick": [0, 1, 1]})
    brought = bring(frame, Columns(label="sick"))
    assert brought.clients.x.tolist() == [[1, 2], [3, 4], [5, 6]]
    with one_line_error(DataError, "column 'vector': its arrays must hold numbers and have one shape"):
        bring(pd.DataFrame({"vector": [[1.0, 2], [3]], "sick": [0, 1]}), Columns(label="sick"))


@pytest.mark.parametrize(
    ("clients", "columns", "match"),
    [
        (FRAME, None, "say which column is the label; there are age"),
        (FRAME, Columns(label="ill"), "has no column 'ill'"),
        ([FRAME, FRAME[["age", "sick"]]], Columns(label="sick"), "client 1: its columns differ"),
        ([FRAME, FRAME], ROLES, "one table per client already"),
        ([FRAME, FRAME[:0]], Columns(label="sick"), "client 1 has no records"),
        ([(FRAME[["age"]], FRAME.sick)], ROLES, "are for tables"),
        ((np.zeros((3, 2)), np.zeros(3)), None, r"one \(x, y\) pair: write \[\(x, y\)\]"),
        (pd.concat([FRAME, FRAME], axis=1), ROLES, "column 'age' appears twice"),
        (FRAME.assign(age=[1, 2, np.nan, 4, 5, 6]), ROLES, "column 'age', row 3: the value is missing"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(clients, columns, match):
    with one_line_error(DataError, match):
        bring(clients, columns)


def test_a_lazy_frame_is_refused():
    with one_line_error(DataError, "frame.collect"):
        bring(polars().lazy(), ROLES)


# --- torch


@pytest.mark.parametrize(
    "make",
    [
        Pairs,
        lambda: DataLoader(Pairs(), batch_size=4, shuffle=True, drop_last=True),
        lambda: Subset(Pairs(), range(6)),
        lambda: TensorDataset(torch.arange(6.0)[:, None].expand(6, 2), torch.arange(6) % 2),
    ],
)
def test_a_dataset_is_read_record_by_record_in_its_order(make):
    """A DataLoader that shuffles, batches and drops the last records still brings all of them once, in order."""
    for brought in (bring(make()), bring([make()]), bring({"a": make()})):
        assert brought.clients.count == 1 and brought.clients.x[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
        assert brought.clients.y.tolist() == [0, 1, 0, 1, 0, 1]
    assert ("DataLoader" in "".join(bring([make()]).notes)) == isinstance(make(), DataLoader)


def folded(batch):
    return torch.stack([x for x, _ in batch]).sum(0), 0


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (Stream, "client 0 is an IterableDataset.*list.dataset"),
        (lambda: DataLoader(Stream()), "IterableDataset"),
        (lambda: DataLoader(Pairs(), collate_fn=folded), "collate_fn.*__getitem__"),
        (lambda: DataLoader(Pairs(), sampler=WeightedRandomSampler([1.0] * 6, 6)), "sampler WeightedRandomSampler"),
        (lambda: DataLoader(Pairs(), sampler=range(3)), "sampler range.*Subset"),
        (lambda: DataLoader(Pairs(), batch_sampler=[[0, 1], [0, 1]]), "batch_sampler"),
    ],
)
def test_a_loader_that_changes_the_records_is_refused(make, match):
    with one_line_error(DataError, match):
        adopt([make()])
    with pytest.raises(DataError):
        bring(make())


# --- sparse matrices


def test_a_sparse_matrix_is_the_dense_one(tmp_path):
    x, y = sparse.random(20, 5, 0.4, "csr", rng=0), np.arange(20) % 2
    for matrix in (x, x.tocoo(), sparse.csc_array(x), torch.from_numpy(x.toarray()).to_sparse()):
        assert torch.equal(adopt([(matrix, y)]).x, torch.from_numpy(x.toarray()).float())
    sparse.save_npz(tmp_path / "x.npz", x)
    np.save(tmp_path / "y.npy", y)
    data = load("x.npz", str(tmp_path), columns=Columns(label="y.npy"))
    assert torch.equal(data.x_train, torch.from_numpy(x.toarray()).float()) and data.y_train.tolist() == y.tolist()
    sparse.save_npz(tmp_path / "xy.npz", sparse.hstack([x, y[:, None]]).tocsr())
    assert torch.equal(load("xy.npz", str(tmp_path), columns=Columns(label="5")).x_train, data.x_train)


def test_a_sparse_matrix_that_cannot_be_used_is_refused(tmp_path, monkeypatch):
    x = sparse.random(20, 5, 0.4, "csr", rng=0)
    sparse.save_npz(tmp_path / "x.npz", x)
    np.save(tmp_path / "y.npy", np.zeros(3))
    for columns, match in [
        (None, "say which column is the label"),
        (Columns(label="y.npy"), "one value for each of the 20 rows"),
        (Columns(label="none.npy"), "cannot read"),
        (Columns(label="../y.npy"), "without a path"),
        (Columns(label="9"), "has no column '9'"),
        (Columns(label="0", schema="s.toml"), "are for tables"),
    ]:
        with one_line_error(DataError, match):
            load("x.npz", str(tmp_path), columns=columns)
    huge = sparse.csr_matrix((10_000_000, 1_000_000))
    with one_line_error(DataError, r"client 0: x: 10,000,000 records of 1,000,000 numbers need 37,252.9 GiB of memory"):
        adopt([(huge, np.zeros(10_000_000))])
    monkeypatch.setattr(dense, "MOST_BYTES", 100)
    with one_line_error(DataError, "20 records of 5 numbers need"):
        load("x.npz", str(tmp_path), columns=Columns(label="0"))


# --- through the door


def test_a_frame_trains_checks_resumes_and_tells_what_is_public(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60), "site": np.arange(60) % 3})
    frame["sick"], frame["who"] = (frame.a > 0).astype(int), np.arange(60) % 20
    named = {"label_column": "sick", "client_column": "site", "user_column": "who"}
    keys = named | {"unit": "user", "rounds": 1, "epsilon": 4.0, "device": "cpu", "clients_per_user": 3}
    result = sordino.train(torch.nn.Linear(2, 2), frame, test=frame[:9], out=str(tmp_path), **keys)
    assert "all records of any single user" in result.guarantee.sentence()
    assert "the 9 rows of the test table" in result.guarantee.sentence()
    assert any("columns were used as they are" in note for note in result.notes)
    stored = json.loads((result.folder / "public" / "plan.json").read_text())
    assert stored["clients"] == 3
    again = sordino.train(torch.nn.Linear(2, 2), frame, test=frame[:9], resume=result.folder)
    assert again.guarantee == result.guarantee
    assert sordino.check(model=torch.nn.Linear(2, 2), clients=frame, test=frame[:9], **keys) is not None
    with pytest.raises(SpecError, match="name its user_column"):
        sordino.train(torch.nn.Linear(2, 2), frame, users=[np.arange(20)] * 3, out=str(tmp_path), **keys)
    with one_line_error(DataError, "are for tables"):
        sordino.train(torch.nn.Linear(2, 2), [(frame[["a", "b"]], frame.sick)], out=str(tmp_path), label_column="sick")


def test_optional_packages_are_imported_only_for_their_own_objects(monkeypatch):
    for name in ("polars", "datasets"):
        monkeypatch.setitem(sys.modules, name, None)  # an import would fail
    assert bring(FRAME, ROLES).clients.count == 2 and bring([Pairs()]).clients.count == 1
