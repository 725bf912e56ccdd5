"""Values of keys: checked against the type of a field, or read from a flag's text."""

from __future__ import annotations

import types
import typing
from typing import Any

from sordino.core.errors import SpecError


def typed(name: str, value: Any, hint: Any) -> Any:
    """The value, if it is of the field's type; whole numbers pass for numbers, booleans do not."""
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in allowed:
        return None
    for kind in allowed:
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return value
        if kind is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if kind in (str, bool) and isinstance(value, kind):
            return value
    wanted = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}
    raise SpecError(f"{name} must be {wanted[allowed[0]]}, not {value!r}.")


def parse(name: str, text: str, hint: Any) -> Any:
    """A flag's text -> a value of the field's type."""
    kind = next(k for k in (typing.get_args(hint) or (hint,)) if k is not type(None))
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError) as error:
        wanted = {float: "a number", int: "a whole number", bool: "true or false"}[kind]
        raise SpecError(f"{name} must be {wanted}, not {text!r}.") from error
