"""Checks of the callbacks that a caller passes to a run, made before anything is planned."""

from __future__ import annotations

import inspect
from typing import Any

from sordino.core.errors import SpecError


def check(**functions: Any) -> None:
    """Raise SpecError unless each value is None or can be called with one argument; keywords give the names."""
    for name, function in functions.items():
        if function is None:
            continue
        if not callable(function):
            raise SpecError(f"{name} must be a function of one argument, not a {type(function).__name__}.")
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # some builtins have no signature
            continue
        try:
            signature.bind(object())
        except TypeError as error:
            raise SpecError(f"{name} must be a function of one argument, and this one cannot be: {error}.") from error
