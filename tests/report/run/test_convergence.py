"""Curves over rounds: the numbers of the records, the baseline, lost rounds, thinning."""

from __future__ import annotations

import math

from sordino.report.chart import MOST, Chart
from sordino.report.document import Paragraph
from sordino.report.run import convergence
from support.section_records import ACCURACY, LOSS, contents, public_round, sources


def charts(section):
    return {b.id: b for b in section.blocks if isinstance(b, Chart)}


def test_the_curves_are_the_numbers_of_the_records():
    found = charts(convergence.section(sources(contents())))
    for id, values in (("convergence-accuracy", ACCURACY), ("convergence-loss", LOSS)):
        points = found[id].series[0].points
        assert points == tuple((float(t), v) for t, v in enumerate(values, 1))
    auc = next(s for s in found["convergence-shares"].series if s.name == "AUC")
    assert auc.points == tuple((float(t), 0.6 + 0.05 * t) for t in range(1, 7))
    assert {s.name for s in found["convergence-gaps"].series} >= {"gap between classes", "gap between clients"}


def test_the_run_without_privacy_is_a_reference():
    line = charts(convergence.section(sources(contents())))["convergence-accuracy"].series[1]
    assert line.role == "reference" and line.points == ((1.0, 0.8), (6.0, 0.9))


def test_columns_of_a_baseline_that_do_not_fit_are_left_out():
    held = contents()
    held["baseline"]["curve"]["accuracy"] = [0.8]
    found = charts(convergence.section(sources(held)))
    assert [s.name for s in found["convergence-accuracy"].series if s.role == "reference"] == ["lost rounds"]
    assert len(found["convergence-loss"].series) == 3


def test_lost_rounds_are_marked_and_their_reason_is_told():
    section = convergence.section(sources(contents()))
    marks = next(s for s in charts(section)["convergence-accuracy"].series if s.name == "lost rounds")
    assert [p for p in marks.points if math.isfinite(p[1])] == [(4.0, ACCURACY[3])]
    warning = next(b for b in section.blocks if isinstance(b, Paragraph) and b.tone == "warning")
    assert "1 round of 6 was lost" in warning.text
    assert "too few clients answered: round 4" in str(section)


def test_the_summary_states_what_the_curve_shows():
    summary = charts(convergence.section(sources(contents())))["convergence-accuracy"].summary
    assert "rises from 50.0 % in round 1 to 81.2 % in round 6; highest 87.5 % in round 5" in summary


def test_a_long_run_is_thinned_and_keeps_its_ends_and_extremes():
    held = contents()
    held["rounds"] = [public_round(1) | {"round": t, "loss": math.sin(t)} for t in range(1, 5001)]
    held["rounds"][1234]["loss"] = 99.0
    points = charts(convergence.section(sources(held)))["convergence-loss"].series[0].points
    assert len(points) <= MOST + 2 and (1235.0, 99.0) in points
    assert (points[0][0], points[-1][0]) == (1.0, 5000.0)


def test_a_run_that_was_evaluated_once_has_no_curve():
    held = contents()
    for record in held["rounds"][:-1]:
        record |= {"loss": None, "accuracy": None, "metrics": None, "lost": None}
    section = convergence.section(sources(held))
    assert not charts(section) and "once, in round 6" in section.blocks[0].text
