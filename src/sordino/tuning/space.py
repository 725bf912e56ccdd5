"""The search space of `sordino tune`: for each key a list of values or a range, from which trials are drawn.

In a run file it is the table [tune], next to the options of the search itself:

    [tune]
    trials = 20
    learning_rate = {low = 0.1, high = 64, log = true}
    clip = [0.25, 0.5, 1.0]

On the command line: --search learning_rate=0.1:64:log --search clip=0.25,0.5,1
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.spec import spec

GROUPS = ("local", "server", "model")  # groups of keys that may be searched, beside the options of the method
ALSO = ("features", "feature_bound")  # keys of other groups that may be searched
PRICED = {  # keys that change what a trial costs, with what to do instead
    "epsilon": "it is the total of the whole search, and each trial gets the same part of it",
    "delta": "it is the total of the whole search",
    "rounds": "every trial must cost the same: set rounds in the file",
    "seed": "trials differ in their noise by themselves",
}


@dataclass(frozen=True)
class ValueList:
    """A list of values, all equally likely."""

    values: tuple[Any, ...]

    def draw(self, uniform: float) -> Any:
        """Return the value for a uniform random number in [0, 1)."""
        return self.values[int(uniform * len(self.values))]

    def ends(self) -> tuple[Any, ...]:
        """Return the values to check before anything is charged."""
        return self.values

    def to_json(self) -> Any:
        """Return the list as a file shows it."""
        return list(self.values)


@dataclass(frozen=True)
class SearchRange:
    """All numbers between two bounds, uniform or uniform in the logarithm; whole numbers if both bounds are."""

    low: float
    high: float
    log: bool = False

    def draw(self, uniform: float) -> Any:
        """Return the value for a uniform random number in [0, 1)."""
        if isinstance(self.low, int) and isinstance(self.high, int) and not self.log:
            return self.low + int(uniform * (self.high - self.low + 1))
        if self.log:
            value = math.exp(math.log(self.low) + uniform * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + uniform * (self.high - self.low)
        return min(max(float(f"{value:.4g}"), self.low), self.high)

    def ends(self) -> tuple[Any, ...]:
        """Return the values to check before anything is charged."""
        return self.low, self.high

    def to_json(self) -> Any:
        """Return the bounds as a file shows them."""
        return {"low": self.low, "high": self.high} | ({"log": True} if self.log else {})


Domain = ValueList | SearchRange
Space = dict[str, Domain]
DEFAULTS: Space = {"learning_rate": SearchRange(0.1, 64.0, True), "clip": ValueList((0.25, 0.5, 1.0))}


def from_table(table: Mapping[str, Any]) -> Space:
    """Return the space that a table [tune] declares; raise SpecError with the key that is wrong."""
    return {key: _domain(key, value) for key, value in table.items()}


def _domain(key: str, value: Any) -> Domain:
    if isinstance(value, list) and value and not any(isinstance(v, list | dict) for v in value):
        if len(set(map(repr, value))) < len(value):
            raise SpecError(f"tune.{key} names a value twice: {value!r}.")
        return ValueList(tuple(value))
    if isinstance(value, dict) and {"low", "high"} <= value.keys() <= {"low", "high", "log"}:
        return _interval(key, value["low"], value["high"], value.get("log", False))
    raise SpecError(
        f"tune.{key} must be a list of values, or a range such as {{low = 0.1, high = 10, log = true}}, not {value!r}."
    )


def _interval(key: str, low: Any, high: Any, log: Any) -> SearchRange:
    if any(isinstance(v, bool) or not isinstance(v, int | float) or not math.isfinite(v) for v in (low, high)):
        raise SpecError(f"tune.{key}: low and high must be numbers, not {low!r} and {high!r}.")
    if not isinstance(log, bool):
        raise SpecError(f"tune.{key}: log must be true or false, not {log!r}.")
    if not low < high:
        raise SpecError(f"tune.{key}: low must be below high, not {low:g} and {high:g}.")
    if log and low <= 0:
        raise SpecError(f"tune.{key}: a logarithmic range must begin above 0, not at {low:g}.")
    return SearchRange(low, high, log)


def from_flags(texts: Sequence[str]) -> Space:
    """Return the space of texts such as clip=0.25,0.5 or learning_rate=0.1:64:log."""
    out: Space = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key or not value.strip():
            raise SpecError(f"search takes KEY=A,B,C or KEY=LOW:HIGH[:log], such as clip=0.25,0.5, not {text!r}.")
        if key in out:
            raise SpecError(f"search gives {key} twice.")
        low, colon, rest = value.partition(":")
        if colon and not value.startswith(("tail", "ema", "polynomial")):
            high, _, log = rest.partition(":")
            if log not in ("", "log"):
                raise SpecError(f"search {text}: after LOW:HIGH only :log may follow, not {log!r}.")
            out[key] = _domain(key, {"low": _value(low), "high": _value(high), "log": log == "log"})
        else:
            out[key] = _domain(key, [_value(part.strip()) for part in value.split(",")])
    return out


def _value(text: str) -> Any:
    """Return the text as a truth value, a whole number or a number if it is one."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def checked(space: Space, wanted: spec.Spec) -> Space:
    """Return the space, or the default one if it is empty; refuse keys that may not be searched."""
    options = {f.name for kind, name in (("methods", wanted.method), ("algorithms", wanted.algorithm))
               for f in spec.plugin_fields(kind, name)}  # fmt: skip
    if not space:
        space = {key: domain for key, domain in DEFAULTS.items() if key == "learning_rate" or key in options}
    known = {f.name for f in spec.fields()}
    for key, domain in space.items():
        if key in PRICED:
            raise SpecError(f"tune cannot search {key}: {PRICED[key]}.")
        if key not in known | options:
            spec.from_dict(wanted.to_dict() | {key: domain.ends()[0]})  # raises the error that names the nearest key
        if key not in options and key not in ALSO and spec.group_of(key) not in GROUPS:
            raise SpecError(
                f"tune cannot search {key}: it belongs to the data, the rounds or the promise of a run, which all "
                "trials share. Set it in the file."
            )
        for value in domain.ends():
            spec.from_dict(wanted.to_dict() | {key: value})
    return space


def draw(space: Space, rng: Stream) -> dict[str, Any]:
    """Return the settings of one trial, drawn independently of the data and of all other trials."""
    return {key: domain.draw(float(rng.at(key).uniform(1)[0])) for key, domain in space.items()}


def to_json(space: Space) -> dict[str, Any]:
    """Return the space as the table [tune] shows it."""
    return {key: domain.to_json() for key, domain in space.items()}
