"""The page of a report: one file that loads nothing, says everything as text, and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from sordino.report.chart import Axis, Chart, ChartSeries
from sordino.report.document import Document, Paragraph, Section
from sordino.report.page import MARK, page
from support.report_documents import HOSTILE, curve, everything

KNOWN = {
    "html", "head", "meta", "title", "style", "body", "a", "div", "header", "nav", "ol", "li", "main", "noscript", "p",
    "section", "h1", "h2", "h3", "dl", "dt", "dd", "ul", "figure", "figcaption", "details", "summary", "table", "thead",
    "tbody", "tr", "th", "td", "script", "button", "img", "aside", "strong", "footer", "span", "code",
}  # fmt: skip


class Seen(HTMLParser):
    """All elements of a page with their attributes and the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements, self.texts, self.scripts, self._in = [], [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._in = tag
        if tag in ("script", "style"):
            self.scripts.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag):
        self._in = ""

    def handle_data(self, data):
        if self._in in ("script", "style"):
            tag, about, text = self.scripts[-1]
            self.scripts[-1] = (tag, about, text + data)
        else:
            self.texts.append(data)


@pytest.fixture(scope="module")
def hostile():
    return Seen(page(everything(HOSTILE)))


def test_names_are_text_and_nothing_is_loaded(hostile):
    assert {tag for tag, _ in hostile.elements} <= KNOWN
    handlers = [k for _, about in hostile.elements for k in about if k.startswith("on") or k == "style"]
    assert handlers == []
    places = [about[k] for _, about in hostile.elements for k in ("src", "href") if k in about]
    assert places and all(p.startswith(("#", "data:image/png;base64,")) for p in places)
    shown = "".join(hostile.texts)
    assert shown.count(HOSTILE) >= 9  # title, subtitle, damage, tile, fact, item, warning, heading, tables


def test_only_its_own_scripts_may_run(hostile):
    policy = next(a["content"] for _, a in hostile.elements if a.get("http-equiv") == "Content-Security-Policy")
    code = [text for tag, about, text in hostile.scripts if tag == "script" and "type" not in about]
    style = [text for tag, _, text in hostile.scripts if tag == "style"]
    assert len(code) == 3 and len(style) == 1
    for text in (*code, *style):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy


def test_the_data_of_a_chart_are_those_of_the_chart(hostile):
    held = [json.loads(text) for _, about, text in hostile.scripts if about.get("type") == "application/json"]
    charts = {d["id"]: d for d in held if isinstance(d, dict)}
    assert charts["methods"]["x"]["categories"][1] == HOSTILE
    assert charts["methods"]["series"][1]["points"][2] == [2, None]
    assert charts["accuracy"]["series"][0]["points"][0][1] == pytest.approx(curve().series[0].points[0][1], rel=1e-6)
    assert charts["accuracy"]["series"][0]["band"][0][0] == pytest.approx(curve().series[0].band[0][0], rel=1e-6)
    assert [k[1] for d in held if isinstance(d, list) for k in d][:3] == [2, None, 0.5]  # keys: infinite comes last


def test_without_scripts_there_are_texts_and_numbers():
    text = re.sub(r"<script.*?</script>", "", page(everything()), flags=re.S)
    shown = " ".join("".join(Seen(text).texts).split())
    for said in ("Epsilon is 2", "Source: public/records.jsonl: accuracy", "80 % (70 % to 90 %)", "52.58 %", "Scripts"):
        assert said in shown
    assert "<code>sordino report RUN --verify</code>" in text
    assert text.index("a name is cut.") < text.index("<h1>")  # damage comes first
    assert re.search(r'<details id="long">', text) and '<section id="first"' in text


def test_a_report_without_figures_has_no_plotting_library():
    small = page(Document("x", "", "public", (Section("first", "One", (Paragraph("Only text."),)),)))
    assert len(small) < 60_000 and "echarts" not in small and "<nav" not in small
    assert small.count("<script>") == 1


def test_the_reader_is_named():
    assert '<span class="badge public">Public</span>' in page(everything())
    for_owner = page(everything(owner=True))
    assert '<span class="badge owner">For the owner</span>' in for_owner and "not released" in for_owner


def test_ten_thousand_rounds_in_sixty_charts_stay_below_three_megabytes():
    points = tuple((float(r), 1 / (r + 0.123456789)) for r in range(10_000))
    series = tuple(ChartSeries(f"line {k}", points, tuple((y, 2 * y) for _, y in points)) for k in range(4))
    charts = tuple(Chart(f"c-{k}", "lines", "A chart", Axis("round"), Axis("loss"), series) for k in range(15))
    text = page(Document("x", "", "owner", (Section("first", "One", charts),)))
    assert len(text.encode()) < 3_000_000
    ends = [d["series"][0]["points"] for d in map(json.loads, re.findall(r'json">(\{.*?)</script>', text))]
    assert all(len(p) > 300 and p[0][0] == 0 and p[-1][0] == 9999 for p in ends)


def test_it_is_the_same_every_time_and_known_as_ours():
    assert page(everything()) == page(everything())
    assert MARK in page(everything())[:2000]
    page(everything("half a pair \ud800")).encode()  # what no file can hold becomes a mark
