"""Loading of a folder of images: train/<class>/*.png and test/<class>/*.png (or .jpg, .jpeg).

The classes are the names of the folders, in alphabetical order; a class may have no images. Images in test/ are public;
alternatively another folder, with one sub-folder per class, holds the public images. Without either, no image is
public.
"""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.core.errors import DataError
from sordino.data.dataset import Dataset, Scaled
from sordino.data.tables import Columns

SUFFIXES = (".png", ".jpg", ".jpeg")
GREY = ("1", "L", "LA")
COLOUR = ("RGB", "RGBA", "P", "CMYK", "YCbCr")


def pictures(root: Path, columns: Columns, test: Path | None = None) -> Dataset:
    """Load a folder of images; `test` is a folder of public images with one sub-folder per class."""
    if importlib.util.find_spec("PIL") is None:
        raise DataError(f'{root} needs pillow, which is not installed; try: pip install "sordino[files]".')
    if replace(columns, image_size=None) != Columns():
        raise DataError(
            f"{root} is a folder of pictures: label, client, user, split, schema, classes and window are for tables."
        )
    if test is not None and (root / "test").is_dir():
        raise DataError(f"{root} has a folder test/ of its own: remove it, or drop test.")
    shown = root / "test" if test is None else test
    folders = [d for part in (root / "train", shown) if part.is_dir() for d in part.iterdir() if d.is_dir()]
    names = tuple(sorted({d.name for d in folders if not d.name.startswith(".")}))
    if len(names) < 2:
        raise DataError(f"{root}/train needs one folder of pictures per class; found {len(names)}.")
    train, public = _list(root / "train", names), _list(shown, names)
    if not train:
        raise DataError(f"{root}/train has no picture ({', '.join(SUFFIXES)}).")
    if shown.is_dir() and not public:
        raise DataError(
            f"{shown} has no picture ({', '.join(SUFFIXES)}). Remove the folder: then no picture is public."
        )
    x, y = _read([p for p, _ in train + public], columns.image_size), np.array([c for _, c in train + public])
    halves = ((torch.from_numpy(x[a:b]), torch.from_numpy(y[a:b])) for a, b in ((0, len(train)), (len(train), len(y))))
    words = f"the {len(public):,} pictures of the test folder" if public else ""
    return Dataset(
        root.name, *next(halves), *next(halves), classes=len(names), names=names, prepare=Scaled(), test_from=words
    )


def _list(folder: Path, names: tuple[str, ...]) -> list[tuple[Path, int]]:
    return [
        (path, label)
        for label, name in enumerate(names)
        if (folder / name).is_dir()
        for path in sorted((folder / name).iterdir())
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    ]


def images(paths: list[Path]) -> NDArray[np.uint8]:
    """Return images of one size as bytes: [n, h, w] if all are grey, else [n, 3, h, w]."""
    if importlib.util.find_spec("PIL") is None:
        raise DataError('pictures need pillow, which is not installed; try: pip install "sordino[files]".')
    return _read(paths, None)


def _read(paths: list[Path], side: int | None) -> NDArray[np.uint8]:
    from PIL import Image

    size, modes = None if side is None else (side, side), set()
    for path in paths:  # reads headers only
        with _open(path) as image:
            modes.add(image.mode)
            if image.mode not in GREY + COLOUR:
                raise DataError(f"{path}: pictures of mode {image.mode} are not read; save it with 8 bits per colour.")
            if side is None and size is not None and image.size != size:
                raise DataError(
                    f"{path} is {_by(image.size)} pixels, others are {_by(size)}: scale them to one size first."
                )
            size = size or image.size
    if size is None:
        raise DataError("there is no picture.")
    grey = modes <= set(GREY)
    out = np.empty((len(paths), size[1], size[0], 1 if grey else 3), dtype=np.uint8)
    for row, path in zip(out, paths, strict=True):
        with _open(path) as image:
            try:
                picture = image.convert("L" if grey else "RGB")
            except (OSError, SyntaxError, ValueError) as error:
                raise DataError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
            if picture.size != size:
                picture = picture.resize(size, Image.Resampling.BOX)
            row[:] = np.asarray(picture).reshape(row.shape)
    return out[..., 0] if grey else np.ascontiguousarray(out.transpose(0, 3, 1, 2))


def _open(path: Path) -> Any:
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return Image.open(path)
    except Exception as error:  # not an image, damaged or too large
        raise DataError(f"cannot read {path}: {(str(error) or type(error).__name__).splitlines()[0]}") from error


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
