"""Figures of attacks in words: numbers with intervals, viewers, and one plain sentence for each attack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sordino.audits.roc import RocBound
from sordino.core.rounding import up
from sordino.privacy.guarantee import Guarantee, power

SHARE, NUMBER, DECIBEL = "share", "number", "dB"
AUC, BALANCED, EPSILON = "AUC", "balanced accuracy", "epsilon at least"
SSIM, IDENTIFIED, RECOGNISED, LABELS = "SSIM", "records identified", "classes recognised", "labels read"
RIGHT, RIGHT_OTHERS, SHARE_ERROR = "right answers", "right answers, others", "error of shares"
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
VIEWERS = {
    "public": "an outsider",
    "client": "a curious participant",
    "wire": "an eavesdropper on one link",
    "server": "the server",
}


@dataclass(frozen=True)
class AttackFigure:
    """One figure of an attack, with an interval of 95 % confidence where there is one."""

    metric: str
    value: float
    low: float | None = None
    high: float | None = None
    chance: float | None = None  # what guessing gives
    unit: str = SHARE

    def text(self) -> str:
        """Return the figure with its interval, as in a table."""
        shown = amount(self.value, self.unit)
        if self.low is None or self.high is None:
            return shown
        low, high = (amount(v, self.unit).removesuffix(" %") for v in (self.low, self.high))
        return f"{shown} ({low} to {high})"

    def to_json(self) -> dict[str, Any]:
        """Return the fields; a figure that is not finite becomes None."""
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}


def amount(value: float, unit: str) -> str:
    """Return a number with its unit: a share in per cent, a level in dB, or a plain number."""
    if not math.isfinite(value):
        return "not finite"
    if unit == SHARE:
        return f"{100 * value:.1f} %"
    return f"{value:.1f} dB" if unit == DECIBEL else f"{value:.3g}"


def rate_name(rate: float) -> str:
    """Return the name of the share of members that are found at a share of false alarms."""
    return f"TPR at {100 * rate:g} % FPR"


def who(viewer: str) -> str:
    """Return a viewer in words."""
    kind, _, colluders = viewer.partition(":")[0].partition("+")
    text = VIEWERS.get(kind, f"the {kind}")
    if not colluders:
        return text
    number = int(colluders)
    many = NUMBERS[number] if number < len(NUMBERS) else str(number)
    return f"{text} with {many} colluding client{'s' if number > 1 else ''}"


def first_capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def found(viewer: str, figures: Sequence[AttackFigure], twin: Sequence[AttackFigure], rate: float = 0.01) -> str:
    """Return what a membership attack finds, as a sentence."""
    at = _named(figures, rate_name(rate))
    if at is None:
        at = next(f for f in figures if f.metric == BALANCED)
        plain = _named(twin, BALANCED)
        return (
            f"{first_capital(who(viewer))} tells members from other records in {_interval(at)} of cases; "
            f"guessing: {amount(0.5, SHARE)}" + ("." if plain is None else f"; without privacy: {_interval(plain)}.")
        )
    plain = _named(twin, at.metric)
    beside = "" if plain is None else f"; without privacy: {_interval(plain)}"
    return (
        f"At {100 * rate:g} % false alarms {who(viewer)} finds {_interval(at, 'of members')}; "
        f"guessing finds {amount(rate, SHARE)}{beside}."
    )


RECONSTRUCTED = {  # metrics of reconstructions that a sentence names
    IDENTIFIED: "reconstructs {} of records so well that they can be identified",
    RECOGNISED: "shows what members of a class look like so well that {} of classes are recognised",
    LABELS: "reads {} of labels",
    SSIM: "reaches a structural similarity of {}",
}


def reconstructed(viewer: str, figures: Sequence[AttackFigure], twin: Sequence[AttackFigure]) -> str:
    """Return what a reconstruction attack recovers, as a sentence."""
    parts = []
    for metric, text in RECONSTRUCTED.items():
        if (at := _named(figures, metric)) is not None:
            parts.append(text.format(amount(at.value, at.unit)) + _beside(at, _named(twin, metric)))
    return f"{first_capital(who(viewer))} {', and '.join(parts)}."


def inferred(viewer: str, what: str, figures: Sequence[AttackFigure], twin: Sequence[AttackFigure]) -> str:
    """Return how often an inference attack answers rightly, as a sentence."""
    at = _named(figures, RIGHT) or figures[0]
    others = _named(figures, RIGHT_OTHERS)
    text = f"{first_capital(who(viewer))} guesses {what} rightly in {_interval(at)} of cases"
    text += _beside(at, _named(twin, at.metric), "without the run")
    return text + ("." if others is None else f", and that of people who took no part in {_interval(others)}.")


def _beside(at: AttackFigure, plain: AttackFigure | None, guess: str = "guessing") -> str:
    parts = [] if at.chance is None else [f"{guess}: {amount(at.chance, at.unit)}"]
    parts += [] if plain is None else [f"without privacy: {amount(plain.value, plain.unit)}"]
    return f" ({'; '.join(parts)})" if parts else ""


def _named(figures: Sequence[AttackFigure], metric: str) -> AttackFigure | None:
    return next((f for f in figures if f.metric == metric), None)


def _interval(figure: AttackFigure, of: str = "") -> str:
    text = amount(figure.value, figure.unit) + (f" {of}" if of else "")
    if figure.low is None or figure.high is None:
        return text
    return f"{text} ({amount(figure.low, figure.unit).removesuffix(' %')} to {amount(figure.high, figure.unit)})"


def most_allowed(promise: Guarantee, epsilon: float, delta: float, rate: float) -> str:
    """Return the largest share of members that a guarantee lets anyone find, as a sentence."""
    one = "" if promise.epsilon == epsilon else f", so {up(epsilon)} for a single record"
    head = f"The guarantee of this run (epsilon = {up(promise.epsilon)} per {promise.unit}{one}, delta = {delta:.3g})"
    ceiling = math.ceil(1000 * power(replace(promise, epsilon=epsilon, delta=delta), rate) - 1e-9) / 10
    against = f"At {100 * rate:g} % false alarms, {head[0].lower()}{head[1:]}"
    if ceiling >= 100:
        return f"{against} does not exclude that {who(promise.viewer)} finds all members."
    return f"{against} lets {who(promise.viewer)} find at most {ceiling:.1f} % of members."


def violated(attack: str, viewer: str, bound: RocBound, epsilon: float) -> str:
    """Return the warning that an attack finds more than the guarantee allows."""
    return (
        f"WARNING: the guarantee does not hold. By {attack}, {who(viewer)} finds {amount(bound.tpr, SHARE)} of members "
        f"at {amount(bound.fpr, SHARE)} false alarms, where epsilon = {up(epsilon)} allows at most "
        f"{amount(bound.limit, SHARE)}: more than chance explains, with {100 * bound.confidence:g} % confidence. The "
        "noise, the sampling or the accounting of this run is wrong, or its records were used elsewhere too."
    )
