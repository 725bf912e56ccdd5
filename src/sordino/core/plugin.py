"""Plug-ins by file name: `load("methods", "dp-fedavg")` is the one class in methods/dp_fedavg.py."""

import importlib
import pkgutil
from difflib import get_close_matches
from typing import Any

from sordino.core.errors import SpecError

HELPERS = {
    "base",
    "local",
    "optimizers",
    "stragglers",
    "augment",
    "validate",
    "losses",
    "metrics",
    "adapt",
}  # modules that are not plug-ins


def available(kind: str) -> list[str]:
    package = importlib.import_module(f"sordino.{kind}")
    names = (m.name for m in pkgutil.iter_modules(package.__path__))
    return sorted(n.replace("_", "-") for n in names if n not in HELPERS and not n.startswith("_"))


def import_all(kind: str, *modules: str) -> None:
    """Import every plug-in of a kind, and other modules, so that whatever they register is known."""
    for name in [f"{kind}.{n.replace('-', '_')}" for n in available(kind)] + list(modules):
        importlib.import_module(f"sordino.{name}")


def load(kind: str, name: str) -> Any:
    """The class or function that a plug-in file exports as its one `__all__` name."""
    known = available(kind)
    if name not in known:
        if kind == "methods" and name in available("algorithms"):
            raise SpecError(f"{name} is an algorithm: use --algorithm {name}, with --method {', '.join(known)}.")
        near = get_close_matches(str(name), known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise SpecError(f"unknown {kind.removesuffix('s')} {name!r}.{hint} There are: {', '.join(known)}.")
    module = importlib.import_module(f"sordino.{kind}.{name.replace('-', '_')}")
    return getattr(module, module.__all__[0])
