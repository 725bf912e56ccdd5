"""The mechanisms for the command line: their parameters as flags, their events, and the knob that sets the noise."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from typing import Any

from sordino.core import plugin
from sordino.core.errors import SpecError
from sordino.privacy.algebra import of_replaced_units
from sordino.privacy.events import Event

Values = Mapping[str, Any]
KIND = "privacy.mechanisms"
NORMS = {1: "L1", 2: "L2", math.inf: "L-infinity"}
FLAGS = {"noise_multiplier": "noise", "epsilon": "local-epsilon", "delta": "each-delta"}  # epsilon, delta: the totals
TEXTS = {  # help texts of fields without a comment
    "noise_multiplier": "noise / clip bound",
    "epsilon": "pure level of one use",
    "delta": "the one delta at which one use is priced (default: half the total, shared by all steps)",
    "dim": "coordinates",
    "l2": "L2 bound of the integer rows",
    "linf": "largest coordinate of the integer rows",
    "l1": "L1 bound of the integer rows",
    "clients": "how many clients are summed; if fewer answer, price those who did",
    "reports": "reports of a value that stays the same",
}
EXAMPLES = {  # values of parameters without a default
    "noise_multiplier": 1.0, "epsilon": 1.0, "fragment_epsilon": 1.0, "mu": 100.0, "trials": 4000, "dim": 4,
    "l1": 8, "l2": 4.0, "linf": 4, "delta": 1e-8, "rounds": 16, "bands": 4, "categories": 8, "bits": 4,
    "low": -1.0, "high": 1.0, "clients": 100,
}  # fmt: skip


@dataclass(frozen=True)
class Param:
    """A parameter of a mechanism."""

    name: str
    kind: type  # float, int, bool or str
    default: Any  # MISSING if it is required
    text: str  # for --help

    @property
    def flag(self) -> str:
        """The name of its flag, without dashes at the start."""
        return FLAGS.get(self.name, self.name.replace("_", "-"))

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is MISSING


@dataclass(frozen=True)
class Knob:
    """The parameter that sets the noise of a mechanism, in terms of a noise size.

    A larger size is more private, and 1 is an ordinary amount of noise.
    """

    name: str
    of: Callable[[float, Values], Any]  # noise size -> value of the parameter
    size: Callable[[Any, Values], float]  # value of the parameter -> noise size
    down: bool = False  # whether a smaller value is more private
    step: int = 0  # step between the values of an integer parameter; 0: not an integer
    figures: int = 6  # significant figures


KNOBS = (
    Knob("noise_multiplier", lambda z, _: z, lambda x, _: x),
    Knob("mu", lambda z, v: (z * v["l2"]) ** 2, lambda x, v: math.sqrt(x) / v["l2"]),
    Knob("trials", lambda z, v: 2 * math.ceil(2 * (z * v["l2"]) ** 2), lambda x, v: math.sqrt(x) / 2 / v["l2"], step=2),
    Knob("epsilon", lambda z, _: 1 / z, lambda x, _: 1 / x, down=True),
    Knob("theta", lambda z, _: 0.5 / (1 + z), lambda x, _: 0.5 / x - 1, down=True),
    Knob("blur", lambda z, _: z / (1 + z), lambda x, _: x / (1 - x), figures=12),
)


@dataclass(frozen=True)
class MechanismEntry:
    """A mechanism in the catalogue."""

    name: str
    cls: Any
    params: tuple[Param, ...]
    leaf: type[Event] | None  # the event class, if the mechanism would need integer rows to create the event
    summed: type[Event] | None = None  # the event class of a sum over clients that each add noise

    def param(self, name: str) -> Param | None:
        """Return the parameter of this name, or None."""
        return next((p for p in self.params if p.name == name), None)

    @property
    def summary(self) -> str:
        """The first line of the docstring of the mechanism."""
        return (inspect.getdoc(self.cls) or "").split("\n", 1)[0]

    @property
    def source(self) -> str:
        """The first paragraph of the docstring of the mechanism's module: what it is, and who published it."""
        return (inspect.getdoc(sys.modules[self.cls.__module__]) or "").split("\n\n", 1)[0].replace("\n", " ")

    @property
    def geometry(self) -> str:
        """What the input of the mechanism is, and in which norm it is bounded: its class variable `geometry`.

        By default, a mechanism that randomizes reports takes one value for each, and any other has rows that are
        bounded in its `norm` (L2 if it has none).
        """
        default = (
            "one value a report" if hasattr(self.cls, "randomize") else NORMS.get(getattr(self.cls, "norm", 2), "")
        )
        return str(getattr(self.cls, "geometry", default))

    @property
    def exact(self) -> bool:
        """Whether no floating point lies between the random words and the release: its class variable `exact`."""
        return bool(getattr(self.cls, "exact", False))

    @property
    def knob(self) -> Knob:
        """The knob that sets the noise: its class variable `calibrated`, by default the first of KNOBS that it has."""
        names = [k.name for k in KNOBS if self.param(k.name) is not None]
        name = getattr(self.cls, "calibrated", next(iter(names), None))
        if name not in names:
            raise SpecError(
                f"the mechanism {self.name} must have one of the parameters {', '.join(k.name for k in KNOBS)}."
            )
        return next(k for k in KNOBS if k.name == name)

    def event(self, given: Values) -> Event:
        """Return the event of one use.

        Raises:
            SpecError: if a parameter is missing or invalid; the message names the flag.
        """
        missing = [f"--{p.flag}" for p in self.params if p.required and p.name not in given]
        if missing:
            raise SpecError(f"{self.name} needs {', '.join(missing)}.")
        try:
            return self._event({k: v for k, v in given.items() if self.param(k) is not None})
        except SpecError as error:
            raise SpecError(_in_flags(str(error))) from error

    def _event(self, given: Values) -> Event:
        if self.summed is not None and given.get("clients") is not None:
            missing = [n for n in ("dim", "l1", "l2") if given.get(n) is None]
            if missing:
                raise SpecError(f"a sum over clients needs {', '.join('--' + n for n in missing)} too.")
            values = {f.name: given[f.name] for f in dataclasses.fields(self.summed) if f.name in given}  # type: ignore[arg-type]
            return self.summed(sigma=given["noise_multiplier"] * given["l2"], **values)  # type: ignore[call-arg]
        cls: Any = self.leaf if self.leaf is not None else self.cls
        fields = {f.name for f in dataclasses.fields(cls)}
        made = cls(**{k: v for k, v in given.items() if k in fields})
        if self.leaf is not None:
            return typing.cast(Event, made)
        asked = {k: v for k, v in given.items() if k not in fields or k in inspect.signature(made.event).parameters}
        return typing.cast(Event, made.event(**asked))

    def example(self) -> dict[str, Any]:
        """Return example values for the parameters that have no default."""
        return {p.name: EXAMPLES.get(p.name, p.kind(2)) for p in self.params if p.required or p.name == "delta"}

    @cached_property
    def local(self) -> bool:
        """Whether the cost of one use is already that of replacing a value, as for a local report."""
        return hasattr(self.cls, "randomize") or of_replaced_units(self.event(self.example()))

    def std(self, given: Values) -> float | None:
        """Return the standard deviation of the noise in units of the clip bound; None if no noise is added."""
        if self.leaf is not None:
            if "l2" in given and self.knob.name in ("mu", "trials"):
                return float(self.knob.size(given[self.knob.name], given))
            if "noise_multiplier" in given:
                return float(given["noise_multiplier"])
            t = given["epsilon"] / given["l1"]
            return float(math.sqrt(2 * math.exp(-t)) / -math.expm1(-t) / given["l1"])
        made = self.cls(**{f.name: given[f.name] for f in dataclasses.fields(self.cls) if f.name in given})
        variance = getattr(made, "variance", None)
        if variance is not None and list(inspect.signature(variance).parameters) == ["bound"]:
            return float(math.sqrt(variance(1.0)))
        if self.name == "clipped-laplace":
            return math.sqrt(2) * float(given["noise_multiplier"])
        return float(given["noise_multiplier"]) if "noise_multiplier" in given else None


