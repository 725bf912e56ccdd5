"""A folder of pictures, one folder a class."""

import numpy as np
import pytest
import torch
from PIL import Image

from sordino.core.errors import DataError
from sordino.data.load import Columns, Declared, load
from support.errors import one_line_error


def put(root, part, name, value, size=(6, 4), mode="L", suffix="png"):
    path = root / "pets" / part / name / f"{len(list(root.rglob('*.*')))}.{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)
    return path


def refused(match, root, columns=None):
    with one_line_error(DataError, match):
        load("pets", str(root), columns=columns)


def test_grey_pictures_keep_their_pixels_and_classes_are_folders(tmp_path):
    for part, name, value in (("train", "dog", 10), ("train", "cat", 20), ("test", "dog", 30), ("test", "eel", 40)):
        put(tmp_path, part, name, value)
    (tmp_path / "pets" / "train" / "cat" / "notes.txt").write_text("not a picture")
    data = load("pets", str(tmp_path))
    assert data.names == ("cat", "dog", "eel") and data.classes == 3 and not data.public
    assert data.x_train.shape == (2, 4, 6) and data.x_train.dtype == torch.uint8
    assert data.x_train[:, 0, 0].tolist() == [20, 10] and data.y_train.tolist() == [0, 1]
    assert data.x_test[:, 0, 0].tolist() == [30, 40] and data.y_test.tolist() == [1, 2]
    assert data.prepare(data.x_train).shape == (2, 1, 4, 6)
    assert data.prepare(data.x_train)[0, 0, 0, 0] == pytest.approx((20 / 255 - 0.5) / 0.5)


def test_one_coloured_picture_makes_all_coloured(tmp_path):
    put(tmp_path, "train", "a", (255, 0, 9), mode="RGB")
    put(tmp_path, "train", "b", 7)
    put(tmp_path, "test", "b", 8, suffix="jpg")
    data = load("pets", str(tmp_path))
    assert data.x_train.shape == (2, 3, 4, 6) and data.x_train[0, :, 1, 1].tolist() == [255, 0, 9]
    assert data.x_train[1, :, 1, 1].tolist() == [7, 7, 7] and data.prepare(data.x_train).shape == (2, 3, 4, 6)


def test_pictures_of_several_sizes_need_a_stated_one(tmp_path):
    put(tmp_path, "train", "a", 1)
    put(tmp_path, "train", "b", 2, size=(12, 12))
    put(tmp_path, "test", "b", 2)
    refused(r"is 12 x 12 pixels, others are 6 x 4: scale them to one size first", tmp_path)
    assert load("pets", str(tmp_path), columns=Columns(image_size=5)).x_train.shape == (2, 5, 5)


def test_without_a_test_folder_no_picture_is_public_unless_declared(tmp_path):
    for i in range(40):
        put(tmp_path, "train", "ab"[i % 2], i)
    data = load("pets", str(tmp_path))
    assert len(data.x_train) == 40 and data.x_test.shape == (0, 4, 6) and not data.test_from
    shared = load("pets", str(tmp_path), declared=Declared(share=0.2))
    assert len(shared.x_train) + len(shared.x_test) == 40 and 0 < len(shared.x_test) < 20
    assert torch.equal(load("pets", str(tmp_path), declared=Declared(share=0.2)).x_test, shared.x_test)
    assert "public_share = 0.2" in shared.test_from


def test_another_folder_may_bring_the_public_pictures(tmp_path):
    put(tmp_path, "train", "cat", 1)
    put(tmp_path, "train", "dog", 2)
    for name, value in (("dog", 3), ("eel", 4)):
        put(tmp_path, "../shown", name, value)
    data = load("pets", str(tmp_path), declared=Declared(test="shown"))
    assert data.names == ("cat", "dog", "eel") and data.y_test.tolist() == [1, 2]
    assert data.x_test[:, 0, 0].tolist() == [3, 4] and data.test_from == "the 2 pictures of the test folder"
    put(tmp_path, "test", "cat", 1)
    with pytest.raises(DataError, match="has a folder test/ of its own"):
        load("pets", str(tmp_path), declared=Declared(test="shown"))


def test_bad_folders_are_refused(tmp_path):
    path = put(tmp_path, "train", "a", 1)
    refused("needs one folder of pictures per class", tmp_path)
    (tmp_path / "pets" / "train" / "b").mkdir()
    (tmp_path / "pets" / "test").mkdir()
    refused("test has no picture", tmp_path)
    put(tmp_path, "test", "a", 1)
    refused("are for tables", tmp_path, Columns(label="a"))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused("cannot read .*png", tmp_path)
    path.write_bytes(b"text")
    refused("cannot read .*png", tmp_path)
    Image.fromarray(np.zeros((4, 6), np.uint16)).save(path)
    refused("8 bits per colour", tmp_path)
    path.unlink()
    refused("train has no picture", tmp_path)
