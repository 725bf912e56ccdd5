"""A report as one HTML file: texts, tables, charts, their scripts and their looks; it loads nothing else.

The page forbids every script but its own three, by their hashes, and every connection, image and form from elsewhere,
so that nothing that a record says can run or call home. Without scripts it shows all texts and tables.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from html import escape
from pathlib import Path

from sordino.core.version import VERSION
from sordino.report import html_blocks
from sordino.report.document import Document

ASSETS = Path(__file__).parent / "assets"
MARK = '<meta name="generator" content="Sordino'  # by which a report is known as one of ours
DAMAGES = 20  # sentences on damage that are shown
AUDIENCES = {
    "public": (
        "Public",
        "Made from the public part of the run alone; it may be handed to anybody whom the guarantee names.",
    ),
    "owner": (
        "For the owner",
        "Holds figures that were not released. Keep it as you keep the data, and hand out the public report instead.",
    ),
}


def page(document: Document) -> str:
    """Return a report as the text of an HTML file."""
    scripts = [_asset("report.js")]
    if any(True for _ in document.charts()):
        scripts = [_asset("echarts.min.js"), _asset("charts.js"), *scripts]
    style = _asset("report.css")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_hash, scripts))}",
            f"style-src {_hash(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    title = f"{document.title}: privacy report"
    text = "\n".join(
        (
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'{MARK} {escape(VERSION)}">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f'<meta name="sordino-audience" content="{escape(document.audience)}">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            '<a class="skip" href="#main">Skip to the report</a>',
            f'<div class="page">{_damage(document)}{_masthead(document)}',
            _contents(document),
            '<main id="main">',
            '<noscript><p class="noscript">Scripts are off, so figures are not drawn; their numbers stand below them.'
            "</p></noscript>",
            html_blocks.sections(document.sections),
            "</main>",
            f"<footer><p>{escape(_footer(document))}</p></footer>",
            "</div>",
            *(f"<script>{script}</script>" for script in scripts),
            "</body>",
            "</html>\n",
        )
    )
    return text.encode("utf-8", "replace").decode()  # a record may hold half of a pair of surrogates


def _masthead(document: Document) -> str:
    badge, about = AUDIENCES[document.audience]
    subtitle = f'<p class="subtitle">{escape(document.subtitle)}</p>' if document.subtitle else ""
    return (
        '<header class="masthead"><div><p class="kind">Privacy report</p>'
        f"<h1>{escape(document.title)}</h1>{subtitle}"
        f'<p class="audience"><span class="badge {document.audience}">{badge}</span> {about}</p></div>'
        '<button type="button" class="theme" hidden>Dark theme</button></header>'
    )


def _damage(document: Document) -> str:
    if not document.damage:
        return ""
    shown = [*document.damage[:DAMAGES]]
    if more := len(document.damage) - len(shown):
        shown.append(f"{more:,} further findings are left out.")
    items = "".join(f"<li>{escape(text)}</li>" for text in shown)
    return (
        '<aside class="warning damage" aria-label="Damaged records">'
        f"<strong>These records are damaged or incomplete.</strong><ul>{items}</ul></aside>"
    )


def _contents(document: Document) -> str:
    if len(document.sections) < 2:
        return ""
    items = "".join(f'<li><a href="#{escape(s.id)}">{escape(s.title)}</a></li>' for s in document.sections)
    return f'<nav class="contents" aria-label="Contents"><ol>{items}</ol></nav>'


def _footer(document: Document) -> str:
    whose = "public records of the run alone" if document.audience == "public" else "records of the run"
    return (
        f"Made by Sordino {VERSION} from the {whose}. Every number names the file and the field that it comes from; "
        "the same contents can be read as Markdown or JSON (sordino report --format md|json)."
    )


@lru_cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8").strip()


@lru_cache
def _hash(text: str) -> str:
    """Return the hash by which a page allows a script or a style of its own."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
