"""What people and programs read."""

import csv
import io
import math

from sordino.report.cells import read
from sordino.report.tables import ACROSS, PRINTED, cell_row, line_rows, markdown, tables, to_csv
from support.summaries import lines_of as of


def test_blocks_come_with_the_warning_and_paper_forms_apart(typical):
    record, client, printed, reference = tables(of(typical))
    assert record.title == "Unit record (add/remove), against the server"
    assert client.title == "Unit client (add/remove), against the public"
    assert ACROSS in record.note and "must not be ranked against each other" in ACROSS
    assert printed.title == PRINTED and "rank" not in printed.header and "Not ranked" in printed.note
    assert "the noise follows private values" in printed.note
    assert reference.rows[0][0] == "none" and "rank" not in reference.header


def test_claimed_stands_beside_accounted(typical):
    printed = next(t for t in tables(of(typical)) if t.title == PRINTED)
    assert printed.header[:3] == ("method", "claimed epsilon", "accounted")
    assert ("nbafl-paper", "2 a round", "infinite") in [row[:3] for row in printed.rows]
    assert ("geodp-paper", "2", "42") in [row[:3] for row in printed.rows]


def test_one_block_needs_no_warning(fabricated):
    fabricated.add("dp-sgd", 2.0, [0.8, 0.9, 1.0]).add("other", 2.0, [0.5])
    (table,) = tables(of(fabricated))
    assert not table.note
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert (row["rank"], row["method"], row["accuracy, %"], row["n"]) == ("1", "dp-sgd", "90.00 ± 10.00", "3")
    assert table.rows[1][3] == "50.00"  # one seed: no deviation


def test_a_ranking_at_different_epsilons_says_so(fabricated):
    fabricated.add("dp-sgd", 2.0, [0.8], accounted=1.506).add("fedsdp", 2.0, [0.9], accounted=2.0)
    fabricated.add("dp-sgd", 8.0, [0.9], accounted=7.99).add("fedsdp", 8.0, [0.9], accounted=8.0)
    (table,) = tables(of(fabricated))
    assert "asked for 2, where others spent 2: dp-sgd 1.506)" in table.note and "max_participations" in table.note
    assert "asked for 8" not in table.note


def test_what_runs_remarked_stands_below(fabricated):
    fabricated.add("dp-sgd", 2.0, [0.8, 0.9], notes=["common", "own"]).add("other", 2.0, [0.5], notes=["common"])
    table = tables(of(fabricated))[-1]
    assert table.title == "Remarks from the runs"
    assert table.rows == (("all", "common"), ("dp-sgd", "own"))


def test_every_row_of_markdown_has_as_many_cells_as_its_head(typical):
    name = typical.fail("dp-sgd", 0.1, 0)
    text = markdown("Comparison", "About.", of(typical, {name: "BudgetError: a | b"}))
    counts = set()
    for block in text.split("## ")[1:]:
        rows = [r.replace("\\|", "") for r in block.splitlines() if r.startswith("|")]
        counts = {r.count("|") for r in rows}
        assert len(rows) > 2 and len(counts) == 1
    assert "Cells that failed" in text


def test_csv_has_full_numbers_and_a_word_for_infinity(typical):
    cells = read(typical.folder, {})
    rows = list(csv.DictReader(io.StringIO(to_csv([cell_row(c) for c in cells]))))
    assert len(rows) == len(cells) == 57
    first = rows[0]
    assert (first["method"], first["seed"], first["status"]) == ("dp-sgd", "0", "done")
    assert float(first["accuracy"]) == cells[0].accuracy  # not one digit lost
    paper = next(r for r in rows if r["method"] == "nbafl-paper")
    assert (paper["accounted_epsilon"], paper["claimed_epsilon"], paper["claim_scope"]) == ("infinite", "0.5", "round")
    assert next(r for r in rows if r["method"] == "none")["epsilon"] == ""


def test_summary_has_ranks_where_there_is_a_ranking_only(typical):
    rows = {(r["method"], r["epsilon"]): r for r in line_rows(of(typical))}
    assert rows["adaptive-noise", 2.0]["rank"] == 1 and rows["dp-sgd", 2.0]["rank"] == 2
    assert rows["dp-fedavg", 2.0]["rank"] == 1  # of its own block
    assert rows["nbafl-paper", 2.0]["rank"] is rows["none", None]["rank"] is None
    assert rows["none", None]["kind"] == "reference"


def test_a_regression_is_compared_by_its_errors(fabricated):
    fabricated.add("dp-sgd", 2.0, [None, None], errors=[0.30, 0.50], losses=[1.0, 1.0])
    fabricated.add("geodp", 2.0, [None, None], errors=[0.20, 0.22], losses=[9.0, 9.0])
    fabricated.add("none", None, [None], errors=[0.1], accounted=math.inf)
    found = of(fabricated)
    ranked, reference = tables(found)
    rows = [dict(zip(ranked.header, row, strict=True)) for row in ranked.rows]
    assert "accuracy, %" not in ranked.header + reference.header
    assert [(r["method"], r["rmse"], r["mae"]) for r in rows] == [  # by the error, whatever the loss says
        ("geodp", "0.21 ± 0.014", "0.105 ± 0.0071"),
        ("dp-sgd", "0.4 ± 0.14", "0.2 ± 0.071"),
    ]
    cells = list(csv.DictReader(io.StringIO(to_csv([cell_row(c) for c in read(fabricated.folder, {})]))))
    assert [float(r["rmse"]) for r in cells] == [0.3, 0.5, 0.2, 0.22, 0.1] and cells[0]["mae"] == "0.15"
    summed = list(csv.DictReader(io.StringIO(to_csv(line_rows(found)))))
    assert float(summed[0]["rmse_mean"]) == 0.4 and float(summed[1]["mae_std"]) > 0


def test_errors_have_no_columns_where_there_is_no_regression(typical):
    text = to_csv(line_rows(of(typical)))
    assert "rmse" not in text and "mae" not in text and "accuracy_mean" in text


def test_a_claim_says_for_whom_and_from_whom(fabricated):
    """Which may be another unit and viewer than what is accounted; comparisons of earlier versions have no viewer."""
    claimed = {"epsilon": 2.0, "unit": "record", "why_not": "w", "source": "s"}
    for method, more in (("old", {}), ("geodp-paper", {"viewer": "server"}), ("fedsdp-paper", {"viewer": "client"})):
        fabricated.add(method, 2.0, [0.8], accounted=42.0, claim=claimed | more, unit="client")
    (table,) = tables(of(fabricated))
    rows = {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    assert {m: r["claimed for"] for m, r in rows.items()} == {
        "old": "record",
        "geodp-paper": "record against the server",
        "fedsdp-paper": "record against another client",
    }
    assert {(r["claimed epsilon"], r["unit"], r["viewer"]) for r in rows.values()} == {("2", "client", "server")}
    cells = {r["method"]: r["claim_viewer"] for r in map(cell_row, read(fabricated.folder, {}))}
    lines_ = {r["method"]: r["claim_viewer"] for r in line_rows(of(fabricated))}
    assert cells == lines_ == {"old": "", "geodp-paper": "server", "fedsdp-paper": "client"}
