"""Noise and clips: what was planned for everybody, what was measured for the owner."""

from __future__ import annotations

import math

import pytest

from sordino.report.chart import Chart
from sordino.report.run import noise
from support.section_records import contents, owner_round, sources


def charts(section):
    return {b.id: b for b in section.blocks if isinstance(b, Chart)}


def test_everybody_sees_planned_noise_and_released_clips_and_nothing_measured():
    found = charts(noise.section(sources(contents())))
    assert set(found) == {"noise-noise-rounds", "noise-clip-rounds"}
    assert found["noise-noise-rounds"].series[0].points == tuple((float(t), 2.0 / t) for t in range(1, 7))
    assert found["noise-clip-rounds"].series[0].points == tuple((float(t), 1.0 / t) for t in range(1, 7))


def test_the_owner_sees_noise_over_signal_by_layer():
    found = charts(noise.section(sources(contents(), owner=True)))
    lines = {s.name: s.points for s in found["noise-ratio"].series}
    assert lines["layer 1"] == tuple((float(t), 10.0 * t) for t in range(1, 7))
    assert lines["layer 2"] == tuple((float(t), 0.5) for t in range(1, 7))
    heat = found["noise-layers"]
    assert heat.y.categories == ("layer 1", "layer 2") and heat.x.categories == tuple(map(str, range(1, 7)))
    assert heat.cells[0] == pytest.approx([math.log10(10.0 * t) for t in range(1, 7)])
    assert heat.cells[1] == pytest.approx([math.log10(0.5)] * 6)


def test_the_owner_sees_clipping_fractions_by_outlet():
    chart = charts(noise.section(sources(contents(), owner=True)))["noise-clipped"]
    lines = {s.name: s.points for s in chart.series}
    assert lines["update"] == tuple((float(t), 0.1237 * t) for t in range(1, 7))
    assert lines["count"] == tuple((float(t), 0.5) for t in range(1, 7)) and chart.y.percent


def test_noise_that_follows_the_data_is_shown_to_the_owner_alone():
    held = contents()
    for record in held["rounds"]:
        record["noise"] = None
    assert "noise-injected" in charts(noise.section(sources(held, owner=True)))
    assert "noise-injected" not in charts(noise.section(sources(held)))


@pytest.mark.parametrize(("over", "under"), [(1.0, 0.0), (None, 1.0), ("1", 1.0), (math.inf, 1.0), (-1.0, 1.0)])
def test_a_ratio_that_is_not_known_is_a_gap(over, under):
    assert math.isnan(noise.ratio(over, under))


def test_a_long_run_of_a_deep_model_keeps_its_heat_map_small():
    held = contents()
    layers = {str(k): float(k + 1) for k in range(300)}
    held["owner_rounds"] = [owner_round(1) | {"round": t, "measured": {"signal": layers, "noise": layers}}
                            for t in range(1, 201)]  # fmt: skip
    chart = charts(noise.section(sources(held, owner=True)))["noise-layers"]
    assert len(chart.cells) == noise.LAYERS and len(chart.cells[0]) <= 100
    assert chart.cells[7][3] == pytest.approx(0.0)


def test_clients_with_budgets_of_their_own_do_not_all_add_the_same_noise():
    held = contents()
    for record in held["rounds"]:
        record["noise"] = 2.0
    held["plan"]["budgets"] = [{"epsilon": 1.0, "delta": 1e-5, "clients": 2, "noise_multiplier": 15.0},
                               {"epsilon": 2.0, "delta": 1e-5, "clients": 3, "noise_multiplier": 5.0}]  # fmt: skip
    lead, sheet = noise.section(sources(held)).blocks[:2]
    assert "a client with the largest budget" in lead.text and "is 2 in every round" in lead.text
    assert "up to 3 times as much" in lead.text and dict(sheet.rows)["noise multiplier"].startswith("5 to 15")
    del held["plan"]["budgets"]
    assert "one client's message" in noise.section(sources(held)).blocks[0].text


def test_a_layer_inside_another_is_called_a_layer():
    assert noise.shown_name("1.3") == "layer 1.3" and noise.shown_name("update") == "update"
