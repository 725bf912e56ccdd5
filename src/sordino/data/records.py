"""Records that a trained model is given afterwards: tables, .npz files, folders of images and arrays.

A run stores the `RecordFormat` of its own records, which is public: the shape of a record, the names of the classes,
the columns of a table and its schema. Further records are read in the same way, so that nobody repeats it by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.core.errors import DataError
from sordino.data import npz, pictures, tables
from sordino.data import schema as schemas
from sordino.data.clients import check_labels, records
from sordino.data.dataset import Dataset, Scaled, TableCode

DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "int64": torch.int64}
PIECES = ("x", "x_test", "x_train")  # arrays of an .npz file, in the order in which they are looked for


@dataclass(frozen=True)
class RecordFormat:
    """The form of the records of a run, as far as one must know it to give the model others."""

    task: str  # classification, regression, next-token, ...
    shape: tuple[int, ...]  # of one record, before features are computed
    dtype: str  # of a record: a name of DTYPES
    inputs: tuple[int, ...]  # shape of one record as the model takes it
    outputs: int | None = None  # classes or values that the model predicts; None if the caller made the model
    class_names: tuple[str, ...] = ()  # where they were declared
    scale: Mapping[str, Any] | None = None  # mean and std of images, per channel
    table: Mapping[str, Any] | None = None  # of a table: the fields of a TableCode

    @property
    def code(self) -> TableCode | None:
        """How the columns of a table became numbers; None if the records were no table."""
        if self.table is None:
            return None
        return TableCode(
            tuple(self.table["columns"]), str(self.table["label"]), self.table["schema"], self.table.get("decimal", ".")
        )

    @property
    def target(self) -> schemas.Number | None:
        """The declared bounds of a regression target; None if the target is as it is."""
        code = self.code
        entries = {} if code is None else {k: v for k, v in code.schema.items() if k == code.label}
        column = next(iter(schemas.columns(entries, "the schema of the run").values()), None)
        return column if isinstance(column, schemas.Number) else None

    def scaled(self, x: Tensor) -> Tensor:
        """Return raw records as a model takes them where no features are computed."""
        if self.scale is not None:
            return Scaled(tuple(self.scale["mean"]), tuple(self.scale["std"]))(x)
        return x.float() if x.dtype == torch.uint8 else x

    def to_json(self) -> dict[str, Any]:
        """Return the fields as they are written to a file."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> RecordFormat:
        """Return the format that `to_json` saved."""
        named = {f.name: data[f.name] for f in fields(RecordFormat) if f.name in data}
        tuples = {k: tuple(named[k]) for k in ("shape", "inputs", "class_names")}
        return RecordFormat(**named | tuples)


@dataclass(frozen=True)
class GivenRecords:
    """Records to predict or to evaluate on."""

    what: str  # a description for messages
    x: Tensor  # raw, in the format of the run
    y: Tensor | None = None  # labels; numbers are on their own scale
    names: tuple[str, ...] = ()  # of the files, for a folder of images
    cells: Any = None  # the pandas table that they were read from


def format_of(data: Dataset, inputs: Tensor, outputs: int) -> RecordFormat:
    """Return the format of the records of a dataset; `inputs` are some of them as the model takes them."""
    scale = asdict(data.prepare) if isinstance(data.prepare, Scaled) else None
    code = None if data.encoded is None else asdict(data.encoded)
    x = data.x_train
    return RecordFormat(
        data.task, tuple(x.shape[1:]), _name(x), tuple(inputs.shape[1:]), outputs, data.names, scale, code
    )


def format_of_arrays(x: Tensor, task: str) -> RecordFormat:
    """Return the format of records that were given as arrays, with a model of the caller's."""
    return RecordFormat(task, tuple(x.shape[1:]), _name(x), tuple(x.shape[1:]))


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def read(source: Any, form: RecordFormat, labelled: bool = False) -> GivenRecords:
    """Read records: from a path, a pandas table or an array.

    Args:
        source: The path of a table, an .npz file or a folder of images; a pandas table; or an array of records.
        form: The format of the run.
        labelled: Whether the labels are needed as well.
    """
    if hasattr(source, "columns") and hasattr(source, "iloc"):
        return _of_table("the table", source, form, labelled)
    if not isinstance(source, str | Path):
        if labelled:
            raise DataError("labels are needed: give a table, a path, or x and y.")
        return GivenRecords("the records", shaped("the records", source, form))
    path = Path(source)
    if path.is_dir():
        return _of_folder(path, form, labelled)
    if not path.is_file():
        raise DataError(f"there is no file or folder {path}.")
    if path.suffix.lower() == ".npz":
        return _of_npz(path, form, labelled)
    if not path.name.lower().endswith(tables.SUFFIXES):
        known = ", ".join((*tables.SUFFIXES, ".npz"))
        raise DataError(f"{path} is none of {known} or a folder of pictures.")
    if form.code is None:
        raise DataError(f"{path.name} is a table, but the run was trained on records of shape {list(form.shape)}.")
    return _of_table(path.name, tables.read(path), form, labelled)


