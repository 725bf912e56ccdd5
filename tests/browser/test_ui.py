"""The view in a real browser: the list, a run that goes on, comparisons, sliders, the ledger and attacks."""

from __future__ import annotations

import base64
import json
import shutil
import threading

import pytest
from playwright.sync_api import Error, expect

from support.views import id_of, line, locked, make_run, served

HOSTILE = '<img src=x onerror="alert(1)"><script>alert(2)</script>'
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A ledger with a charge of a run with a hostile name."""
    from sordino.ledger.ledger import Charge, Ledger
    from sordino.privacy.events import Cost, GaussianEvent

    home = tmp_path_factory.mktemp("home")
    charge = Charge(Cost("record", "add/remove", "server", GaussianEvent(5.0)), 1.25, 1e-5)
    with Ledger(home / "registry" / "ledger.sqlite") as book:
        book.charge("evaluation", f"benchmark {HOSTILE}", charge, {"run": HOSTILE, "purpose": HOSTILE}, job="one")
    return home


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    """A view of thirty runs, for their owner."""
    runs = tmp_path_factory.mktemp("view") / "runs"
    for k in range(27):
        make_run(runs, f"run-{k:02d}", rounds=5)
    make_run(runs, "hostile", method=HOSTILE, dataset=HOSTILE, sentence=HOSTILE, viewer=HOSTILE, relation=HOSTILE)
    make_run(runs, "clients", method="dp-fedavg", unit="client", epsilon=7.5)
    attacks = make_run(runs, "attacked") / "private" / "attacks"
    attacks.mkdir()
    figures = [{"metric": HOSTILE, "value": 0.61, "low": 0.5, "high": 0.7, "chance": 0.5, "unit": "number"}]
    told = {"attack": HOSTILE, "view": "public", "sentence": f"Found by {HOSTILE}.", "figures": figures}
    (attacks / "dlg-public.json").write_text(json.dumps(told))
    (attacks / "dlg-public.png").write_bytes(base64.b64decode(PNG))
    with served(runs, audience="owner") as server:
        yield server


@pytest.fixture(autouse=True)
def registry(home, monkeypatch):
    """The ledger of this user is that with the hostile name."""
    monkeypatch.setenv("SORDINO_HOME", str(home))


def enter(seen, server, place="/runs"):
    """Open a view as a person does: by the address with the token; then go to a place in it."""
    seen.page.goto(server.address())
    expect(seen.page.get_by_role("heading", level=1)).to_have_text("Runs")
    assert "token" not in seen.page.url
    if place != "/runs":
        seen.page.goto(f"http://127.0.0.1:{server.gate.port}/#{place}")
    return seen.page


def look_now(page):
    """Look at the records as a page does that becomes visible again, without waiting for the next look."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def rows(page):
    """The names of the runs in the list."""
    return page.locator("table.runs tbody th a")


def test_the_list_is_paged_sorted_filtered_and_keeps_its_place(visit, view):
    with visit() as seen:
        page = enter(seen, view)
        expect(rows(page)).to_have_count(25)
        assert seen.serious() == []
        page.get_by_role("link", name="Next").click()
        expect(rows(page)).to_have_count(5)
        page.go_back()
        expect(rows(page)).to_have_count(25)
        page.get_by_role("button", name="epsilon").click()
        expect(rows(page).first).to_have_text("clients")
        expect(page.get_by_role("columnheader", name="epsilon")).to_have_attribute("aria-sort", "descending")
        page.get_by_role("button", name="run", exact=True).click()
        expect(rows(page).first).to_have_text("attacked")
        page.get_by_label("Filter").fill("fedavg")
        expect(rows(page)).to_have_text(["clients"])
        expect(page.get_by_role("status")).to_have_text("1 of 30 runs")
        page.reload()
        expect(page.get_by_label("Filter")).to_have_value("fedavg")
        expect(rows(page)).to_have_text(["clients"])
        rows(page).first.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("clients")
        expect(page.get_by_role("heading", level=1)).to_be_focused()
        page.go_back()
        expect(rows(page)).to_have_text(["clients"])


def test_a_run_is_followed_while_it_goes_on_and_after_it_died(visit, tmp_path):
    run = make_run(tmp_path / "runs", "going", done=3)
    records = run / "public" / "records.jsonl"
    with served(tmp_path / "runs") as server, visit() as seen:
        with locked(run):
            page = enter(seen, server, f"/run/{id_of(server, 'going')}")
            words = page.locator(".progress-words")
            expect(words).to_contain_text("Round 3 of 20. It is running now.")
            expect(page.locator("figure.chart svg").first).to_be_visible()
            curve = page.locator("figure[data-chart='live-epsilon']")
            curve.get_by_text("Numbers").click()

            def train():
                with records.open("a") as file:
                    file.writelines(line(k) for k in range(4, 10))

            writer = threading.Thread(target=train)
            writer.start()
            writer.join()
            expect(words).to_contain_text("Round 9 of 20")
            expect(curve.locator("details td").get_by_text("1.2", exact=True)).to_be_visible()  # 0.4 * sqrt(9)
        expect(words).to_contain_text("It has stopped before its end.")
        with records.open("a") as file:
            file.write("{damaged\n")
        look_now(page)
        expect(page.get_by_label("Damaged records")).to_contain_text("the 9 rounds before it are shown")
        assert seen.serious() == []
        shutil.rmtree(run)
        look_now(page)
        expect(page.locator("#main .warning")).to_contain_text("there is no such run")


