"""Loading of the user's own .npz file.

It holds x_train and y_train as plain arrays; pickled objects are never opened. It may also hold x_test and y_test
(which are then public), client_train, client_test, user_train and user_test (one whole number per record), `classes`
(the number of classes) and `class_names`. The text "multi-label" as `task` declares that y holds labels of 0 and 1
[records, labels]. Alternatively a second file holds the test records, as x_test and y_test or as x and y.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.core.errors import DataError
from sordino.data.clients import checked
from sordino.data.dataset import MOST_CLASSES, Dataset, Ids, Scaled, as_is, class_count

PARTS = ("x_train", "y_train", "x_test", "y_test")
IDS = {"client_train": "y_train", "client_test": "y_test", "user_train": "y_train", "user_test": "y_test"}


def arrays(path: Path, wanted: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the arrays of an archive, or only those that are wanted."""
    members = {}
    try:
        with path.open("rb") as handle:  # closed here: numpy leaves the file open if the archive is damaged
            file = np.load(handle, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array")
            for key in file.files if wanted is None else wanted:
                if key in file.files:
                    members[key] = file[key]
    except ValueError as error:
        text = "it is not an .npz archive" if "pickle" in str(error) else str(error).splitlines()[0]
        raise DataError(f"cannot read {path}: {text}") from error
    except Exception as error:  # a damaged archive fails in many ways
        raise DataError(f"cannot read {path}: {(str(error) or type(error).__name__).splitlines()[0]}") from error
    return members


def read(path: Path, test: Path | None = None) -> Dataset:
    """Read a dataset; `test` is a second file, whose records are public."""
    members = arrays(path, (*PARTS, *IDS, "classes", "class_names", "task"))
    name, notes, assumed, words = path.name, [], tuple[str, ...](), ""
    shown = f"{name}, test part" if test is None else test.name
    if test is not None:
        if "x_test" in members or "y_test" in members:
            raise DataError(f"{name} has test records of its own: drop x_test and y_test, or test.")
        members |= _second(test)
    missing = [k for k in PARTS if k not in members and ("train" in k or "x_test" in members or "y_test" in members)]
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}.")
    if "y_test" in members:
        words = f"the {len(members['y_test']):,} records of {'x_test' if test is None else 'the test file'}"
    else:  # no record is public
        members |= {"x_test": members["x_train"][:0], "y_test": members["y_train"][:0]}
    ids = {key: _ids(path, key, members.get(key), members[of].shape[:1]) for key, of in IDS.items()}
    x_train, y_train = checked(f"{name}, training part", members["x_train"], members["y_train"])
    x_test, y_test = x_train[:0], y_train[:0]
    if words:
        x_test, y_test = checked(shown, members["x_test"], members["y_test"])
    if x_train.shape[1:] != x_test.shape[1:] or y_train.shape[1:] != y_test.shape[1:]:
        shapes = [list(t.shape[1:]) for t in (x_train, y_train, x_test, y_test)]
        raise DataError(f"{shown}: training and test records differ in shape: x {shapes[0]}, y {shapes[1]}, "
                        f"then x {shapes[2]}, y {shapes[3]}.")  # fmt: skip
    if y_train.is_floating_point() != y_test.is_floating_point():
        raise DataError(
            f"{shown}: y_train is {members['y_train'].dtype}, y_test {members['y_test'].dtype}; use one kind for both."
        )
    if x_train.dtype == torch.uint8 and x_train.ndim == 4 and x_train.shape[1] > 4 and x_train.shape[3] in (1, 3):
        x_train, x_test = (x.permute(0, 3, 1, 2).contiguous() for x in (x_train, x_test))
        notes.append("colours were moved from the last axis to the second")
    task, classes = "regression", None
    if _multi_label(path, members.get("task"), y_train):
        task, classes = "multi-label", y_train.shape[1]
    elif not y_train.is_floating_point():
        sequences = y_train.ndim == 2 and not x_train.is_floating_point() and x_train.shape == y_train.shape
        task = "next-token" if sequences else "classification"
        declared, both = _classes(path, members.get("classes")), [("training", y_train), ("test", y_test)]
        classes, more = max(class_count(f"{name}, {part} part", y.numpy(), declared) for part, y in both if len(y))
        notes += more
        assumed = ("the number of classes",) if more else ()
    names = tuple(str(n) for n in members.get("class_names", ()))
    return Dataset(
        name, x_train, y_train, x_test, y_test, task=task, classes=classes, names=names, prepare=_prepare(x_train),
        bounded=False,
        client_train=ids["client_train"], client_test=ids["client_test"], user_train=ids["user_train"],
        user_test=ids["user_test"], notes=tuple(notes), test_from=words, assumed=assumed,
    )  # fmt: skip


def _second(path: Path) -> dict[str, Any]:
    """Read the test records from a separate file, under the names that they have in a dataset."""
    members = arrays(path, ("x", "y", "x_test", "y_test", "client_test", "user_test"))
    out = {{"x": "x_test", "y": "y_test"}.get(k, k): v for k, v in members.items()}
    if missing := [k for k in ("x_test", "y_test") if k not in out]:
        raise DataError(f"{path} lacks {', '.join(missing)} (or x and y).")
    return out


def _prepare(x: Tensor) -> Any:
    if x.dtype == torch.uint8 and x.ndim in (3, 4):
        return Scaled()
    return torch.Tensor.float if x.dtype == torch.uint8 else as_is


def _ids(path: Path, key: str, value: Any, shape: tuple[int, ...]) -> Ids | None:
    if value is None:
        return None
    if value.dtype.kind not in "iu" or value.shape != shape:
        raise DataError(
            f"{path}: {key} must hold one whole number per {'test' if 'test' in key else 'training'} record."
        )
    if value.dtype == np.uint64 and len(value) and value.max() > np.iinfo(np.int64).max:
        raise DataError(f"{path}: {key} holds numbers of more than 63 bits.")
    return np.asarray(value, dtype=np.int64)


def _multi_label(path: Path, value: Any, y: Tensor) -> bool:
    """Return whether the file declares a multi-label task; raise an error if it declares what the targets are not."""
    if value is None:
        return False
    if value.size != 1 or str(value.reshape(-1)[0]) != "multi-label":
        raise DataError(f'{path}: task may hold the text "multi-label" only; other tasks are told by the targets.')
    if y.ndim != 2:
        raise DataError(f"{path}: task is multi-label, so y_train must be [records, labels], not {list(y.shape)}.")
    return True


def _classes(path: Path, value: Any) -> int | None:
    if value is None:
        return None
    if value.dtype.kind not in "iu" or value.size != 1 or not 1 <= int(value.reshape(-1)[0]) <= MOST_CLASSES:
        raise DataError(f"{path}: classes must be one whole number from 1 to {MOST_CLASSES}.")
    return int(value.reshape(-1)[0])
