"""Which combinations of method, algorithm and unit are allowed.

This is the only source for the error message, for `sordino methods --table` and for the docs. To add a rule, add a
function to RULES: it returns the reason why a combination is forbidden, or None. If no rule forbids a combination,
REMARKS state why it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sordino.algorithms.base import Algorithm
from sordino.contract.method import Method
from sordino.core import plugin
from sordino.core.errors import SpecError

UNITS = plugin.UNITS


@dataclass(frozen=True)
class Combination:
    """A method, an algorithm and a unit, by name."""

    method: str
    algorithm: str
    unit: str

    @property
    def noisy_gradients(self) -> bool:
        """Whether everything a client computes from its data passes through clipped, noisy gradients."""
        return self.method_class.private and self.method_class.noisy_steps

    @property
    def clipped_message(self) -> bool:
        """Whether a client's message is clipped as a whole."""
        return self.method_class.private and not self.method_class.noisy_steps

    @property
    def method_class(self) -> type[Method]:
        """The class of the method."""
        cls: type[Method] = plugin.load("methods", self.method)
        return cls

    @property
    def made_for(self) -> tuple[str, ...]:
        """The units that the method protects."""
        return self.method_class.units

    @property
    def way(self) -> type[Algorithm]:
        """The class of the algorithm."""
        cls: type[Algorithm] = plugin.load("algorithms", self.algorithm)
        return cls


@dataclass(frozen=True)
class Verdict:
    """Whether a combination is allowed, and why."""

    allowed: bool
    why: str  # the reason of a refusal, or the remarks on an allowed combination


def unit_has_a_bound(case: Combination) -> str | None:
    """Forbid a unit whose contribution the method does not bound."""
    if case.unit in case.made_for:
        return None
    if case.unit == "client":
        level = f"{case.method}-client"
        other = level if level in plugin.available("methods") else "dp-fedavg"
        return f"each record is clipped alone, so a client with many records has no bound; use {other}"
    if case.unit == "record":
        return "what is clipped is a client's whole message; a record is covered by the guarantee for its client"
    return f"the method protects {' or '.join(case.made_for)}"


def method_knows_the_algorithm(case: Combination) -> str | None:
    """Forbid an algorithm that is not among those the method names, if it names any."""
    named = case.method_class.algorithms
    return f"it goes with {', '.join(named)}" if named and case.algorithm not in named else None


RULES: tuple[Callable[[Combination], str | None], ...] = (method_knows_the_algorithm, unit_has_a_bound)


def own_condition(case: Combination) -> str | None:
    """Return the condition that the algorithm states."""
    return case.way.condition or None


def held_together(case: Combination) -> str | None:
    """Return what the algorithm says about its privacy; personal parts are not covered by any guarantee."""
    noisy, clipped = case.noisy_gradients, case.clipped_message
    said = case.way.with_noisy_gradients if noisy else case.way.with_clipped_message if clipped else ""
    if said or not case.way.personal:
        return said or None
    return "what is personal stays with the client and is not part of the guarantee"


def user_bounds(case: Combination) -> str | None:
    """Return how the contribution of a user is bounded, if users are the unit."""
    if case.unit != "user":
        return None
    if case.noisy_gradients:
        return "a user's mean gradient is clipped as a whole; a user in m clients pays m times"
    return "up to m messages change, each by twice the clip" if case.clipped_message else None


REMARKS = (own_condition, held_together, user_bounds)


def verdict(method: str, algorithm: str, unit: str | None = None) -> Verdict:
    """Return whether a method, an algorithm and a unit can be combined, and why.

    Without a unit, the first unit of the method is used.
    """
    case = Combination(method, algorithm, unit or plugin.load("methods", method).units[0])
    for rule in RULES:
        if (reason := rule(case)) is not None:
            return Verdict(False, reason)
    return Verdict(True, "; ".join(text for remark in REMARKS if (text := remark(case)) is not None))


def require(method: str, algorithm: str, unit: str | None) -> None:
    """Raise SpecError if a method, an algorithm and a unit cannot be combined."""
    if unit is not None and unit not in UNITS:
        raise SpecError(f"unit must be one of {', '.join(UNITS)}, not {unit!r}.")
    result = verdict(method, algorithm, unit)
    if not result.allowed:
        whose = f" for unit = {unit}" if unit else ""
        raise SpecError(f"{method} does not go with {algorithm}{whose}: {result.why}.")


def table() -> list[dict[str, str]]:
    """Return all combinations: one row per algorithm and unit, one column per method that works with any algorithm."""
    return [
        {"algorithm": algorithm, "unit": unit} | {m: _cell(m, algorithm, unit) for m in carriers()}
        for algorithm in plugin.loadable("algorithms")
        for unit in UNITS
    ]


def carriers() -> list[str]:
    """Return the methods that work with any algorithm.

    The other methods name their algorithms, or are variants of one of these methods and work with the same algorithms.
    """
    classes = {m: plugin.load("methods", m) for m in plugin.loadable("methods")}
    return [m for m, cls in classes.items() if not cls.algorithms and Method in cls.__bases__]


def others() -> list[dict[str, str]]:
    """Return the methods that are not columns of the table, with their units and algorithms."""
    classes = {m: plugin.load("methods", m) for m in plugin.loadable("methods") if m not in carriers()}
    return [
        {
            "method": m,
            "unit": " or ".join(cls.units),
            "algorithms": ", ".join(a for a in plugin.loadable("algorithms") if verdict(m, a).allowed) or "none",
        }
        for m, cls in classes.items()
    ]


def _cell(method: str, algorithm: str, unit: str) -> str:
    result = verdict(method, algorithm, unit)
    return ("yes" if result.allowed else "no") + (f": {result.why}" if result.why else "")
