"""Validators for keyword arguments that all raise the same wording: `check.positive(clip=clip)`.

Booleans, nan and infinity are not accepted as numbers.
"""

import math
from numbers import Integral, Real

from sordino.core.errors import SpecError


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise SpecError(f"{name} must be a number, not {value!r}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise SpecError(f"{name} must be finite, not {value!r}.")
    return number


def positive(**values: object) -> None:
    """Require numbers above 0."""
    for name, value in values.items():
        if _number(name, value) <= 0:
            raise SpecError(f"{name} must be positive, not {value!r}.")


def non_negative(**values: object) -> None:
    """Require numbers of at least 0."""
    for name, value in values.items():
        if _number(name, value) < 0:
            raise SpecError(f"{name} must not be negative, not {value!r}.")


def probability(**values: object) -> None:
    """Require numbers in (0, 1]; a sampling rate of zero would never draw anyone."""
    for name, value in values.items():
        if not 0 < _number(name, value) <= 1:
            raise SpecError(f"{name} must lie in (0, 1], not {value!r}.")


def below_one(**values: object) -> None:
    """Require numbers in (0, 1), such as a delta or a quantile."""
    for name, value in values.items():
        if not 0 < _number(name, value) < 1:
            raise SpecError(f"{name} must lie strictly between 0 and 1, not {value!r}.")


def fraction(**values: object) -> None:
    """Require numbers in [0, 1), such as a momentum or a decay."""
    for name, value in values.items():
        if not 0 <= _number(name, value) < 1:
            raise SpecError(f"{name} must lie in [0, 1), not {value!r}.")


def count(**values: object) -> None:
    """Require whole numbers of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise SpecError(f"{name} must be a whole number, not {value!r}.")
        if value < 1:
            raise SpecError(f"{name} must be at least 1, not {value!r}.")


def one_of(options: tuple[str | None, ...], **values: object) -> None:
    """Require each value to be one of the options; include None among them if the value is optional."""
    for name, value in values.items():
        if value not in options:
            raise SpecError(f"{name} must be one of {', '.join(o for o in options if o is not None)}, not {value!r}.")
