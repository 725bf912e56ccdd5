"""Which method goes with which algorithm, for whose data: the one source of the refusal, of `sordino methods --table`
and of the docs. Adding a rule is adding a function to RULES.

A rule returns why not, or None. Where nothing forbids a combination, REMARKS say what holds it together.
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
    method: str
    algorithm: str
    unit: str

    @property
    def noisy_gradients(self) -> bool:
        """Whether whatever a client computes from its data passes through clipped, noisy gradients."""
        return self.method_class.private and self.method_class.noisy_steps

    @property
    def clipped_message(self) -> bool:
        """Whether a client's message is clipped as a whole."""
        return self.method_class.private and not self.method_class.noisy_steps

    @property
    def method_class(self) -> type[Method]:
        found: type[Method] = plugin.load("methods", self.method)
        return found

    @property
    def made_for(self) -> tuple[str, ...]:
        return self.method_class.units

    @property
    def way(self) -> type[Algorithm]:
        found: type[Algorithm] = plugin.load("algorithms", self.algorithm)
        return found


@dataclass(frozen=True)
class Verdict:
    allowed: bool
    why: str  # the reason of a refusal, or what holds it together


def unit_has_a_bound(case: Combination) -> str | None:
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
    named = case.method_class.algorithms
    return f"it goes with {', '.join(named)}" if named and case.algorithm not in named else None


RULES: tuple[Callable[[Combination], str | None], ...] = (method_knows_the_algorithm, unit_has_a_bound)


def own_condition(case: Combination) -> str | None:
    return case.way.condition or None


def held_together(case: Combination) -> str | None:
    """By what the algorithm says of itself; what is personal is no part of any guarantee."""
    noisy, clipped = case.noisy_gradients, case.clipped_message
    said = case.way.with_noisy_gradients if noisy else case.way.with_clipped_message if clipped else ""
    if said or not case.way.personal:
        return said or None
    return "what is personal stays with the client and is not part of the guarantee"


def user_bounds(case: Combination) -> str | None:
    if case.unit != "user":
        return None
    if case.noisy_gradients:
        return "a user's mean gradient is clipped as a whole; one in m clients pays m times"
    return "up to m messages change, each by twice the clip" if case.clipped_message else None


REMARKS = (own_condition, held_together, user_bounds)


def verdict(method: str, algorithm: str, unit: str | None = None) -> Verdict:
    """Whether a method, an algorithm and a unit go together, and why."""
    case = Combination(method, algorithm, unit or plugin.load("methods", method).units[0])
    for rule in RULES:
        if (reason := rule(case)) is not None:
            return Verdict(False, reason)
    return Verdict(True, "; ".join(text for remark in REMARKS if (text := remark(case)) is not None))


def require(method: str, algorithm: str, unit: str | None) -> None:
    if unit is not None and unit not in UNITS:
        raise SpecError(f"unit must be one of {', '.join(UNITS)}, not {unit!r}.")
    found = verdict(method, algorithm, unit)
    if not found.allowed:
        whose = f" for unit = {unit}" if unit else ""
        raise SpecError(f"{method} does not go with {algorithm}{whose}: {found.why}.")


def table() -> list[dict[str, str]]:
    """Every combination: one row an algorithm and unit, one column a method that goes with any algorithm."""
    return [
        {"algorithm": algorithm, "unit": unit} | {m: _cell(m, algorithm, unit) for m in carriers()}
        for algorithm in plugin.loadable("algorithms")
        for unit in UNITS
    ]


def carriers() -> list[str]:
    """The methods that carry any algorithm; the others name those they go with, or are one of these with a part
    replaced and go with what that goes with."""
    found = {m: plugin.load("methods", m) for m in plugin.loadable("methods")}
    return [m for m, cls in found.items() if not cls.algorithms and Method in cls.__bases__]


def others() -> list[dict[str, str]]:
    """The methods that are no columns of the table: whom they protect, and what they go with."""
    found = {m: plugin.load("methods", m) for m in plugin.loadable("methods") if m not in carriers()}
    return [
        {
            "method": m,
            "unit": " or ".join(cls.units),
            "algorithms": ", ".join(a for a in plugin.loadable("algorithms") if verdict(m, a).allowed) or "none",
        }
        for m, cls in found.items()
    ]


def _cell(method: str, algorithm: str, unit: str) -> str:
    found = verdict(method, algorithm, unit)
    return ("yes" if found.allowed else "no") + (f": {found.why}" if found.why else "")
