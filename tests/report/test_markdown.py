"""Reports as Markdown: what it shows is the text, whatever the text is."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt

from sordino.report.markdown import MARK, escaped, markdown
from support.report_documents import HOSTILE, everything

AWKWARD = (
    "1. not a list", "- nor this", "# nor a title", "a | b", "*stars* and _lines_", "[a](javascript:alert(1))", "---",
    "==", "&amp; and < and >", "\\", "![x](y)", "~~gone~~", "$x$", "12) twelve", "+ plus", "<!-- hidden -->", "0.5",
)  # fmt: skip


def rendered(text):
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text)


def shown(html):
    from html import unescape

    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


@pytest.mark.parametrize("text", AWKWARD)
def test_a_text_is_shown_as_it_stands(text):
    html = rendered(escaped(text))
    assert html == f"<p>{html[3:-5]}</p>\n" and "<" not in html[3:-5]
    assert shown(html) == " ".join(text.split())


def test_names_are_text_everywhere():
    html = rendered(markdown(everything(HOSTILE)))
    assert not re.search(r"<(img|script|iframe)", html)
    assert shown(html).count(HOSTILE) >= 9


def test_a_command_is_code_and_a_lone_backtick_is_text():
    assert escaped("try `sordino audit RUN`, a_b") == "try `sordino audit RUN`, a\\_b"
    assert rendered(escaped("a ` b")) == "<p>a ` b</p>\n"


def test_code_does_not_end_a_cell_early():
    """A table cuts code in two at a bar, and what was code becomes HTML."""
    for name in ("`a|<img src=x>`", "`a\\\\|<img src=x>`", "b `|` <img src=x> `c|d`"):
        html = rendered(f"| name | more |\n| --- | --- |\n| {escaped(name)} | x |")
        assert "<img" not in html and shown(html) == f"name more {name} x"


def test_a_terminal_obeys_no_name():
    text = markdown(everything("\x1b]0;title\x07 \x9b2J \u202e \x1bc \x00"))
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "\N{REPLACEMENT CHARACTER}" in text


def test_charts_are_short_tables_of_their_numbers():
    text = markdown(everything(rounds=500))
    part = text[text.index("### Accuracy by round") : text.index("### Participation")]
    rows = [line for line in part.splitlines() if line.startswith("|")]
    assert len(rows) == 15 and rows[0] == "| round | this run | without privacy | the goal |"
    assert rows[2].startswith("| 1 | 52.58 % (50.58 % to 54.58 %) | 55.58 % |")
    assert rows[-1].startswith("| 500 | 90 % (88 % to 92 %)")
    assert "487 further values are left out here" in part and "Source: public/records.jsonl: accuracy" in part
    cells = text[text.index("### Participation") :]
    assert "| client by round | 1 |" in cells and "| client 0 |  |" in cells


def test_the_reader_and_the_damage_come_first():
    text = markdown(everything("x", owner=True))
    assert text.startswith(f"{MARK} owner -->\n\n**These records are damaged or incomplete.**\n\n- x is cut.")
    assert "figures that were not released" in text and "not released" not in markdown(everything("x"))
    assert "> **Caution:** This claim fails: x" in text
