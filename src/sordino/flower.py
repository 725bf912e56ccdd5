"""Client-level differential privacy for an existing Flower app: a mod at the clients, a wrapper at the server.

    from sordino.flower import Private, private_mod

    app = ClientApp(mods=[private_mod(clip=1.0)])                                    # client
    strategy = Private(FedAvg(), epsilon=2.0, delta=1e-5, clients=100, clip=1.0, rounds=20, client_rate=0.2)  # server

The client's side imports no torch, because Flower starts a process for every message. See docs/flower.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sordino.foreign.client import private_mod
    from sordino.foreign.strategy import Private

__all__ = ["Private", "private_mod"]

_HOME = {
    "Private": "sordino.foreign.strategy",
    "private_mod": "sordino.foreign.client",
}


def __getattr__(name: str) -> Any:
    """Import each side only where it is used."""
    if name not in _HOME:
        raise AttributeError(f"module 'sordino.flower' has no attribute {name!r}; it has {', '.join(__all__)}.")
    try:
        return getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "flwr":
            raise
        raise ImportError("sordino.flower needs Flower: pip install 'sordino[flower]'.") from error


def __dir__() -> list[str]:
    return sorted(__all__)
