"""A report as Markdown, for pull requests, logs and terminals; a chart is shown as a short table of its numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sordino.report.chart import Chart
from sordino.report.chart_numbers import numbers
from sordino.report.document import (
    Block,
    DataTable,
    Document,
    FactSheet,
    Listing,
    Paragraph,
    PictureFile,
    Section,
    Tiles,
)
from sordino.report.reading import harmless

MARK = "<!-- sordino report"  # by which a report is known as one of ours
ROWS, COLUMNS = 13, 8  # of a chart's numbers
SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&$!])")  # "$": formulas on GitHub
START = re.compile(r"^(\d*)([-+.)=])(?=[-= ]|$)")  # of a list, a rule or a heading


def escaped(text: str) -> str:
    """Return a text on one line that Markdown, HTML and a terminal show as it stands."""
    parts = harmless(" ".join(text.split())).split("`")
    if len(parts) % 2 == 0 or any("|" in code for code in parts[1::2]):  # no partner; a table cuts such code in two
        return _escaped("`".join(parts))
    return "".join(f"`{part}`" if k % 2 and part else _escaped(part) for k, part in enumerate(parts))


def _escaped(line: str) -> str:
    return START.sub(r"\1\\\2", SPECIAL.sub(r"\\\1", line))


def markdown(document: Document) -> str:
    """Return a report as Markdown."""
    text = "\n\n".join(_parts(document)) + "\n"
    return text.encode("utf-8", "replace").decode()  # a record may hold half of a pair of surrogates


def _parts(document: Document) -> Iterator[str]:
    yield f"{MARK} {document.audience} -->"
    if document.damage:
        yield "**These records are damaged or incomplete.**"
        yield _listing(document.damage)
    yield f"# {escaped(document.title)}"
    if document.subtitle:
        yield escaped(document.subtitle)
    yield (
        "Public report: made from the public part of the run alone."
        if document.audience == "public"
        else "**For the owner of the data:** this report holds figures that were not released."
    )
    for section in document.sections:
        yield from _section(section)


def _section(section: Section) -> Iterator[str]:
    yield f"## {escaped(section.title)}"
    for block in section.blocks:
        yield from _block(block)


def _block(block: Block) -> Iterator[str]:
    match block:
        case Paragraph():
            text = escaped(block.text)
            yield f"> **Caution:** {text}" if block.tone == "warning" else text
        case Listing():
            yield _listing(block.items)
        case FactSheet():
            yield _table(("", ""), block.rows)
            yield from _source(block.source)
        case Tiles():
            yield "\n".join(
                f"- **{escaped(t.value)}** {escaped(t.label)}{f' ({escaped(t.detail)})' if t.detail else ''}"
                for t in block.tiles
            )
            yield from _source(block.source)
        case DataTable():
            yield f"### {escaped(block.title)}"
            yield _table(block.header, block.rows)
            if block.note:
                yield escaped(block.note)
            yield from _source(block.source)
        case Chart():
            told = numbers(block, ROWS, COLUMNS)
            yield f"### {escaped(block.title)}"
            if block.summary:
                yield escaped(block.summary)
            yield _table(told.header, told.rows)
            if told.left_out:
                yield f"{told.left_out:,} further values are left out here; they are in the HTML report and in JSON."
            yield from _source(block.source)
        case PictureFile():
            yield f"### {escaped(block.title)}"
            yield f"{escaped(block.summary)} (The picture is in the HTML report.)".strip()
            yield from _source(block.source)


def _listing(items: Sequence[str]) -> str:
    return "\n".join(f"- {escaped(item)}" for item in items)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        f"| {' | '.join(cell if k == 1 else escaped(cell) for cell in line)} |" for k, line in enumerate(lines)
    )


def _source(text: str) -> Iterator[str]:
    if text:
        yield f"Source: {escaped(text)}"
