"""Noisy means of the clients' unit rows and of their squares, released once, to centre and scale the rows of a table.

Two releases, the second of which uses the first: m, the mean of the rows u = x / |[x, 1]|, and v, the mean square of
the columns of z = unit([u - m, b]) with b = sqrt(max(1/100, 1 - |m|^2)). A row has at most unit length, and so have its
squares: one unit changes each sum by at most 1 whatever the columns hold. Together the releases take MEAN^2 + SPREAD^2
= 18.5 % of mu^2, where mu is the Gaussian differential privacy level of the run's (epsilon, delta).

Rows that are centred alone (`normalise = centred`) need the first release only. It then takes no more of the budget
than brings the length of its noise down to NEAR, and the last column of a centred row is b = 1/10.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sordino.contract import pricing
from sordino.contract.method import Method, Own, Plan, Release, Site
from sordino.core.message import Message
from sordino.core.types import State
from sordino.models._rows import logarithmic, unit
from sordino.privacy import derive, price
from sordino.privacy.accountants import gdp
from sordino.privacy.algebra import gdp_mu_squared
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import Unproven
from sordino.spec.spec import Spec

MEAN, SPREAD = 0.35, 0.25  # parts of mu that the two releases take
NEAR = 0.03  # length of the noise in the mean of rows that are centred alone; rows have unit length
DROWNED = 0.3  # noise-to-signal ratio above which statistics of rows would cost more than they are worth
LEAST = 0.01  # smallest square of the last column of a centred row
ROUNDING = 1e-3  # of the mean square of a column: floor of a mean square without any noise
SHRINK = 3.0  # deviations of the noise that are added to every mean square


@dataclass(frozen=True)
class RowMoments(Method):
    """The sum over units of the unit rows (or, with `shift`, of the squares of the centred rows), released once."""

    unit: str = "record"
    features: int = 1
    multiplier: float | None = None  # noise multiplier; None: exact
    central: bool = False  # whether a trusted server adds the noise
    shift: tuple[float, ...] = ()  # m, once it is released; empty: release it
    log: bool = False  # whether columns are put on a logarithmic scale first

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare one Gaussian release of the sum; without a multiplier, an exact release that has no proof."""
        exact = Unproven("statistics and evaluations on clients' records are exact")
        noise = exact if self.multiplier is None else Gaussian(self.multiplier)
        where, key = "server" if self.central else "client", f"rows {'spread' if self.shift else 'mean'}"
        release = Release("rows", noise, self.unit, 1.0, where=where, terms=plan.sizes[-1], rows=False, key=key)
        return (replace(release, additive=True) if self.linear(plan) else release,)

    def linear(self, plan: Plan) -> bool:
        """Return whether the clients share the noise: behind a secure sum that every client is in."""
        return not self.central and not plan.channel.shows_rows and plan.everyone and self.multiplier is not None

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Return the sum of each client's rows [clients, columns]; nothing is trained."""
        data = site.data
        each = list(data.x.split(list(data.sizes)))
        users = data.groups if self.unit == "user" and not self.central else None
        groups = [(len(x),) for x in each] if users is None else list(users)
        sums = torch.stack([self._sum(x, sizes) for x, sizes in zip(each, groups, strict=True)])
        return Message({"rows": site.out["rows"](Bounded(sums, 1.0))}), site.own

    def _sum(self, x: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Return one client's sum; a user or a client contributes the mean of its rows, whose length is at most 1."""
        rows = unit(logarithmic(x.double()) if self.log else x.double())[0]
        if self.shift:
            rows = centred(rows, torch.tensor(self.shift)).square()
        if self.unit == "record":
            return rows.sum(dim=0)
        return torch.stack([part.mean(dim=0) for part in rows.split(sizes)]).sum(dim=0)


@dataclass(frozen=True)
class RowNoise:
    """The noise of both releases; public."""

    mean: float | None  # noise multiplier of m; None: exact
    spread: float | None  # noise multiplier of v
    deviation: float  # of the noise in a mean of unit rows that would take the whole budget
    unit: str
    central: bool
    log: bool = False  # whether columns are put on a logarithmic scale first
    scaled: bool = True  # whether columns are scaled, which takes the second release

    def exact(self) -> RowNoise:
        """Return the same statistics without noise, for training without privacy."""
        return replace(self, mean=None, spread=None, deviation=0.0)

    def releases(self, features: int, shift: tuple[float, ...] = ()) -> RowMoments:
        """Return the method of the next release."""
        multiplier = self.spread if shift else self.mean
        return RowMoments(self.unit, features, multiplier, self.central, shift, self.log)

    def every(self, features: int) -> tuple[RowMoments, ...]:
        """Return the methods of all releases, for their price."""
        first = self.releases(features)
        return (first, self.releases(features, (0.0,) * features)) if self.scaled else (first,)

    def constants(self, shift: Tensor, squares: Tensor | None) -> tuple[float, Tensor]:
        """Return the last column b and the scale [d + 1] of centred rows.

        Args:
            shift: the mean of the rows.
            squares: the noisy mean squares of the columns; None if columns are not scaled.
        """
        if squares is None:
            return math.sqrt(LEAST), torch.ones(len(shift) + 1)
        floor = SHRINK * self.deviation / SPREAD if self.deviation else ROUNDING / len(squares)
        return middle(shift), (squares.clamp_min(0.0) + floor).rsqrt()


def middle(shift: Tensor) -> float:
    """Return b, the last column of a centred row before it is brought to unit length."""
    return math.sqrt(max(LEAST, 1.0 - float(shift.double().square().sum())))


def centred(rows: Tensor, shift: Tensor) -> Tensor:
    """Return unit([u - m, b]) for rows u [n, d]."""
    shift = shift.to(rows)
    z = torch.cat([rows - shift, torch.full_like(rows[:, :1], middle(shift))], dim=1)
    length: Tensor = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    return z / length


def planned(spec: Spec, method: Method, plan: Plan, features: int) -> RowNoise | None:
    """Return the noise of the statistics of rows, or None if they are not worth their price or cannot be had."""
    if spec.normalise not in ("rows", "log-rows", "centred") or not _possible(spec):
        return None
    log, scaled = spec.normalise == "log-rows", spec.normalise != "centred"
    unit, central = spec.unit or method.units[0], method.viewer == "public"
    if not method.private:
        return RowNoise(None, None, 0.0, unit, central, log, scaled)
    z = whole_budget(spec, method, plan)
    noise = z * math.sqrt(parties(plan, central)) / units(plan, unit, central)
    length = noise * math.sqrt(features + 1)
    if length > DROWNED:
        return None
    return RowNoise(z / (MEAN if scaled else min(MEAN, length / NEAR)), z / SPREAD, noise, unit, central, log, scaled)


def _possible(spec: Spec) -> bool:
    """Return whether all clients can take part in a release before the rounds."""
    secure = spec.in_workers and spec.mode == "secure"  # nobody but the clients may hold the key
    return spec.budgets is None and not spec.stragglers().joining[0] and not secure


def whole_budget(spec: Spec, method: Method, plan: Plan) -> float:
    """Return the noise multiplier of one release on the data of all units that would take the whole budget."""
    cost = price.cost_to(spec.viewer or method.viewer, pricing.planned(method, replace(plan, noise_multiplier=1.0)))
    unit, central = spec.unit or method.units[0], method.viewer == "public"
    event = derive.once(
        RowMoments(unit, 1, 1.0, central).releases(plan), cost.relation, cost.copies, cost.draw == "changed"
    )
    return math.sqrt(gdp_mu_squared(event) or 1.0) / gdp.mu_for(spec.epsilon, plan.spendable(plan.delta))


def units(plan: Plan, unit: str, central: bool) -> int:
    """Return the number of units in a mean over all of them; a trusted server averages clients."""
    return plan.population if unit == "client" or central else round(plan.mean_client * plan.population)


def parties(plan: Plan, central: bool) -> float:
    """Return how many times the noise of a release is in a sum over all clients."""
    if central:
        return 1.0
    if plan.channel.shows_rows or not plan.everyone:
        return plan.population / plan.split  # clients share the noise of a sum, also if a few of them may be missing
    return plan.population / max(1, plan.population - plan.colluders - 1)  # another client knows its own share
