"""The page of a comparison in a real browser: sorting, error bars, hostile names, phone and dark theme."""

from __future__ import annotations

import math

import pytest

from sordino.report.comparison import document
from sordino.report.page import page
from support.browser import address
from support.comparisons import MadeUp, typical

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    path = folder / "typical.html"
    path.write_text(page(document(typical(folder / "trial").folder)))
    return path


def test_a_click_sorts_and_error_bars_are_drawn(written, visit):
    from playwright.sync_api import expect

    with visit() as seen:
        seen.page.goto(address(written))
        table = seen.page.locator("table", has=seen.page.locator("th", has_text="rank")).first
        names = table.locator("tbody th")
        assert names.all_inner_texts() == ["adaptive-noise", "dp-sgd", "adaptive-noise", "dp-sgd"]
        head = table.locator("thead th", has_text="method")
        head.get_by_role("button").click()
        expect(head).to_have_attribute("aria-sort", "ascending")
        assert names.all_inner_texts() == ["adaptive-noise"] * 2 + ["dp-sgd"] * 2
        accuracy = table.locator("thead th", has_text="accuracy")
        accuracy.get_by_role("button").click()
        accuracy.get_by_role("button").click()
        expect(accuracy).to_have_attribute("aria-sort", "descending")
        assert table.locator("tbody tr").first.inner_text().count("95.50 % ± 0.71") == 1
        figure = seen.page.locator("figure.chart", has_text="Accuracy against accounted epsilon").first
        figure.scroll_into_view_if_needed()
        expect(figure.locator("svg path[stroke-width='1.5']").first).to_be_attached()  # a whisker
        assert figure.locator("svg path[stroke-width='1.5']").count() >= 4


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_it_is_readable_everywhere(written, visit, size, scheme):
    from playwright.sync_api import expect

    with visit(size, color_scheme=scheme) as seen:
        seen.page.goto(address(written))
        seen.page.locator("figure.chart").first.scroll_into_view_if_needed()
        expect(seen.page.locator("figure.chart.drawn").first).to_be_visible()
        assert seen.serious() == []
        wide = seen.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= seen.page.viewport_size["width"]  # tables scroll inside, not the page


def test_names_of_methods_and_data_do_not_run(tmp_path, visit):
    from playwright.sync_api import expect

    made = MadeUp(tmp_path / "trial").add(HOSTILE, 2.0, [0.8, 0.9], notes=[HOSTILE])
    made.add("geodp-paper", 2.0, [0.8], accounted=math.inf, claim=MadeUp.claim(2.0) | {"why_not": HOSTILE})
    path = tmp_path / "hostile.html"
    path.write_text(page(document(made.folder)))
    with visit() as seen:
        seen.page.goto(address(path))
        for figure in seen.page.locator("figure.chart").all():
            figure.scroll_into_view_if_needed()
            expect(figure.locator("svg").first).to_be_attached()
        expect(seen.page.locator("tbody th", has_text="<img src=x").first).to_be_visible()
        assert seen.page.locator("img[src=x]").count() == 0
