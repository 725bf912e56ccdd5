"""How good the model is: figures, their certainty, and the run without privacy."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from sordino.report.document import DataTable, Paragraph
from sordino.report.run import accuracy
from sordino.report.run.evaluated import interval
from support.section_records import ACCURACY, contents, sources


def texts(section):
    return [b.text for b in section.blocks if isinstance(b, Paragraph)]


def test_the_first_sentence_compares_with_the_run_without_privacy():
    lead = texts(accuracy.section(sources(contents())))[0]
    assert "81.25 % of the public test records right" in lead and "without privacy it reaches 90.00 %" in lead
    assert "privacy costs 8.75 percentage points" in lead


def test_every_metric_stands_in_the_table_with_its_difference():
    table = next(b for b in accuracy.section(sources(contents())).blocks if isinstance(b, DataTable))
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["Accuracy"][:3] == ("81.25 %", "90.00 %", "-8.75 points")
    assert rows["AUC"][:3] == ("90.00 %", "95.00 %", "-5.00 points")
    assert rows["Brier score"][:3] == ("0.18", "-", "-") and rows["Worst class"][:3] == ("-", "85.00 %", "-")
    assert len(table.keys) == len(table.rows) and table.keys[0][1:3] == (ACCURACY[-1], 0.9)


@pytest.mark.parametrize(("right", "count"), [(0, 7), (7, 7), (130, 160), (3, 1000)])
def test_intervals_are_those_of_clopper_and_pearson(right, count):
    known = binomtest(right, count).proportion_ci(0.95)
    assert interval(right, count) == pytest.approx((known.low, known.high))


def test_a_figure_on_public_records_has_the_interval_of_their_number():
    known = binomtest(130, 160).proportion_ci(0.95)
    said = " ".join(texts(accuracy.section(sources(contents()))))
    assert "130 of 160 records" in said and f"{100 * known.low:.1f} % and {100 * known.high:.1f} %" in said


def test_a_noisy_figure_says_how_far_its_noise_moves_it_and_no_interval_of_counts():
    held = contents()
    for record in held["rounds"]:
        record["evaluated_on"] = "validation records, with noise of deviation 0.01, charged"
    said = " ".join(texts(accuracy.section(sources(held))))
    assert "about 81.25 %" in said and "less than 2.0 percentage points" in said and "Clopper" not in said


def test_other_records_than_those_of_the_baseline_are_a_warning():
    held = contents()
    held["baseline"]["evaluated_on"] = "validation records"
    blocks = accuracy.section(sources(held)).blocks
    assert any(isinstance(b, Paragraph) and b.tone == "warning" and "other records" in b.text for b in blocks)


def test_a_run_that_goes_on_shows_its_last_evaluated_round():
    held = contents() | {"result": {}, "baseline": {}}
    held["rounds"] = held["rounds"][:3]
    section = accuracy.section(sources(held))
    assert "75.00 %" in texts(section)[0] and "after round 3" in texts(section)[0]


def test_a_run_that_evaluated_nothing_says_so():
    held = contents() | {"baseline": {}, "rounds": []}
    held["plan"]["evaluated_on"] = None
    held["result"] |= {"accuracy": None, "metrics": {}, "confusion": None}
    assert "not evaluated" in texts(accuracy.section(sources(held)))[0]


def test_no_model_is_called_final_before_the_end():
    held = contents() | {"result": {}}
    titles = [b.title for b in accuracy.section(sources(held)).blocks if hasattr(b, "title")]
    assert titles and not [t for t in titles if "final" in t]
