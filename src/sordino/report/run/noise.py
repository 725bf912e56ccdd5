"""How much noise was added, and, for the owner, how much signal it met and how much was clipped away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sordino.core.record import OwnerRecord
from sordino.report.chart import Axis, Chart, ChartSeries, Point
from sordino.report.document import Block, FactSheet, Paragraph, Section
from sordino.report.run.client_budgets import kinds
from sordino.report.run.fields import WHOLE, RunSources, one_line
from sordino.report.run.lines import ROUNDS, constant, curve, finite, mean, real, series, stretches, trend
from sordino.report.run.words import figures, percent

RECORDS, OWNERS = "public/records.jsonl", "private/records.jsonl: measured"
LINES = 8  # most layers or outlets that have a line of their own
LAYERS = 100  # most layers that are shown at all
DEVIATION = "standard deviation per coordinate"


def section(run: RunSources) -> Section | None:
    """Return noise and clip bounds by round; for the owner also noise-to-signal ratios and clipping fractions."""
    blocks: list[Block] = [*_planned(run), *_measured(run)]
    return Section("noise", "How much noise was added?", tuple(blocks)) if blocks else None


# --- what is public


def _planned(run: RunSources) -> list[Block]:
    rounds = run.records.rounds
    noise, clip = curve(rounds, lambda r: r.noise), curve(rounds, lambda r: r.clip)
    facts = _facts(run, noise, clip)
    blocks: list[Block] = []
    if facts:
        sources = "public/plan.json: noise_multiplier; public/records.jsonl: noise, clip; public/spec.toml: clip"
        blocks += [Paragraph(_lead(noise, clip, multipliers(run))), FactSheet(tuple(facts), sources)]
    for name, label, points in (("noise", DEVIATION, noise), ("clip", "clip bound", clip)):
        if len(finite(points)) > 1 and not constant(points):
            title = "Planned noise in one client's message" if name == "noise" else "Adaptive clip bound"
            said = "The planned noise" if name == "noise" else "The clip bound"
            blocks.append(
                Chart(
                    f"noise-{name}-rounds", "lines", f"{title}, by round", ROUNDS, Axis(label, low=0.0),
                    (series(name, points),), summary=trend(said, points), source=f"{RECORDS}: {name}",
                )
            )  # fmt: skip
    return blocks


def multipliers(run: RunSources) -> list[float]:
    """Return the noise multipliers of clients with budgets of their own, the smallest first."""
    return sorted({k.multiplier for k in kinds(run) if k.multiplier and k.clients})


def _lead(noise: Sequence[Point], clip: Sequence[Point], own: Sequence[float]) -> str:
    known = finite(noise)
    if not known:
        return "The noise of a round is known only after it, or there is none: nothing about it is public."
    whose = "the message of a client with the largest budget" if len(own) > 1 else "one client's message"
    text = trend(f"The noise in {whose} (standard deviation of a coordinate)", noise)
    if len(own) > 1:
        text += f" Clients with smaller budgets add more, up to {figures(own[-1] / own[0])} times as much."
    if len(finite(clip)) > 1 and not constant(clip):
        text += " The clip bound follows what was released before, and the noise follows the clip bound."
    return text


def _facts(run: RunSources, noise: Sequence[Point], clip: Sequence[Point]) -> list[tuple[str, str]]:
    out = []
    own, meaning = multipliers(run), "noise scale over what one unit can change"
    if len(own) > 1:
        text = f"{figures(own[0], 4)} to {figures(own[-1], 4)}, by the budget of the client ({meaning})"
        out.append(("noise multiplier", text))
    elif (z := run.plan.number("noise_multiplier", 0.0)) is not None:
        out.append(("noise multiplier", f"{figures(z, 4)} ({meaning})"))
    if (bound := run.spec.number("clip", 0.0)) is not None and not finite(clip):
        out.append(("clip bound", figures(bound, 4)))
    for name, points in ((DEVIATION, noise), ("clip bound of the rounds", clip)):
        values = [y for _, y in finite(points)]
        if values:
            low, high = figures(min(values), 4), figures(max(values), 4)
            out.append((name, low if low == high else f"{low} to {high}"))
    return out


# --- what only the owner may see


def _measured(run: RunSources) -> list[Block]:
    owner = run.records.owner
    if owner is None or not run.owners:
        return []
    rounds = [r for r in owner.rounds if r.measured]
    blocks: list[Block] = [*_injected(run, owner.rounds)]
    ratios = {name: points for name, points in _by_layer(rounds).items() if finite(points)}
    if ratios:
        blocks += [Paragraph(_ratio_lead(ratios)), *_ratio_charts(ratios)]
    for key, title, label, share in (
        ("clipped", "Share of contributions that the clip shortened", "share", True),
        ("norm", "Mean norm before the clip", "norm over the clip bound", False),
    ):
        curves = _by_outlet(rounds, key)
        if curves:
            blocks.append(_outlets(key, title, label, share, curves))
    return blocks


def _injected(run: RunSources, rounds: Sequence[OwnerRecord]) -> list[Block]:
    """Return the noise that was added where it is not planned."""
    if any(r.noise is not None for r in run.records.rounds):
        return []
    points = curve(rounds, lambda r: r.noise)
    if not finite(points) or not any(y for _, y in finite(points)):
        return []
    summary = trend("The noise as it was added, on average over the clients of a round,", points)
    return [
        Paragraph("The noise follows the data, so only the owner may see it.", "quiet"),
        Chart(
            "noise-injected", "lines", "Noise as it was added, by round", ROUNDS, Axis(DEVIATION, low=0.0),
            (series("noise, mean over clients", points),), summary=summary, source="private/records.jsonl: noise",
        ),
    ]  # fmt: skip


def _part(record: OwnerRecord, key: str) -> dict[str, Any]:
    value = (record.measured or {}).get(key)
    return value if isinstance(value, dict) else {}


def ratio(noise: Any, signal: Any) -> float:
    """Return noise over signal; nan where one is not known or there is no signal."""
    over, under = real(noise), real(signal)
    value = over / under if under > 0 and over >= 0 else math.nan
    return value if math.isfinite(value) and value > 0 else math.nan


def _by_layer(rounds: Sequence[OwnerRecord]) -> dict[str, tuple[Point, ...]]:
    """Return noise over signal by round for every layer."""
    names = _names(rounds, "noise")
    return {
        name: tuple(
            (float(r.round), ratio(_part(r, "noise").get(name), _part(r, "signal").get(name)))
            for r in rounds
            if r.round <= WHOLE
        )
        for name in names
    }


def _names(rounds: Sequence[OwnerRecord], key: str) -> list[str]:
    some = rounds[:: max(1, len(rounds) // 50)]
    return list(dict.fromkeys(str(name) for r in some for name in _part(r, key)))[:LAYERS]


def shown_name(name: str) -> str:
    """Return the name of a layer or an outlet, as a legend can show it."""
    return one_line(f"layer {name}" if name.replace(".", "").isdecimal() else name)[:60]


def _ratio_lead(ratios: dict[str, tuple[Point, ...]]) -> str:
    everything = [p for points in ratios.values() for p in finite(points)]
    loud = sum(y > 1 for _, y in everything) / len(everything)
    return (
        "For the owner alone: how large the noise is beside the sum of all clipped contributions, as norms, by layer "
        f"and round. Above 1 the noise is larger than the signal, as in {percent(loud, 0)} of the values here. These "
        "figures were measured, not released; do not pass them on."
    )


def _ratio_charts(ratios: dict[str, tuple[Point, ...]]) -> list[Chart]:
    shown = dict(list(ratios.items())[:LINES])
    summary = " ".join(trend(f"Noise over signal in {shown_name(n)}", points) for n, points in shown.items())
    lines = [series(shown_name(n), points) for n, points in shown.items()]
    last = max(points[-1][0] for points in shown.values())
    first = min(points[0][0] for points in shown.values())
    lines.append(ChartSeries("as large as the signal", ((first, 1.0), (last, 1.0)), role="limit"))
    out = [
        Chart(
            "noise-ratio", "lines", "Noise over signal, by round", ROUNDS, Axis("noise / signal", "log"), tuple(lines),
            summary=summary, source=f"{OWNERS}.noise / measured.signal",
        )
    ]  # fmt: skip
    if len(ratios) > 1:
        out.append(_ratio_map(ratios))
    return out


def _ratio_map(ratios: dict[str, tuple[Point, ...]]) -> Chart:
    """Return the heat map of noise over signal by layer and round, in powers of ten."""
    rounds = [x for x, _ in next(iter(ratios.values()))]
    parts = stretches(len(rounds))
    logs = {n: [math.log10(y) if y > 0 else math.nan for _, y in points] for n, points in ratios.items()}
    cells = tuple(tuple(mean(values[a:b]) for a, b in parts) for values in logs.values())
    known = {n: mean(values) for n, values in logs.items()}
    most, least = (pick((n for n in known if math.isfinite(known[n])), key=lambda n: known[n]) for pick in (max, min))
    summary = (
        f"On average over rounds, noise is largest beside the signal in {shown_name(most)} (about "
        f"{figures(10 ** known[most], 2)} times) and smallest in {shown_name(least)} (about "
        f"{figures(10 ** known[least], 2)} times)."
    )
    across = Axis("round", "category", tuple(f"{rounds[a]:.0f}" for a, _ in parts))
    return Chart(
        "noise-layers", "heat", "Noise over signal, by layer and round", across,
        Axis("layer", "category", tuple(shown_name(n) for n in ratios)), cells=cells,
        cell_label="power of ten of noise / signal", summary=summary, source=f"{OWNERS}.noise / measured.signal",
    )  # fmt: skip


def _by_outlet(rounds: Sequence[OwnerRecord], key: str) -> dict[str, tuple[Point, ...]]:
    curves = {
        name: tuple((float(r.round), real(v)) for r in rounds if (v := _part(r, key).get(name)) is not None)
        for name in _names(rounds, key)
    }
    return {name: points for name, points in list(curves.items())[:LINES] if finite(points)}


def _outlets(key: str, title: str, label: str, share: bool, curves: dict[str, tuple[Point, ...]]) -> Chart:
    percents = share and all(0 <= y <= 1 for points in curves.values() for _, y in finite(points))
    said = "The share of shortened contributions" if key == "clipped" else "The mean norm before the clip"
    lines = [series(shown_name(n), points) for n, points in curves.items()]
    if key == "norm":
        first, last = (pick(p[0] for points in curves.values() for p in points) for pick in (min, max))
        lines.append(ChartSeries("the clip bound", ((first, 1.0), (last, 1.0)), role="limit"))
    summary = " ".join(trend(f"{said} at {shown_name(n)}", points, percents) for n, points in curves.items())
    return Chart(
        f"noise-{key}", "lines", f"{title}, by outlet and round", ROUNDS, Axis(label, low=0.0, percent=percents),
        tuple(lines), summary=summary, source=f"{OWNERS}.{key}",
    )  # fmt: skip
