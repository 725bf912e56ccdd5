"""The Harmonizer: which noise for a run, by public numbers alone, and why.  Feng et al. (2025), "Harmonizing
Differential Privacy Mechanisms for Federated Learning", Sections 3.1 and 3.3, Algorithm 1, Tables 1 and 2.

    Score(M) = w_p Privacy(M) + w_u Utility(M) + w_e Efficiency(M)

Every candidate is scaled on the accountant to the same total (epsilon, delta); then, each between 0 and 1,
- Privacy: its epsilon at delta over its epsilon at delta / 1000: what is left of the promise far out in the tail;
- Utility: the least noise-to-signal ratio of all candidates over its own. The ratio is the L2 norm of one step's noise
  to that of one clipped gradient;
- Efficiency: the least time of a draw over its own, to a power that the client's compute sets.
The weights are those of the client's profile; the paper's Table 2 joins as a prior with a small weight of its own.

Geometry belongs to the mechanism. Gaussian and L2-Laplace noise are made for an L2 bound C, L1-Laplace and the L1-ball
staircase for an L1 bound, and gradients are clipped in that norm: to the L1 norm that a dense gradient of L2 norm C has
on average (`dense_l1`), so that dense gradients keep the same length whatever the noise. Above about ten dimensions the
answer is Gaussian noise, unless delta = 0 is demanded (`pure`) or the prior is given most of the weight: of all noises
of one variance, Gaussian noise is the most private in high dimension.

Differs from the paper: no statistic of private data is looked at. What clients' data are like is declared (`data`), or
seen in what was released already (_seen.py); "empirical resistance to attacks" is left to audits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from sordino.core.errors import BudgetError, SpecError, UnsupportedEvent
from sordino.methods.udp_fl.seen import seen as seen
from sordino.privacy.accountants import pld, rdp
from sordino.privacy.calibrate import noise_multiplier
from sordino.privacy.events import Composed, Event, FixedSize, GaussianEvent, Repeated, Sampled
from sordino.privacy.geometry import dense_l1
from sordino.privacy.mechanisms.laplace import LaplaceEvent, LaplaceL2Event
from sordino.privacy.mechanisms.staircase import StaircaseEvent, best_gamma
from sordino.privacy.mechanisms.staircase_ball import StaircaseBall, StaircaseBallEvent
from sordino.privacy.tightest import epsilon

MECHANISMS = ("gaussian", "l2-laplace", "laplace", "staircase")
NORMS = {"gaussian": 2, "l2-laplace": 2, "laplace": 1, "staircase": 1}  # in which each needs its bound
PURE = ("laplace", "staircase")  # whose every release is epsilon-DP with delta = 0
PROFILES = {  # w_p, w_u, w_e; the paper asks for w_p >= 0.5 of medical clients and w_e >= 0.4 of IoT devices
    "standard": (0.3, 0.5, 0.2),
    "medical": (0.5, 0.4, 0.1),
    "iot": (0.2, 0.4, 0.4),
}
RESOURCES = {"limited": 1.0, "standard": 0.5, "high": 0.0}  # how much the time of a draw counts: a power
# time of a draw, Gaussian noise = 1, 20 rows of 26,010 numbers on one core: benchmarks/mechanism_settings.py --draws
SECONDS = {"gaussian": 1.0, "l2-laplace": 2.3, "laplace": 2.3, "staircase": 4.5}
TABLE = (  # Table 2: client data, privacy requirement, resource, mechanism
    ("dense", "high", "standard", "gaussian"),
    ("sparse", "moderate", "limited", "laplace"),
    ("complex", "low", "high", "staircase"),
    ("heterogeneous", "high", "limited", "gaussian"),
    ("time-series", "moderate", "standard", "staircase"),
    ("high-dimensional", "high", "high", "gaussian"),
    ("small", "moderate", "limited", "laplace"),
    ("large-pool", "low", "standard", "staircase"),
)
DATA = tuple(row[0] for row in TABLE)
FEW = 100  # dimensions beyond which an L1-ball staircase has the variance of Laplace noise to six digits

LEAVES: dict[str, Callable[[float], Event]] = {
    "gaussian": GaussianEvent,
    "l2-laplace": LaplaceL2Event,
    "laplace": LaplaceEvent,
    "staircase": lambda z: StaircaseBallEvent(1 / z),
    "1-d staircase": lambda z: StaircaseEvent(1 / z, best_gamma(1 / z)),
}


@dataclass(frozen=True)
class HarmonizerSetting:
    """What the choice is made of: public, all of it."""

    run: Event  # all that is released to the server, with Gaussian noise of multiplier one
    dim: int
    epsilon: float
    delta: float
    profile: str = "standard"
    resources: str = "standard"
    data: str = "dense"
    prior: float = 0.05
    pure: bool = False
    harmonised: bool = False  # whether mechanisms may change on the way: one scale for all, by rho alone
    managed: bool = False  # whether scales follow what is left: only Gaussian noise is then charged by more than rho

    @property
    def requirement(self) -> str:
        """Table 2's words for epsilon."""
        return "high" if self.epsilon < 3 else "moderate" if self.epsilon <= 8 else "low"


