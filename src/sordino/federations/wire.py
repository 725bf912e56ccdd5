"""Objects as bytes between processes; tensors of any type travel as plain memory, without shared files."""

from __future__ import annotations

import io
import os
import pickle
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.core import plugin
from sordino.core.errors import RunError

UNFIT = (pickle.PicklingError, AttributeError, TypeError, NotImplementedError, RuntimeError)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or value.requires_grad or value.layout is not torch.strided:
            return NotImplemented
        held = value.detach().cpu().contiguous()
        return _tensor, (held.reshape(-1).view(torch.uint8).numpy(), held.dtype, tuple(held.shape))


def _tensor(data: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not data.size:  # without entries there is no memory to read as another type
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(np.array(data, copy=True)).view(dtype).reshape(shape)


def packed(value: Any, what: str = "a message") -> bytes:
    """Return an object as bytes, or say what cannot be sent to another process."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=5).dump(value)
    except UNFIT as error:
        told = " ".join(str(error).split())
        raise RunError(
            f"federation = workers must send {what} to other processes, and it cannot be sent ({told}). Define its "
            "functions and classes at the top level of a module, without lambda, or use federation = simulator."
        ) from error
    return buffer.getvalue()


def unpacked(data: bytes) -> Any:
    """Return the object that `packed` wrote."""
    return pickle.loads(data)  # from a process that this one started, or was started by


def plugins() -> tuple[str, list[tuple[str, str]]]:
    """Return the folders of plug-ins and which of their files are loaded: their classes have no module otherwise."""
    loaded = [name.removeprefix(plugin.PREFIX) for name in sys.modules if name.startswith(plugin.PREFIX)]
    return os.environ.get(plugin.VARIABLE, ""), [_kind_and_name(name) for name in sorted(loaded)]


def load_plugins(folders: str, loaded: list[tuple[str, str]]) -> None:
    """Load in this process what `plugins` found in another."""
    os.environ[plugin.VARIABLE] = folders
    for kind, name in loaded:
        plugin.load(kind, name)


def _kind_and_name(module: str) -> tuple[str, str]:
    kind, _, stem = module.rpartition(".")
    return kind, stem.replace("_", "-")
