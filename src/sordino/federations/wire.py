"""Serialisation of objects between processes; tensors of any type are sent as plain memory, without shared files."""

from __future__ import annotations

import io
import operator
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.core import plugin
from sordino.core.errors import RunError

UNFIT = (pickle.PicklingError, AttributeError, TypeError, NotImplementedError, RuntimeError)


class Pickler(pickle.Pickler):
    """Serialises classes and functions by name, tensors as plain memory."""

    def reducer_override(self, value: Any) -> Any:
        """Return how to rebuild tensors and what is defined in plug-ins; see `pickle.Pickler`."""
        return reduced(value)


def reduced(value: Any, rebuild: Callable[..., Tensor] | None = None) -> Any:
    """Return how to rebuild a tensor or an object defined in a plug-in file; NotImplemented for anything else."""
    if isinstance(value, type | types.FunctionType) and value.__module__.startswith(plugin.PREFIX):
        return _of_plugin, (value.__module__, value.__qualname__)
    if type(value) is not Tensor or value.requires_grad or value.layout is not torch.strided:
        return NotImplemented
    held = value.detach().cpu().contiguous()
    return rebuild or _tensor, (held.reshape(-1).view(torch.uint8).numpy(), held.dtype, tuple(held.shape))


def _tensor(data: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return tensor_in_place(np.array(data, copy=True), dtype, shape)


def tensor_in_place(data: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor in the memory of an array of bytes."""
    if not data.size:  # an empty array cannot be viewed as another type
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(data).view(dtype).reshape(shape)


def packed(
    value: Any,
    what: str = "a message",
    pickler: type[pickle.Pickler] = Pickler,
    aside: Callable[[pickle.PickleBuffer], Any] | None = None,
) -> bytes:
    """Serialise an object to bytes; raise an error naming `what` if it cannot be sent to another process.

    If `aside` is given, it gets the memory of every array, which the bytes then leave out.
    """
    buffer = io.BytesIO()
    try:
        pickler(buffer, protocol=5, buffer_callback=aside).dump(value)
    except UNFIT as error:
        reason = " ".join(str(error).split())
        raise RunError(
            f"this federation must send {what} to other processes, but it cannot be sent ({reason}). Define its "
            "functions and classes at the top level of a module, without lambda, or use federation = simulator."
        ) from error
    return buffer.getvalue()


def unpacked(data: bytes) -> Any:
    """Return the object that `packed` serialised."""
    return pickle.loads(data)  # data comes only from the process of the server or from one of its workers


def _of_plugin(module: str, name: str) -> Any:
    """Return an object defined in a plug-in file, whose module cannot be imported from a package."""
    kind, _, stem = module.removeprefix(plugin.PREFIX).rpartition(".")
    plugin.load(kind, stem.replace("_", "-"))
    return operator.attrgetter(name)(sys.modules[module])
