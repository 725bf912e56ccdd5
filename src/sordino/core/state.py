"""Snapshots of the state that Python code keeps between calls, restored after every call.

A user's model or loss may keep state: a running mean in an attribute, a counter in a global, a list in a closure, a
buffer that it overwrites. State kept from one record would reach the gradients of the next, bypassing any clipping. A
`Snapshot` finds and saves the state that the code can reach; used as a context manager, it restores all of it, so that
every call starts from the same state and nothing is carried over. Nothing is refused, and what is done does not depend
on the data.

A snapshot covers attributes of objects and classes, closures, defaults, the globals that the code names, lists,
dictionaries, sets, tensors and arrays. It does not cover what Python does not expose: the inside of iterators and
extension modules, and files.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import threading
import types
from array import array
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from sordino.core.holders import (
    Array,
    Cache,
    Cells,
    Class,
    Dict,
    Holder,
    Numbers,
    Parameter,
    Value,
    Values,
    get,
)  # fmt: skip

OTHERS = frozenset(sys.stdlib_module_names) - {"__main__"} | {"torch", "numpy", "sordino"}  # keep no user state
PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), torch.dtype, torch.device, torch.Size)
HOLDERS = (nn.Module, types.SimpleNamespace, UserDict, UserList, ChainMap)  # library classes that hold user objects
UNCALLED = {"__init__", "__new__", "__init_subclass__", "__class_getitem__"}  # methods not called when a model runs

_turn = threading.RLock()  # all threads share the globals


class Snapshot:
    """The state that can be reached from some roots at this moment.

    Args:
        roots: the objects whose code may keep state.
        beside: another snapshot; what it already holds is left out of this one.
    """

    def __init__(self, *roots: object, beside: Snapshot | None = None) -> None:
        known: dict[int, object] = {} if beside is None else beside._seen
        walk = _Walk(roots, known)
        empty = [holder for holder in walk.holders if isinstance(holder, Dict) and holder.empty]
        self._holders: list[Holder] = [
            holder for holder in walk.holders if not (isinstance(holder, Dict) and holder.empty)
        ]
        self._empty, self._dicts = empty, [holder.held for holder in empty]  # mostly hooks of modules
        self._seen: dict[int, object] = walk.seen
        self.classes: list[type] = walk.classes
        self.changed: set[str] = set()  # names of everything that ever had to be restored

    def restore(self) -> None:
        """Restore the saved state."""
        filled = [holder for holder in self._empty if holder.held] if any(self._dicts) else []
        for holder in (*self._holders, *filled):
            if holder.restore():
                self.changed.add(holder.name)

    def begin(self) -> None:
        """Accept the current values of parameters, which an optimiser changes between calls."""
        for holder in self._holders:
            if isinstance(holder, Parameter):
                holder.begin()

    def __enter__(self) -> Self:
        _turn.acquire()
        try:
            self.begin()
            self.restore()
        except BaseException:
            _turn.release()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.restore()
        finally:
            _turn.release()


class _Walk:
    """A search for everything that the code of some objects can reach."""

    def __init__(self, roots: tuple[object, ...], known: dict[int, object]) -> None:
        self.seen: dict[int, object] = {}  # keeps the objects alive, so that no id is reused
        self.holders: list[Holder] = []
        self.classes: list[type] = []
        self._known, self._names = known, {"forward", "__call__"}
        self._code: list[types.FunctionType] = []
        self._stack: list[tuple[str, object]] = [("the model or the loss", root) for root in roots]
        while self._stack:
            while self._stack:
                self._visit(*self._stack.pop())
            self._methods()

    def _push(self, name: str, values: Any) -> None:
        self._stack += [(name, value) for value in values if not isinstance(value, PLAIN)]

    def _visit(self, name: str, value: Any) -> None:
        if id(value) in self.seen or id(value) in self._known:
            return
        self.seen[id(value)] = value
        for kinds, visit in _KINDS:
            if isinstance(value, kinds):
                return visit(self, name, value)
        self._push(name, [inspect.getattr_static(value, "__wrapped__", None)])
        if isinstance(value, HOLDERS) or not _other(type(value)):
            self._object(type(value).__qualname__, value)

    def _object(self, name: str, value: Any) -> None:
        self._push(name, [type(value)])
        for key, held in getattr(value, "__dict__", {}).items():
            self._push(f"{name}.{key}", [held])
        if hasattr(value, "__dict__"):
            self.holders.append(Dict(name, value.__dict__))
        for key in {key for kind in type(value).__mro__ for key in _slots(kind)}:
            self.holders.append(Value(f"{name}.{key}", value, key))
            self._push(f"{name}.{key}", [get(value, key)])

    def _class(self, name: str, value: type) -> None:
        if not _other(value):
            self._push(value.__qualname__, value.__mro__)
            self.classes.append(value)
            self.holders.append(Class(value))

    def _methods(self) -> None:
        """Follow the methods whose names occur in the code, and the globals and modules that the code names."""
        for kind in self.classes:
            for key, value in list(vars(kind).items()):
                plain = not isinstance(value, types.FunctionType | property | staticmethod | classmethod)
                special = key.startswith("__") and key not in UNCALLED
                named = key in self._names or "getattr" in self._names  # getattr may reach any of them
                if (plain and not special) or (not plain and (special or (named and key not in UNCALLED))):
                    new = [part for part in _parts(value) if id(part) not in self.seen]
                    self._push(f"{kind.__qualname__}.{key}", new)

    def _function(self, name: str, value: types.FunctionType) -> None:
        if _other(value):
            return
        names = _named(value.__code__)
        self._names |= names
        held = value.__globals__
        bound = names & held.keys() | _stored(value.__code__)
        self.holders.append(Dict(f"a global of {value.__qualname__}", held, bound))
        imported = {key: sys.modules[key] for key in names - held.keys() if key in sys.modules}  # inside the function
        for key, target in (imported | {key: held[key] for key in names & held.keys()}).items():
            if isinstance(target, types.ModuleType):
                self._module(target, names)
            else:
                self._push(key, [target])
        for cell, key in zip(value.__closure__ or (), value.__code__.co_freevars, strict=True):
            self.holders.append(Value(key, cell, "cell_contents"))
            self._push(key, [get(cell, "cell_contents")])
        self._push(name, [value.__defaults__, value.__kwdefaults__, value.__dict__])

    def _module(self, module: types.ModuleType, names: set[str]) -> None:
        """Hold the attributes of a module, and of modules inside it, that code with these names can reach."""
        if module.__name__.partition(".")[0] in OTHERS:
            return
        inside = names & vars(module).keys()
        self.holders.append(Dict(module.__name__, vars(module), inside))
        for each in (vars(module)[key] for key in inside):
            if isinstance(each, types.ModuleType) and each is not module:
                self._module(each, names - {module.__name__.rpartition(".")[2]})
            else:
                self._push(module.__name__, [each])

    def _cached(self, name: str, value: Any) -> None:
        self.holders.append(Cache(name, value))
        self._push(name, [value.__wrapped__])

    def _dict(self, name: str, value: dict[Any, Any]) -> None:
        self.holders.append(Dict(name, value))
        self._push(name, [*value.keys(), *value.values()])

    def _values(self, name: str, value: Any) -> None:
        self.holders.append(Values(name, value))
        self._push(name, value)

    def _tensor(self, name: str, value: Tensor) -> None:
        if isinstance(value, nn.Parameter):
            self.holders.append(Parameter(name, value))
        elif value.layout == torch.strided:
            self.holders.append(Numbers(name, value))

    def _array(self, name: str, value: np.ndarray[Any, Any]) -> None:
        self.holders.append(Array(name, value))

    def _method(self, name: str, value: types.MethodType) -> None:
        self._push(name, [value.__self__, value.__func__])

    def _partial(self, name: str, value: functools.partial[Any]) -> None:
        self._push(name, [value.func, value.args, value.keywords])


_Visit = Callable[[_Walk, str, Any], None]
_KINDS: tuple[tuple[Any, _Visit], ...] = (
    (PLAIN, lambda *_: None),
    ((types.ModuleType, types.BuiltinFunctionType), lambda *_: None),
    (Tensor, _Walk._tensor),
    (np.ndarray, _Walk._array),
    (array, lambda walk, name, value: walk.holders.append(Cells(name, value))),
    (functools._lru_cache_wrapper, _Walk._cached),
    (types.FunctionType, _Walk._function),
    (types.MethodType, _Walk._method),
    (functools.partial, _Walk._partial),
    (type, _Walk._class),
    (dict, _Walk._dict),
    ((list, deque, set, bytearray), _Walk._values),
    ((tuple, frozenset), _Walk._push),
)


def _other(value: Any) -> bool:
    """Return whether a class or function belongs to Python, PyTorch, NumPy or Sordino."""
    return str(getattr(value, "__module__", "") or "builtins").partition(".")[0] in OTHERS


def _slots(kind: type) -> Iterator[str]:
    slots = vars(kind).get("__slots__", ())
    for key in (slots,) if isinstance(slots, str) else slots:
        if key not in ("__dict__", "__weakref__") and not _other(kind):
            yield f"_{kind.__name__.lstrip('_')}{key}" if key.startswith("__") and not key.endswith("__") else key


def _parts(value: object) -> list[object]:
    if isinstance(value, property):
        return [part for part in (value.fget, value.fset) if part is not None]
    return [value.__func__] if isinstance(value, staticmethod | classmethod) else [value]


def _named(code: types.CodeType) -> set[str]:
    """Return the names of globals and attributes in a function and in the functions that it defines."""
    inside = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*map(_named, inside))


@functools.lru_cache(maxsize=4096)  # every model contains the same code again
def _stored(code: types.CodeType) -> frozenset[str]:
    """Return the names that a function may bind as globals, whether or not they exist yet."""
    stored = frozenset(str(i.argval) for i in dis.get_instructions(code) if i.opname == "STORE_GLOBAL")
    return stored.union(*(_stored(const) for const in code.co_consts if isinstance(const, types.CodeType)))
