"""For whom the model works worse: accuracy by class and by client."""

from __future__ import annotations

import math

from sordino.report.chart import Axis, Chart, ChartSeries
from sordino.report.document import Block, DataTable, FigureTile, Paragraph, Section, Tiles
from sordino.report.run.client_figures import client_figures
from sordino.report.run.evaluated import confusion, figures_in, final, interval, kind_of
from sordino.report.run.fields import RunSources
from sordino.report.run.metric_words import value_of
from sordino.report.run.words import capital, percent

CLASSES = 100  # most classes that are drawn
FEW = 30  # records below which an accuracy is mostly chance
CLIENTS = ("worst_client", "client_gap", "client_std")


def section(run: RunSources) -> Section | None:
    """Return the accuracy of every class, and how far clients lie apart."""
    blocks: list[Block] = [*_classes(run), *_clients(run), *client_figures(run)]
    if not blocks:
        return None
    return Section("gaps", "For whom does the model work worse?", tuple(blocks))


def class_names(run: RunSources, count: int) -> tuple[str, ...]:
    """Return the names of the classes, or their numbers if the records do not name all of them."""
    names = run.inputs.texts("class_names")
    if len(names) != count:
        return tuple(str(k) for k in range(count))
    short = tuple(name[:60] for name in names)
    return short if len(set(short)) == count else tuple(f"{k}: {name}" for k, name in enumerate(short))


def _classes(run: RunSources) -> list[Block]:
    matrix, source = confusion(run)
    if len(matrix) < 2:
        return []
    names = class_names(run, len(matrix))
    totals, right = [math.fsum(row) for row in matrix], [row[k] for k, row in enumerate(matrix)]
    rates = {k: right[k] / totals[k] for k in range(len(matrix)) if totals[k] > 0}
    if not rates:
        return []
    noisy = "charged" in final(run).where
    best, worst = max(rates, key=lambda k: rates[k]), min(rates, key=lambda k: rates[k])
    lead = (
        f"The model is best at class {names[best]} ({percent(rates[best])} right) and worst at class {names[worst]} "
        f"({percent(rates[worst])})."
    )
    reference = figures_in(run.baseline).get("worst_class")
    if reference is not None and 0 <= reference <= 1:
        lead += f" Without privacy the worst class has {percent(reference)}."
    blocks: list[Block] = [Paragraph(lead)]
    few = [k for k, total in enumerate(totals) if 0 < total < FEW]
    if noisy:
        blocks.append(
            Paragraph("The counts have noise, which is charged: of rare classes it can hide everything.", "quiet")
        )
    elif few:
        some = "One class has" if len(few) == 1 else f"{len(few)} classes have"
        blocks.append(
            Paragraph(f"{some} fewer than {FEW} test records: with so few, a difference may be chance alone.", "quiet")
        )
    shown = sorted(rates)[:CLASSES]
    axis = Axis("class", "category", tuple(names[k] for k in shown))
    bounds = [(math.nan, math.nan) if noisy else interval(right[k], totals[k]) for k in shown]
    dots = ChartSeries(
        "accuracy" if noisy else "accuracy, with its 95 % interval",
        tuple((float(place), rates[k]) for place, k in enumerate(shown)),
        band=() if noisy else tuple(bounds),
    )
    blocks.append(
        Chart(
            "gaps-classes", "dots", "Accuracy by class", axis, Axis("share of records that are right", percent=True),
            (dots,), summary=_range(rates), source=source,
        )
    )  # fmt: skip
    blocks.append(_class_table(names, totals, right, noisy, source))
    if len(matrix) <= CLASSES:
        blocks.append(_mistakes(matrix, names, totals, source))
    return blocks


def _range(rates: dict[int, float]) -> str:
    """Return how far the accuracies of classes spread."""
    values = sorted(rates.values())
    middle = values[len(values) // 2]
    return f"Classes lie between {percent(values[0])} and {percent(values[-1])}, the middle one at {percent(middle)}."


def _class_table(
    names: tuple[str, ...], totals: list[float], right: list[float], noisy: bool, source: str
) -> DataTable:
    rows: list[tuple[str, ...]] = []
    keys: list[tuple[float | str, ...]] = []
    for name, total, good in zip(names, totals, right, strict=True):
        rate = good / total if total > 0 else math.nan
        low, high = (math.nan, math.nan) if noisy or not total > 0 else interval(good, total)
        sure = f"{percent(low)} to {percent(high)}" if math.isfinite(low) else "-"
        rows.append((name, f"{total:,.10g}", f"{good:,.10g}", percent(rate) if total > 0 else "-", sure))
        keys.append((name, total, good, rate, low))
    head = ("class", "records", "right", "accuracy", "95 % interval")
    return DataTable("Accuracy by class", head, tuple(rows[:1000]), tuple(keys[:1000]), source=source)


def _mistakes(matrix: tuple[tuple[float, ...], ...], names: tuple[str, ...], totals: list[float], source: str) -> Chart:
    """Return the mistakes as shares of every class; the diagonal is blank, since it would outshine them."""
    cells = tuple(
        tuple(v / total if total > 0 and a != b else math.nan for b, v in enumerate(row))
        for a, (row, total) in enumerate(zip(matrix, totals, strict=True))
    )
    wrong = [(cells[a][b], a, b) for a in range(len(names)) for b in range(len(names)) if a != b and totals[a] > 0]
    share, a, b = max(wrong, default=(0.0, 0, 0))
    summary = (
        f"The most frequent mistake: {percent(share)} of class {names[a]} are taken for {names[b]}."
        if share > 0
        else "No record was taken for another class."
    )
    return Chart(
        "gaps-confusion", "heat", "Which classes the model confuses", Axis("predicted class", "category", names),
        Axis("true class", "category", names), cells=cells, cell_label="share of the true class",
        cell_percent=True,
        summary=summary,
        source=source,
    )  # fmt: skip


def _clients(run: RunSources) -> list[Block]:
    """Return the figures that compare clients."""
    kind, values = kind_of(run), final(run).values
    reference = figures_in(run.baseline)
    names = [name for name in CLIENTS if name in values]
    if not names:
        return []
    tiles = tuple(
        FigureTile(
            value_of(kind(n), values[n]),
            capital(kind(n).label),
            f"without privacy {value_of(kind(n), reference[n])}" if n in reference else kind(n).meaning,
        )
        for n in names
    )
    text = "Between clients, on the test records of each: a client with few of them has a figure that is mostly chance."
    return [Paragraph(text), Tiles(tiles, final(run).source)]
