"""Federated algorithms, and the names needed to write one.

An algorithm says how clients use a gradient and how the server uses the mean message; it never sees data, and works
with any method that releases what it needs. Every algorithm is an attribute under its class name, such as
`sordino.algorithms.Scaffold`. Your own algorithms derive from `Algorithm`: see CONTRIBUTING.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sordino.core import plugin

if TYPE_CHECKING:
    from sordino.algorithms.base import Algorithm, LocalWork, Server
    from sordino.core.local_training import Local
    from sordino.core.types import State

__all__ = ["Algorithm", "Local", "LocalWork", "Server", "State"]

_HOME = {
    "Algorithm": "sordino.algorithms.base.Algorithm",
    "Local": "sordino.core.local_training.Local",
    "LocalWork": "sordino.algorithms.base.LocalWork",
    "Server": "sordino.algorithms.base.Server",
    "State": "sordino.core.types.State",
}


def __getattr__(name: str) -> Any:
    return plugin.attribute("algorithms", name, _HOME)


def __dir__() -> list[str]:
    return sorted({*__all__, *plugin.classes("algorithms")})
