"""Privacy filters: fully adaptive spending of one (epsilon, delta) that is converted once, before anything is spent.

A filter is frozen: `spend` returns the filter after the release, or refuses. A request may depend on all earlier
outputs, but never on the data directly. No rounding favours the spender. The amount spent is never converted to an
epsilon at a time that the outputs determine; `Odometer` is for that.

Rogers, Roth, Ullman, Vadhan (2016), arXiv:1605.08294 (filters, odometers); Feldman and Zrnic (2021), arXiv:2008.11193
(one Renyi order); Smith and Thakurta (2022), arXiv:2210.17520 (GDP). Several processes may spend concurrently: Haney et
al. (2023), arXiv:2309.05901, extend filters to concurrent composition.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Protocol, Self

import numpy as np

from sordino.core import check
from sordino.core.errors import BudgetError, SpecError, UnsupportedEvent
from sordino.privacy.accountants import gdp, rdp
from sordino.privacy.algebra import distance, gdp_mu_squared, non_private
from sordino.privacy.events import Approximate, Event, NonPrivate, Pure

THEORIES = ("plans", "rdp", "gdp")
SPREAD = (0.7, 1.0, 2.0, 6.0)  # orders of an RdpFilter, relative to the best order for a Gaussian


class Filter(Protocol):
    """A privacy filter: a budget that adaptively chosen releases may spend."""

    def fits(self, event: Event) -> bool:
        """Return whether the budget can pay for a release."""
        ...

    def spend(self, event: Event) -> Self:
        """Return the filter after a release, or raise a BudgetError if the budget cannot pay for it."""
        ...

    def left(self) -> dict[str, float]:
        """Return the remaining budget, in the units of the filter."""
        ...

    def room(self, delta: float) -> str:
        """Describe what would still fit, for a plan with that delta."""

    def to_json(self) -> dict[str, Any]:
        """Return the state of the filter, which `from_json` reads."""
        ...


class _Stored:
    def to_json(self) -> dict[str, Any]:
        return {"filter": type(self).__name__, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class PlanFilter(_Stored):
    """A filter for whole plans, each with an (epsilon_j, delta_j) fixed at its start; their sums stay within budget.

    Adaptive basic composition (Rogers et al. 2016). Any accountant may be used inside a plan. A plan is requested as
    `Approximate(epsilon_j, delta_j)`. Sums are exact: ten plans of 0.1 (as a float, slightly above 1/10) do not fit
    into 1.
    """

    epsilon: float
    delta: float
    spent: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())  # epsilon and delta, as terms of exact sums

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon)
        check.fraction(delta=self.delta)

    def fits(self, event: Event) -> bool:
        each = zip((self.epsilon, self.delta), self.spent, _promise(event), strict=True)
        return all(_rest(total, (*paid, asked)) >= 0 for total, paid, asked in each)

    def spend(self, event: Event) -> PlanFilter:
        if not self.fits(event):
            epsilon, delta = _promise(event)
            raise _refused(f"epsilon {epsilon:.6g} at delta {delta:.3g}", self, delta)
        epsilons, deltas = (_terms((*paid, a)) for paid, a in zip(self.spent, _promise(event), strict=True))
        return replace(self, spent=(epsilons, deltas))

    def left(self) -> dict[str, float]:
        epsilon, delta = self.spent
        return {"epsilon": max(0.0, _rest(self.epsilon, epsilon)), "delta": max(0.0, _rest(self.delta, delta))}

    def room(self, delta: float) -> str:
        left = self.left()
        if left["epsilon"] <= 0:
            return "nothing more"
        return f"epsilon <= {left['epsilon']:.6g} with delta <= {left['delta']:.3g}"


def _promise(event: Event) -> tuple[float, float]:
    match event:
        case Approximate(epsilon, delta):
            return float(epsilon), float(delta)
        case Pure(epsilon):
            return float(epsilon), 0.0
        case NonPrivate():
            return math.inf, 0.0
        case _:
            raise UnsupportedEvent(f"a plan filter counts Approximate(epsilon, delta), not {event!r}.")


def _terms(values: tuple[float, ...]) -> tuple[float, ...]:
    """Return a few numbers with exactly the same sum."""
    exact, out = sum(map(Fraction, values), Fraction()), []
    while exact:
        out.append(float(exact))
        exact -= Fraction(out[-1])
    return tuple(out)


def _rest(total: float, paid: tuple[float, ...]) -> float:
    """Return total - sum(paid), rounded down; its sign is exact (`fsum` rounds the exact sum once)."""
    if any(math.isinf(p) for p in paid):
        return -math.inf
    terms = [total, *(-p for p in paid)]
    rest = math.fsum(terms)
    return math.nextafter(rest, -math.inf) if math.fsum([*terms, -rest]) < 0 else rest


@dataclass(frozen=True)
class RdpFilter(_Stored):
    """A filter on Renyi divergences at k fixed orders, each with delta / k.

    A release is admitted as long as at least one order stays within its budget. At one order a, the process that stops
    before its sum of divergences would exceed B(a) is (a, B(a))-RDP (Feldman and Zrnic 2021). It is therefore (epsilon,
    delta / k)-DP if B inverts the conversion of Canonne, Kamath and Steinke (2020), arXiv:2004.00010, Proposition 12.

    For several orders, let M be the process and M_j the same process stopped by order j alone. Partition any event E
    into E_1, ..., E_k by the first order alive at the end. Sums only grow, so on E_j order j was alive throughout, and
    M and M_j gave the same output:

        P[M in E_j] = P[M_j in E_j] <= e^eps P[M_j' in E_j] + delta / k = e^eps P[M' in E_j] + delta / k.

    Summing over j gives the claim.
    """

    epsilon: float
    delta: float
    orders: tuple[float, ...]
    spent: tuple[float, ...]

    @staticmethod
    def of(epsilon: float, delta: float) -> RdpFilter:
        """Return an unspent filter with four orders.

        They are the best order for a Gaussian, one below it (for sampled noise) and two above it (for nearly pure
        releases).
        """
        check.positive(epsilon=epsilon)
        check.below_one(delta=delta)
        best = rdp.ORDERS[int(np.argmax([_budget(a, epsilon, delta / len(SPREAD)) / a for a in rdp.ORDERS]))]
        orders = sorted({float(rdp.ORDERS[int(np.argmin(np.abs(rdp.ORDERS - best * times)))]) for times in SPREAD})
        return RdpFilter(float(epsilon), float(delta), tuple(orders), (0.0,) * len(orders))

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon)
        check.below_one(delta=self.delta)
        if not self.orders or len(self.orders) != len(self.spent) or not np.isin(self.orders, rdp.ORDERS).all():
            raise SpecError(f"an rdp filter needs orders among those of the accountant, not {self.orders!r}.")

    def budgets(self) -> tuple[float, ...]:
        """Return the largest divergence allowed at each order."""
        return tuple(_budget(a, self.epsilon, self.delta / len(self.orders)) for a in self.orders)

    def fits(self, event: Event) -> bool:
        return any(s <= b for s, b in zip(self._after(event), self.budgets(), strict=True))

    def spend(self, event: Event) -> RdpFilter:
        after = self._after(event)
        if not any(s <= b for s, b in zip(after, self.budgets(), strict=True)):
            asked = np.subtract(after, self.spent)
            raise _refused(
                "Renyi divergences "
                + ", ".join(f"{d:.4g} at order {a:g}" for a, d in zip(self.orders, asked, strict=True)),
                self,
                self.delta,
            )
        return replace(self, spent=after)

    def left(self) -> dict[str, float]:
        """Return the remaining divergence by order; exhausted orders are omitted."""
        rest = zip(self.orders, self.budgets(), self.spent, strict=True)
        return {f"{a:g}": b - s for a, b, s in rest if s <= b}

    def room(self, delta: float) -> str:
        z = min((math.sqrt(float(a) / (2 * d)) for a, d in self.left().items() if d > 0), default=math.inf)
        return _gaussian_room(z, delta)

    def _after(self, event: Event) -> tuple[float, ...]:
        if non_private(event) is not None:
            return (math.inf,) * len(self.orders)
        _exact(event)
        curve = np.asarray(rdp.rdp(event))[np.searchsorted(rdp.ORDERS, self.orders)]
        return tuple(
            s if d <= 0 else math.nextafter(s + d, math.inf) for s, d in zip(self.spent, curve.tolist(), strict=True)
        )


def _budget(order: float, epsilon: float, delta: float) -> float:
    """Return the largest divergence at an order that Proposition 12 converts to (epsilon, delta); negative: none."""
    bound = epsilon - math.log1p(-1 / order) + (math.log(delta) + math.log(order)) / (order - 1)
    return float(bound - 1e-12 * abs(bound))


@dataclass(frozen=True)
class GdpFilter(_Stored):
    """A filter for plain Gaussian releases.

    A sum of mu^2 of at most mu_total^2 gives mu_total-GDP, fully adaptively (Smith and Thakurta).
    """

    epsilon: float
    delta: float
    spent: float = 0.0  # sum of mu^2

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon)
        check.below_one(delta=self.delta)

    @property
    def mu(self) -> float:
        """Return the GDP level of the whole budget."""
        return gdp.mu_for(self.epsilon, self.delta)

    def fits(self, event: Event) -> bool:
        return self._after(event) <= self.mu**2

    def spend(self, event: Event) -> GdpFilter:
        if not self.fits(event):
            raise _refused(f"mu^2 = {self._after(event) - self.spent:.6g}", self, self.delta)
        return replace(self, spent=self._after(event))

    def left(self) -> dict[str, float]:
        return {"mu": math.sqrt(max(0.0, self.mu**2 - self.spent))}

    def room(self, delta: float) -> str:
        mu = self.left()["mu"]
        return _gaussian_room(1 / mu if mu > 0 else math.inf, delta)

    def _after(self, event: Event) -> float:
        if non_private(event) is not None:
            return math.inf
        _exact(event)
        squared = gdp_mu_squared(event)
        if squared is None:
            raise UnsupportedEvent(f"a gdp filter admits plain Gaussian noise only, not {event!r}; use an rdp filter.")
        return math.nextafter(self.spent + squared, math.inf) if squared > 0 else self.spent


def _exact(event: Event) -> None:
    """Refuse a release whose sampler is not exact.

    The deviation of a sampler from its distribution costs delta, which only the accountant of a whole plan counts.
    """
    if distance(event) > 0:
        raise UnsupportedEvent("the sampler of this release is not exact; count it as a whole plan (theory plans).")


def _gaussian_room(z: float, delta: float) -> str:
    if math.isinf(z):
        return "nothing more"
    epsilon = gdp.epsilon_of_mu(1 / z, delta)
    return f"Gaussian noise of multiplier >= {z:.4g} in all (epsilon <= {epsilon:.4g} at delta {delta:.3g})"


def _refused(asked: str, filter: Filter, delta: float) -> BudgetError:
    left = ", ".join(f"{name} {value:.6g}" for name, value in filter.left().items()) or "nothing"
    return BudgetError(f"asked for {asked}; left: {left}. What would fit: {filter.room(delta)}.")


@dataclass(frozen=True)
class Odometer:
    """A running epsilon that is valid at any time, including a time chosen by the outputs.

    Levels eps_1 < eps_2 < ... each have an `RdpFilter` with delta / levels; `epsilon` is the lowest level whose filter
    has not been exceeded. For any stopping time and any event E, partitioned by the reported level,

        P[E] <= sum_i e^{eps_i} P'[E and level i] + delta

    by the argument in `RdpFilter`: on "level i", the process and the one that filter i stops are the same.
    """

    levels: tuple[RdpFilter, ...]

    @staticmethod
    def of(delta: float, first: float = 0.1, ratio: float = 1.3, levels: int = 24) -> Odometer:
        """Return an odometer with geometrically increasing levels.

        Args:
            delta: the delta of the whole odometer.
            first: the epsilon of the lowest level.
            ratio: the factor between consecutive levels, above 1.
            levels: the number of levels.
        """
        check.below_one(delta=delta)
        check.positive(first=first)
        check.count(levels=levels)
        if not ratio > 1:
            raise SpecError(f"ratio must be above 1, not {ratio!r}.")
        return Odometer(tuple(RdpFilter.of(first * ratio**i, delta / levels) for i in range(levels)))

    def fits(self, event: Event) -> bool:
        """Return whether any level covers a release."""
        return any(level.fits(event) for level in self.levels)

    def spend(self, event: Event) -> Odometer:
        """Charge a release at every level; refuse it only if no level would cover it."""
        if not self.fits(event):
            last = self.levels[-1]
            raise _refused("a release above the highest level", last, last.delta)
        return Odometer(tuple(replace(level, spent=level._after(event)) for level in self.levels))

    def epsilon(self) -> float:
        """Return the epsilon of the lowest level that has not been exceeded; infinite if there is none."""
        return next((level.epsilon for level in self.levels if level.left()), math.inf)

    def left(self) -> dict[str, float]:
        """Return the divergences that remain before the reported epsilon rises by a level."""
        return next((level.left() for level in self.levels if level.left()), {})

    def to_json(self) -> dict[str, Any]:
        """Return the state of the odometer, which `from_json` reads."""
        return {"filter": "Odometer", "levels": [level.to_json() for level in self.levels]}


def make(theory: str, epsilon: float, delta: float) -> PlanFilter | RdpFilter | GdpFilter:
    """Return an unspent filter of a theory, one of THEORIES."""
    check.one_of(THEORIES, theory=theory)
    if theory == "rdp":
        return RdpFilter.of(epsilon, delta)
    return PlanFilter(epsilon, delta) if theory == "plans" else GdpFilter(epsilon, delta)


def from_json(data: dict[str, Any]) -> PlanFilter | RdpFilter | GdpFilter | Odometer:
    """Return the filter that `to_json` saved."""
    try:
        fields = {k: v for k, v in data.items() if k != "filter"}
        match data["filter"]:
            case "PlanFilter":
                epsilon, delta = (tuple(terms) for terms in fields["spent"])
                return PlanFilter(fields["epsilon"], fields["delta"], (epsilon, delta))
            case "RdpFilter":
                return RdpFilter(fields["epsilon"], fields["delta"], tuple(fields["orders"]), tuple(fields["spent"]))
            case "GdpFilter":
                return GdpFilter(**fields)
            case "Odometer":
                levels = tuple(from_json(level) for level in fields["levels"])
                return Odometer(tuple(level for level in levels if isinstance(level, RdpFilter)))
    except (KeyError, TypeError, ValueError) as error:
        raise SpecError(f"not the state of a filter: {data!r}.") from error
    raise SpecError(f"not the state of a filter: {data!r}.")
