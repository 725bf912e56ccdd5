import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from sordino.core.errors import DataError
from sordino.data.load import Declared, load
from support.errors import one_line_error


class Touch:
    """Unpickling it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def arrays():
    draw = np.random.default_rng(0)
    return {
        "x_train": draw.normal(size=(30, 4)),
        "y_train": draw.integers(0, 3, 30),
        "x_test": draw.normal(size=(10, 4)),
        "y_test": draw.integers(0, 3, 10),
    }


def saved(tmp_path, **changed):
    values = {k: v for k, v in (arrays() | changed).items() if v is not None}
    np.savez(tmp_path / "it.npz", **values)
    return load("it.npz", str(tmp_path))


def refused(match, *args):
    with one_line_error(DataError, match):
        load(*args)


def test_an_npz_file_is_read(tmp_path):
    data = saved(tmp_path, client_train=np.arange(30) % 5)
    assert data.name == "it.npz" and data.x_train.dtype == torch.float32 and data.y_train.dtype == torch.int64
    assert torch.equal(data.x_test, torch.from_numpy(arrays()["x_test"]).float())
    assert data.client_train.tolist() == (np.arange(30) % 5).tolist()


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"y_test": None}, "lacks y_test"),
        ({"x_train": None, "y_train": None}, "lacks x_train, y_train"),
        ({"x_train": np.full((30, 4), np.nan)}, "training part: x holds a nan"),
        ({"x_test": np.full((10, 4), np.inf)}, "test part: x holds a nan"),
        ({"y_train": np.zeros(29, int)}, "they need one row per record"),
        ({"x_train": np.zeros((0, 4)), "y_train": np.zeros(0, int)}, "has no records"),
        ({"y_train": np.array(["a"] * 30)}, "y must be numeric"),
        ({"client_train": np.zeros(29, int)}, "client_train must hold one whole number"),
        ({"client_train": np.zeros(30)}, "client_train must hold one whole number"),
        ({"client_train": np.zeros((30, 1), int)}, "client_train must hold one whole number"),
        ({"client_test": np.zeros(30, int)}, "client_test must hold one whole number per test record"),
        ({"user_train": np.zeros(10, int)}, "user_train must hold one whole number per training record"),
        ({"user_train": np.full(30, 2**64 - 1, np.uint64)}, "more than 63 bits"),
        ({"classes": np.array(2)}, r"training part: label 2 in record \d+ is not below the declared 2 classes"),
        ({"classes": np.array([2, 3])}, "classes must be one whole number"),
        ({"classes": np.array(10**9)}, "classes must be one whole number"),
        ({"y_train": np.arange(30) - 1}, "label -1 in record 0 is negative"),
        ({"y_test": np.arange(10) - 1}, "test part: label -1 in record 0 is negative"),
        (
            {"y_test": np.arange(10), "classes": np.array(6)},
            "test part: label 6 in record 6 is not below the declared 6",
        ),
        ({"y_train": np.full(30, 10**9)}, "would make 1000000001 classes"),
        ({"x_test": np.zeros((10, 5))}, "differ in shape"),
        ({"y_test": np.zeros(10)}, "y_train is int64, y_test float64"),
    ],
)
def test_a_file_with_the_wrong_arrays_is_refused(changed, match, tmp_path):
    with pytest.raises(DataError, match=match):
        saved(tmp_path, **changed)


def test_an_npz_file_without_test_records_has_none_and_a_second_one_may_bring_them(tmp_path):
    bare = {k: v for k, v in arrays().items() if "test" not in k}
    np.savez(tmp_path / "bare.npz", **bare, classes=np.array(3))
    data = load("bare.npz", str(tmp_path))
    assert len(data.x_train) == 30 and data.x_test.shape == (0, 4) and data.y_test.shape == (0,) and not data.test_from
    assert data.classes == 3 and data.user_test is None
    shown = {"x": arrays()["x_test"], "y": arrays()["y_test"]}
    np.savez(tmp_path / "shown.npz", **shown, user_test=np.arange(10))
    data = load("bare.npz", str(tmp_path), declared=Declared(test="shown.npz"))
    assert torch.equal(data.x_test, saved(tmp_path).x_test) and data.test_from == "the 10 records of the test file"
    assert data.user_test.tolist() == list(range(10))
    assert saved(tmp_path).test_from == "the 10 records of x_test"
    with pytest.raises(DataError, match="has test records of its own"):
        load("it.npz", str(tmp_path), declared=Declared(test="shown.npz"))
    np.savez(tmp_path / "half.npz", x=shown["x"])
    with pytest.raises(DataError, match=r"half.npz lacks y_test \(or x and y\)"):
        load("bare.npz", str(tmp_path), declared=Declared(test="half.npz"))
    with pytest.raises(DataError, match=r"test must be the path of an \.npz file"):
        load("bare.npz", str(tmp_path), declared=Declared(test="shown.csv"))


def test_what_an_npz_file_declares_is_used_and_what_it_does_not_is_told(tmp_path):
    plain = saved(tmp_path)
    assert plain.classes == 3 and plain.task == "classification" and not plain.public
    assert any("read from the labels" in note for note in plain.notes)
    ids = {"client_train": np.arange(30, dtype=np.uint8), "client_test": np.arange(10), "user_train": np.arange(30) * 7}
    data = saved(tmp_path, classes=np.array(7), class_names=np.array(list("abcdefg")), **ids)
    assert data.classes == 7 and data.names == tuple("abcdefg") and data.notes == ()
    assert data.client_test.tolist() == list(range(10)) and data.user_train[3] == 21
    assert data.client_train.dtype == np.int64
    regression = saved(tmp_path, y_train=np.linspace(0, 1, 30), y_test=np.linspace(0, 1, 10))
    assert regression.task == "regression" and regression.classes is None and regression.notes == ()
    tokens = np.arange(120).reshape(30, 4) % 50
    text = saved(
        tmp_path, x_train=tokens, y_train=tokens + 1, x_test=tokens[:10], y_test=tokens[:10], classes=np.array(51)
    )
    assert text.task == "next-token" and text.classes == 51


def test_pictures_of_an_npz_file_are_centred_and_colours_come_second(tmp_path):
    grey = {"x_train": np.full((30, 5, 6), 255, np.uint8), "x_test": np.zeros((10, 5, 6), np.uint8)}
    data = saved(tmp_path, **grey)
    assert data.prepare(data.x_train).shape == (30, 1, 5, 6) and data.prepare(data.x_train).unique().tolist() == [1]
    assert data.prepare(data.x_test).unique().tolist() == [-1]
    colour = {k: np.repeat(v[..., None], 3, axis=3) for k, v in grey.items()}
    data = saved(tmp_path, **colour)
    assert data.x_train.shape == (30, 3, 5, 6) and any("colours" in note for note in data.notes)
    flat = saved(tmp_path, x_train=np.full((30, 5), 9, np.uint8), x_test=np.zeros((10, 5), np.uint8))
    assert flat.prepare(flat.x_train).unique().tolist() == [9] and flat.prepare(flat.x_train).dtype == torch.float32


def test_a_pickled_object_is_refused_and_never_opened(tmp_path):
    proof = tmp_path / "proof"
    objects = np.empty(30, dtype=object)
    objects[:] = [Touch(proof)] * 30
    np.savez(tmp_path / "it.npz", **(arrays() | {"x_train": objects}))
    refused("cannot read", "it.npz", str(tmp_path))
    (tmp_path / "raw.npz").write_bytes(pickle.dumps(Touch(proof)))  # not a zip at all
    refused("cannot read", "raw.npz", str(tmp_path))
    assert not proof.exists()
    with np.load(tmp_path / "it.npz", allow_pickle=True) as file:  # the trap is armed
        file["x_train"]
    assert proof.exists()


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04" + b"\x00" * 50, b"\x93NUMPY"])
def test_what_is_not_a_zip_is_refused(content, tmp_path):
    (tmp_path / "it.npz").write_bytes(content)
    refused("cannot read", "it.npz", str(tmp_path))


def test_a_single_array_by_the_name_of_npz_is_refused(tmp_path):
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    (tmp_path / "it.npz").write_bytes(buffer.getvalue())
    refused("it.npz", "it.npz", str(tmp_path))


def test_a_damaged_file_is_refused_wherever_the_damage_is(tmp_path):
    """Every 37th byte flipped in turn: read as it was, or a DataError."""
    np.savez_compressed(tmp_path / "good.npz", **arrays())
    good, read, bad = (tmp_path / "good.npz").read_bytes(), 0, 0
    for at in range(0, len(good), 37):
        data = bytearray(good)
        data[at] ^= 0xFF
        (tmp_path / "it.npz").write_bytes(bytes(data))
        try:
            load("it.npz", str(tmp_path))
            read += 1
        except DataError:
            bad += 1
    assert bad > 5 * read


def test_what_is_not_there_is_named(tmp_path):
    refused("no dataset 'nothing'", "nothing")
    refused("no dataset 'nothing.npz'.*tried", "nothing.npz", str(tmp_path))
    (tmp_path / "folder.npz").mkdir()
    refused("no dataset", "folder.npz", str(tmp_path))
    with zipfile.ZipFile(tmp_path / "it.zip", "w"):
        pass
    refused("no dataset", "it.zip", str(tmp_path))
    refused("no dataset", "a" * 5000)
    refused("no dataset", "nul\0byte.npz")
    refused("Did you mean 'fashion-mnist'", "fashion_mnist")


def test_pictures_are_scaled_by_published_constants():
    x = load("mnist").prepare(torch.tensor([[[0, 255]]], dtype=torch.uint8))
    assert x.shape == (1, 1, 1, 2)
    assert x.flatten().tolist() == pytest.approx([-0.1307 / 0.3081, (1 - 0.1307) / 0.3081], rel=1e-5)
