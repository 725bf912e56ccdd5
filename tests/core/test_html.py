"""Cards, tables and figures of notebooks: well formed, without scripts, every text escaped."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from sordino.core import html, svg

BAD = "<script>alert('1')</script> & \"x\""


def texts(markup: str) -> str:
    return "".join(ElementTree.fromstring(markup).itertext())


@pytest.mark.parametrize(
    "markup",
    [
        html.card(BAD, html.paragraph(BAD), html.heading(BAD), html.table((BAD,), ((BAD, BAD),))),
        html.progress(1, 2, BAD),
        svg.curves(svg.scaled(BAD, [(1, 0.5), (2, 1.0)]), svg.scaled(BAD, [(1, 1.0)], zero=True), 2, BAD),
        svg.dots([(BAD, 1.0, 0.1)], ".2f", BAD),
        svg.square([(0, 0), (1, 1)], BAD, BAD),
    ],
)
def test_every_text_is_escaped(markup):
    assert "<script" not in markup and BAD in texts(markup)


def test_a_curve_is_drawn_where_its_values_are():
    picture = svg.curves(svg.scaled("accuracy", [(1, 10.0), (2, float("nan")), (3, 30.0)], ".1f"), None, 3, "round")
    assert "nan" not in picture and "10.0" in picture and "30.0" in picture
    (points,) = [
        line.get("points")
        for line in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}polyline")
        if line.get("stroke") == svg.BLUE and line.get("points").split()[0] != "48.0,10.0"  # the legend
    ]
    assert points == f"{svg.LEFT:.1f},{svg.HEIGHT - svg.BOTTOM:.1f} {svg.WIDTH - svg.RIGHT:.1f},{svg.TOP:.1f}"


def test_names_with_an_underscore_are_not_offered():
    class Thing(html.PublicNames):
        shown, _hidden = 1, 2

    assert dir(Thing()) == ["shown"]
