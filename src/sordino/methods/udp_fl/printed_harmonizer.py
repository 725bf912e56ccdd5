"""The Harmonizer as printed: chooses every client's noise from exact statistics of its private gradients.  Feng et al.
(2025), "Harmonizing Differential Privacy Mechanisms for Federated Learning", Section 3.3, Algorithm 1, Table 2.

    Score(M) = w_p Privacy(M) + w_u Utility(M) + w_e Efficiency(M),   M in Gaussian, Laplace, staircase

The statistics of a client's gradients at the model it received (on its first LOOKED records; "simple gradient
statistics") are not private in any sense: the choice shows in the shape of the noise, the sensitivity in its size.

The text gives no formula except the sum above. Where it leaves a choice:
- sparsity ratio: the share of the components of the mean gradient that are at most NEAR times their root mean square;
- "gradient magnitude distribution": the kurtosis of the same components about zero; tails count as heavy from the
  kurtosis of a Laplace distribution (HEAVY) upwards. Neither sparse nor heavy is Table 2's "dense"; sparse and heavy is
  its "sparse". One without the other is neither "normal-like" nor "sparse with heavy tails", and is taken for its
  "complex distributions";
- sensitivity, "the maximum change possible in the gradient when a single training example is modified": the norm of the
  largest gradient of a single record. It is Algorithm 1's S_k, to which line 12 clips and the noise is calibrated; we
  clamp it between LEAST and 1 times the clip bound of Section 5.2;
- "small datasets": fewer than SMALL records; "high-dimensional data": a record has FEATURES numbers or more; "large
  client pool": POOL clients or more. Heterogeneous data and time series cannot be told from gradients and are declared;
- Privacy and Utility are those of harmonizer.py, for noise on one number (see udp_fl_paper.py): how much of the
  guarantee remains far out in the tail, and the smallest standard deviation of all mechanisms over the mechanism's own.
  Efficiency is the same as there;
- Table 2, "a practical interpretation of the scoring function", enters as the share of three criteria that are met by
  the best row of a mechanism, with a weight of its own in the score (`prior`): Utility "by historical performance data"
  and "empirical resistance to known attacks" are what the authors put into that table;
- weights are "continuously refined based on observed performance", but no rule is given: here they are constant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sordino.core.errors import BudgetError
from sordino.core.rng import RowStream
from sordino.core.types import Batch, Model, Rows
from sordino.methods._measured import of_clients, sums_and_norms
from sordino.methods.udp_fl import harmonizer
from sordino.methods.udp_fl.noises import laplace
from sordino.methods.udp_fl.seen import HEAVY
from sordino.privacy.accountants import pld
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event, NonPrivate
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.mechanisms.laplace import LaplaceL2Event
from sordino.privacy.mechanisms.staircase import PerCoordinateStaircaseEvent, Staircase, best_gamma
from sordino.privacy.release import Use
from sordino.privacy.tightest import epsilon

MECHANISMS = ("gaussian", "laplace", "staircase")  # Algorithm 1, line 1; the first wins ties (line 6)
STATISTICS = ("sparsity", "kurtosis", "sensitivity")
KEPT = ("mechanism", "before", "round", "words", *STATISTICS)  # columns of a choice stored as a row of numbers
LOOKED = 100  # records per client used for the statistics
NEAR, HALF = 0.01, 0.5  # fraction of the root mean square up to which a component counts as zero; share of a sparse one
LEAST = 0.01  # smallest sensitivity over the clip bound, so that zero gradients do not end all noise and all training
SMALL, FEATURES, POOL = 100, 1000, 100  # records, numbers in a record, clients
STEEPEST = 500.0  # largest lambda of a staircase; beyond it the noise is negligible


# --- data characteristic analysis


def statistics(weights: Tensor, data: Batch, model: Model, seeds: Sequence[int]) -> Tensor:
    """Return the exact STATISTICS of each client's gradients at the weights it received [clients, 3]."""
    place = torch.cat([torch.arange(n, device=data.x.device) for n in data.sizes] or [data.x.new_zeros(0)])
    few = data.where(place < LOOKED)
    total = model.gradients.sums(weights, few, None, seeds=seeds).double()
    norms = sums_and_norms(weights, few, model, seeds, None)[1].double()
    largest = of_clients(torch.nan_to_num(norms, nan=0.0, posinf=1e30), few.sizes, lambda part: part.max(dim=0).values)
    g = torch.where(torch.isfinite(total).all(dim=1, keepdim=True), total, 0.0)
    g = g / g.abs().amax(dim=1, keepdim=True).clamp_min(1e-300)  # prevents overflow of the powers
    square = (g * g).mean(dim=1, keepdim=True)
    sparsity = (g.abs() <= NEAR * square.sqrt()).double().mean(dim=1, keepdim=True)
    kurtosis = (g**4).mean(dim=1, keepdim=True) / (square * square).clamp_min(1e-300)
    return torch.cat([sparsity, kurtosis, largest], dim=1)


