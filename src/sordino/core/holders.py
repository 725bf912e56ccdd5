"""Holders that save the contents of dictionaries, lists, cells, tensors and caches, and restore them (see `state`)."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from torch import Tensor

from sordino.core.errors import ModelError


class Holder:
    """Base class: saves the contents of an object so that they can be restored."""

    def __init__(self, name: str) -> None:
        self.name = name

    def restore(self) -> bool:
        """Restore the saved contents and return whether they had changed."""
        raise NotImplementedError


class Dict(Holder):
    """Holder of a dictionary, or of some of its keys."""

    def __init__(self, name: str, held: dict[Any, Any], names: set[str] | None = None) -> None:
        super().__init__(name)
        self.held, self._names = held, names
        self._saved = dict(held) if names is None else {key: held[key] for key in names if key in held}
        self._ids = list(map(id, self._saved.values()))
        self.empty = names is None and not held

    def restore(self) -> bool:
        held, saved, names = self.held, self._saved, self._names
        if names is None:
            if list(map(id, held.values())) == self._ids and held.keys() == saved.keys():
                return False
            held.clear()
            for key, value in saved.items():
                held[key] = value
            return True
        moved = [key for key in names if held.get(key, NONE) is not saved.get(key, NONE)]
        for key in moved:
            if key in saved:
                held[key] = saved[key]
            else:
                del held[key]
        return bool(moved)


NONE = object()


class Class(Holder):
    """Holder of the attributes of a class."""

    def __init__(self, held: type) -> None:
        super().__init__(held.__qualname__)
        self._held, self._saved = held, self._now(held)

    @staticmethod
    def _now(held: type) -> dict[str, object]:
        return {key: value for key, value in vars(held).items() if not key.startswith(("__", "_abc_"))}

    def restore(self) -> bool:
        now, saved = self._now(self._held), self._saved
        moved = [key for key in now.keys() | saved.keys() if now.get(key, NONE) is not saved.get(key, NONE)]
        for key in moved:
            if key in saved:
                setattr(self._held, key, saved[key])
            else:
                delattr(self._held, key)
        return bool(moved)


class Values(Holder):
    """Holder of a list, a deque, a set or a bytearray."""

    def __init__(self, name: str, held: Any) -> None:
        super().__init__(name)
        self._held, self._saved = held, list(held)
        self._ids = list(map(id, self._saved))

    def restore(self) -> bool:
        if list(map(id, self._held)) == self._ids:
            return False
        self._held.clear()
        (self._held.update if isinstance(self._held, set) else self._held.extend)(self._saved)
        return True


class Cells(Holder):
    """Holder of an `array.array`."""

    def __init__(self, name: str, held: array[Any]) -> None:
        super().__init__(name)
        self._held, self._saved = held, held[:]

    def restore(self) -> bool:
        if self._held == self._saved:
            return False
        self._held[:] = self._saved
        return True


class Cache(Holder):
    """Holder of a function with an `lru_cache`; restoring it clears the cache."""

    def __init__(self, name: str, held: Any) -> None:
        super().__init__(name)
        self._held, self._size = held, held.cache_info().currsize

    def restore(self) -> bool:
        if self._held.cache_info().currsize == self._size == 0:
            return False
        self._held.cache_clear()
        self._size = 0
        return True


class Value(Holder):
    """Holder of a closure cell or of a slot of an object."""

    def __init__(self, name: str, held: object, key: str) -> None:
        super().__init__(name)
        self._held, self._key, self._saved = held, key, get(held, key)

    def restore(self) -> bool:
        if get(self._held, self._key) is self._saved:
            return False
        if self._saved is NONE:
            delattr(self._held, self._key)
        else:
            setattr(self._held, self._key, self._saved)
        return True


def get(held: object, key: str) -> Any:
    """Return an attribute, or NONE for an empty slot or closure cell."""
    try:
        return getattr(held, key)
    except (AttributeError, ValueError):  # an empty slot, an empty cell
        return NONE


class Parameter(Holder):
    """Watches a parameter without copying it.

    Parameters may be large, so they are not saved; a model must not write to them.
    """

    def __init__(self, name: str, held: Tensor) -> None:
        super().__init__(name)
        self._held, self._version = held, _version(held)

    def begin(self) -> None:
        """Accept the parameter as it is now."""
        self._version = _version(self._held)

    def restore(self) -> bool:
        """Return False, or raise a ModelError if the parameter was written to."""
        if _version(self._held) == self._version:
            return False
        raise ModelError(
            f"the model overwrites a parameter of shape {list(self._held.shape)} while it runs, so that one record's"
            " gradient may depend on another record. Compute what is needed from the parameter in forward instead."
        )


class Numbers(Holder):
    """Holder of a tensor.

    The contents are always copied back, because not every way to write to a tensor can be detected.
    """

    def __init__(self, name: str, held: Tensor) -> None:
        super().__init__(name)
        self._held, self._version, self._data = held, _version(held), held.detach()
        self._saved = held.untyped_storage().clone()

    def restore(self) -> bool:
        if self._held.data_ptr() != self._data.data_ptr() or self._held.shape != self._data.shape:
            self._held.data = self._data
        self._data.untyped_storage().copy_(self._saved)
        before, self._version = self._version, _version(self._held)
        return self._version != before


def _version(value: Tensor) -> int:
    return 0 if value.is_inference() else value._version


class Array(Holder):
    """Holder of a NumPy array."""

    def __init__(self, name: str, held: np.ndarray[Any, Any]) -> None:
        super().__init__(name)
        self._held, self._saved = held, held.copy()

    def restore(self) -> bool:
        if not self._held.flags.writeable or np.array_equal(self._held, self._saved):
            return False
        np.copyto(self._held, self._saved)
        return True
