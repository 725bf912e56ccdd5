"""Sordino: differentially private federated learning with an honest, total epsilon."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sordino.core.errors import SordinoError
    from sordino.data.clients import LazyClients
    from sordino.runs.run import Result, train

__version__ = "0.1.0"
__all__ = ["LazyClients", "Result", "SordinoError", "__version__", "train"]

_HOME = {
    "LazyClients": "sordino.data.clients",
    "Result": "sordino.runs.run",
    "SordinoError": "sordino.core.errors",
    "train": "sordino.runs.run",
}


def __getattr__(name: str) -> Any:
    """Import torch only when something of ours is used: `sordino --help` stays fast."""
    if name not in _HOME:
        raise AttributeError(f"module 'sordino' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)