def words(sparsity: float, kurtosis: float, records: int, features: int, clients: int, declared: str) -> list[str]:
    """Return all of Table 2's descriptions of client data that fit this client.

    Args:
        sparsity: the sparsity ratio of the client's mean gradient.
        kurtosis: the kurtosis of its components; 0 if there is no gradient.
        records: the client's number of records.
        features: the number of values in a record.
        clients: the number of clients.
        declared: the declared description, or "measured".
    """
    sparse, heavy = sparsity >= HALF, kurtosis >= HEAVY
    descriptions = [] if kurtosis <= 0 else ["sparse" if sparse else "dense"] if sparse == heavy else ["complex"]
    descriptions += ["small"] * (records < SMALL) + ["high-dimensional"] * (features >= FEATURES)
    descriptions += ["large-pool"] * (clients >= POOL)
    return descriptions if declared == "measured" or declared in descriptions else [*descriptions, declared]


def packed(descriptions: Sequence[str]) -> int:
    """Encode descriptions as one integer, one bit each, in the order of Table 2."""
    return sum(1 << harmonizer.DATA.index(word) for word in descriptions)


def unpacked(number: int) -> list[str]:
    """Decode the descriptions encoded by `packed`."""
    return [word for i, word in enumerate(harmonizer.DATA) if number >> i & 1]


# --- privacy requirement assessment


@dataclass(frozen=True)
class NoiseRequest:
    """The requirements on a client's noise, all of them public."""

    run: Event  # everything released to the server, with Gaussian noise of multiplier 1
    epsilon: float  # the client's epsilon
    delta: float
    profile: str = "standard"
    resources: str = "standard"
    prior: float = 0.5
    data: str = "measured"  # or the declared description of its data

    @property
    def requirement(self) -> str:
        """The privacy requirement that Table 2 would name for this epsilon: high, moderate or low."""
        return harmonizer.HarmonizerSetting(self.run, 1, self.epsilon, self.delta).requirement


@dataclass(frozen=True)
class Terms:
    """The noise scale of a mechanism and the terms of its score."""

    scale: float  # noise scale of one number over its sensitivity
    privacy: float
    utility: float
    efficiency: float


@lru_cache(maxsize=256)
def terms(asked: NoiseRequest) -> dict[str, Terms]:
    """Return the terms of each mechanism's score that do not depend on the client's data.

    Mechanisms that cannot reach the client's epsilon are left out."""
    scales: dict[str, float] = {}
    reason = BudgetError("no mechanism was tried.")
    for name in MECHANISMS:
        try:
            scales[name] = harmonizer.calibrated(asked.run, leaf(name), asked.epsilon, asked.delta)
        except BudgetError as error:
            reason = error
    if not scales:
        raise reason
    least = min(deviation(name, z) for name, z in scales.items())
    times, power = harmonizer.SECONDS, harmonizer.RESOURCES[asked.resources]
    out = {}
    for name, z in scales.items():
        far = epsilon(harmonizer.of(asked.run, leaf(name), z), asked.delta / 1000, pld.ROUGH)
        privacy = min(1.0, asked.epsilon / far) if far > 0 else 1.0
        out[name] = Terms(z, privacy, least / deviation(name, z), (times["gaussian"] / times[name]) ** power)
    return out


def rating(mechanism: str, data: Sequence[str], asked: NoiseRequest) -> float:
    """Return the share of three criteria met by the best-fitting row of Table 2 that recommends this mechanism."""
    return max(
        ((row in data) + (need == asked.requirement) + (compute == asked.resources)) / 3
        for row, need, compute, name in harmonizer.TABLE
        if name == mechanism
    )


def scores(asked: NoiseRequest, data: Sequence[str]) -> dict[str, float]:
    """Return the score of each mechanism for a client whose data fit these descriptions."""
    w_p, w_u, w_e = harmonizer.PROFILES[asked.profile]
    return {
        name: (1 - asked.prior) * (w_p * t.privacy + w_u * t.utility + w_e * t.efficiency)
        + asked.prior * rating(name, data, asked)
        for name, t in terms(asked).items()
    }


