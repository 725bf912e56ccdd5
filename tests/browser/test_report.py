"""A report in a real browser: text and figures, hover, toggle, zoom, sorting, paper, phone, dark, and hostile names."""

from __future__ import annotations

import re

import pytest

from sordino.report.chart_numbers import number
from sordino.report.page import page
from support.browser import address
from support.report_documents import HOSTILE, everything


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A report, a hostile one and one of many rounds."""
    folder = tmp_path_factory.mktemp("reports")
    for name, document in (
        ("plain", everything("a name")),
        ("hostile", everything(HOSTILE, owner=True)),
        ("long", everything("a long run", rounds=5000)),
    ):
        (folder / f"{name}.html").write_text(page(document))
    return lambda name: address(folder / f"{name}.html")


def drawn(seen, id):
    """Scroll to a figure and return it when it is drawn."""
    from playwright.sync_api import expect

    figure = seen.page.locator(f"#figure-{id}")
    figure.scroll_into_view_if_needed()
    expect(figure).to_have_class(re.compile("drawn"))
    return figure


def test_figures_tell_their_numbers_and_can_be_toggled_and_zoomed(written, visit):
    from playwright.sync_api import expect

    with visit() as seen:
        seen.page.goto(written("plain"))
        expect(seen.page.get_by_role("heading", level=1)).to_have_text("a name")
        expect(seen.page.get_by_text("Epsilon is 2 for a name.")).to_be_visible()
        figure = drawn(seen, "accuracy")
        plot, tip = figure.locator(".chart-plot"), figure.locator(".chart-tip")
        box = plot.bounding_box()
        seen.page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 100)
        expect(tip).to_contain_text("this run")
        expect(tip).to_contain_text("round 60")
        expect(tip).to_contain_text("89.27 % (87.27 % to 91.27 %)")
        lines = figure.locator("svg path[stroke-dasharray]")
        expect(lines).to_have_count(1)  # the goal
        goal = figure.get_by_role("button", name="the goal")
        goal.click()
        expect(goal).to_have_attribute("aria-pressed", "false")
        expect(lines).to_have_count(0)
        expect(figure.get_by_role("button", name="Reset zoom")).to_be_hidden()
        seen.page.mouse.move(box["x"] + 200, box["y"] + 100)
        seen.page.mouse.down()
        seen.page.mouse.move(box["x"] + 300, box["y"] + 100, steps=4)
        seen.page.mouse.up()
        reset = figure.get_by_role("button", name="Reset zoom")
        expect(reset).to_be_visible()
        reset.click()
        expect(reset).to_be_hidden()
        plot.focus()
        seen.page.keyboard.press("ArrowRight")
        expect(tip).to_contain_text("round 1")
        expect(tip).to_contain_text("52.58 %")
        assert seen.requests == [written("plain")]


def test_numbers_are_written_out_sorted_and_saved(written, visit):
    from playwright.sync_api import expect

    with visit() as seen:
        seen.page.goto(written("long"))
        figure = drawn(seen, "accuracy")
        rows = figure.locator(".numbers tbody tr")
        expect(rows).to_have_count(40)
        figure.get_by_text("Numbers", exact=True).click()
        expect(figure.locator(".note")).to_contain_text("as many points as a screen can show")
        assert 400 < rows.count() < 2500
        with seen.page.expect_download() as held:
            figure.get_by_role("button", name="Save as CSV").click()
        text = held.value.path().read_text()
        assert held.value.suggested_filename == "accuracy.csv" and text.startswith(
            "series,round,accuracy,low,high\nthis"
        )
        table = seen.page.locator("#curves table[data-sortable]")
        head = table.get_by_role("columnheader", name="epsilon")
        head.get_by_role("button").click()
        assert table.locator("tbody th").all_inner_texts() == ["udp-fl", "dp-sgd", "a long run"]  # infinite: last
        expect(head).to_have_attribute("aria-sort", "ascending")
        words = [0, 5, -0.25, 1234567, 0.00001234, 123456, 2.5e9, 33.333333, 1e-3, 99999.5]
        in_page = seen.page.evaluate("values => values.map((v) => SordinoCharts.number(v))", words)
        assert in_page == [number(v) for v in words]
        for rounded in ("up", "down"):
            bounds = seen.page.evaluate("([v, r]) => v.map((x) => SordinoCharts.number(x, 4, r))", [words, rounded])
            assert bounds == [number(v, 4, rounded) for v in words] != in_page


@pytest.mark.parametrize(
    ("size", "scheme"), [("desktop", "light"), ("desktop", "dark"), ("phone", "light"), ("phone", "dark")]
)
def test_it_is_readable_everywhere_and_hostile_names_do_nothing(written, visit, size, scheme):
    from playwright.sync_api import expect

    with visit(size, color_scheme=scheme) as seen:
        seen.page.goto(written("hostile"))
        for id in ("accuracy", "participation", "methods", "bytes"):
            drawn(seen, id)
        seen.page.locator("#long > summary").click()
        expect(seen.page.locator("#long img")).to_be_visible()
        assert seen.serious() == []
        wide = seen.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= seen.page.viewport_size["width"]
        paper = seen.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        assert seen.page.locator("svg", has_text="<img").count() >= 1  # as text, on an axis


def test_the_theme_can_be_changed_and_a_link_opens_a_folded_part(written, visit):
    from playwright.sync_api import expect

    with visit(color_scheme="dark") as seen:
        seen.page.goto(written("plain"))
        seen.page.get_by_role("button", name="Light theme").click()
        expect(seen.page.locator("html")).to_have_css("background-color", "rgb(255, 255, 255)")
        seen.page.get_by_role("link", name="A long list").click()
        expect(seen.page.locator("#long")).to_have_attribute("open", "")


def test_figures_keep_their_room_before_they_are_drawn(written, visit):
    with visit() as seen:
        seen.page.set_viewport_size({"width": 1000, "height": 200})
        seen.page.goto(written("plain"))
        waiting = seen.page.locator("figure.chart:not(.drawn) .drawing")
        heights = waiting.evaluate_all("all => all.map((box) => box.getBoundingClientRect().height)")
        assert heights and min(heights) >= 300


def test_page_one_stands_alone_on_paper(written, visit):
    with visit() as seen:
        seen.page.goto(written("plain"))
        pdf = seen.page.pdf(prefer_css_page_size=True)
        assert pdf.startswith(b"%PDF")
        seen.page.emulate_media(media="print")
        ends = seen.page.locator("#first").evaluate(
            "e => [getComputedStyle(e).breakAfter, e.getBoundingClientRect().bottom]"
        )
        assert ends[0] == "page" and ends[1] < 1009  # pixels of A4 between its margins
        assert seen.page.locator("figure.drawn").count() == 4  # by printing, though nobody scrolled
        assert not seen.page.get_by_role("button", name="Dark theme").is_visible()
        assert len(re.findall(rb"/Type ?/Page\b", pdf)) >= 2


def test_without_scripts_the_numbers_are_there(written, visit):
    with visit(java_script_enabled=False) as seen:
        seen.page.goto(written("plain"))
        assert seen.page.locator(".noscript").is_visible()
        seen.page.locator("#figure-accuracy summary").click()
        assert seen.page.get_by_role("cell", name="89.27 % (87.27 % to 91.27 %)").is_visible()
