"""Frames between the mod of an app, the daemon of a site and the process that trains: the letters of a federation.

A frame is a letter of federations/letters.py, read and written with numpy alone, because Flower starts a process for
every message and importing torch there would cost more than the message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sordino.core.errors import RunError

HEADER = "sordino"  # name of the header in the metadata, as in letters.py


def packed(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> bytes:
    """Return a frame; raise ValueError or TypeError for a header that JSON cannot carry."""
    named = {name: _plain(value) for name, value in (arrays or {}).items()}
    return save(named, {HEADER: json.dumps(header, allow_nan=False, sort_keys=True)})


def unpacked(frame: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the header and the arrays of a frame; raise RunError if the bytes are none."""
    try:
        length = int.from_bytes(frame[:8], "little")
        header = json.loads(json.loads(frame[8 : 8 + length])["__metadata__"][HEADER])
        arrays = dict(load(frame))
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise RunError("bytes arrived that are no frame of Sordino.") from error
    if not isinstance(header, dict):
        raise RunError("a frame arrived without a header.")
    return header, arrays


def _plain(value: NDArray[Any]) -> NDArray[Any]:
    """Return an array in one piece and in the byte order of this machine, which safetensors expects."""
    return np.array(value, dtype=value.dtype.newbyteorder("="), order="C")
