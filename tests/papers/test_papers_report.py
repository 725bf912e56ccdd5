"""The page of a reproduced figure: claims, accounted epsilons, the paper's numbers, and charts of every kind."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sordino.papers import report
from sordino.papers.base import Experiment, Outcome, Trial
from sordino.papers.charts import charts
from sordino.papers.page import Provenance
from sordino.report.document import DataTable, Listing, Paragraph
from sordino.report.page import page

CLAIM = {"epsilon": 0.5, "scope": "total", "why_not": "the noise follows private values"}


def outcome(row, x, form, seed=0, accuracy=0.9, epsilon=None, claim=None, decided=None):
    promised = {"epsilon": epsilon, "unit": "record", "viewer": "server", "reason": None}
    result = {"accuracy": accuracy, "guarantee": promised, "claim": claim, "rounds": 2, "metrics": {}}
    records = [{"round": r, "accuracy": accuracy, "seconds": 1.0, "noise": 0.1 * r, "decided": decided} for r in (1, 2)]
    return Outcome(Trial(row, x, form, seed, {"method": "dp-sgd"}), result, records)


FOUND = [outcome("A", 0.5, "printed", s, 0.9 + 0.02 * s, claim=CLAIM) for s in (0, 1)]
FOUND += [outcome("A", 0.5, "sound", 0, 0.8, 0.49996), outcome("A", 0.5, "reference", 0, 0.95)]
MADE = Experiment("002/x", "T", "About it.", lambda s: [], {("A", 0.5): 93.7})


def texts(doc):
    blocks = [b for s in doc.sections for b in s.blocks]
    return [b.text for b in blocks if isinstance(b, Paragraph)] + [
        t for b in blocks if isinstance(b, Listing) for t in b.items
    ]


def test_paper_claim_and_accounted_epsilon_stand_in_one_row():
    found = report.table(MADE, FOUND)
    row = dict(zip(found.header, found.rows[0], strict=True))
    assert (row["in the paper"], row["claimed epsilon"], row["accounted epsilon, printed"]) == (
        "93.7",
        "0.5",
        "infinite",
    )
    assert row["accounted epsilon, sound"] == "0.5" and row["ours, as printed"] == "91.00 ± 1.41 (2 seeds)"
    assert row["ours, sound"] == "80.00 (one seed)" and found.caution == (0,)
    said = report.verdict(FOUND)
    assert "holds in no run; accounted is epsilon = infinite: the noise follows private values." in said[0]


def test_a_claim_that_holds_is_not_called_broken():
    fine = [outcome("A", 0.5, "printed", epsilon=0.49, claim=CLAIM)]
    assert report.table(MADE, fine).caution == () and "does not hold" not in report.verdict(fine)[0]
    two = [*fine, outcome("A", 1.0, "printed", epsilon=3.0, claim=CLAIM)]
    assert "in 1 of 2 runs; accounted is epsilon = 3:" in report.verdict(two)[0]


def test_the_papers_numbers_are_beside_ours_and_bars_are_over_seeds():
    printed, sound = charts(MADE, FOUND)
    ours, theirs, level = printed.series
    assert theirs.points == ((0.0, 93.7),) and ours.points[0][1] == pytest.approx(91.0) and level.role == "reference"
    assert ours.band[0][1] - ours.band[0][0] == pytest.approx(2 * math.sqrt(2))
    assert [s.name for s in sound.series] == ["A", "A, no privacy"] and printed.x.label == "epsilon, claimed"


def test_every_kind_of_picture_has_a_chart():
    decided = {"weights_quantiles": [0, 1, 2, 3, 4], "truncated_quantiles": [1, 1, 2, 3, 3],
               "path_loss": [1.0, 0.5], "straight_loss": [1.0, 2.0], "delta": 0.1}  # fmt: skip
    many = [outcome("A", x, "printed", s, decided=decided) for x in (0.5, 2.0) for s in (0, 1)]
    many += [outcome("F", "none", "reference")]
    bounds = replace(MADE, kind="by-round", bounds=lambda o: {"Theorem 1": [1.0, 2.0]}, beside=("delta",))
    first, second = charts(bounds, many)
    assert [s.role for s in first.series] == ["data", "reference", "limit", "data"] and first.y.scale == "log"
    assert first.series[-1].axis == "right" and first.series[-1].points == ((1.0, 0.1), (2.0, 0.1))
    assert first.series[0].points[0][1] == 90.0 and second.title == "epsilon = 2"
    weights = charts(replace(MADE, kind="boxes"), many)[0]
    assert weights.series[0].points == ((1.0, 2.0), (2.0, 2.0)) and weights.series[0].band[0] == (0.0, 4.0)
    path = charts(replace(MADE, kind="path"), many)[0]
    assert path.series[1].points == ((0.0, 1.0), (1.0, 2.0))
    points = replace(MADE, kind="points", points=lambda o: {"Theorem 3": [(1, 2.0)], "measured": [(1, 1.5)]})
    assert [s.role for s in charts(points, many)[0].series] == ["limit", "data"]
    assert charts(replace(MADE, kind="table"), many) == [] and charts(bounds, []) == []


def test_what_is_missing_failed_or_changed_is_said_and_further_tables_are_kept():
    extra = replace(MADE, extra=lambda o: ["Rounds to 90 %:", "", "| a | b |", "| --- | --- |", "| <b>1</b> | 2 |"])
    how = Provenance("sordino reproduce 002/x", 0.5, ["rounds=5"], {"A-x": "no memory"}, 9)
    doc = report.document(extra, FOUND, how, "A paper")
    said = "\n".join(texts(doc))
    for words in ("at scale 0.5", "rounds=5, so nothing here compares", "A-x: no memory", "About it."):
        assert words in said
    assert doc.damage == ("So far 4 of 9 runs are finished.",)
    further = next(b for s in doc.sections if s.id == "further" for b in s.blocks if isinstance(b, DataTable))
    assert (further.title, further.header, further.rows) == ("Rounds to 90 %", ("a", "b"), (("<b>1</b>", "2"),))
    text = page(doc)
    assert "&lt;b&gt;1" in text and "<b>1</b>" not in text
    assert "No run has ended yet." in texts(report.document(MADE, [], how, "A paper"))