def choose(asked: NoiseRequest, data: Sequence[str]) -> str:
    """Return the mechanism with the best score (Algorithm 1, lines 2 to 8)."""
    score_of = scores(asked, data)
    return max(score_of, key=lambda name: score_of[name])  # the first wins ties


def chosen(
    previous: Rows, number: int, asked: Sequence[NoiseRequest], data: Sequence[Sequence[str]], measured: Tensor
) -> Rows:
    """Return every client's choice in this round as rows with the columns KEPT.

    Args:
        previous: the previous choices, in the same format.
        number: the number of the round.
        asked: the requirements on each client's noise.
        data: the descriptions that fit each client's data.
        measured: each client's STATISTICS [clients, 3].
    """
    rows = [
        [MECHANISMS.index(choose(a, descriptions)), before, number, packed(descriptions), *figures]
        for a, descriptions, before, figures in zip(
            asked, data, previous[:, 0].tolist(), measured.tolist(), strict=True
        )
    ]
    return previous.new_tensor(rows)


def bounds(choices: Tensor, clip: float) -> Tensor:
    """Return every client's clip bound S_k [clients, 1]."""
    return choices[:, KEPT.index("sensitivity"), None].clamp(LEAST * clip, clip)


# --- noise


def leaf(mechanism: str) -> str:
    """Return the name under which `harmonizer.of` knows the mechanism on one number."""
    return "1-d staircase" if mechanism == "staircase" else mechanism


def deviation(mechanism: str, z: float) -> float:
    """Return the standard deviation of the noise on one number, over its sensitivity."""
    if mechanism == "staircase":
        return math.sqrt(Staircase(min(STEEPEST, 1 / z)).variance(1.0))
    return z if mechanism == "gaussian" else math.sqrt(2) * z


@lru_cache(maxsize=256)
def claimed(run: Event, mechanism: str, z: float, delta: float) -> float:
    """Return the epsilon that the paper would claim for noise of this scale, accounted as noise on one number.

    Rounded up to three significant digits, so that a scale calibrated to a budget gives that budget again."""
    cost = epsilon(harmonizer.of(run, leaf(mechanism), z), delta, pld.ROUGH)
    if not 0 < cost < math.inf:
        return cost
    digits = 2 - math.floor(math.log10(cost))
    return round(math.ceil(cost * 10.0**digits - 1e-6) / 10.0**digits, digits)


def add(mechanism: str, z: float, sums: Bounded, rng: RowStream) -> Rows:
    """Add to every component noise that is calibrated for a single number."""
    if mechanism == "gaussian":
        return Gaussian(z).add(sums, rng)
    if mechanism == "laplace":
        return sums.value + z * sums.bound * laplace(rng, sums.value)
    return Staircase(min(STEEPEST, 1 / z), norm=2, per_coordinate=True).add(sums, rng)


def add_each(value: Rows, mechanisms: Sequence[str], scales: Sequence[float], bounds: Tensor, rng: RowStream) -> Rows:
    """Add to every client's row noise of its own mechanism, scale and bound (`bounds`: [clients, 1])."""
    out, kinds = value.clone(), list(zip(mechanisms, scales, strict=True))
    for kind in sorted(set(kinds)):
        mine = [i for i, other in enumerate(kinds) if other == kind]
        part = RowStream(rng.stream, rng.ids[mine])
        out[mine] += bounds[mine] * add(*kind, Bounded(torch.zeros_like(value[mine]), 1.0), part)
    return out


@dataclass(frozen=True)
class OneNumber:
    """Adds to each of `dim` components the noise of a single number whose sensitivity is the whole bound.

    It is accounted as noise on a vector: see udp_fl_paper.py."""

    noise_multiplier: float
    name: str
    dim: int

    def apply(self, x: Bounded, rng: RowStream, use: Use) -> Rows:
        if use.multiplier is None:
            return add(self.name, self.noise_multiplier, x, rng)
        scales = use.multiplier[:, 0].tolist()
        bounds = x.value.new_full((len(scales), 1), x.bound)
        return add_each(x.value, [self.name] * len(scales), scales, bounds, rng)

    def event(self, split: int = 1) -> Event:
        z = self.noise_multiplier
        if self.name == "staircase" and self.dim > 1:
            lam = min(STEEPEST, 1 / z)
            return PerCoordinateStaircaseEvent(lam, best_gamma(lam), self.dim, 2)
        if self.name == "laplace" and self.dim > 1:
            return LaplaceL2Event(z)
        return harmonizer.LEAVES[leaf(self.name)](z)

    def std(self, bound: float) -> float:
        return deviation(self.name, self.noise_multiplier) * bound


