"""For whom the model works worse: classes for everybody, single clients for the owner."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import binomtest

from sordino.report.chart import Chart
from sordino.report.document import DataTable, Paragraph
from sordino.report.reading import read_run
from sordino.report.run import gaps
from sordino.report.run.client_figures import by_client
from sordino.report.run.fields import RunSources
from support.section_records import CONFUSION, contents, sources


def charts(section):
    return {b.id: b for b in section.blocks if isinstance(b, Chart)}


def test_the_accuracy_of_a_class_is_its_share_of_the_confusion_matrix():
    chart = charts(gaps.section(sources(contents())))["gaps-classes"]
    matrix = np.array(CONFUSION)
    assert [y for _, y in chart.series[0].points] == pytest.approx((matrix.diagonal() / matrix.sum(axis=1)).tolist())
    known = binomtest(30, 40).proportion_ci(0.95)
    assert chart.series[0].band[0] == pytest.approx((known.low, known.high))
    assert chart.x.categories == ("ill", "well", "unknown")


def test_mistakes_are_shares_of_the_true_class():
    chart = charts(gaps.section(sources(contents())))["gaps-confusion"]
    assert chart.cells[1][0] == chart.cells[1][2] == 0.1 and math.isnan(chart.cells[1][1])
    assert "25.0 % of class ill are taken for well" in chart.summary


def test_noisy_counts_have_no_interval_and_say_so():
    held = contents()
    for record in held["rounds"]:
        record["evaluated_on"] = "validation records, with noise of deviation 3, charged"
    section = gaps.section(sources(held))
    assert charts(section)["gaps-classes"].series[0].band == ()
    assert any("have noise" in b.text for b in section.blocks if isinstance(b, Paragraph))


def test_classes_with_few_records_are_called_uncertain():
    held = contents()
    held["result"]["confusion"] = [[3, 1], [10, 90]]
    section = gaps.section(sources(held))
    assert any("fewer than 30" in b.text for b in section.blocks if isinstance(b, Paragraph))
    assert charts(section)["gaps-classes"].x.categories == ("0", "1")  # the records name three classes


def test_single_clients_are_the_owners():
    assert "gaps-clients" not in charts(gaps.section(sources(contents())))
    section = gaps.section(sources(contents(), owner=True))
    dots = charts(section)["gaps-clients"]
    assert dots.x.categories == ("7", "0", "1") and [y for _, y in dots.series[0].points] == [0.97531, 0.86421, 0.73939]
    table = next(b for b in section.blocks if isinstance(b, DataTable) and b.title == "Figures of clients")
    assert table.rows[0][:3] == ("1", "73.94 %", "20")


def test_many_clients_are_counted_by_their_figure():
    held = contents()
    held["owner_rounds"][-1]["by_client"]["clients"] = {str(c): [c / 100, 10] for c in range(100)}
    bars = charts(gaps.section(sources(held, owner=True)))["gaps-clients"]
    assert bars.kind == "bars" and sum(y for _, y in bars.series[0].points) == 100


def test_a_real_run_records_its_clients_for_the_owner_alone(real_run):
    folder = real_run("udp-fl")
    records = read_run(folder, "owner")
    name, each = by_client(RunSources(records))
    metrics = records.rounds[-1].metrics
    values = [value for value, _ in each.values()]
    assert name == "accuracy" and len(each) == 8 and sum(n for _, n in each.values()) == 60
    assert min(values) == metrics["worst_client"] and max(values) - min(values) == pytest.approx(metrics["client_gap"])
    assert records.owner.rounds[0].by_client is None
    for path in (folder / "public").glob("*.json*"):
        assert "by_client" not in path.read_text()
    assert "by_client" in json.loads((folder / "private/records.jsonl").read_text().splitlines()[-1])
