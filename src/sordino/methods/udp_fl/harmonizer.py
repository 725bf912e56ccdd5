"""The Harmonizer: chooses the noise mechanism of a run from public numbers alone, and says why.  Feng et al. (2025),
"Harmonizing Differential Privacy Mechanisms for Federated Learning", Sections 3.1 and 3.3, Algorithm 1, Tables 1 and 2.

    Score(M) = w_p Privacy(M) + w_u Utility(M) + w_e Efficiency(M)

Every candidate is calibrated with the accountant to the same total (epsilon, delta). The terms lie between 0 and 1:
- Privacy: the candidate's epsilon at delta over its epsilon at delta / 1000: how much of the guarantee remains far out
  in the tail;
- Utility: the smallest noise-to-signal ratio of all candidates over the candidate's own. The ratio is the L2 norm of
  the noise of one step over that of one clipped gradient;
- Efficiency: the shortest sampling time over the candidate's own, to a power set by the client's compute.
The weights are those of the client's profile; the paper's Table 2 enters as a prior with a small weight of its own.

The geometry depends on the mechanism. Gaussian and L2-Laplace noise are made for an L2 bound C, L1-Laplace and the
L1-ball staircase for an L1 bound. Gradients are clipped in that norm: for an L1 bound, to the average L1 norm of a
dense gradient of L2 norm C (`dense_l1`), so that dense gradients keep the same length whatever the noise. Above about
ten dimensions the choice is Gaussian noise, unless delta = 0 is required (`pure`) or the prior has most of the weight:
of all noise distributions of one variance, Gaussian noise is the most private in high dimension.

How this differs from the paper: no statistic of private data is used. The nature of the clients' data is declared
(`data`), or estimated from what was already released (seen.py); "empirical resistance to attacks" is left to audits."""

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
NORMS = {"gaussian": 2, "l2-laplace": 2, "laplace": 1, "staircase": 1}  # p of the Lp norm of the clip bound
PURE = ("laplace", "staircase")  # mechanisms that are epsilon-DP with delta = 0 in every release
PROFILES = {  # w_p, w_u, w_e; the paper requires w_p >= 0.5 for medical clients and w_e >= 0.4 for IoT devices
    "standard": (0.3, 0.5, 0.2),
    "medical": (0.5, 0.4, 0.1),
    "iot": (0.2, 0.4, 0.4),
}
RESOURCES = {"limited": 1.0, "standard": 0.5, "high": 0.0}  # exponent of the sampling time
# sampling time relative to Gaussian noise, 20 rows of 26,010 numbers on one core:
# benchmarks/mechanism_settings.py --draws
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
FEW = 100  # above this dimension the L1-ball staircase has the variance of Laplace noise to six digits

LEAVES: dict[str, Callable[[float], Event]] = {
    "gaussian": GaussianEvent,
    "l2-laplace": LaplaceL2Event,
    "laplace": LaplaceEvent,
    "staircase": lambda z: StaircaseBallEvent(1 / z),
    "1-d staircase": lambda z: StaircaseEvent(1 / z, best_gamma(1 / z)),
}


@dataclass(frozen=True)
class HarmonizerSetting:
    """The inputs of the choice, all of them public."""

    run: Event  # everything released to the server, with Gaussian noise of multiplier 1
    dim: int
    epsilon: float
    delta: float
    profile: str = "standard"
    resources: str = "standard"
    data: str = "dense"
    prior: float = 0.05
    pure: bool = False
    harmonised: bool = False  # whether mechanisms may differ within the run: one scale for all, charged by rho alone
    managed: bool = False  # whether scales follow the remaining budget: then all but Gaussian noise is charged by rho

    @property
    def requirement(self) -> str:
        """The privacy requirement that Table 2 would name for this epsilon: high, moderate or low."""
        return "high" if self.epsilon < 3 else "moderate" if self.epsilon <= 8 else "low"


@dataclass(frozen=True)
class Candidate:
    """A mechanism with its calibrated scale and the terms of its score."""

    mechanism: str
    scale: float = math.inf  # noise scale over the clip bound in the mechanism's norm
    ratio: float = math.inf  # noise-to-signal ratio
    privacy: float = 0.0
    utility: float = 0.0
    efficiency: float = 0.0
    prior: float = 0.0
    score: float = -math.inf
    note: str = ""  # why it was excluded, if it was

    def to_json(self) -> dict[str, Any]:
        """Return the candidate for the run's record: its figures, or why it was excluded."""
        if self.note:
            return {"mechanism": self.mechanism, "note": self.note}
        return {k: v for k, v in vars(self).items() if k != "note"}


@dataclass(frozen=True)
class Choice:
    """The candidates ranked by score, and the inputs they were scored for."""

    setting: HarmonizerSetting
    candidates: tuple[Candidate, ...]  # best first

    @property
    def mechanism(self) -> str:
        """The chosen mechanism."""
        return self.candidates[0].mechanism

    def to_json(self) -> dict[str, Any]:
        """Return the choice for the run's record: the inputs, the weights and all candidates."""
        s = self.setting
        known = {k: getattr(s, k) for k in ("epsilon", "delta", "dim", "profile", "resources", "data", "prior", "pure")}
        return known | {"weights": list(PROFILES[s.profile]), "candidates": [c.to_json() for c in self.candidates]}


@lru_cache(maxsize=256)
def choose(setting: HarmonizerSetting) -> Choice:
    """Rank the mechanisms by score, best first; ties go to the one listed first in MECHANISMS."""
    candidates = [_scaled(m, setting) for m in MECHANISMS]
    least = min(c.ratio for c in candidates)
    if not math.isfinite(least):
        raise BudgetError(f"no mechanism reaches epsilon={setting.epsilon:g} here: {candidates[0].note}")
    scored = [c if c.note else _scored(c, setting, least) for c in candidates]
    return Choice(setting, tuple(sorted(scored, key=lambda c: -c.score)))


