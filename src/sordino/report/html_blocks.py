"""Sections of a report as HTML. Every text is escaped here; scripts and looks are those of `assets/`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Any

from sordino.core.record import plain
from sordino.report.chart import Chart
from sordino.report.chart_numbers import compact, number, numbers
from sordino.report.document import Block, DataTable, FactSheet, Listing, Paragraph, PictureFile, Section, Tiles

NUMBERS = 180_000  # of all lines of a page; longer ones are thinned, so that a page of many charts stays small
ROWS = 40  # rows of numbers below a chart that are written out; the page makes the others when they are asked for
FIGURE = re.compile(  # a cell that is a number, with its unit, its range or its deviation
    "[<>\N{LESS-THAN OR EQUAL TO}\N{GREATER-THAN OR EQUAL TO}~]? ?[-+\N{MINUS SIGN}]?[0-9][0-9.,]*"
    "(e[-\N{MINUS SIGN}]?[0-9]+)?( ?(%|s|bytes|kB|MB|GB|percentage points))?( ?(\N{PLUS-MINUS SIGN}|to |\\().*)?"
)
UNBROKEN = re.compile(r"[0-9][0-9.,]* %|[0-9.]+e-[0-9]+")
BLANK = ("", "-", "infinite", "none", "unknown", "not known")


def sections(parts: Sequence[Section]) -> str:
    """Return all sections."""
    lines = [line for s in parts for b in s.blocks if isinstance(b, Chart) for line in b.series]
    most = max(100, min(1000, NUMBERS // max(1, sum(4 if line.band else 2 for line in lines))))
    return "\n".join(section(part, most) for part in parts)


def section(part: Section, most: int = 1000) -> str:
    """Return one section; a folded one is opened by whoever reads it.

    Args:
        part: the section.
        most: largest number of points of a line in a chart.
    """
    inside = "\n".join(_blocks(part, most))
    name, head = escape(part.id), f'<h2 id="{escape(part.id)}-title">{escape(part.title)}</h2>'
    if part.folded:
        return f'<details id="{name}"><summary>{head}</summary>\n{inside}\n</details>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{head}\n{inside}\n</section>'


def _blocks(part: Section, most: int) -> Iterator[str]:
    for drawn, group in groupby(enumerate(part.blocks), lambda pair: isinstance(pair[1], Chart)):
        if drawn:
            charts = [block for _, block in group if isinstance(block, Chart)]
            yield f'<div class="figures">{"".join(chart(c, most) for c in charts)}</div>'
        else:
            yield from (_block(block, f"{part.id}-{k}") for k, block in group)


def _block(block: Block, name: str) -> str:
    match block:
        case Paragraph():
            return paragraph(block)
        case Listing():
            items = "".join(f"<li>{prose(item)}</li>" for item in block.items)
            return f'<ul class="listing">{items}</ul>'
        case FactSheet():
            rows = "".join(f"<div><dt>{escape(k)}</dt><dd>{prose(v)}</dd></div>" for k, v in block.rows)
            return f'<div class="block"><dl class="facts">{rows}</dl>{source(block.source)}</div>'
        case Tiles():
            return f'<div class="block"><dl class="tiles">{_tiles(block)}</dl>{source(block.source)}</div>'
        case DataTable():
            return table(block, name)
        case PictureFile():
            return picture(block)
        case Chart():
            return chart(block)


def prose(text: str) -> str:
    """Return a text in which `commands` stand out, and in which no line ends inside a number."""
    parts = re.split("`([^`]+)`", escape(text))
    plain_parts = [UNBROKEN.sub(r'<span class="number">\g<0></span>', part) for part in parts[::2]]
    commands = [f"<code>{part}</code>" for part in parts[1::2]]
    return "".join(part for pair in zip(plain_parts, [*commands, ""], strict=True) for part in pair)


def paragraph(block: Paragraph) -> str:
    """Return a paragraph in its tone."""
    tone = "" if block.tone == "plain" else f' class="{escape(block.tone)}"'
    return f"<p{tone}>{prose(block.text)}</p>"


def source(text: str) -> str:
    """Return the line that names where numbers come from; "" without any."""
    return f'<p class="source">Source: {escape(text)}</p>' if text else ""


def _tiles(block: Tiles) -> str:
    return "".join(
        f'<div class="tile"><dt>{escape(t.label)}</dt><dd class="value">{escape(t.value)}</dd>'
        + (f'<dd class="detail">{prose(t.detail)}</dd>' if t.detail else "")
        + "</div>"
        for t in block.tiles
    )


# --- tables


def table(block: DataTable, name: str) -> str:
    """Return a table in a frame that scrolls, sortable if it has keys.

    Args:
        block: the table.
        name: a name that no other table of the page has.
    """
    fits = len(block.keys) == len(block.rows) and all(len(k) == len(block.header) for k in block.keys)
    sortable = bool(block.keys) and fits and len(block.rows) > 1
    keys = f'<script type="application/json">{data([list(k) for k in block.keys])}</script>' if sortable else ""
    marks = dict.fromkeys(block.caution, ' class="caution"')
    mark = " data-sortable" if sortable else ""
    inside = grid(block.header, block.rows, f'{mark} aria-labelledby="{escape(name)}"', marks, keys)
    note = f'<p class="note">{prose(block.note)}</p>' if block.note else ""
    title = f'<h3 id="{escape(name)}">{escape(block.title)}</h3>'
    return f'<div class="block">{title}{frame(inside, block.title)}{note}{source(block.source)}</div>'


def frame(inside: str, label: str) -> str:
    """Return a frame in which something wide scrolls, also by the keyboard."""
    return f'<div class="frame" tabindex="0" role="region" aria-label="{escape(label)}">{inside}</div>'


def grid(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    about: str = "",
    marks: dict[int, str] | None = None,
    after: str = "",
) -> str:
    """Return a table; the first cell of a row is its name, and columns of numbers are set to the right."""
    right = [k > 0 and _numeric([row[k] for row in rows if k < len(row)]) for k in range(len(header))]
    kinds = [' class="figure"' if r else "" for r in right]
    head = "".join(f'<th scope="col"{kind}>{escape(text)}</th>' for kind, text in zip(kinds, header, strict=True))
    lines = []
    for number_of_row, row in enumerate(rows):
        cells = "".join(
            f'<th scope="row">{escape(text)}</th>' if not k else f"<td{kind}>{escape(text)}</td>"
            for k, (kind, text) in enumerate(zip(kinds, row, strict=False))
        )
        lines.append(f"<tr{(marks or {}).get(number_of_row, '')}>{cells}</tr>")
    return f"<table{about}><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>{after}</table>"


def _numeric(cells: Sequence[str]) -> bool:
    told = [c.strip() for c in cells if c.strip().lower() not in BLANK]
    return bool(told) and all(FIGURE.fullmatch(c) for c in told)


# --- figures


def chart(block: Chart, most: int = 1000) -> str:
    """Return a chart: its caption, the place where it is drawn, its numbers, and its data for the script."""
    small = compact(block, most)
    told = numbers(block, ROWS)
    kind = " wide" if block.kind == "heat" and len(block.x.categories) > 24 else ""
    summary = f'<p class="summary">{escape(block.summary)}</p>' if block.summary else ""
    caption = f"<figcaption><h3>{escape(block.title)}</h3>{summary}</figcaption>"
    left = f'<p class="note">{escape(_left_out(told.left_out))}</p>' if told.left_out else ""
    label = f"Numbers of the figure: {block.title}"
    save = '<button type="button" class="save" hidden>Save as CSV</button>'
    thin = any(len(s.points) < len(o.points) for s, o in zip(small.series, block.series, strict=True))
    lazy = f' data-more="{"thinned" if thin else "all"}"' if told.left_out else ""
    inside = frame(grid(told.header, told.rows), label)
    table = f'<details class="numbers"{lazy}><summary>Numbers</summary>{inside}{left}{save}</details>'
    script = f'<script type="application/json">{data(small.to_json())}</script>'
    return (
        f'<figure class="chart{kind}" id="figure-{escape(block.id)}">{caption}<div class="drawing"></div>'
        f"{source(block.source)}{table}{script}</figure>"
    )


def _left_out(count: int) -> str:
    return f"{number(count)} further values are left out here."


def picture(block: PictureFile) -> str:
    """Return a picture inside the page."""
    text = re.sub(r"[^A-Za-z0-9+/=]", "", block.png)
    summary = f"<p>{escape(block.summary)}</p>" if block.summary else ""
    return (
        f"<figure><figcaption><h3>{escape(block.title)}</h3>{summary}</figcaption>"
        f'<img src="data:image/png;base64,{text}" alt="{escape(block.summary or block.title)}">'
        f"{source(block.source)}</figure>"
    )


def data(value: Any) -> str:
    """Return a value as JSON that cannot end the script element that it stands in."""
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text
