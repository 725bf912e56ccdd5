"""For the owner: the figure of every single client at the end of a run, where an evaluation told them apart."""

from __future__ import annotations

import math

from sordino.report.chart import Axis, Chart, ChartSeries
from sordino.report.document import Block, DataTable
from sordino.report.run.evaluated import interval
from sordino.report.run.fields import RunSources
from sordino.report.run.lines import real
from sordino.report.run.metric_words import metric, value_of
from sordino.report.run.words import number_of

SOURCE = "private/records.jsonl: by_client"
DRAWN, LISTED = 60, 1000  # most clients of a chart, and of a table
BINS = 12


def by_client(run: RunSources) -> tuple[str, dict[int, tuple[float, float]]]:
    """Return the metric by which clients are compared, and by client its value and the number of test records."""
    owner = run.records.owner
    if owner is None or not run.owners:
        return "", {}
    found = next((r.by_client for r in reversed(owner.rounds) if r.by_client), None) or {}
    each, name = found.get("clients"), found.get("metric")
    out = {}
    for client, entry in each.items() if isinstance(each, dict) else ():
        pair = [real(v) for v in entry] if isinstance(entry, list) and len(entry) == 2 else []
        if str(client).isdecimal() and len(str(client)) < 10 and pair and math.isfinite(pair[0]) and pair[1] >= 1:
            out[int(client)] = (pair[0], pair[1])
    return name if isinstance(name, str) else "", dict(sorted(out.items()))


def client_figures(run: RunSources) -> list[Block]:
    """Return the chart and the table of single clients."""
    name, each = by_client(run)
    if len(each) < 2 or not name:
        return []
    kind = metric(name)
    high = kind.better == "high"
    order = sorted(each, key=lambda c: each[c][0], reverse=high)
    best, worst = order[0], order[-1]
    text = (
        f"For the owner alone: among {number_of(len(each), 'client')} the {kind.label} is best for client {best} "
        f"({value_of(kind, each[best][0])}) and worst for client {worst} ({value_of(kind, each[worst][0])})."
    )
    share = kind.share and all(0 <= value <= 1 for value, _ in each.values())
    chart = (
        _single(order, each, kind.label, share, text) if len(each) <= DRAWN else _spread(each, kind.label, share, text)
    )
    rows: list[tuple[str, ...]] = []
    keys: list[tuple[float | str, ...]] = []
    for client in order[::-1][:LISTED]:
        value, records = each[client]
        low, top = interval(round(value * records), records) if share else (math.nan, math.nan)
        sure = f"{100 * low:.1f} to {100 * top:.1f} %" if math.isfinite(low) else "-"
        rows.append((str(client), value_of(kind, value), f"{records:,.0f}", sure))
        keys.append((float(client), value, records, low))
    note = "The worst clients first." + (f" {LISTED:,} of {len(each):,} are listed." if len(each) > LISTED else "")
    head = ("client", kind.label, "test records", "95 % interval")
    table = DataTable("Figures of clients", head, tuple(rows), tuple(keys), note=note, source=SOURCE)
    return [chart, table]


def _single(order: list[int], each: dict[int, tuple[float, float]], label: str, share: bool, text: str) -> Chart:
    axis = Axis("client, from the best to the worst", "category", tuple(str(c) for c in order))
    dots = tuple((float(k), each[c][0]) for k, c in enumerate(order))
    band = tuple(interval(round(each[c][0] * each[c][1]), each[c][1]) for c in order) if share else ()
    name = f"{label}, with its 95 % interval" if share else label
    return Chart(
        "gaps-clients", "dots", f"{label.capitalize()} of every client", axis, Axis(label, percent=share),
        (ChartSeries(name, dots, band=band),), summary=text, source=SOURCE,
    )  # fmt: skip


def _spread(each: dict[int, tuple[float, float]], label: str, share: bool, text: str) -> Chart:
    """Return how many clients have which figure."""
    values = [value for value, _ in each.values()]
    low, high = min(values), max(values)
    width = (high - low) / BINS or 1.0
    counts = [0] * BINS
    for value in values:
        counts[min(BINS - 1, int((value - low) / width))] += 1
    scale, unit = (100, " %") if share else (1, "")
    names = tuple(
        f"{scale * (low + k * width):.3g} to {scale * (low + (k + 1) * width):.3g}{unit}" for k in range(BINS)
    )
    bars = ChartSeries("clients", tuple((float(k), float(n)) for k, n in enumerate(counts)))
    return Chart(
        "gaps-clients", "bars", f"How many clients have which {label}", Axis(label, "category", names),
        Axis("clients", low=0.0), (bars,), summary=text, source=SOURCE,
    )  # fmt: skip