def _scaled(mechanism: str, setting: HarmonizerSetting) -> Candidate:
    if setting.pure and mechanism not in PURE:
        return Candidate(mechanism, note="it has a delta, and delta = 0 is demanded")
    try:
        by_rho = setting.harmonised or (setting.managed and mechanism != "gaussian")
        z = calibrated(setting.run, mechanism, setting.epsilon, setting.delta, by_rho)
        if mechanism == "staircase":
            ball(1 / z, setting.dim).shells(setting.dim)  # raises if the noise cannot be sampled
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


def _scored(candidate: Candidate, setting: HarmonizerSetting, least: float) -> Candidate:
    w_p, w_u, w_e = PROFILES[setting.profile]
    utility = least / candidate.ratio
    efficiency = (min(SECONDS.values()) / SECONDS[candidate.mechanism]) ** RESOURCES[setting.resources]
    prior = table_prior(candidate.mechanism, setting)
    weighted = w_p * candidate.privacy + w_u * utility + w_e * efficiency
    score = (1 - setting.prior) * weighted + setting.prior * prior
    return replace(candidate, utility=utility, efficiency=efficiency, prior=prior, score=score)


def table_prior(mechanism: str, setting: HarmonizerSetting) -> float:
    """Return the share of three criteria met by the best-fitting row of Table 2 that recommends this mechanism."""
    wanted = (setting.data, setting.requirement, setting.resources)
    name = mechanism.removeprefix("l2-")  # the paper's Laplace noise follows an L2 clip
    return max(sum(a == b for a, b in zip(row[:3], wanted, strict=True)) / 3 for row in TABLE if row[3] == name)


@lru_cache(maxsize=1024)
def calibrated(run: Event, mechanism: str, target: float, delta: float, harmonised: bool = False) -> float:
    """Return the smallest noise scale with which the whole run costs at most (target, delta)."""
    return noise_multiplier(lambda z: of(run, mechanism, z, harmonised), target, delta)


def of(event: Event, mechanism: str, z: float = 1.0, harmonised: bool = False) -> Event:
    """Return the same releases with another mechanism, at z times the scale of the Gaussian noise in `event`.

    With `harmonised`, the releases are charged by what holds for every mechanism at that scale, 1/(2 z^2)-zCDP, and
    nothing more (see harmonised.py)."""
    match event:
        case GaussianEvent(sigma):
            return LaplaceL2Event(sigma * z) if harmonised else LEAVES[mechanism](sigma * z)
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
    """Return the std of one step's noise per coordinate, over the L2 norm of a clipped dense gradient."""
    wide = bound(mechanism, dim)
    if mechanism == "gaussian":
        return z * wide
    if mechanism != "staircase" or dim > FEW:
        return math.sqrt(2) * z * wide
    return math.sqrt(ball(1 / z, dim).variance(wide, dim))


def bound(mechanism: str, dim: int) -> float:
    """Return the clip bound in the mechanism's norm, as a multiple of the L2 clip bound C."""
    return dense_l1(dim) if NORMS[mechanism] == 1 else 1.0


@lru_cache(maxsize=1024)
def ball(lam: float, dim: int) -> StaircaseBall:
    """Return the L1-ball staircase; up to FEW dimensions with the step shape of least variance, at the same cost."""
    if dim > FEW:
        return StaircaseBall(lam)
    shapes = [StaircaseBall(lam, float(g)) for g in np.linspace(0.02, 0.5, 25)]
    return min(shapes, key=lambda shape: shape.variance(1.0, dim))


@lru_cache(maxsize=256)
def renyi(event: Event, delta: float) -> tuple[float, float] | None:
    """Return the order that is optimal for the conversion at delta, and the event's Renyi divergence at that order.

    None if the event has no known Renyi curve. The paper's Harmonizer computes this "at each iteration": each round
    that a client takes part in accounts for a share of it."""
    try:
        curve = rdp.rdp(event)
    except UnsupportedEvent:
        return None
    orders = rdp.ORDERS
    costs = curve + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    best = int(np.argmin(costs))
    return float(orders[best]), float(curve[best])


def why(choice: dict[str, Any]) -> list[str]:
    """Explain a recorded choice (`Choice.to_json`) in sentences."""
    w_p, w_u, w_e = choice["weights"]
    scored = [c for c in choice["candidates"] if "score" in c]
    first = scored[0]
    out = [
        f"At epsilon = {choice['epsilon']:g}, delta = {choice['delta']:g} in {choice['dim']:,} dimensions the "
        f"Harmonizer chose {first['mechanism']} (score {first['score']:.3f}; profile {choice['profile']}: privacy "
        f"{w_p:g}, utility {w_u:g}, efficiency {w_e:g}; compute {choice['resources']}; data {choice['data']})."
    ]
    for c in scored:
        out.append(
            f"{c['mechanism']}: scale {c['scale']:.4g} times its L{NORMS[c['mechanism']]} bound, noise "
            f"{c['ratio']:,.1f} times one clipped gradient; privacy {c['privacy']:.3f}, utility {c['utility']:.3g}, "
            f"efficiency {c['efficiency']:.3f}, the paper's rating {c['prior']:.2f}: score {c['score']:.3f}."
        )
    out += [f"{c['mechanism']} was out: {c['note']}." for c in choice["candidates"] if "note" in c]
    if len(scored) > 1:
        least = min(scored, key=lambda c: float(c["ratio"]))
        out.append(
            f"{least['mechanism']} has the least noise"
            + ("." if least is first else f", {first['mechanism']} the better score by its other terms.")
        )
    return out