def _of_table(what: str, cells: Any, form: RecordFormat, labelled: bool) -> GivenRecords:
    code = form.code
    if code is None:
        raise DataError(f"{what}: the run was not trained on a table but on records of shape {list(form.shape)}.")
    x = shaped(what, tables.features(what, cells, code), form)
    y = labels_of(what, *tables.labels(what, cells, code, form.class_names), form) if labelled else None
    return GivenRecords(what, x, y, cells=cells)


def _of_npz(path: Path, form: RecordFormat, labelled: bool) -> GivenRecords:
    members = npz.arrays(path, (*PIECES, *(name.replace("x", "y", 1) for name in PIECES)))
    name = next((name for name in PIECES if name in members), None)
    if name is None:
        raise DataError(f"{path} has none of the arrays {', '.join(PIECES)}.")
    x, what = members[name], f"{path.name}, {name}"
    if x.dtype == np.uint8 and x.ndim == 4 and x.shape[1:] != form.shape:
        x = x.transpose(0, 3, 1, 2)  # colours last, as in most files
    tensor, y = shaped(what, x, form), None
    if labelled:
        other = name.replace("x", "y", 1)
        if other not in members:
            raise DataError(f"{path} has {name} but lacks the labels {other}.")
        given = records(f"{path.name}, {other}", "y", members[other])
        y = labels_of(what, given, "regression" if given.is_floating_point() else form.task, form)
    return GivenRecords(what, tensor, y)


def _of_folder(path: Path, form: RecordFormat, labelled: bool) -> GivenRecords:
    """Read the images of a folder and of those in it; the label of an image is the name of its folder."""
    root = path / "test" if (path / "test").is_dir() else path
    files = [p for p in sorted(root.rglob("*")) if p.suffix.lower() in pictures.SUFFIXES and not p.name.startswith(".")]
    if not files:
        raise DataError(f"{root} has no picture ({', '.join(pictures.SUFFIXES)}).")
    if form.dtype != "uint8" or len(form.shape) < 2:
        raise DataError(
            f"{path} is a folder of pictures, but the run was trained on records of shape {list(form.shape)}."
        )
    x = pictures.images(files)
    if x.ndim == 3 and len(form.shape) == 3:  # grey pictures, where the model takes colours
        x = np.repeat(x[:, None], 3, axis=1)
    tensor, y = shaped(root.name, x, form), None
    if labelled:
        place = {name: i for i, name in enumerate(form.class_names)}
        odd = next((p for p in files if p.parent.name not in place), None)
        if odd is not None:
            known = ", ".join(form.class_names[:12]) or "none by name"
            raise DataError(f"{odd}: its folder is not named like a class of the run, which are {known}.")
        y = torch.tensor([place[p.parent.name] for p in files])
    return GivenRecords(root.name, tensor, y, tuple(str(p.relative_to(root)) for p in files))


def shaped(what: str, x: Any, form: RecordFormat) -> Tensor:
    """Return raw records as a tensor, or raise an error unless each has the shape and kind of those of the run."""
    tensor = records(what, "x", x)
    if tuple(tensor.shape[1:]) != form.shape:
        hint = " Put a single record into a list." if tuple(tensor.shape) == form.shape else ""
        raise DataError(
            f"{what}: records have shape {list(tensor.shape[1:])}, those of the run {list(form.shape)}.{hint}"
        )
    if not len(tensor):
        raise DataError(f"{what} has no records.")
    if form.dtype == "uint8" and tensor.dtype != torch.uint8:
        raise DataError(f"{what}: the run was trained on bytes from 0 to 255 (uint8), not on {_name(tensor)}.")
    if form.dtype == "int64" and tensor.is_floating_point():
        raise DataError(f"{what}: the run was trained on whole numbers, not on {_name(tensor)}.")
    return tensor.to(DTYPES.get(form.dtype, tensor.dtype))


def labels_of(what: str, y: Tensor, task: str, form: RecordFormat) -> Tensor:
    """Return labels after checking that they are of the run's kind; whole numbers may be regression targets."""
    if form.task == "regression":
        return y.double()
    if task == "regression":
        raise DataError(f"{what}: its labels are decimal numbers, but those of the run are classes.")
    if form.outputs is not None and form.task in ("classification", "next-token"):
        check_labels(y, form.outputs, what)
    return y
