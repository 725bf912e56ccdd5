"""Type checks of the values of keys, and parsing of command line flags."""

from __future__ import annotations

import types
import typing
from typing import Any

from sordino.core.errors import SpecError


def typed(name: str, value: Any, hint: Any) -> Any:
    """Return the value if it has the type of the field; raise SpecError otherwise.

    Integers are accepted as floats, booleans are not accepted as numbers.
    """
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
        if typing.get_origin(kind) is tuple and isinstance(value, tuple) and all(isinstance(v, str) for v in value):
            return value
    wanted = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}
    raise SpecError(f"{name} must be {wanted.get(allowed[0], 'a list of text')}, not {value!r}.")


def frozen(value: Any) -> Any:
    """Return a list of TOML as a tuple of text, and anything else unchanged; whole numbers in a list become text."""
    if not isinstance(value, list | tuple):
        return value
    return tuple(str(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in value)


def parse(name: str, text: str, hint: Any) -> Any:
    """Return the text of a flag as a value of the field's type; raise SpecError if it cannot be parsed."""
    kind = next(k for k in (typing.get_args(hint) or (hint,)) if k is not type(None))
    if typing.get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(","))
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError) as error:
        wanted = {float: "a number", int: "a whole number", bool: "true or false"}[kind]
        raise SpecError(f"{name} must be {wanted}, not {text!r}.") from error
