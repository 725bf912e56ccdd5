"""Who took part, for the owner: the map, how often, and the sizes of cohorts; and the traffic of a run."""

from __future__ import annotations

from sordino.report.chart import Chart
from sordino.report.document import DataTable, Paragraph, Tiles
from sordino.report.run import participation, sites, traffic
from support.section_records import contents, sources


def charts(section):
    return {b.id: b for b in section.blocks if isinstance(b, Chart)}


def test_nothing_of_it_is_public():
    for module in (participation, traffic, sites):
        assert module.section(sources(contents())) is None


def test_the_map_shows_the_share_of_the_rounds_of_each_stretch():
    heat = charts(participation.section(sources(contents(), owner=True)))["participation-map"]
    assert heat.cells[0] == (1.0, 0.5, 0.0) and heat.cells[3] == (0.0, 0.0, 0.0)
    assert heat.x.categories == ("1", "3", "5") and heat.y.categories == ("0", "1", "2", "3", "4")
    assert "the busiest client (2) in 100 %, the rarest (3) in 0 %" in heat.summary


def test_groups_of_clients_count_together_and_large_maps_stay_small():
    held = contents()
    held["participation"] = {
        "clients": 1203, "together": 3, "rounds": list(range(1, 61)), "last": 60,
        "counts": [[3] * 60] * 400 + [[0] * 60],
    }  # fmt: skip
    heat = charts(participation.section(sources(held, owner=True)))["participation-map"]
    assert len(heat.cells) <= 100 and len(heat.cells[0]) <= 60
    assert heat.cells[0][0] == 1.0 and heat.y.categories[0] == "0 to 11" and 0 < heat.cells[-1][0] < 1


def test_how_often_clients_took_part():
    bars = charts(participation.section(sources(contents(), owner=True)))["participation-often"]
    assert dict(zip(bars.x.categories, (y for _, y in bars.series[0].points), strict=True)) == {
        "0": 1.0, "1": 0.0, "2": 0.0, "3": 2.0, "4": 0.0, "5": 1.0, "6": 1.0,
    }  # fmt: skip
    assert "3.4 times on average" in bars.summary and "1 client of 5 never did" in bars.summary


def test_cohorts_and_missing_answers():
    chart = charts(participation.section(sources(contents(), owner=True)))["participation-cohorts"]
    assert [y for _, y in chart.series[0].points] == [4, 3, 4, 3, 4, 3]
    assert "3 answers of clients that were drawn and charged did not arrive" in chart.summary


def test_full_participation_is_a_sentence():
    held = contents()
    held["participation"] |= {"counts": [[2, 2, 2]] * 5, "by_number": [0, 0, 0, 0, 0, 0, 5]}
    section = participation.section(sources(held, owner=True))
    assert "participation-map" not in charts(section)
    assert any(isinstance(b, Paragraph) and "All 5 clients took part in every one of 6 rounds" in b.text
               for b in section.blocks)  # fmt: skip


def test_traffic_is_the_sum_of_the_records():
    section = traffic.section(sources(contents(), owner=True))
    tiles = next(b for b in section.blocks if isinstance(b, Tiles)).tiles
    total = 31337 * 21
    assert tiles[0].value == f"{total / 1e3:.0f} kB" and tiles[1].value == f"{424242 * 21 / 1e6:.2f} MB"
    assert tiles[2].value == f"{0.31313 * 21:.2f} s"
    seconds = charts(section)["traffic-seconds"].series[0]
    assert seconds.points == tuple((float(t), 0.31313 * t) for t in range(1, 7))


def test_sites_and_what_they_did_not_answer():
    section = sites.section(sources(contents(), owner=True))
    table = next(b for b in section.blocks if isinstance(b, DataTable))
    assert table.rows == (("clinic-of-st-anna", "5", "6", "1", "2", "1.75"),)
    assert "3 answers were missing" in section.blocks[0].text


def test_where_there_is_no_draw_none_is_called_a_secret():
    held = contents()
    held["spec"]["client_rate"] = 1.0
    everybody = participation.section(sources(held, owner=True)).blocks[0].text
    held["spec"]["client_rate"] = 0.5
    drawn = participation.section(sources(held, owner=True)).blocks[0].text
    held["plan"]["promise"]["epsilon"] = None
    unprotected = participation.section(sources(held, owner=True)).blocks[0].text
    assert "secret draw" in drawn and "secret" not in everybody + unprotected


def test_the_bars_of_a_long_run_stay_few():
    held = contents()
    held["participation"]["by_number"] = [0] * 1200 + [1.0 if k % 7 == 0 else 0.0 for k in range(71)]
    bars = charts(participation.section(sources(held, owner=True)))["participation-often"]
    assert len(bars.x.categories) <= 24 and sum(y for _, y in bars.series[0].points) == 11
    assert bars.x.categories[0].startswith("1200") and bars.x.categories[-1].endswith("1270")