@dataclass(frozen=True)
class Candidate:
    mechanism: str
    scale: float = math.inf  # noise scale over the bound in the mechanism's own norm
    ratio: float = math.inf  # noise to signal
    privacy: float = 0.0
    utility: float = 0.0
    efficiency: float = 0.0
    prior: float = 0.0
    score: float = -math.inf
    note: str = ""  # why it is out

    def to_json(self) -> dict[str, Any]:
        if self.note:
            return {"mechanism": self.mechanism, "note": self.note}
        return {k: v for k, v in vars(self).items() if k != "note"}


@dataclass(frozen=True)
class Choice:
    setting: HarmonizerSetting
    candidates: tuple[Candidate, ...]  # the best first

    @property
    def mechanism(self) -> str:
        return self.candidates[0].mechanism

    def to_json(self) -> dict[str, Any]:
        s = self.setting
        known = {k: getattr(s, k) for k in ("epsilon", "delta", "dim", "profile", "resources", "data", "prior", "pure")}
        return known | {"weights": list(PROFILES[s.profile]), "candidates": [c.to_json() for c in self.candidates]}


@lru_cache(maxsize=256)
def choose(setting: HarmonizerSetting) -> Choice:
    """The candidates, the one with the best score first; of equal ones the first in MECHANISMS."""
    found = [_scaled(m, setting) for m in MECHANISMS]
    least = min(c.ratio for c in found)
    if not math.isfinite(least):
        raise BudgetError(f"no mechanism reaches epsilon={setting.epsilon:g} here: {found[0].note}")
    scored = [c if c.note else _scored(c, setting, least) for c in found]
    return Choice(setting, tuple(sorted(scored, key=lambda c: -c.score)))


def _scaled(mechanism: str, setting: HarmonizerSetting) -> Candidate:
    if setting.pure and mechanism not in PURE:
        return Candidate(mechanism, note="it has a delta, and delta = 0 is demanded")
    try:
        by_rho = setting.harmonised or (setting.managed and mechanism != "gaussian")
        z = calibrated(setting.run, mechanism, setting.epsilon, setting.delta, by_rho)
        if mechanism == "staircase":
            ball(1 / z, setting.dim).shells(setting.dim)  # refuses what cannot be drawn
        event = of(setting.run, mechanism, z, by_rho)
        far = epsilon(event, setting.delta / 1000, pld.ROUGH)
        return Candidate(
            mechanism,
            scale=z,
            ratio=deviation(mechanism, z, setting.dim) * math.sqrt(setting.dim),
            privacy=min(1.0, setting.epsilon / far) if far > 0 else 1.0,
        )
    except (BudgetError, SpecError, UnsupportedEvent) as error:
        return Candidate(mechanism, note=str(error))


def _scored(one: Candidate, setting: HarmonizerSetting, least: float) -> Candidate:
    w_p, w_u, w_e = PROFILES[setting.profile]
    utility = least / one.ratio
    efficiency = (min(SECONDS.values()) / SECONDS[one.mechanism]) ** RESOURCES[setting.resources]
    prior = table_prior(one.mechanism, setting)
    own = w_p * one.privacy + w_u * utility + w_e * efficiency
    score = (1 - setting.prior) * own + setting.prior * prior
    return replace(one, utility=utility, efficiency=efficiency, prior=prior, score=score)


def table_prior(mechanism: str, setting: HarmonizerSetting) -> float:
    """How well the best row of Table 2 with this mechanism fits: the share of its three criteria that are met."""
    wanted = (setting.data, setting.requirement, setting.resources)
    name = mechanism.removeprefix("l2-")  # the paper's Laplace noise follows an L2 clip
    return max(sum(a == b for a, b in zip(row[:3], wanted, strict=True)) / 3 for row in TABLE if row[3] == name)


