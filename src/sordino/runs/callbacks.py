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
        _takes(function, 1, f"{name} must be a function of one argument, and this one cannot be")


def check_loss(loss: Any) -> None:
    """Raise SpecError if a loss is a function that cannot be called with predictions and targets."""
    if callable(loss):
        _takes(loss, 2, "loss must be a function (predictions, targets) -> one loss a record, and this one cannot be")


def _takes(function: Any, arguments: int, text: str) -> None:
    """Raise SpecError, with this text, unless the function can be called with this number of arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have no signature
        return
    try:
        signature.bind(*[object()] * arguments)
    except TypeError as error:
        raise SpecError(f"{text}: {error}.") from error