def test_the_report_of_a_run_is_shown_in_the_page(visit, view):
    with visit() as seen:
        page = enter(seen, view, f"/run/{id_of(view, 'run-00')}/report")
        expect(page.locator(".audience .badge")).to_have_text("For the owner")
        expect(page.locator(".sections h2").first).to_have_text("The guarantee")
        expect(page.get_by_role("link", name="Report")).to_have_attribute("aria-current", "page")
        page.locator("nav.contents button").last.click()
        expect(page.locator(".sections h2").last).to_be_focused()
        assert seen.serious() == []
        page.get_by_role("link", name="Progress").click()
        expect(page.locator(".progress-words")).to_contain_text("It has finished.")


def test_runs_are_compared_with_a_warning_where_they_differ(visit, view):
    with visit() as seen:
        page = enter(seen, view, "/runs?sort=name")
        for name in ("attacked", "clients"):
            page.get_by_role("checkbox", name=f"Compare {name}").check()
        page.get_by_role("link", name="Compare 2 runs").click()
        expect(page.locator(".subtitle")).to_have_text("attacked and clients")
        expect(page.locator("#main .warning")).to_contain_text("what they protect differs (record and client)")
        chart = page.locator("figure[data-chart='compare-epsilon']")
        expect(chart.locator("svg path").first).to_be_attached()
        chart.get_by_role("button", name="clients").click()
        expect(chart.get_by_role("button", name="clients")).to_have_attribute("aria-pressed", "false")
        assert seen.serious() == []


def test_sliders_ask_the_accountants(visit, view):
    with visit() as seen:
        page = enter(seen, view, "/calculator")
        value = page.locator(".tile .value").first
        expect(value).to_have_text("1.829")
        expect(page.locator("figure[data-chart='epsilon-by-noise'] .chart-canvas svg")).to_be_visible()
        assert seen.serious() == []
        page.get_by_label("noise multiplier, slider").press("Home")
        expect(page.get_by_label("noise multiplier", exact=True)).to_have_value("0.2")
        expect(value).not_to_have_text("1.829")
        page.get_by_label("noise multiplier", exact=True).fill("nonsense")
        expect(page.locator("#main .warning")).to_contain_text("noise must be a number")
        page.get_by_role("link", name="Noise for an epsilon").click()
        expect(page.locator(".tile dt").first).to_have_text("noise multiplier")
        page.go_back()
        expect(page.get_by_label("noise multiplier", exact=True)).to_have_value("nonsense")
        expect(page.get_by_label("delta", exact=True)).to_have_value("1e-5")


def test_names_of_records_run_no_script_on_any_page(visit, view):
    one, other = id_of(view, "hostile"), id_of(view, "clients")
    places = {
        "/runs?find=hostile": ("table.runs tbody .below", HOSTILE),
        f"/run/{one}": (".lead", HOSTILE),
        f"/run/{one}/report": (".sections", HOSTILE),
        f"/compare?runs={one},{other}": ("#main .warning", HOSTILE),
        f"/run/{id_of(view, 'attacked')}/attacks": (".lead", HOSTILE),
        "/attacks": (".gallery .lead", HOSTILE),
        "/ledger": (".sections h2", HOSTILE),
    }
    with visit("phone", color_scheme="dark") as seen:
        page = enter(seen, view)
        for place, (where, text) in places.items():
            page.goto(f"http://127.0.0.1:{view.gate.port}/#{place}")
            expect(page.locator(where).filter(has_text=text).first).to_be_visible()
            assert page.locator("#main img:not([src^='data:image/png'])").count() == 0
            assert page.locator("#main script").count() == 0
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), place
            assert seen.serious() == [], place


def test_the_ledger_and_the_gallery_say_what_they_hold(visit, view):
    with visit() as seen:
        page = enter(seen, view, "/ledger")
        expect(page.locator(".chain")).to_have_text("The chain of 1 entry is intact.")
        expect(page.get_by_role("region", name="Charges")).to_contain_text("evaluation")
        page.get_by_role("link", name="Attacks").click()
        expect(page.locator(".gallery img")).to_be_visible()
        expect(page.get_by_role("region", name="seen by the public")).to_contain_text("0.61 (0.5 to 0.7)")
        assert seen.serious() == []


def test_a_browser_without_the_address_sees_nothing_and_all_requests_stay(visit, view):
    with visit() as seen:
        with pytest.raises(Error, match="ERR_HTTP_RESPONSE_CODE_FAILURE"):  # 403, without a word
            seen.page.goto(f"http://127.0.0.1:{view.gate.port}/")
        expect(seen.page.locator("body")).not_to_contain_text("Sordino")
        seen.page.goto("about:blank")
        seen.problems.clear()  # the browser's own message about it
        page = enter(seen, view)
        expect(rows(page)).to_have_count(25)
        (cookie,) = page.context.cookies()
        assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
        assert page.evaluate("document.cookie") == ""
        assert {url.split("/")[2] for url in seen.requests} == {f"127.0.0.1:{view.gate.port}"}


def test_the_planner_answers_by_keyboard(visit, view):
    view.answers.planner = lambda numbers: {
        "settings": [],
        "verdicts": [f"Asked for {numbers['clients']} clients."],
        "notes": [],
    }
    with visit() as seen:
        page = enter(seen, view, "/plan")
        page.get_by_label("clients", exact=True).fill("321")
        expect(page.locator(".answer")).to_contain_text("Asked for 321 clients.")
        assert seen.serious() == []
