"""Tags of records with private attributes: 0 means none, and 1, 2, ... are groups of private attributes.

    label:3,8           records of class 3 or 8 are private; label:3;8 makes two groups of them
    feature:12>0.5      records whose feature 12 (of the flattened record, counted from 0) is above 0.5 (or below: <)
    file:mask.npy       one whole number per training record, in the order of the data

The rule is public, and so is the number of clients without any private record; which records the rule marks is not.
"""

from __future__ import annotations

import re
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from sordino.core.errors import DataError, SpecError

_FEATURE = re.compile(r"(\d{1,9})\s*([<>])\s*(-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)")


def read(rule: str, x: Tensor, y: Tensor, classes: int | None) -> Tensor:
    """Return the group of every record [records] by a rule of the form described above."""
    kind, _, text = rule.partition(":")
    if kind == "label":
        return _by_label(rule, text, y, classes)
    if kind == "feature":
        return _by_feature(rule, text, x)
    if kind == "file":
        return _by_file(Path(text), len(y))
    raise SpecError(f"private_data must be label:..., feature:... or file:..., such as label:3,8, not {rule!r}.")


def _by_label(rule: str, text: str, y: Tensor, classes: int | None) -> Tensor:
    if y.is_floating_point() or y.ndim != 1 or classes is None:
        raise SpecError(f"private_data = {rule!r} needs class labels; these data have none.")
    tags, seen = torch.zeros(len(y), dtype=torch.int64), set[int]()
    for group, names in enumerate(text.split(";"), start=1):
        for name in names.split(","):
            if not name.strip().isdecimal() or not 0 <= int(name) < classes:
                raise SpecError(f"private_data = {rule!r}: {name.strip()!r} is not a class from 0 to {classes - 1}.")
            if int(name) in seen:
                raise SpecError(f"private_data = {rule!r} names class {int(name)} twice.")
            seen.add(int(name))
            tags[y == int(name)] = group
    return tags


def _by_feature(rule: str, text: str, x: Tensor) -> Tensor:
    match = _FEATURE.fullmatch(text.strip())
    if match is None:
        raise SpecError(f"private_data = {rule!r}: write a feature as in feature:12>0.5.")
    number, sign, bound = int(match[1]), match[2], float(match[3])
    flat = x.reshape(len(x), -1)
    if number >= flat.shape[1]:
        raise SpecError(f"private_data = {rule!r}: records have {flat.shape[1]} numbers, counted from 0.")
    column = flat[:, number].double()
    return (column > bound if sign == ">" else column < bound).long()


def _by_file(path: Path, records: int) -> Tensor:
    try:
        with path.open("rb") as file:
            groups = np.load(file, allow_pickle=False)
    except OSError as error:
        raise DataError(f"private_data: cannot read {path}: {error}") from error
    except (ValueError, EOFError, BadZipFile) as error:
        raise DataError(
            f"private_data: {path} is not a numpy.save file of plain numbers; expected one whole number (0: not "
            f"private) for each of {records} records."
        ) from error
    return checked(groups, records, f"private_data: {path}")


def checked(groups: object, records: int, what: str) -> Tensor:
    """Return groups as a tensor [records], after checking them; `what` names them in error messages."""
    values = np.asarray(groups)
    if values.dtype.kind == "b":
        values = values.astype(np.int64)
    if values.dtype.kind not in "iu" or values.shape != (records,) or (len(values) and int(values.min()) < 0):
        raise DataError(f"{what} must hold one whole number (0: not private) for each of {records} records.")
    return torch.from_numpy(values.astype(np.int64))
