"""Every noise mechanism by its class name: `sordino.mechanisms.Gaussian`, `sordino.mechanisms.Laplace`, and so on.

    >>> from sordino import accounting, mechanisms
    >>> laplace = mechanisms.Laplace(noise_multiplier=2.0)
    >>> round(accounting.epsilon(laplace.event(), delta=1e-9), 3)
    0.5

`dir(sordino.mechanisms)` lists them, and `sordino mechanisms` shows their parameters. A mechanism of your own is one
file: see CONTRIBUTING.
"""

from __future__ import annotations

from typing import Any

from sordino.core import plugin


def __getattr__(name: str) -> Any:
    return plugin.attribute("privacy.mechanisms", name, {})


def __dir__() -> list[str]:
    return sorted(plugin.classes("privacy.mechanisms"))
