"""The benchmarks are what they say they are, and anything else in their place is refused."""

import gzip
import io
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from sordino.core import plugin
from sordino.core.errors import DataError
from sordino.data import find
from sordino.data.load import Columns, load
from sordino.data.sets.base import DatasetSource
from sordino.data.sets.shakespeare import ALPHABET

NAMES = plugin.available("data.sets")
FILES = {
    "medical-mnist": "medical_mnist/medical_mnist_32.npz",
    "femnist-digits": "femnist_digits_subset/femnist_digits_subset.npz",
    "omniglot": "omniglot_small/omniglot_small_28.npz",
    "shakespeare": "shakespeare/shakespeare_speeches.csv.gz",
    "adult": "adult/adult.csv.gz",
    "credit-default": "credit_default/credit_default.csv.gz",
    "breast-cancer": "breast_cancer_wdbc/breast_cancer.csv.gz",
    "gefcom-wind": "gefcom2014_wind/gefcom2014_wind.csv.gz",
    "gefcom-wind-48h": "gefcom2014_wind/gefcom2014_wind.csv.gz",
}
_kept = {}


@pytest.fixture
def held(data_file):
    """held("adult") is the dataset, read once."""

    def get(name):
        if name not in _kept:
            _kept[name] = load(name, str(data_file(FILES[name]).parent.parent))
        return _kept[name]

    return get


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No data folder, an empty cache."""
    monkeypatch.delenv("SORDINO_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def accuracy_of_least_squares(data, ridge=1e-2):
    """A second look at whether labels belong to inputs."""

    def rows(x):
        x = data.prepare(x).flatten(1).double()
        return torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)

    a, y = rows(data.x_train), torch.nn.functional.one_hot(data.y_train, data.classes).double()
    w = torch.linalg.solve(a.T @ a + ridge * torch.eye(a.shape[1]), a.T @ y)
    return ((rows(data.x_test) @ w).argmax(1) == data.y_test).double().mean().item()


def test_the_datasets_are_the_files():
    folder = Path(find.__file__).parent / "sets"
    assert {n.replace("-", "_") for n in NAMES} == {p.stem for p in folder.glob("[a-z]*.py")} - {"base"}
    for name in NAMES:
        source = plugin.load("data.sets", name)
        assert isinstance(source, DatasetSource) and source.name == name and source.licence and source.origin


@pytest.mark.parametrize("name", FILES)
def test_a_dataset_is_as_declared(name, held):
    data, source = held(name), plugin.load("data.sets", name)
    assert (len(data.x_train), len(data.x_test)) == source.records == (len(data.y_train), len(data.y_test))
    assert data.task == source.task and data.public and not data.notes
    assert (data.client_train is None) == (source.clients is None)
    if source.clients is not None:
        assert len(np.unique(data.client_train)) == source.clients
        assert data.client_train.dtype == np.int64 and len(data.client_test) == len(data.x_test)
    if data.task == "regression":
        assert data.classes is None and data.y_train.dtype == torch.float32
    else:
        assert data.y_train.dtype == torch.int64 and data.y_train.min() >= 0 and data.y_train.max() < data.classes
        assert len(data.names) == data.classes
    ready = data.prepare(data.x_train[:50])
    assert ready.dtype == (torch.int64 if data.task == "next-token" else torch.float32)
    assert ready.abs().max() <= (95 if data.task == "next-token" else 3)
    torch.testing.assert_close(data.prepare(data.x_train[7:8])[0], ready[7])  # each record alone


def test_adult_has_the_published_counts_and_can_be_learnt(held):
    data = held("adult")
    assert torch.bincount(torch.cat([data.y_train, data.y_test])).tolist() == [37155, 11687]
    assert data.x_train.abs().max() <= 1 and data.x_train.shape[1] == 115
    assert accuracy_of_least_squares(data) > 0.835  # the majority is 0.764
    other = data.x_train[:, 1 + 9]  # nobody's workclass is undeclared, and "?" has a slot of its own
    assert other.sum() == 0 and data.x_train[:, 1 + 8].sum() + data.x_test[:, 1 + 8].sum() == 2799


def test_adult_as_uci_has_it_is_the_same(held, tmp_path, data_file):
    import pandas as pd

    cells = pd.read_csv(data_file(FILES["adult"]), dtype=str, keep_default_na=False)
    files = (("train", "adult.data", "", "\n"), ("test", "adult.test", "|1x3 Cross validator\n", ".\n"))
    for part, name, head, end in files:
        rows = cells[cells["split"] == part].drop(columns="split").itertuples(index=False)
        (tmp_path / name).write_text(head + "".join(", ".join(r) + end for r in rows) + "\n")
    data = load("adult", str(tmp_path))
    assert torch.equal(data.x_train, held("adult").x_train) and torch.equal(data.y_test, held("adult").y_test)
    text = (tmp_path / "adult.data").read_text()
    (tmp_path / "adult.data").write_text(text.replace("39, State-gov", "38, State-gov", 1))
    with pytest.raises(DataError, match="the records are not those of adult"):
        load("adult", str(tmp_path))


def test_credit_default_has_the_published_counts_and_can_be_learnt(held):
    data = held("credit-default")
    assert torch.bincount(torch.cat([data.y_train, data.y_test])).tolist() == [23364, 6636]
    assert accuracy_of_least_squares(data) > 0.79  # the majority is 0.779


def test_breast_cancer_has_the_published_counts_and_can_be_learnt(held, tmp_path, data_file):
    data = held("breast-cancer")
    assert torch.bincount(torch.cat([data.y_train, data.y_test])).tolist() == [212, 357]
    assert accuracy_of_least_squares(data) > 0.9
    rows = gzip.decompress(data_file(FILES["breast-cancer"]).read_bytes()).decode().splitlines()[1:]
    lines = [f"{842302 + i},{'MB'[int(r.rsplit(',', 1)[1])]},{r.rsplit(',', 1)[0]}" for i, r in enumerate(rows)]
    (tmp_path / "wdbc.data").write_text("\n".join(lines))  # UCI's own form
    assert torch.equal(load("breast-cancer", str(tmp_path)).x_test, data.x_test)


def test_wind_is_hourly_power_of_ten_zones(held):
    data = held("gefcom-wind")
    assert len(data.x_train) + len(data.x_test) == 168_000 - 112
    assert data.y_train.min() == 0 and data.y_train.max() == 1
    counts = np.bincount(data.client_train)
    assert len(counts) == 10 and counts.min() > 13_100 and counts.max() == 547 * 24 - 1  # until June 2013
    one = lambda x: torch.cat([x, torch.ones(len(x), 1)], 1).double()  # noqa: E731
    a = one(data.x_train)
    w = torch.linalg.solve(a.T @ a + 1e-3 * torch.eye(a.shape[1]), a.T @ data.y_train.double())
    assert (one(data.x_test) @ w - data.y_test).square().mean().sqrt() == pytest.approx(0.211, abs=0.002)
    torch.testing.assert_close(data.x_train[:, 3:5].norm(dim=1), torch.ones(len(a)))  # directions
    for wave in (data.x_train[:, 10:12], data.x_train[:, 12:14]):  # hour and day of the year
        torch.testing.assert_close(wave.norm(dim=1), torch.ones(len(a)))


def test_a_forecast_is_for_the_48_hours_after_those_it_knows(held):
    hourly, data = held("gefcom-wind"), held("gefcom-wind-48h")
    assert data.x_train.shape[1:] == (15, 48) and data.y_train.shape[1:] == data.y_test.shape[1:] == (48,)
    at = lambda d, zone: (d.x_train[d.client_train == zone], d.y_train[d.client_train == zone])  # noqa: E731
    (x, y), (features, power) = at(data, 4), at(hourly, 4)  # a zone without a gap
    assert len(x) == len(y) == 2 * 542 + 2  # from 3 January 2012 to noon of 28 June 2013
    for k in (0, 1, 500):  # the first is issued at midnight after 48 hours: the table begins at one o'clock
        now = 47 + 12 * k
        assert torch.equal(x[k, 14], power[now - 47 : now + 1]) and torch.equal(y[k], power[now + 1 : now + 49])
        assert torch.equal(x[k, :14].T, features[now + 1 : now + 49])
    gaps = np.bincount(data.client_train)
    assert gaps[:3].tolist() == [1046, 1059, 1086] and (gaps[3:] == 1086).all()
    x, power = data.x_test[data.client_test == 4], hourly.y_test[hourly.client_test == 4]
    assert torch.equal(x[0, 14], power[1:49])  # what a test record knows is of the test part too


def test_shakespeare_is_cut_into_windows_by_role(held):
    data = held("shakespeare")
    assert data.x_train.shape[1] == 80 and data.classes == len(ALPHABET) == 96
    assert torch.equal(data.x_train[:, 1:], data.y_train[:, :-1])
    assert data.x_train[1, 0] == data.y_train[0, -1]  # windows follow one another
    text = "".join(ALPHABET[i] for i in data.x_train[data.client_train == 0].flatten())
    assert text.startswith("Give me leave, Caesar,--\n")  # the first role by name is Agrippa of Antony and Cleopatra
    assert np.array_equal(data.user_train, data.client_train)
    train, test = np.bincount(data.client_train), np.bincount(data.client_test)
    assert train.min() >= 1 and test.min() >= 1 and 0.09 < test.sum() / (train.sum() + test.sum()) < 0.12
    common = Counter(data.x_train.flatten().tolist()).most_common(2)
    assert [ALPHABET[c] for c, _ in common] == [" ", "e"]


def test_omniglot_tests_on_drawers_it_did_not_train_on(held):
    data = held("omniglot")
    assert not set(data.client_train.tolist()) & set(data.client_test.tolist())
    assert torch.bincount(data.y_train).tolist() == [16] * 242 and torch.bincount(data.y_test).tolist() == [4] * 242
    sizes = np.unique(data.client_train, return_counts=True)[1]
    assert sizes.min() == 17 and sizes.max() == 47


def test_femnist_digits_says_that_it_is_a_subset(held):
    data, source = held("femnist-digits"), plugin.load("data.sets", "femnist-digits")
    assert "SUBSET" in source.note and "no writer ids" in source.note
    assert accuracy_of_least_squares(data, ridge=30) > 0.75
    ratio = np.bincount(data.client_test) / np.bincount(data.client_train)
    assert len(ratio) == 12 and abs(ratio - 0.2).max() < 0.01  # a sixth of every client


def test_medical_mnist_is_balanced_and_can_be_learnt(held):
    data = held("medical-mnist")
    assert torch.bincount(data.y_train).tolist() == [3000] * 6 and torch.bincount(data.y_test).tolist() == [600] * 6
    assert data.x_train.shape[1:] == (32, 32) and data.x_train.dtype == torch.uint8
    assert data.names[0] == "AbdomenCT"


@pytest.mark.parametrize("name", ["omniglot", "femnist-digits"])
def test_a_flat_folder_does_as_well_and_another_file_is_refused(name, held, tmp_path, data_file):
    path = tmp_path / Path(FILES[name]).name
    path.write_bytes(data_file(FILES[name]).read_bytes())
    assert torch.equal(load(name, str(tmp_path)).x_train, held(name).x_train)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="damaged or another file"):
        load(name, str(tmp_path))


def test_the_data_folder_of_the_environment_is_searched(tmp_path, monkeypatch, data_file):
    there = data_file(FILES["omniglot"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SORDINO_DATA", str(there.parent.parent))
    source = plugin.load("data.sets", "omniglot")
    assert find.locate(source).where == "data folder" and find.locate(source, str(tmp_path)).where == "data folder"
    monkeypatch.delenv("SORDINO_DATA")
    assert find.locate(source) is None
    copy = tmp_path / "cache" / "sordino" / FILES["omniglot"]
    copy.parent.mkdir(parents=True)
    copy.write_bytes(there.read_bytes())
    assert find.locate(source).where == "cache"


@pytest.mark.parametrize("name", ["omniglot", "medical-mnist", "femnist-digits", "shakespeare", "gefcom-wind"])
def test_what_is_not_here_is_told_in_one_line_with_file_and_folder(name, nowhere):
    with pytest.raises(DataError) as error:
        load(name, str(nowhere / "data"))
    text, file = str(error.value), Path(FILES[name])
    assert "\n" not in text and f"Put {file.name} into {nowhere / 'data' / file.parent}" in text


def test_columns_are_for_tables_of_ones_own():
    with pytest.raises(DataError, match="has columns of its own"):
        load("mnist", columns=Columns(label="x"))


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.tobytes()


def as_idx(folder, arrays, suffix):
    folder.mkdir(parents=True)
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    for name, array in zip(names, arrays, strict=True):
        data = idx(array)
        (folder / f"{name}-ubyte{suffix}").write_bytes(gzip.compress(data, 0) if suffix else data)


def raw(data):
    return [t.numpy().astype(np.uint8) for t in (data.x_train, data.y_train, data.x_test, data.y_test)]


def test_mnist_as_idx_files_is_mnist_and_other_digits_are_not(nowhere):
    whole = load("mnist")
    as_idx(nowhere / "mnist", raw(whole), ".gz")
    data = load("mnist", str(nowhere))
    assert find.locate(plugin.load("data.sets", "mnist"), str(nowhere)).where == "data folder"
    assert torch.equal(data.x_test, whole.x_test) and data.prepare(data.x_test).mean().abs() < 0.02
    labels = nowhere / "mnist" / "t10k-labels-idx1-ubyte.gz"
    labels.write_bytes(idx(np.zeros(10_000, np.uint8)))
    with pytest.raises(DataError, match="the records are not those of mnist"):
        load("mnist", str(nowhere))
    labels.write_bytes(b"\0\0\x08\x01\0\0\0\x05abc")
    with pytest.raises(DataError, match="cannot read"):
        load("mnist", str(nowhere))


def test_fashion_mnist_in_both_forms(data_file, tmp_path):
    path = data_file("fashion_mnist/fashion_mnist.npz")
    data = load("fashion-mnist", str(path.parent.parent))
    assert torch.bincount(data.y_train).tolist() == [6000] * 10 and data.x_train.shape == (60_000, 28, 28)
    ready = data.prepare(data.x_train)
    assert ready.mean().abs() < 1e-3 and abs(ready.std() - 1) < 1e-3
    as_idx(tmp_path / "fashion_mnist", raw(data), ".gz")
    assert torch.equal(load("fashion-mnist", str(tmp_path)).x_test, data.x_test)


@pytest.mark.slow
def test_cifar10_in_both_forms(data_file, tmp_path):
    path = data_file("cifar10/cifar10_test.npz")
    data = load("cifar10", str(path.parent.parent))
    assert data.x_train.shape == (50_000, 3, 32, 32) and torch.bincount(data.y_test).tolist() == [1000] * 10
    ready = data.prepare(data.x_train[::5])
    assert ready.mean((0, 2, 3)).abs().max() < 0.02 and (ready.std((0, 2, 3)) - 1).abs().max() < 0.02
    x, y = torch.cat([data.x_train, data.x_test]).flatten(1).numpy(), torch.cat([data.y_train, data.y_test]).numpy()
    rows = np.concatenate([y[:, None].astype(np.uint8), x], axis=1)
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w") as tar:
        for i, name in enumerate([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]):
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            part = rows[10_000 * i : 10_000 * (i + 1)].tobytes()
            entry.size = len(part)
            tar.addfile(entry, io.BytesIO(part))
    again = load("cifar10", str(tmp_path))
    assert torch.equal(again.x_train, data.x_train) and torch.equal(again.y_test, data.y_test)


@pytest.mark.parametrize("name", ["adult", "credit-default", "breast-cancer"])
@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\xff\xfe\x00"])
def test_a_table_by_the_name_of_a_benchmark_that_is_another_is_refused(name, content, nowhere):
    path = nowhere / Path(FILES[name]).name
    for data in (gzip.compress(content), content):
        path.write_bytes(data)
        with pytest.raises(DataError) as error:
            load(name, str(nowhere))
        assert "\n" not in str(error.value) and path.name in str(error.value)


@pytest.mark.parametrize("content", [b"", b"not an archive", gzip.compress(b"nor this", mtime=0)])
def test_an_archive_by_the_name_of_cifar10_that_is_none_is_refused(content, nowhere):
    (nowhere / "cifar-10-binary.tar.gz").write_bytes(content)
    with pytest.raises(DataError, match="cannot read"):
        load("cifar10", str(nowhere))