def _in_flags(text: str) -> str:
    for name, flag in FLAGS.items():
        text = re.sub(rf"^{name}\b", f"{flag}", text)
    return text


@cache
def mechanisms() -> dict[str, MechanismEntry]:
    """Return all mechanisms by name."""
    return {name: _described(name) for name in plugin.available(KIND)}


def mechanism(name: str) -> MechanismEntry:
    """Return the mechanism of this name; raise SpecError if there is none."""
    entry = mechanisms().get(name)
    if entry is None:
        near = get_close_matches(name, mechanisms(), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise SpecError(f"unknown mechanism {name!r}.{hint} There are: {', '.join(mechanisms())}.")
    return entry


def owners(name: str) -> list[str]:
    """Return the names of the mechanisms that have a parameter."""
    return [m.name for m in mechanisms().values() if m.param(name) is not None]


def meaning(name: str) -> str:
    """Return the help text of a parameter that covers all mechanisms that have it."""
    texts = dict.fromkeys(m.param(name).text for m in mechanisms().values() if m.param(name) is not None)  # type: ignore[union-attr]
    return next(iter(texts)) if len(texts) == 1 else TEXTS.get(name, "; ".join(texts))


def all_params() -> dict[str, Param]:
    """Return the parameters of all mechanisms by name."""
    params: dict[str, Param] = {}
    for entry in mechanisms().values():
        for p in entry.params:
            params.setdefault(p.name, p)
    return params


def _described(name: str) -> MechanismEntry:
    cls = plugin.load(KIND, name)
    # the number of clients that share the noise is set by the channel, not by an option
    asked = [p for p in inspect.signature(cls.event).parameters.values() if p.name not in ("self", "split")]
    module = sys.modules[cls.__module__]
    if any(p.name == "bounds" for p in asked):
        leaf, summed = getattr(module, f"{cls.__name__}Event"), getattr(module, f"Distributed{cls.__name__}Event", None)
        params = [dataclasses.replace(p, default=None) if p.name == "delta" else p for p in _fields(leaf)]
        if summed is not None:
            known = {p.name for p in params} | {"sigma"}
            params += [dataclasses.replace(p, default=None) for p in _fields(summed) if p.name not in known]
        return MechanismEntry(name, cls, tuple(params), leaf, summed)
    params = _fields(cls)
    hints = typing.get_type_hints(cls.event)
    for p in asked:
        if p.name not in {q.name for q in params}:
            default = MISSING if p.default is inspect.Parameter.empty else p.default
            params.append(Param(p.name, _kind(hints[p.name]), default, TEXTS.get(p.name, "")))
    return MechanismEntry(name, cls, tuple(params), None)


def _fields(cls: Any) -> list[Param]:
    hints, texts = typing.get_type_hints(cls), TEXTS | plugin.field_help(cls)
    return [Param(f.name, _kind(hints[f.name]), f.default, texts.get(f.name, "")) for f in dataclasses.fields(cls)]


def _kind(hint: Any) -> type:
    return next(k for k in (typing.get_args(hint) or (hint,)) if k is not type(None))  # type: ignore[no-any-return]


def parsed(name: str, text: Any, kind: type) -> Any:
    """Return the text of a flag as a finite value of its type; for integers, 1e6 is accepted too."""
    if kind is str or not isinstance(text, str):
        return text
    try:
        if kind is bool:
            return {"true": True, "false": False, "yes": True, "no": False}[text.lower()]
        number = int(text) if kind is int and re.fullmatch(r"[+-]?\d{1,400}", text) else float(text)
        if not math.isfinite(number):
            raise SpecError(f"{name} must be finite, not {text!r}.")
        if kind is int and number != int(number):
            raise ValueError(text)
        return kind(number)
    except (ValueError, KeyError, OverflowError) as error:
        wanted = {float: "a number", int: "a whole number", bool: "true or false"}[kind]
        raise SpecError(f"{name} must be {wanted}, not {text!r}.") from error
