"""The calculator: what noise, sampling and steps cost, computed by the accountants that price runs.

All numbers are limited to ranges in which every accountant answers within seconds, and answers are kept. A curve has as
many points as can be computed in SECONDS; the commands that are shown give the same numbers to the last digit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from sordino.core.errors import BudgetError, SpecError, UnsupportedEvent
from sordino.core.rounding import up
from sordino.privacy import calibrate, tightest
from sordino.privacy.accountants import pld, rdp
from sordino.privacy.algebra import replaced
from sordino.privacy.events import Event, GaussianEvent, Repeated, Sampled
from sordino.report.chart import Axis, Chart, ChartSeries, Point
from sordino.report.document import Block, DataTable, Document, FactSheet, FigureTile, Paragraph, Section, Tiles
from sordino.report.run.words import figures

RANGES: Mapping[str, tuple[float, float]] = {
    "noise": (0.2, 200.0), "rate": (1e-6, 1.0), "steps": (1, 1_000_000), "delta": (1e-12, 0.01),
    "epsilon": (0.01, 100.0), "clients": (1, 1_000_000), "records": (1, 1_000_000), "parameters": (10, 1_000_000_000),
    "rounds": (1, 10_000), "client_rate": (1e-4, 1.0), "batch_rate": (1e-4, 1.0),
}  # fmt: skip
COUNTS = ("steps", "clients", "records", "parameters", "rounds")
RELATIONS = ("add/remove", "replace")
POINTS = 14  # of a curve
SECONDS = 1.0  # in which the points of a curve are computed
FIGURES = 6  # significant figures of a noise multiplier that is looked for, as in `sordino calibrate`
NAMES = {
    "basic": "sum of all releases", "advanced": "advanced composition", "kov": "optimal composition", "zcdp": "zCDP",
    "rdp": "Renyi DP", "gdp": "Gaussian DP", "pld": "privacy loss distributions", "gdp-clt": "central limit",
}  # fmt: skip


def asked(values: Mapping[str, str], *names: str) -> tuple[float, ...]:
    """Return numbers that a page sent.

    Raises:
        SpecError: if one is missing, no number, or outside its range.
    """
    out = []
    for name in names:
        shown, (low, high) = name.replace("_", " "), RANGES[name]
        try:
            value = float(values[name])
        except KeyError as error:
            raise SpecError(f"give a value for {shown}.") from error
        except ValueError as error:
            raise SpecError(f"{shown} must be a number, not {values[name][:40]!r}.") from error
        if not low <= value <= high:
            raise SpecError(f"{shown} must lie between {low:g} and {high:,.10g} here, not {value:g}.")
        if name in COUNTS and value != int(value):
            raise SpecError(f"{shown} must be a whole number, not {value:g}.")
        out.append(value)
    return tuple(out)


def check_drawn(numbers: Mapping[str, float]) -> None:
    """Raise SpecError if so few records of a federation are drawn that the planner would take minutes."""
    drawn, least = numbers["client_rate"] * numbers["batch_rate"], RANGES["rate"][0]
    if drawn < least * (1 - 1e-9):
        raise SpecError(f"client rate times batch rate must be at least {least:g} here, not {drawn:g}.")


def relation_of(values: Mapping[str, str]) -> str:
    """Return the neighbouring relation that a page sent."""
    relation = values.get("relation", RELATIONS[0])
    if relation not in RELATIONS:
        raise SpecError("relation must be add/remove or replace.")
    return relation


def event(noise: float, rate: float, steps: int, relation: str) -> Event:
    """Return the event of sampled Gaussian noise in every step."""
    leaf: Event = GaussianEvent(noise)
    if rate < 1:
        leaf = Sampled(leaf, rate, relation)
    elif relation == "replace":
        leaf = replaced(leaf)
    return leaf if steps == 1 else Repeated(leaf, steps)


@lru_cache(maxsize=512)
def epsilon(noise: float, rate: float, steps: int, delta: float, relation: str) -> Document:
    """Return the total epsilon of such steps, by every accountant."""
    bounds = tightest.explain(event(noise, rate, steps, relation), delta)
    valid = {b.accountant: b.epsilon for b in bounds if b.valid and b.epsilon is not None}
    best = min(valid, key=lambda name: valid[name])
    total = valid[best]
    command = (
        f"sordino epsilon --mechanism gaussian --noise {_exact(noise)}{_flags(rate, steps, delta, relation)} --explain"
    )
    tiles = Tiles((FigureTile(_small(total), "epsilon, in total", f"at delta {delta:g}, by {NAMES.get(best, best)}"),))
    rows = tuple((NAMES.get(b.accountant, b.accountant), _bound(b), b.note) for b in bounds)
    keys = tuple((NAMES.get(b.accountant, b.accountant), _key(b.epsilon), b.note) for b in bounds)
    table = DataTable("By accountant", ("accountant", "epsilon", "what it does"), rows, keys)
    return Document(
        "Epsilon", "", "public", (Section("answer", "Answer", (tiles, _told(rate, relation), table, _repeat(command))),)
    )


@lru_cache(maxsize=512)
def curves(noise: float, rate: float, steps: int, delta: float, relation: str) -> Document:
    """Return how epsilon grows with the steps, and falls with the noise."""
    low, high = RANGES["noise"]
    some = sorted({round(n) for n in np.geomspace(1, steps, POINTS)})
    noises = np.geomspace(max(low, noise / 4), min(high, noise * 4), POINTS)

    def over_steps(module: Any) -> tuple[Point, ...]:
        return _curve(some, lambda n: module.epsilon(event(noise, rate, int(n), relation), delta, *_rough(module)))

    by_steps = [ChartSeries("smallest bound", over_steps(tightest))]
    if steps > 1:
        by_steps.append(ChartSeries("Renyi DP", over_steps(rdp), role="reference"))
    by_noise = _curve(noises, lambda z: tightest.epsilon(event(float(z), rate, steps, relation), delta, pld.ROUGH))
    here = tightest.epsilon(event(noise, rate, steps, relation), delta, pld.ROUGH)
    charts: list[Block] = []
    if steps > 1:
        charts.append(Chart(
            "epsilon-by-steps", "lines", "Epsilon after so many steps",
            Axis("steps", "log" if steps > 100 else "linear"), Axis("epsilon", low=0.0), tuple(by_steps),
            summary=f"With noise multiplier {noise:g} and rate {rate:g}.",
        ))  # fmt: skip
    charts.append(Chart(
        "epsilon-by-noise", "lines", "Epsilon by noise", Axis("noise multiplier", "log"), Axis("epsilon", "log"),
        (ChartSeries("epsilon", by_noise), ChartSeries("chosen", ((noise, here),), role="limit")),
        summary=f"After {steps:,} steps at rate {rate:g}.",
    ))  # fmt: skip
    return Document("Curves", "", "public", (Section("curves", "Curves", tuple(charts)),))


@lru_cache(maxsize=512)
def noise_for(target: float, rate: float, steps: int, delta: float, relation: str) -> Document:
    """Return the smallest noise multiplier whose total epsilon is within a target."""
    with np.errstate(all="ignore"):
        try:
            found = calibrate.noise_multiplier(lambda z: event(_rounded(z), rate, steps, relation), target, delta)
        except UnsupportedEvent as error:
            raise BudgetError(f"no accountant can compute this: {error}") from error
        noise = _rounded(found)
        total = tightest.epsilon(event(noise, rate, steps, relation), delta)
    if total > target:
        raise BudgetError(f"nothing safe was found for epsilon={target:g}: the best was {_small(total)}.")
    meaning = "standard deviation of the noise over the clip bound, rounded up"
    tiles = Tiles((
        FigureTile(_exact(noise), "noise multiplier", meaning),
        FigureTile(_small(total), "epsilon, in total", f"of {target:g} allowed, at delta {delta:g}"),
    ))  # fmt: skip
    command = f"sordino calibrate --epsilon {_exact(target)} --mechanism gaussian{_flags(rate, steps, delta, relation)}"
    return Document(
        "Noise",
        "",
        "public",
        (Section("answer", "Answer", (tiles, _told(rate, relation), _repeat(command))),),
        facts={"noise": noise},
    )


def plan(answer: Mapping[str, Any]) -> Document:
    """Return what the planner answers (the object of `sordino plan --json`) as a document."""
    rows, keys = [], []
    for s in answer["settings"]:
        kept = s["accuracy_kept"]
        band = "not measured" if kept is None else f"{100 * kept[0]:.0f} to {100 * kept[1]:.0f} %"
        noise = s["noise_multiplier"]
        method = s["methods"][0] if s["methods"] else "price only"
        words = (f"a {s['unit']}", s["viewer"], s["noise_by"], method, s["verdict"])
        if s["feasible"]:
            rows.append((*words, figures(noise), f"{s['rounds']:,}", figures(s["nsr_run"]), band))
            keys.append((*words, noise, s["rounds"], s["nsr_run"], "" if kept is None else kept[0]))
        else:
            rows.append((*words, "", "", "", ""))
            keys.append((*words, "", "", "", ""))
    header = (
        "protects", "from", "noise by", "method", "verdict", "noise multiplier", "rounds", "noise to signal",
        "accuracy kept",
    )  # fmt: skip
    table = DataTable("Settings", header, tuple(rows), tuple(keys))
    verdicts = [Paragraph(text) for text in answer["verdicts"]]
    notes = [Paragraph(text, "quiet") for text in answer["notes"]]
    return Document("Plan", "", "public", (Section("answer", "Answer", (table, *verdicts, *notes)),))


def _curve(xs: Sequence[float] | np.ndarray[Any, Any], cost: Callable[[float], float]) -> tuple[Point, ...]:
    """Return points of a curve: its ends, then every fourth, every second and all, as far as there is time."""
    out: list[Point] = []
    end = time.monotonic() + SECONDS
    for k in sorted(range(len(xs)), key=lambda k: (k not in (0, len(xs) - 1), k % 4 != 0, k % 2, k)):
        if len(out) >= 2 and time.monotonic() > end:
            break
        x = float(xs[k])
        try:
            with np.errstate(all="ignore"):
                out.append((x, cost(x)))
        except (UnsupportedEvent, ArithmeticError, ValueError):
            out.append((x, math.nan))
    return tuple(sorted(out, key=lambda point: point[0]))


def _rough(module: Any) -> tuple[float, ...]:
    return (pld.ROUGH,) if module is tightest else ()


def _rounded(noise: float) -> float:
    """Return a noise multiplier with FIGURES significant figures, rounded up, as `sordino calibrate` rounds it."""
    if not 0 < noise < math.inf:
        return noise
    places = FIGURES - 1 - math.floor(math.log10(noise))
    return math.ceil(noise * 10.0**places) / 10.0**places


def _exact(value: float) -> str:
    """Return a number such that a command which is given it computes with the same one."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _flags(rate: float, steps: int, delta: float, relation: str) -> str:
    sampled = f" --rate {_exact(rate)}" if rate < 1 else ""
    return f"{sampled} --steps {steps} --delta {_exact(delta)}{' --relation replace' if relation == 'replace' else ''}"


def _small(epsilon: float) -> str:
    """Return an epsilon, rounded up, with at least four figures also where it is small."""
    return up(epsilon, 3 if not 0 < epsilon < 1 else min(15, 3 - math.floor(math.log10(epsilon))))


def _bound(bound: tightest.AccountantBound) -> str:
    if bound.epsilon is None:
        return ""
    return _small(bound.epsilon) if bound.valid else f"~ {bound.epsilon:.3g}"


def _key(value: float | None) -> float | str:
    return "" if value is None or not math.isfinite(value) else value


def _told(rate: float, relation: str) -> Paragraph:
    moved = "twice the clip bound" if relation == "replace" else "one clip bound"
    how = "replaced" if relation == "replace" else "added or removed"
    text = f"A unit that is {how} moves the sum by at most {moved}."
    drawn = "draws its units independently and in secret (Poisson sampling)" if rate < 1 else "uses all units"
    return Paragraph(f"{text} Every step {drawn}.", "quiet")


def _repeat(command: str) -> FactSheet:
    return FactSheet((("The same in a terminal", command),))