@lru_cache(maxsize=1024)
def calibrated(run: Event, mechanism: str, target: float, delta: float, harmonised: bool = False) -> float:
    """The least scale with which all of the run costs at most (target, delta)."""
    return noise_multiplier(lambda z: of(run, mechanism, z, harmonised), target, delta)


def of(event: Event, mechanism: str, z: float = 1.0, harmonised: bool = False) -> Event:
    """The same releases with another noise, z times as much of it.

    Harmonised: what holds of every mechanism at that scale, 1/(2 z^2)-zCDP, and nothing more (see udp_fl.py)."""
    match event:
        case GaussianEvent(own):
            return LaplaceL2Event(own * z) if harmonised else LEAVES[mechanism](own * z)
        case Repeated(inner, count):
            return Repeated(of(inner, mechanism, z, harmonised), count)
        case Composed(events):
            return Composed(tuple(of(e, mechanism, z, harmonised) for e in events))
        case Sampled(inner, rate, relation):
            return Sampled(of(inner, mechanism, z, harmonised), rate, relation)
        case FixedSize(inner, size, population):
            return FixedSize(of(inner, mechanism, z, harmonised), size, population)
        case _:
            raise TypeError(f"no Gaussian noise to replace in {event!r}")


def deviation(mechanism: str, z: float, dim: int) -> float:
    """Standard deviation of the noise of one step in a coordinate, over the L2 norm of a clipped dense gradient."""
    wide = bound(mechanism, dim)
    if mechanism == "gaussian":
        return z * wide
    if mechanism != "staircase" or dim > FEW:
        return math.sqrt(2) * z * wide
    return math.sqrt(ball(1 / z, dim).variance(wide, dim))


def bound(mechanism: str, dim: int) -> float:
    """What gradients are clipped to in the mechanism's own norm, over the L2 clip C."""
    return dense_l1(dim) if NORMS[mechanism] == 1 else 1.0


@lru_cache(maxsize=1024)
def ball(lam: float, dim: int) -> StaircaseBall:
    """The L1-ball staircase; in few dimensions with the step shape of least variance, which does not move its cost."""
    if dim > FEW:
        return StaircaseBall(lam)
    shapes = [StaircaseBall(lam, float(g)) for g in np.linspace(0.02, 0.5, 25)]
    return min(shapes, key=lambda one: one.variance(1.0, dim))


@lru_cache(maxsize=256)
def renyi(event: Event, delta: float) -> tuple[float, float] | None:
    """The order that the conversion at delta picks, and the event's Renyi divergence there; None if no curve is known.

    What the paper's Harmonizer computes "at each iteration": a share of this for each round taken part in."""
    try:
        curve = rdp.rdp(event)
    except UnsupportedEvent:
        return None
    orders = rdp.ORDERS
    costs = curve + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    best = int(np.argmin(costs))
    return float(orders[best]), float(curve[best])


def why(found: dict[str, Any]) -> list[str]:
    """A choice as it stands in a record -> sentences."""
    w_p, w_u, w_e = found["weights"]
    scored = [c for c in found["candidates"] if "score" in c]
    first = scored[0]
    out = [
        f"At epsilon = {found['epsilon']:g}, delta = {found['delta']:g} in {found['dim']:,} dimensions the Harmonizer "
        f"chose {first['mechanism']} (score {first['score']:.3f}; profile {found['profile']}: privacy {w_p:g}, utility "
        f"{w_u:g}, efficiency {w_e:g}; compute {found['resources']}; data {found['data']})."
    ]
    for c in scored:
        out.append(
            f"{c['mechanism']}: scale {c['scale']:.4g} times its L{NORMS[c['mechanism']]} bound, noise "
            f"{c['ratio']:,.1f} times one clipped gradient; privacy {c['privacy']:.3f}, utility {c['utility']:.3g}, "
            f"efficiency {c['efficiency']:.3f}, the paper's rating {c['prior']:.2f}: score {c['score']:.3f}."
        )
    out += [f"{c['mechanism']} was out: {c['note']}." for c in found["candidates"] if "note" in c]
    if len(scored) > 1:
        least = min(scored, key=lambda c: float(c["ratio"]))
        out.append(
            f"{least['mechanism']} has the least noise"
            + ("." if least is first else f", {first['mechanism']} the better score by its other terms.")
        )
    return out
