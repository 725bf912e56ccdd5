"""What the methods of the three systems chose, sound and as printed; numbers of any other method are drawn by name."""

from __future__ import annotations

import pytest

from sordino.report.chart import Chart
from sordino.report.document import DataTable, Paragraph
from sordino.report.reading import read_run
from sordino.report.run import choices
from sordino.report.run.fields import RunSources
from support.section_records import choice, contents, sources

PAGES = {  # charts of the owner's report
    "udp-fl": {"choices-before-0"},
    "udp-fl-paper": {"choices-printed"},
    "fedsdp": {"choices-shares", "choices-multiplier", "choices-left"},
    "fedsdp-paper": {"choices-shares", "choices-accuracies", "choices-clients"},
    "adaptive-noise": {"choices-scales"},
    "adaptive-noise-paper": {"choices-delta"},
}


def charts(section):
    return {b.id: b for b in section.blocks if isinstance(b, Chart)}


def of(folder, audience):
    return RunSources(read_run(folder, audience))


@pytest.mark.parametrize("method", PAGES)
def test_each_system_has_its_pages_for_the_owner(method, real_run):
    section = choices.section(of(real_run(method), "owner"))
    assert set(charts(section)) >= PAGES[method]
    assert not [id for id in charts(section) if id.startswith("choices-other")]


@pytest.mark.parametrize("method", PAGES)
def test_the_public_sees_only_what_follows_from_public_numbers(method, real_run):
    section = choices.section(of(real_run(method), "public"))
    assert (section is not None) == (method == "udp-fl")


def test_the_public_choice_of_the_harmonizer_is_the_one_that_the_run_made(real_run):
    run = of(real_run("udp-fl"), "owner")
    decided = run.records.owner.rounds[0].decided
    assert run.plan.part("chosen").parts("kinds")[0].data["choice"] == decided["choice"]
    best = max(decided["choice"]["candidates"], key=lambda c: c.get("score", -1))
    assert best["mechanism"] == decided["mechanism"]
    section = choices.section(of(real_run("udp-fl"), "public"))
    assert f"chose {best['mechanism']} noise (score {best['score']:.3f})" in section.blocks[0].text


def test_scores_stand_in_bars_and_a_table_with_the_reason_of_whoever_was_out():
    section = choices.section(sources(contents()))
    bars = charts(section)["choices-before-0"]
    assert {s.name: [y for _, y in s.points] for s in bars.series}["score"] == [0.925, 0.467]
    table = next(b for b in section.blocks if isinstance(b, DataTable))
    assert table.rows[2][0] == "staircase" and table.rows[2][-1] == "it cannot be sampled"


def test_contributions_are_those_of_the_records(real_run):
    run = of(real_run("fedsdp"), "owner")
    lines = {s.name: s.points for s in charts(choices.section(run))["choices-shares"].series}
    for k, name in enumerate(("records without private attributes", "private group 1")):
        assert lines[name] == tuple((float(r.round), r.decided["shares"][k]) for r in run.records.owner.rounds)


def test_scales_of_adaptive_noise_are_a_band(real_run):
    run = of(real_run("adaptive-noise"), "owner")
    line = charts(choices.section(run))["choices-scales"].series[0]
    quantiles = [r.decided["scale_quantiles"] for r in run.records.owner.rounds]
    assert [y for _, y in line.points] == [q[1] for q in quantiles]
    assert list(line.band) == [(q[0], q[2]) for q in quantiles]


def test_numbers_of_any_other_method_are_drawn_by_name():
    section = choices.section(sources(contents(), owner=True))
    chart = charts(section)["choices-other-1"]
    assert chart.title == "Temperature, by round"
    assert [y for _, y in chart.series[0].points] == [7.7771 * t for t in range(1, 7)]


def test_changes_of_the_noise_are_listed():
    held = contents()
    for t, record in enumerate(held["owner_rounds"]):
        record["decided"] = {"mechanism": "laplace" if t < 3 else "gaussian", "renyi": t / 10, "renyi_total": 1.0}
    section = choices.section(sources(held, owner=True))
    table = next(b for b in section.blocks if isinstance(b, DataTable) and b.title == "Changes of the noise")
    assert table.rows == (("4", "laplace", "gaussian"),)
    assert "from 0 % in round 1 to 50.0 % in round 6" in " ".join(
        b.text for b in section.blocks if isinstance(b, Paragraph)
    )


def test_later_choices_of_the_harmonizer_stand_with_their_scores():
    held = contents()
    later = choice()
    later["candidates"][1]["score"] = 0.95
    for t, record in enumerate(held["owner_rounds"]):
        record["decided"] = {"mechanism": "gaussian"} | ({"next": later} if t == 3 else {})
    section = choices.section(sources(held, owner=True))
    table = next(b for b in section.blocks if isinstance(b, DataTable) and b.title == "Later choices of the Harmonizer")
    assert table.rows == (("4", "all", "dense", "laplace 0.950, gaussian 0.925", "laplace"),)
    assert not [b for b in choices.section(sources(held)).blocks if getattr(b, "title", "") == table.title]


def test_clients_that_chose_are_counted_and_no_noise_is_said_to_be_zero():
    held = contents()
    for record in held["owner_rounds"]:
        record["decided"] = {"mechanisms": {"gaussian": 0, "laplace": 5}}
    chart = charts(choices.section(sources(held, owner=True)))["choices-printed"]
    assert "The number of clients with gaussian noise is 0 in every round." in chart.summary


def test_one_client_is_not_both_the_highest_and_the_lowest():
    held = contents()
    for t, record in enumerate(held["owner_rounds"], 1):
        each = {"noise_multiplier": float(t)}
        record["decided"] = {"shares": [0.5, 0.5], "ratio": 0.5, "clients": {"0": each, "1": each}}
    chart = charts(choices.section(sources(held, owner=True)))["choices-clients"]
    assert chart.summary == "On average over the rounds shown it is 3.5 for every client."