@dataclass(frozen=True)
class Chosen(Bounded):
    """Sums of clients that chose by their own gradients; the bound here does not bound any sensitivity."""

    names: tuple[str, ...] = ()  # mechanism of each client
    scales: tuple[float, ...] = ()  # noise scale of each client over its measured bound
    bounds: Tensor = field(default_factory=lambda: torch.zeros(0, 1))  # [clients, 1]: measured bounds


@dataclass(frozen=True)
class EachItsOwn:
    """Adds to every client's row the noise that it chose, which has no privacy guarantee."""

    reason: str

    def apply(self, x: Bounded, rng: RowStream, use: Use) -> Rows:
        if not isinstance(x, Chosen):
            raise TypeError("clients that choose by their gradients say what they chose")
        return add_each(x.value, x.names, x.scales, x.bounds, rng)

    def event(self, split: int = 1) -> Event:
        return NonPrivate(self.reason)


# --- the record, and explanations


def record(reported: Tensor, asked: Sequence[NoiseRequest], clip: float) -> tuple[dict[str, Any], float | None]:
    """Return the clients' reported choices for the record, and the mean standard deviation of their noise.

    Args:
        reported: the reported choices, rows of (client, *KEPT).
        asked: the requirements on each client's noise.
        clip: the clip bound, of which the standard deviation is a multiple.
    """
    clients: dict[str, dict[str, Any]] = {}
    deviations = []
    for row, a, (bound,) in zip(reported.tolist(), asked, bounds(reported[:, 1:], clip).tolist(), strict=True):
        choice = dict(zip(("client", *KEPT), row, strict=True))
        name, data = MECHANISMS[round(choice["mechanism"])], unpacked(round(choice["words"]))
        z = terms(a)[name].scale
        deviations.append(deviation(name, z) * bound / clip)
        clients[str(round(choice["client"]))] = {
            "mechanism": name,
            "before": None if choice["before"] < 0 else MECHANISMS[round(choice["before"])],
            "round": round(choice["round"]),
            "data": data,
            **{k: choice[k] for k in STATISTICS},
            "profile": a.profile,
            "resources": a.resources,
            "epsilon": a.epsilon,
            "requirement": a.requirement,
            "scores": scores(a, data),
            "scale": z * bound,
        }
    counts = {name: sum(choice["mechanism"] == name for choice in clients.values()) for name in MECHANISMS}
    figures = {"mechanisms": counts, "clients": clients}
    return figures, sum(deviations) / len(deviations) if deviations else None


def why(client: str, choice: dict[str, Any]) -> str:
    """Explain a client's recorded choice in one sentence."""
    best, *others = sorted(choice["scores"].items(), key=lambda pair: -pair[1])
    rest = ", ".join(f"{name} {score:.3f}" for name, score in others)
    w_p, w_u, w_e = harmonizer.PROFILES[choice["profile"]]
    return (
        f"Client {client} ({' and '.join(choice['data']) or 'no gradient'}: {100 * choice['sparsity']:.0f} % of its "
        f"gradient next to zero, kurtosis {choice['kurtosis']:.3g}, largest record {choice['sensitivity']:.3g}; "
        f"epsilon = {choice['epsilon']:g}, privacy requirement {choice['requirement']}; compute {choice['resources']}) "
        f"chose {choice['mechanism']} in round {choice['round']}: score {best[1]:.3f}"
        + (f" ({rest})" if rest else "")
        + f", weights {w_p:g} for privacy, {w_u:g} for utility, {w_e:g} for efficiency; noise scale "
        f"{choice['scale']:.3g}."
    )


def explain(number: int, decided: dict[str, Any]) -> list[str]:
    """Explain the choices of one recorded round, with one example per mechanism; empty if no client chose again."""
    every = decided["clients"]
    if not every and any(decided["mechanisms"].values()):
        return [f"Round {number}: the client asked for was not in it."]
    new = {client: choice for client, choice in every.items() if choice["round"] == number}
    if not new:
        return []
    if len(every) < sum(decided["mechanisms"].values()):  # restricted to one client (`explain --client`)
        return [why(client, choice) for client, choice in new.items()]
    counts = ", ".join(f"{name} {n}" for name, n in decided["mechanisms"].items() if n)
    other = sum(choice["before"] not in (None, choice["mechanism"]) for choice in new.values())
    head = f"Round {number}: noise of the clients: {counts}; {len(new)} chose by their own gradients, {other} of them "
    head += "another noise than before."
    examples = {choice["mechanism"]: client for client, choice in reversed(new.items())}
    return [head, *(why(client, every[client]) for client in sorted(examples.values(), key=int))]
