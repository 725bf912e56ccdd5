"""At least one event of every kind, with knobs: more noise, a smaller rate, more repetitions.

A new kind of event without an example here fails `test_accountants.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sordino.core import plugin
from sordino.privacy import shuffle
from sordino.privacy.events import (
    Approximate,
    Composed,
    Event,
    FixedSize,
    GaussianEvent,
    NonPrivate,
    Parallel,
    Pure,
    RandomStopping,
    Repeated,
    Sampled,
    SampledGroup,
    Visible,
)

plugin.import_all("privacy.mechanisms")
KINDS = {name: kind for name, kind in Event._kinds.items() if kind.__module__.startswith("sordino.")}


@dataclass(frozen=True)
class Example:
    name: str
    noisy: Callable[[float], Event]  # of 1.0: the example; more is more private
    at_rate: Callable[[float], Event] | None = None  # of a rate in (0, 1]
    at_count: Callable[[int], Event] | None = None

    @property
    def event(self) -> Event:
        return self.noisy(1.0)

    def __str__(self) -> str:
        return self.name


def leaf(kind: str, *fields: object, epsilon: float = 0.5, note: str = "") -> Example:
    """An event whose first field is the epsilon of one use."""
    return Example(kind.removesuffix("Event") + note, lambda noise: KINDS[kind](epsilon / noise, *fields))


def scaled(kind: str, scale: float, *fields: object, note: str = "") -> Example:
    """An event whose first field is a scale of noise."""
    return Example(kind.removesuffix("Event") + note, lambda noise: KINDS[kind](scale * noise, *fields))


def binomial(noise: float, dim: int) -> Event:
    return KINDS["BinomialEvent"](2 * math.ceil(300 * noise**2), dim, 2.0, 2.0, 2, 1e-7)


def of_steps(noise: float, rate: float, steps: int) -> Event:
    return Repeated(Sampled(GaussianEvent(noise), rate), steps)


LEAVES = [
    scaled("Gaussian", 2.0),
    leaf("Pure"),
    Example("Approximate", lambda noise: Approximate(0.5 / noise, 1e-8)),
    scaled("LaplaceEvent", 2.0),
    scaled("LaplaceL2Event", 2.0),
    leaf("StaircaseEvent", 0.4),
    leaf("StaircaseEvent", 0.5, epsilon=1.0, note="-response"),
    leaf("PerCoordinateStaircaseEvent", 0.3, 10, 1.0),
    leaf("StaircaseBallEvent"),
    scaled("DiscreteGaussianEvent", 2.0),
    scaled("DiscreteGaussianEvent", 2.0, 1e-20, note="-off"),
    scaled("DistributedDiscreteGaussianEvent", 1.0, 10, 4, 3.0, 2.0),
    leaf("DiscreteLaplaceEvent", 3),
    Example("Skellam", lambda noise: KINDS["SkellamEvent"](25.0 * noise**2, 3.0, 2.0)),
    Example("Binomial-line", lambda noise: binomial(noise, 1)),
    Example("Binomial", lambda noise: binomial(2 * noise, 4)),
    Example("PoissonBinomial", lambda noise: KINDS["PoissonBinomialEvent"](4, 0.1 / noise, 10, 2)),
    leaf("ExponentialEvent"),
    leaf("NoisyMaxEvent"),
    leaf("SparseVectorEvent"),
    leaf("RandomizedResponseEvent"),
    leaf("GeneralizedRREvent", 4),
    leaf("UnaryEncodingEvent", True),
    leaf("UnaryEncodingEvent", False, note="-plain"),
    leaf("DBitFlipEvent", 4),
    leaf("CountMeanSketchEvent"),
    leaf("HadamardSketchEvent"),
    leaf("FragmentPuzzleEvent", 0.1),
    Example("Rappor", lambda noise: KINDS["RapporEvent"](2, 1 - 0.5 / noise, 0.5, 0.75, 3)),
    leaf("DuchiEvent", 3),
    leaf("HarmonyEvent"),
    leaf("PiecewiseEvent", 2),
    leaf("HybridEvent", 1, epsilon=1.5),
    leaf("OneBitMeanEvent"),
    leaf("PrivUnitEvent", 5),
    Example("Shuffled", lambda noise: shuffle.ShuffledEvent(1.0 / noise, 200)),
]

COMBINED = [
    Example(
        "Sampled", lambda noise: Sampled(GaussianEvent(noise), 0.1), lambda rate: Sampled(GaussianEvent(1.0), rate)
    ),
    Example(
        "Sampled-Laplace",
        lambda noise: Sampled(KINDS["LaplaceEvent"](noise), 0.1),
        lambda rate: Sampled(KINDS["LaplaceEvent"](1.0), rate),
    ),
    Example(
        "Sampled-replace",
        lambda noise: Sampled(GaussianEvent(2 * noise), 0.1, "replace"),
        lambda rate: Sampled(GaussianEvent(2.0), rate, "replace"),
    ),
    Example(
        "Sampled-replace-Laplace",
        lambda noise: Sampled(KINDS["LaplaceEvent"](2 * noise), 0.1, "replace"),
        lambda rate: Sampled(KINDS["LaplaceEvent"](2.0), rate, "replace"),
    ),
    Example(
        "Sampled-round",
        lambda noise: Sampled(of_steps(noise, 0.2, 3), 0.1),
        lambda rate: Sampled(of_steps(1.0, 0.2, 3), rate),
        lambda count: Sampled(of_steps(1.0, 0.2, count), 0.1),
    ),
    Example("SampledGroup", lambda noise: SampledGroup(2 * noise, 0.1, 3), lambda rate: SampledGroup(2.0, rate, 3)),
    Example(
        "FixedSize",
        lambda noise: FixedSize(GaussianEvent(noise), 10, 100),
        lambda rate: FixedSize(GaussianEvent(1.0), round(100 * rate), 100),
    ),
    Example(
        "Visible", lambda noise: Visible(GaussianEvent(noise), 0.1), lambda rate: Visible(GaussianEvent(1.0), rate)
    ),
    Example(
        "Visible-round",
        lambda noise: Visible(of_steps(noise, 0.2, 3), 0.1),
        lambda rate: Visible(of_steps(1.0, 0.2, 3), rate),
        lambda count: Visible(of_steps(1.0, 0.2, count), 0.1),
    ),
    Example("Parallel", lambda noise: Parallel((GaussianEvent(2 * noise), Sampled(GaussianEvent(noise), 0.5)))),
    Example("RandomStopping", lambda noise: RandomStopping(Repeated(GaussianEvent(4 * noise), 3), 10.0)),
    Example(
        "RandomStopping-logarithmic",
        lambda noise: RandomStopping(KINDS["LaplaceEvent"](2 * noise), 10.0, "negative-binomial"),
    ),
    Example(
        "Repeated",
        lambda noise: Repeated(KINDS["LaplaceEvent"](2 * noise), 4),
        None,
        lambda count: Repeated(KINDS["LaplaceEvent"](2.0), count),
    ),
    Example(
        "Composed",
        lambda noise: Composed((Pure(0.2 / noise), GaussianEvent(2 * noise), of_steps(noise, 0.1, 3))),
        lambda rate: Composed((Pure(0.2), GaussianEvent(2.0), of_steps(1.0, rate, 3))),
        lambda count: Composed((Pure(0.2), GaussianEvent(2.0), of_steps(1.0, 0.1, count))),
    ),
]

NO_PROMISE = Example("NonPrivate", lambda noise: NonPrivate("an example"))
EXAMPLES = LEAVES + COMBINED
