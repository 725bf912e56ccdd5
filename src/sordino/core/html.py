"""HTML for notebooks: small cards, tables and bars, without scripts, that can be read on light and on dark pages.

Every text is escaped here, so callers pass plain text and never HTML; parts that these functions made are joined by
`card`. Text, lines and backgrounds take their colours from the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

LINE = "1px solid rgba(128,128,128,.35)"
CELL = "padding:.2em 1em .2em 0;text-align:left;vertical-align:top;border:0;white-space:normal;max-width:32em"
QUIET = "margin:.4em 0;font-size:90%;opacity:.8"


class PublicNames:
    """A base of classes whose instances list their public names alone, so that tab completion shows nothing else."""

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]


def card(title: str, *parts: str) -> str:
    """Return parts, each made by a function of this package, below a title and inside a frame."""
    head = f'<div style="font-weight:600;margin-bottom:.4em">{escape(title)}</div>'
    frame = f"border:{LINE};border-radius:6px;padding:.8em 1em;max-width:60em;line-height:1.4"
    return f'<div style="{frame}">{head}{"".join(parts)}</div>'


def paragraph(text: str, quiet: bool = False) -> str:
    """Return a paragraph, smaller and paler if it is `quiet`."""
    return f'<p style="{QUIET if quiet else "margin:.4em 0"}">{escape(text)}</p>'


def heading(text: str) -> str:
    """Return a heading inside a card."""
    return f'<div style="font-weight:600;margin:.8em 0 .2em 0">{escape(text)}</div>'


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first cell of a row is its name. Without a header, pass an empty one."""
    head = "".join(f'<th style="{CELL};border-bottom:{LINE}">{escape(text)}</th>' for text in header)
    body = "".join(_row(row) for row in rows)
    top = f"<thead><tr>{head}</tr></thead>" if header else ""
    inside = f'<table style="border-collapse:collapse;margin:.2em 0;font-size:95%">{top}<tbody>{body}</tbody></table>'
    return f'<div style="overflow-x:auto">{inside}</div>'


def _row(cells: Sequence[str]) -> str:
    first = f'<th scope="row" style="{CELL};font-weight:500;opacity:.8">{escape(cells[0])}</th>'
    rest = "".join(f'<td style="{CELL}">{escape(text)}</td>' for text in cells[1:])
    return f"<tr>{first}{rest}</tr>"


def beside(*parts: str) -> str:
    """Return parts beside each other, or below each other where the page is narrow."""
    inside = "".join(f'<div style="min-width:0">{part}</div>' for part in parts)
    return f'<div style="display:flex;flex-wrap:wrap;gap:.5em 2.5em;align-items:flex-start">{inside}</div>'


def progress(done: int, total: int, text: str) -> str:
    """Return a bar that is filled up to `done` of `total`, with text beside it."""
    bar = f'<progress value="{done}" max="{total}" style="width:16em;vertical-align:middle"></progress>'
    return f'<div style="line-height:1.6">{bar} <span style="margin-left:.6em">{escape(text)}</span></div>'
