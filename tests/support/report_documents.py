"""Reports that no run wrote: every kind of block and chart, hostile names, long runs."""

from __future__ import annotations

import math

from sordino.report.chart import Axis, Chart, ChartSeries
from sordino.report.document import (
    DataTable,
    Document,
    FactSheet,
    FigureTile,
    Listing,
    Paragraph,
    PictureFile,
    Section,
    Tiles,
)

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
DOT = (  # one pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def curve(rounds: int = 60) -> Chart:
    """Accuracy by round, with a band, a reference and a limit."""
    points = tuple((float(r), 0.9 - 0.4 * math.exp(-r / 15)) for r in range(1, rounds + 1))
    series = (
        ChartSeries("this run", points, tuple((y - 0.02, y + 0.02) for _, y in points)),
        ChartSeries("without privacy", tuple((x, y + 0.03) for x, y in points), role="reference"),
        ChartSeries("the goal", ((1.0, 0.9), (float(rounds), 0.9)), role="limit"),
    )
    return Chart(
        "accuracy", "lines", "Accuracy by round", Axis("round"), Axis("accuracy", percent=True), series,
        summary="Accuracy rises to 90 %.", source="public/records.jsonl: accuracy",
    )  # fmt: skip


def dots(name: str = "a method") -> Chart:
    names = Axis("method", "category", ("dp-sgd", name, "a method with quite a long name"))
    series = (
        ChartSeries("epsilon 1", ((0.0, 0.8), (1.0, 0.7), (2.0, 0.6)), ((0.7, 0.9), (0.6, 0.8), (0.5, 0.7))),
        ChartSeries("epsilon 4", ((0.0, 0.9), (1.0, 0.8), (2.0, math.nan))),
    )
    return Chart("methods", "dots", "Accuracy by method", names, Axis("accuracy", percent=True), series)


def bars() -> Chart:
    points = tuple((float(r), 2.0 + r % 3) for r in range(1, 9))
    return Chart("bytes", "bars", "Bytes by round", Axis("round"), Axis("MB"), (ChartSeries("up", points),))


def heat(columns: int = 12, rows: int = 6) -> Chart:
    cells = tuple(tuple(math.nan if r == c else float((3 * r + c) % 5) for c in range(columns)) for r in range(rows))
    x = Axis("round", "category", tuple(str(c + 1) for c in range(columns)))
    y = Axis("client", "category", tuple(f"client {r}" for r in range(rows)))
    return Chart("participation", "heat", "Participation", x, y, cells=cells, cell_label="times")


def scored(name: str) -> DataTable:
    return DataTable(
        "Methods", ("method", "epsilon", "accuracy"),
        (("dp-sgd", "2", "90 %"), (name, "infinite", "93 %"), ("udp-fl", "0.5", "80 %")),
        (("dp-sgd", 2.0, 0.9), (name, math.inf, 0.93), ("udp-fl", 0.5, 0.8)),
        note="Sorted by nobody yet.", source="summary.csv", caution=(1,),
    )  # fmt: skip


def everything(name: str = "a name", owner: bool = False, rounds: int = 60) -> Document:
    """A report with every kind of block; `name` stands wherever a name may stand."""
    first = Section(
        "first", "The guarantee",
        (
            Paragraph(f"Epsilon is 2 for {name}.", "lead"),
            Tiles((FigureTile("2", "epsilon, in total", f"against {name}"), FigureTile("0.00001", "delta")), "result"),
            FactSheet((("Whose data", name), ("Relation", "add or remove one record")), "public/result.json"),
            Listing(("Labels are not covered.", name)),
            Paragraph(f"This claim fails: {name}", "warning"),
            Paragraph("To check: `sordino report RUN --verify`.", "quiet"),
        ),
    )  # fmt: skip
    curves = Section("curves", f"Curves of {name}", (curve(rounds), heat(), dots(name), bars(), scored(name)))
    folded = Section("long", "A long list", (scored(name), PictureFile("A picture", DOT, name)), folded=True)
    return Document(name, f"on {name}", "owner" if owner else "public", (first, curves, folded), (f"{name} is cut.",))
