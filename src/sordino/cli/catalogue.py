"""The mechanisms as the command line meets them: their parameters as flags, how a cost is made of them, their knob."""

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
FLAGS = {"noise_multiplier": "noise", "epsilon": "local-epsilon", "delta": "each-delta"}  # epsilon, delta: the total's
TEXTS = {  # of fields without a comment
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
EXAMPLES = {  # of parameters without a default
    "noise_multiplier": 1.0, "epsilon": 1.0, "fragment_epsilon": 1.0, "mu": 100.0, "trials": 4000, "dim": 4,
    "l1": 8, "l2": 4.0, "linf": 4, "delta": 1e-8, "rounds": 16, "bands": 4, "categories": 8, "bits": 4,
    "low": -1.0, "high": 1.0, "clients": 100,
}  # fmt: skip


@dataclass(frozen=True)
class Param:
    name: str
    kind: type  # float, int, bool or str
    default: Any  # MISSING where it must be given
    text: str

    @property
    def flag(self) -> str:
        return FLAGS.get(self.name, self.name.replace("_", "-"))

    @property
    def required(self) -> bool:
        return self.default is MISSING


@dataclass(frozen=True)
class Knob:
    """The parameter that sets the noise, by a size of noise: more is more private, and 1 is ordinary."""

    name: str
    of: Callable[[float, Values], Any]
    size: Callable[[Any, Values], float]
    down: bool = False  # whether a smaller value is the safer one
    step: int = 0  # of a whole number
    figures: int = 6  # that are printed, and meant


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
    name: str
    cls: Any
    params: tuple[Param, ...]
    leaf: type[Event] | None  # the event itself, where the mechanism would need integer rows to make it
    summed: type[Event] | None = None  # the event of a sum over clients, each with noise of its own

    def param(self, name: str) -> Param | None:
        return next((p for p in self.params if p.name == name), None)

    @property
    def module(self) -> Any:
        return sys.modules[self.cls.__module__]

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.cls) or "").split("\n", 1)[0]

    @property
    def knob(self) -> Knob:
        return next(k for k in KNOBS if self.param(k.name) is not None)

    def event(self, given: Values) -> Event:
        """The cost of one use; a parameter that is missing, or makes no sense, is an error in terms of flags."""
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
            own = {f.name: given[f.name] for f in dataclasses.fields(self.summed) if f.name in given}  # type: ignore[arg-type]
            return self.summed(sigma=given["noise_multiplier"] * given["l2"], **own)  # type: ignore[call-arg]
        made: Any = self.leaf if self.leaf is not None else self.cls
        fields = {f.name for f in dataclasses.fields(made)}
        one = made(**{k: v for k, v in given.items() if k in fields})
        if self.leaf is not None:
            return typing.cast(Event, one)
        asked = {k: v for k, v in given.items() if k not in fields or k in inspect.signature(one.event).parameters}
        return typing.cast(Event, one.event(**asked))

    def example(self) -> dict[str, Any]:
        """Some value for each parameter that has no default."""
        return {p.name: EXAMPLES.get(p.name, p.kind(2)) for p in self.params if p.required or p.name == "delta"}

    @cached_property
    def local(self) -> bool:
        """Whether one use is about one value replaced by another already, as a report is."""
        return hasattr(self.cls, "randomize") or of_replaced_units(self.event(self.example()))

    def std(self, given: Values) -> float | None:
        """The standard deviation of the noise in units of the clip bound; None where no noise is added."""
        if self.leaf is not None:
            if "l2" in given and self.knob.name in ("mu", "trials"):
                return float(self.knob.size(given[self.knob.name], given))
            if "noise_multiplier" in given:
                return float(given["noise_multiplier"])
            t = given["epsilon"] / given["l1"]
            return float(math.sqrt(2 * math.exp(-t)) / -math.expm1(-t) / given["l1"])
        one = self.cls(**{f.name: given[f.name] for f in dataclasses.fields(self.cls) if f.name in given})
        variance = getattr(one, "variance", None)
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
    return {name: _described(name) for name in plugin.available(KIND)}


def mechanism(name: str) -> MechanismEntry:
    found = mechanisms().get(name)
    if found is None:
        near = get_close_matches(name, mechanisms(), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise SpecError(f"unknown mechanism {name!r}.{hint} There are: {', '.join(mechanisms())}.")
    return found


def owners(name: str) -> list[str]:
    return [m.name for m in mechanisms().values() if m.param(name) is not None]


def meaning(name: str) -> str:
    """Of a flag, for all mechanisms that have it."""
    texts = dict.fromkeys(m.param(name).text for m in mechanisms().values() if m.param(name) is not None)  # type: ignore[union-attr]
    return next(iter(texts)) if len(texts) == 1 else TEXTS.get(name, "; ".join(texts))


def all_params() -> dict[str, Param]:
    """Every parameter of every mechanism, by name."""
    found: dict[str, Param] = {}
    for one in mechanisms().values():
        for p in one.params:
            found.setdefault(p.name, p)
    return found


def _described(name: str) -> MechanismEntry:
    cls = plugin.load(KIND, name)
    # how many clients share the noise is the channel's business, not an option
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
    hints, texts = typing.get_type_hints(cls), dict(TEXTS)
    for one in reversed(cls.__mro__[:-1]):
        if one.__module__.startswith("sordino.") and one is not Event:
            texts |= dict(re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(one), flags=re.MULTILINE))
    texts = {name: TEXTS.get(name, text) if text.startswith("of the") else text for name, text in texts.items()}
    return [Param(f.name, _kind(hints[f.name]), f.default, texts.get(f.name, "")) for f in dataclasses.fields(cls)]


def _kind(hint: Any) -> type:
    return next(k for k in (typing.get_args(hint) or (hint,)) if k is not type(None))  # type: ignore[no-any-return]


def parsed(name: str, text: Any, kind: type) -> Any:
    """A flag's text -> a value: finite, and whole where it must be (1e6 is)."""
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
