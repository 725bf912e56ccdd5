"""Epsilon over rounds, by accountant, by client, and what lies outside the rounds."""

from __future__ import annotations

import math

import pytest

from sordino.privacy.accountants import gdp, rdp
from sordino.privacy.events import GaussianEvent, Repeated
from sordino.report.chart import Chart
from sordino.report.chart_numbers import numbers
from sordino.report.document import DataTable, Paragraph
from sordino.report.run import budget
from support.run_records import MULTIPLIER
from support.section_records import EPSILON, contents, sources


def charts(section):
    return {b.id: b for b in section.blocks if isinstance(b, Chart)}


def said(section):
    return " ".join(b.text for b in section.blocks if isinstance(b, Paragraph))


def test_epsilon_by_round_is_that_of_the_records_and_equal_viewers_share_a_line():
    chart = charts(budget.section(sources(contents())))["budget-rounds"]
    assert chart.series[0].name == "against the server and the public"
    assert chart.series[0].points == tuple((float(t), e) for t, e in enumerate(EPSILON, 1))
    limit = next(s for s in chart.series if s.role == "limit")
    assert {y for _, y in limit.points} == {contents()["plan"]["promise"]["epsilon"]}


def test_a_viewer_with_an_infinite_epsilon_is_named_and_has_no_line():
    section = budget.section(sources(contents()))
    assert "Against another client epsilon is infinite" in said(section)
    assert "client" not in charts(section)["budget-rounds"].series[0].name


def test_accountants_are_priced_again_from_the_events():
    chart = charts(budget.section(sources(contents())))["budget-accountants"]
    lines = {s.name: dict(s.points) for s in chart.series}
    event = Repeated(GaussianEvent(MULTIPLIER), 3)
    exact = gdp.epsilon_of_mu(math.sqrt(3) / MULTIPLIER, 1e-5)
    assert lines[budget.ACCOUNTANTS["exact"]][3.0] == pytest.approx(exact, rel=1e-6)
    assert lines[budget.ACCOUNTANTS["RDP"]][3.0] == pytest.approx(rdp.epsilon(event, 1e-5))
    assert exact <= lines[budget.ACCOUNTANTS["PLD"]][3.0] <= lines[budget.ACCOUNTANTS["RDP"]][3.0]


def test_delta_is_shown_by_round_at_the_epsilon_of_the_guarantee():
    chart = charts(budget.section(sources(contents())))["budget-deltas"]
    lines, epsilon = {s.name: dict(s.points) for s in chart.series}, contents()["result"]["guarantee"]["epsilon"]
    exact, event = lines[budget.ACCOUNTANTS["exact"]], Repeated(GaussianEvent(MULTIPLIER), 3)
    assert exact[3.0] == pytest.approx(gdp.delta(event, epsilon))
    early = gdp.delta(Repeated(GaussianEvent(MULTIPLIER), 1), epsilon)
    assert (1.0 in exact) is (early >= 1e-11) and ("delta is below" in chart.summary) is (early < 1e-11)
    assert exact[3.0] <= lines[budget.ACCOUNTANTS["PLD"]][3.0] <= lines[budget.ACCOUNTANTS["RDP"]][3.0]
    assert rdp.delta(event, epsilon) == lines[budget.ACCOUNTANTS["RDP"]][3.0]


def test_the_privacy_curve_is_the_exact_one():
    chart = charts(budget.section(sources(contents())))["budget-privacy-curve"]
    for epsilon, delta in chart.series[0].points[1:]:
        assert delta == pytest.approx(gdp.delta(Repeated(GaussianEvent(MULTIPLIER), 3), epsilon), rel=1e-6)
    assert chart.series[1].role == "limit"


def test_events_that_disagree_with_the_guarantee_give_no_privacy_curve():
    held = contents()
    held["accounting"]["viewers"]["server"]["spent"][1]["event"]["count"] = 30
    run = sources(held)
    assert "budget-privacy-curve" not in charts(budget.section(run))
    assert any("accounting.json" in sentence for sentence in run.damage)


def test_evaluations_outside_the_rounds_are_told():
    assert "2 releases in all, are part of the total. Alone they would cost epsilon = 0.5" in said(
        budget.section(sources(contents()))
    )
    held = contents()
    held["plan"]["evaluation"]["apart"] = True
    assert "no round touches" in said(budget.section(sources(held)))


def test_budgets_of_clients_are_public_and_what_each_used_is_the_owners():
    section = budget.section(sources(contents()))
    table = next(b for b in section.blocks if isinstance(b, DataTable) and b.title == "Budgets of clients")
    assert table.rows == (("1", "1e-05", "2", "3"), ("2", "1e-05", "3", "6"))
    assert "budget-clients" not in charts(section)
    bars = charts(budget.section(sources(contents(), owner=True)))["budget-clients"].series[0]
    assert [y for _, y in bars.points] == [3 / 3, 3 / 3, 6 / 6, 0 / 6, 5 / 6]  # rounds over those that are paid for


def test_budgets_are_not_rounded_down_and_the_total_is_the_largest_only_where_it_is():
    """A run may promise less than the largest budget of a client: then no client spends more than the total."""
    held, shown = contents(), {}
    for largest in (held["result"]["guarantee"]["epsilon"], 40.00004):
        held["plan"]["budgets"][1]["epsilon"] = largest
        section = budget.section(sources(held))
        shown[largest] = (
            said(section),
            next(b for b in section.blocks if getattr(b, "title", "") == "Budgets of clients"),
        )
    (same, _), (larger, table) = shown.values()
    assert "The total above is that of the largest." in same and "holds for all of them" not in same
    assert "holds for all of them" in larger and "that of the largest" not in larger
    assert "epsilon from 1 to 40.001." in larger and table.rows[1][0] == "40.001"


def test_what_a_method_left_of_every_budget_comes_from_the_last_round_of_each_client():
    held = contents()
    held["owner_rounds"][1]["decided"] = {"clients": {"0": {"left": 0.5}, "3": {"left": 0.75}}}
    held["owner_rounds"][4]["decided"] = {"clients": {"0": {"left": 0.25}}}
    bars = charts(budget.section(sources(held, owner=True)))["budget-clients"]
    assert bars.x.categories == ("0", "3") and [y for _, y in bars.series[0].points] == [0.75, 0.25]


def test_without_a_guarantee_there_is_nothing_to_spend():
    held = contents()
    held["result"]["guarantee"] |= {"epsilon": None, "infinite": True, "reason": "no noise is added"}
    for record in held["rounds"]:
        record["epsilon"] = {"server": None, "public": None}
    section = budget.section(sources(held))
    assert "epsilon is infinite against the server: no noise is added" in said(section) and not charts(section)


def test_no_text_about_a_curve_of_epsilon_understates_it():
    held = contents()
    for record, epsilon in zip(held["rounds"], (1.4991, 1.5001, 1.9994, 2.0001, 2.4994, 2.99919), strict=True):
        record["epsilon"] = {"server": epsilon}
    chart = charts(budget.section(sources(held)))["budget-rounds"]
    assert "rises from 1.5 in round 1 to 3 in round 6" in chart.summary
    rows = [row for row in numbers(chart).rows if row[0] == "against the server"]
    assert [row[-1] for row in rows] == ["1.5", "1.501", "2", "2.001", "2.5", "3"]


def test_a_search_is_told_with_its_total():
    held = contents()
    assert "A search chose clip = 0.5 and method = dp-sgd. In total epsilon = 1.5." in said(
        budget.section(sources(held))
    )
    held["tune"] = {}
    assert "search" not in said(budget.section(sources(held)))
