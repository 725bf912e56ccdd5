"""Charts as pictures: drawn, the same every time, and honest about what is not there."""

from __future__ import annotations

import importlib.util
import io
import math
from dataclasses import replace

import numpy as np
import pytest

from sordino.core.errors import SpecError
from sordino.report import chart_pictures
from sordino.report.chart import Axis, Chart, ChartSeries
from sordino.report.chart_numbers import number, numbers, worded
from sordino.report.chart_pictures import names, picture
from support.report_documents import bars, curve, dots, heat

pytest.importorskip("matplotlib")


def pixels(chart):
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(picture(chart))).convert("RGB")).astype(int)


def share(image, colour):
    rgb = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
    return float((np.abs(image - rgb).max(axis=2) < 12).mean())


def test_every_kind_is_drawn_in_the_colours_of_the_page():
    first, second = chart_pictures.COLOURS[:2]
    assert share(pixels(curve()), first) > 1e-3 and share(pixels(curve()), chart_pictures.LIMIT) > 1e-4
    assert share(pixels(dots()), first) > 1e-4 and share(pixels(dots()), second) > 1e-4
    assert share(pixels(heat()), chart_pictures.HEAT) > 0.05
    from sordino.report.page import ASSETS

    css = (ASSETS / "report.css").read_text()
    light = css[: css.index("@media")]
    assert all(f"--chart-{k}: {c};" in light for k, c in enumerate(chart_pictures.COLOURS, 1))


def test_a_vector_picture_is_the_same_every_time_and_names_are_text():
    chart = replace(dots("$x^2$ & <b>"), title="Of $money$ & <b>")
    svg = picture(chart, "svg")
    assert svg == picture(chart, "svg") and b"Sordino" in svg[:2000] and b"<b>" not in svg


def ticks(chart):
    from matplotlib import pyplot

    drawn = chart_pictures._Picture(chart, pyplot)
    drawn.figure.canvas.draw()
    low, high = drawn.axes.get_ylim()
    shown = [t.get_text() for t in drawn.axes.get_yticklabels() if low <= t.get_position()[1] <= high]
    pyplot.close(drawn.figure)
    return shown


def test_a_logarithmic_axis_within_a_power_of_ten_can_be_read():
    line = Chart("ratio", "lines", "Ratio", Axis("round"), Axis("ratio", "log"),
                 (ChartSeries("a", ((1.0, 0.38), (2.0, 2.7))),))  # fmt: skip
    assert ticks(line) == ["0.5", "1", "2"]
    far = replace(line, series=(ChartSeries("a", ((1.0, 0.001), (2.0, 10.0))),))
    assert len(ticks(far)) >= 4 and "0.5" not in ticks(far)


def test_shares_that_are_all_or_nothing_have_more_than_two_ticks():
    shares = Chart("clipped", "lines", "Clipped", Axis("round"), Axis("share", low=0.0, percent=True),
                   (ChartSeries("a", ((1.0, 1.0), (2.0, 1.0))),))  # fmt: skip
    assert "50 %" in ticks(shares)


def test_nearly_equal_shares_have_nearly_the_same_colour():
    shares = replace(heat(), cells=((math.nan, 0.234), (0.235, math.nan)), cell_percent=True,
                     x=Axis("predicted", "category", ("a", "b")), y=Axis("true", "category", ("a", "b")))  # fmt: skip
    assert share(pixels(shares), chart_pictures.HEAT) > 0.2  # both cells, and not only the larger one
    assert [row[1:] for row in numbers(shares).rows] == [("", "23.4 %"), ("23.5 %", "")]


def test_bounds_are_rounded_to_their_safe_side():
    values = (1.49551, 2.1731, 0.30000000000000004, 0.000012345, 123456.7, 3.0)
    assert [number(v, 4, "up") for v in values] == ["1.496", "2.174", "0.3", "1.24e-5", "123,500", "3"]
    assert [number(v, 4, "down") for v in values] == ["1.495", "2.173", "0.3", "1.23e-5", "123,400", "3"]
    assert worded(0.965499, Axis("misses", percent=True, rounded="down"), 3) == "96.5 %"


def test_nothing_to_draw_is_no_error():
    empty = Chart("none", "lines", "Nothing", Axis("round"), Axis("loss", "log"), (ChartSeries("a", ()),))
    lonely = replace(empty, series=(ChartSeries("a", ((1.0, math.nan), (2.0, math.nan))),))
    blank = replace(heat(), cells=((math.nan,),))
    for chart in (empty, lonely, blank):
        assert picture(chart).startswith(b"\x89PNG")


def test_files_have_the_names_of_their_charts():
    assert names([curve(), bars(), curve()], "svg") == ["accuracy.svg", "bytes.svg", "accuracy-2.svg"]


def test_without_matplotlib_there_is_one_clear_error(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r'try: pip install "sordino\[plot\]"'):
        picture(curve())
