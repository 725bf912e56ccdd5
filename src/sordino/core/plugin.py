"""Plug-ins found by file name: `load("methods", "dp-fedavg")` returns the one class in methods/dp_fedavg.py.

A plug-in is a file or a folder whose name does not begin with an underscore; `base.py` holds the interface.

There are two ways to add plug-ins of your own: a folder named by the environment variable SORDINO_PLUGINS (several,
separated as in PATH) with files such as FOLDER/methods/my_method.py; or a package with entry points in the group
`sordino.methods` (`sordino.algorithms`, ...), each naming a class. Neither may use the name of a built-in plug-in.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
import traceback
import typing
import warnings
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from sordino.core.errors import SpecError

VARIABLE = "SORDINO_PLUGINS"
PREFIX = "sordino_plugins."  # prefix of the modules made from files in these folders
UNITS = ("record", "client", "user")  # units of privacy that a method can protect
READS = ("sums", "rows")  # how a method may read the clients' rows
VERBS = ("seal", "carry", "split", "cost")  # methods that a channel must have
_BASES: dict[str, type] = {}  # by kind: base class of external plug-ins, set by its module
_RESERVED: set[str] = set()  # names that no option may have: keys that every run has


def derive_from(kind: str, base: type) -> None:
    """Register the class that plug-ins of a kind must derive from."""
    _BASES[kind] = base


def reserve(names: Iterable[str]) -> None:
    """Reserve names, which options of plug-ins may then not use."""
    _RESERVED.update(names)


def available(kind: str) -> list[str]:
    """Return the names of all plug-ins of a kind, sorted."""
    return sorted({*_ours(kind), *_files(kind), *_entries(kind)})


def loadable(kind: str) -> list[str]:
    """Return the names of the plug-ins of a kind that can be loaded.

    An external plug-in that cannot be loaded causes a warning instead of an error, so that it does not affect users who
    do not ask for it.
    """
    names = []
    for name in available(kind):
        try:
            load(kind, name)
        except SpecError as error:
            if ours(kind, name):
                raise
            warnings.warn(f"left out: {error}", stacklevel=2)
        else:
            names.append(name)
    return names


@lru_cache
def _ours(kind: str) -> frozenset[str]:
    package = importlib.import_module(f"sordino.{kind}")
    names = (m.name for m in pkgutil.iter_modules(package.__path__))
    return frozenset(n.replace("_", "-") for n in names if n != "base" and not n.startswith("_"))


def _files(kind: str) -> dict[str, Path]:
    """Return the plug-ins of a kind in the folders that the environment variable names."""
    paths: dict[str, Path] = {}
    for folder in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        if not Path(folder).is_dir():
            raise SpecError(f"{VARIABLE} names {folder}, which is not a folder.")
        for path in sorted(Path(folder, kind.replace(".", "/")).glob("*.py")):
            name = path.stem.replace("_", "-")
            if not path.stem.startswith("_") and paths.setdefault(name, path) != path:
                raise SpecError(f"two plug-ins are called {name}: {paths[name]} and {path}.")
    return paths


@lru_cache
def _entries(kind: str) -> dict[str, Any]:
    return {entry.name: entry for entry in entry_points(group=f"sordino.{kind}")}


def import_all(kind: str, *modules: str) -> None:
    """Import all built-in plug-ins of a kind, and other modules, so that everything they register is known."""
    for name in [f"{kind}.{n.replace('-', '_')}" for n in sorted(_ours(kind))] + list(modules):
        importlib.import_module(f"sordino.{name}")


def load(kind: str, name: str) -> Any:
    """Return the class or function that a plug-in exports.

    A plug-in file exports the one name in its `__all__`, an entry point the class that it names.

    Raises:
        SpecError: if there is no such plug-in, it has the name of a built-in one, or it cannot be used.
    """
    ours, files, entries = _ours(kind), _files(kind), _entries(kind)
    if name in ours:
        if name in files or name in entries:
            raise SpecError(f"a plug-in is called {name}, which is the name of one of ours. Choose another name.")
        return _exported(importlib.import_module(f"sordino.{kind}.{name.replace('-', '_')}"))
    if name in files:
        return _usable(kind, name, _exported(_imported(kind, files[name])))
    if name in entries:
        return _usable(kind, name, entries[name].load())
    known = available(kind)
    if kind == "methods" and name in available("algorithms"):
        raise SpecError(f"{name} is an algorithm: use --algorithm {name}, with --method {', '.join(known)}.")
    near = get_close_matches(str(name), known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else _misplaced(kind)
    raise SpecError(f"unknown {kind.removesuffix('s')} {name!r}.{hint} There are: {', '.join(known)}.")


def _misplaced(kind: str) -> str:
    """Return a hint if a folder of plug-ins has no subfolder of this kind, else an empty string."""
    folders = [f for f in os.environ.get(VARIABLE, "").split(os.pathsep) if f]
    empty = [f for f in folders if not Path(f, kind.replace(".", "/")).is_dir()]
    if not empty:
        return ""
    hint = "; name the folder above it" if Path(empty[0]).absolute().name == kind else ""
    return f" {VARIABLE} names {empty[0]}, in which there is no folder {kind}{hint}."


def _usable(kind: str, name: str, loaded: Any) -> Any:
    """Return an external plug-in, or raise one clear error if it cannot be used."""
    if kind == "channels":
        return _channel(name, loaded)
    if kind not in ("methods", "algorithms"):
        return loaded
    # must be a dataclass whose fields are options with defaults
    base = _BASES.get(kind, ())  # empty if the base class has not been imported, not even by the plug-in
    if not isinstance(loaded, type) or not issubclass(loaded, base) or not dataclasses.is_dataclass(loaded):
        what = kind.removesuffix("s").title()
        raise SpecError(f"the plug-in {name} must be a frozen dataclass that derives from {what}.")
    for field in dataclasses.fields(loaded):
        if field.name in _RESERVED:
            raise SpecError(f"the plug-in {name} has an option {field.name!r}, which is a key of every run. Rename it.")
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise SpecError(f"the plug-in {name}: its option {field.name} needs a default.")
    try:
        typing.get_type_hints(loaded)
        loaded()
    except Exception as error:
        raise SpecError(f"the plug-in {name} cannot be made: {type(error).__name__}: {error}") from error
    for variable in ("units", "channels", "algorithms", "phases") if kind == "methods" else ():
        words = getattr(loaded, variable)
        if not isinstance(words, tuple) or not all(isinstance(w, str) for w in words):
            raise SpecError(f'the plug-in {name}: {variable} must be a tuple of text, such as ("a",), not {words!r}.')
        if not words and variable != "algorithms":
            raise SpecError(f"the plug-in {name}: {variable} must name at least one.")
    if strange := [u for u in getattr(loaded, "units", ()) if u not in UNITS]:
        raise SpecError(f"the plug-in {name} protects a {strange[0]!r}; units are {', '.join(UNITS)}.")
    if kind == "methods" and (reads := getattr(loaded, "reads", None)) not in READS:
        raise SpecError(f"the plug-in {name}: reads must be one of {', '.join(READS)}, not {reads!r}.")
    return loaded


def _channel(name: str, loaded: Any) -> Any:
    """Return an external channel: a class with the methods of channels/base.py and no required arguments."""
    if not isinstance(loaded, type):
        raise SpecError(f"the plug-in {name} must be a class.")
    if lacks := [verb for verb in VERBS if not callable(getattr(loaded, verb, None))]:
        raise SpecError(f"the channel {name} lacks {lacks[0]}: a channel has {', '.join(VERBS)}; see channels/base.py.")
    if getattr(loaded, "name", None) != name or not isinstance(getattr(loaded, "shows_rows", None), bool):
        raise SpecError(f'the channel {name} needs the class variables name = "{name}" and shows_rows = True or False.')
    try:
        loaded()
    except Exception as error:
        raise SpecError(f"the plug-in {name} cannot be made: {type(error).__name__}: {error}") from error
    return loaded


@lru_cache
def field_help(cls: type) -> dict[str, str]:
    """Return the help text of every field of a class: the comment behind it, continued on comment lines below it."""
    pattern = re.compile(r"^    (\w+): .*?  # (.+(?:\n    # .+)*)$", flags=re.MULTILINE)
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        with contextlib.suppress(OSError, TypeError):  # a class without source
            texts |= {name: text.replace("\n    # ", " ") for name, text in pattern.findall(inspect.getsource(base))}
    return texts


def classes(kind: str) -> dict[str, Any]:
    """Return all loadable plug-ins of a kind by class name."""
    return {cls.__name__: cls for cls in (load(kind, name) for name in loadable(kind))}


def name_of(kind: str, cls: type) -> str | None:
    """Return the name of the plug-in that a class belongs to, or None."""
    return next((name for name in loadable(kind) if load(kind, name) is cls), None)


def attribute(kind: str, name: str, homes: Mapping[str, str]) -> Any:
    """Return a public attribute of a package of plug-ins: a name listed in `homes`, or the class of a plug-in.

    Args:
        kind: the kind of plug-in, such as "methods".
        name: the attribute.
        homes: the dotted path of every public name that is not a plug-in.
    """
    if name in homes:
        module, _, symbol = homes[name].rpartition(".")
        return getattr(importlib.import_module(module), symbol)
    if name[:1].isupper() and name in (known := classes(kind)):
        return known[name]
    raise AttributeError(f"sordino.{kind.rpartition('.')[2]} has no {name!r}; dir() lists what it has.")


def ours(kind: str, name: str) -> bool:
    """Return whether a plug-in is built in."""
    return name in _ours(kind)


def place(error: BaseException) -> str:
    """Return the file and line of a plug-in in which an error arose; empty if no plug-in was involved."""
    theirs = {e.module for kind in ("methods", "algorithms", "channels") for e in _entries(kind).values()}
    files = {m.__file__: n for n, m in list(sys.modules.items()) if n.startswith(PREFIX) or n in theirs}
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in files]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""


def _imported(kind: str, path: Path) -> ModuleType:
    name = f"{PREFIX}{kind}.{path.stem}"
    if name in sys.modules and sys.modules[name].__file__ == str(path):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SpecError(f"{path} cannot be read as a plug-in.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        hint = ""
        if isinstance(error, ImportError) and (error.name or "").startswith("sordino."):
            hint = (
                ". Public names are in sordino.methods, sordino.algorithms, sordino.mechanisms and sordino.accounting"
            )
        raise SpecError(f"the plug-in {path} fails: {type(error).__name__}: {error}{hint}") from error
    return module


def _exported(module: ModuleType) -> Any:
    names: list[str] = list(getattr(module, "__all__", ()))
    if len(names) != 1 or not hasattr(module, names[0]):
        raise SpecError(f'{module.__file__} must name the one class it exports: __all__ = ["MyMethod"].')
    return getattr(module, names[0])
