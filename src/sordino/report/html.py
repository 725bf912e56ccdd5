"""A comparison as HTML for a notebook: a small figure of what was reached, then the tables of the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from sordino.core import html, svg
from sordino.report import tables
from sordino.report.summary import Line, compared_by

DRAWN = 24  # rows of the figure; the tables have all of them
KINDS = {"printed": " claimed", "reference": ", no privacy", "open": ", no guarantee"}


def of_comparison(name: str, results: Sequence[Line], about: str) -> str:
    """Return a comparison as a card.

    Args:
        name: the name of the comparison.
        results: one line per method and epsilon.
        about: what the numbers are, as text below the tables.
    """
    parts = [figure(results)]
    for table in tables.tables(results):
        parts.append(html.heading(table.title))
        parts += [html.paragraph(table.note, quiet=True)] if table.note else []
        parts.append(html.table(table.header, table.rows))
    return html.card(f"Comparison {name}", *parts, html.paragraph(about, quiet=True))


def figure(results: Sequence[Line]) -> str:
    """Return the mean over seeds of every line as a dot, with a bar of one standard deviation; "" without results."""
    measure = compared_by(results)
    scale, form = (100.0, ".2f") if measure == "accuracy" else (1.0, ".3g")
    rows = []
    for line in results:
        spread = line.of(measure)
        asked = "" if line.asked is None else f", epsilon {line.asked:g}"
        if spread.n:
            name = f"{line.method}{asked}{KINDS.get(line.kind, '')}"
            rows.append((name, scale * spread.mean, scale * spread.deviation))
    return svg.dots(rows[:DRAWN], form, "accuracy, %" if measure == "accuracy" else measure) if rows else ""
