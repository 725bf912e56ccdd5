"""The page of a comparison: what is ranked against what, the three epsilons, warnings; copies and damaged folders."""

from __future__ import annotations

import json
import math
import shutil

import pytest

from sordino.core.errors import RunError
from sordino.report.chart import Chart
from sordino.report.comparison import document, find, is_comparison
from sordino.report.document import DataTable, Listing, Paragraph
from sordino.report.page import page
from support.comparisons import MadeUp, typical


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return document(typical(tmp_path_factory.mktemp("c") / "trial").folder)


@pytest.fixture
def made(tmp_path):
    return MadeUp(tmp_path / "trial")


def blocks(doc, kind):
    return [b for section in doc.sections for b in section.blocks if isinstance(b, kind)]


def texts(doc):
    said = [b.text for b in blocks(doc, Paragraph)]
    return said + [item for b in blocks(doc, Listing) for item in b.items]


def table(doc, title):
    return next(t for t in blocks(doc, DataTable) if t.title.startswith(title))


def rows(found):
    return [dict(zip(found.header, row, strict=True)) for row in found.rows]


def chart(doc, id):
    return next(c for c in doc.charts() if c.id == id)


def test_methods_with_different_promises_stand_in_different_tables_and_charts(whole):
    record = table(whole, "Unit record (add/remove), against the server")
    client = table(whole, "Unit client (add/remove), against the public")
    assert {r["method"] for r in rows(record)} == {"dp-sgd", "adaptive-noise"}
    assert {r["method"] for r in rows(client)} == {"dp-fedavg"}
    assert [(r["method"], r["rank"]) for r in rows(record) if r["asked for"] == "4"] == [
        ("adaptive-noise", "1"), ("dp-sgd", "2"),
    ]  # fmt: skip
    assert any("must not be ranked against each other" in t and "unit (record, client)" in t for t in texts(whole))
    for drawn in whole.charts():
        if drawn.id.startswith(("accuracy", "convergence")):
            names = {s.name.partition(",")[0] for s in drawn.series}
            assert not ({"dp-fedavg"} & names and {"dp-sgd"} & names), drawn.id
    assert not any("rank" in t.header for t in blocks(whole, DataTable) if not t.title.startswith("Unit"))


def test_the_three_epsilons_stand_beside_each_other(whole):
    printed = table(whole, "As printed")
    claims = {(r["method"], r["claimed"]): r["accounted"] for r in rows(printed)}
    assert claims == {("geodp-paper", "1"): "21", ("geodp-paper", "4"): "84", ("fedsdp-paper", "1 a round"): "infinite",
                      ("fedsdp-paper", "4 a round"): "infinite"}  # fmt: skip
    assert printed.caution == tuple(range(4)) and "the noise follows private values" in printed.note
    ranked = rows(table(whole, "Unit record"))
    assert {r["audited"] for r in ranked if r["method"] == "dp-sgd"} == {"at least 0.25", "at least 1"}
    assert {r["audited"] for r in ranked if r["method"] == "adaptive-noise"} == {"-"}
    drawn = chart(whole, "epsilons")
    assert [s.name.partition(":")[0] for s in drawn.series] == ["claimed by the paper", "accounted", "audited"]
    place = drawn.x.categories.index("geodp-paper, 4")
    assert drawn.series[0].points[place][1] == 4 and drawn.series[1].points[place][1] == 84
    endless = drawn.x.categories.index("fedsdp-paper, 4 a round (infinite)")
    assert math.isnan(drawn.series[1].points[endless][1])
    said = [t for t in texts(whole) if t.startswith("The claim of geodp-paper does not hold")]
    assert len(said) == 1 and "epsilon = 1 and 4; accounted is epsilon = 21 and 84, in this order" in said[0]


def test_an_audit_above_what_is_accounted_is_a_warning(made):
    doc = document(made.add("dp-sgd", 2.0, [0.9], audited=2.5).folder)
    assert any("cannot be right" in t and "dp-sgd, epsilon 2" in t for t in texts(doc))
    assert not any("cannot be right" in t for t in texts(document(made.add("x", 2.0, [0.9], audited=1.9).folder))
                   if "x, epsilon 2" in t)  # fmt: skip


def test_scores_have_error_bars_and_one_seed_is_said_in_words(made):
    doc = document(made.add("dp-sgd", 2.0, [0.8, 0.9]).add("geodp", 2.0, [0.7]).add("none", None, [0.95]).folder)
    found = {r["method"]: r for r in rows(table(doc, "Unit record"))}
    assert found["dp-sgd"]["accuracy"] == "85.00 % ± 7.07" and found["dp-sgd"]["seeds"] == "2"
    assert found["geodp"]["accuracy"] == "70.00 % (one seed)" and found["geodp"]["seeds"].startswith("one seed")
    series = {s.name: s for s in chart(doc, "accuracy").series}
    low, high = series["dp-sgd"].band[0]
    assert (low + high) / 2 == pytest.approx(0.85) and high - low == pytest.approx(2 * 0.1 / math.sqrt(2))
    assert series["none, no privacy"].role == "reference"
    curve = next(s for s in chart(doc, "convergence-1").series if s.name == "dp-sgd")
    assert len(curve.points) == len(curve.band) == 10
    assert curve.points[-1][1] == pytest.approx(0.85 * (1 - math.exp(-5)))
    assert curve.band[-1][1] - curve.band[-1][0] == pytest.approx(0.1 * math.sqrt(2) * (1 - math.exp(-5)))
    assert any("behind by 15.00 percentage points, more than what one standard deviation" in t for t in texts(doc))


def test_a_table_is_sorted_by_numbers_and_what_is_infinite_comes_last(whole):
    found = table(whole, "As printed")
    column = found.header.index("accounted")
    assert [k[column] for k in found.keys][:2] == [21, 84] and found.keys[2][column] > 1e200
    assert all(len(k) == len(found.header) for k in found.keys) and len(found.keys) == len(found.rows)
    json.dumps(whole.to_json(), allow_nan=False)


def test_failed_runs_are_named_with_their_public_reason_and_count_in_no_mean(made):
    made.add("dp-sgd", 2.0, [0.8, 0.9]).listed("dp-sgd-eps2-seed9")
    (made.folder / "public" / "results.csv").write_text(
        "cell,method,epsilon,seed,status,reason\n"
        'dp-sgd-eps2-seed9,dp-sgd,2.0,9,failed,"DataError: its reason is the owner\'s"\n'
    )
    doc = document(made.folder)
    assert rows(table(doc, "Runs that failed"))[0]["reason"] == "DataError: its reason is the owner's"
    assert rows(table(doc, "Unit record"))[0]["seeds"] == "2, 1 failed" and doc.facts["state"] == "finished"
    assert not doc.damage


def test_a_comparison_that_goes_on_or_died_says_what_is_missing(made):
    made.add("dp-sgd", 2.0, [0.8]).add("geodp", 2.0, [0.7], done=4).listed("dp-sgd-eps2-seed9")
    (made.folder / "private").mkdir()
    (made.folder / "private" / "lock").touch()
    doc = document(made.folder)
    assert "was stopped: 1 of 3 runs are finished" in doc.damage[0] and doc.facts["state"] == "stopped"
    states = {r["run"]: (r["state"], r["rounds"]) for r in rows(table(doc, "Runs that are not finished"))}
    assert states["geodp-eps2-seed0"][1] == "4 of 10" and states["dp-sgd-eps2-seed9"] == ("waits", "-")
    import fcntl

    with (made.folder / "private" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "goes on: 1 of 3" in document(made.folder).damage[0]


def test_nothing_has_a_result_yet(made):
    doc = document(made.add("dp-sgd", 2.0, [0.8], done=0).folder)
    assert any("No run of this comparison has a result yet" in t for t in texts(doc)) and page(doc)


def test_copies_say_the_same(whole, tmp_path):
    folder = typical(tmp_path / "trial").folder
    assert document(folder / "public").to_json() == whole.to_json()  # the public part of a whole folder
    exported = tmp_path / "copy"  # as `sordino export` writes it: files at the top
    shutil.copytree(folder / "public", exported)
    for cell in (folder / "cells").iterdir():
        shutil.copytree(cell / "public", exported / "cells" / cell.name)
    assert [t.rows for t in blocks(document(exported), DataTable)] == [t.rows for t in blocks(whole, DataTable)]


def test_a_copy_of_the_tables_alone_has_rows_and_no_curves(tmp_path):
    head = "cell,method,epsilon,seed,status,accuracy,accounted_epsilon,delta,unit,relation,viewer,channel,rounds,reason"
    (tmp_path / "results.csv").write_text(
        f"{head}\na,dp-sgd,2.0,0,done,0.9,1.9999,1e-05,record,add/remove,server,direct,12,\n"
        "b,none,,0,done,0.95,infinite,1e-05,record,add/remove,server,direct,12,no noise is added\n"
        "c,dp-sgd,2.0,1,done,oops,nan,,,,,,,\n"
    )
    doc = document(tmp_path)
    (row,) = rows(table(doc, "Unit record"))
    assert (row["accuracy"], row["accounted"], row["rounds"]) == ("90.00 % (one seed)", "2", "12")
    assert table(doc, "Reference").rows and not [c for c in doc.charts() if c.id.startswith("convergence")]


def test_damage_is_named_and_the_rest_is_shown(made):
    made.add("dp-sgd", 2.0, [0.8, 0.9, 0.7]).add("geodp", 2.0, [0.6])
    cells = made.folder / "cells"
    (cells / "dp-sgd-eps2-seed0/public/result.json").write_text('{"guarantee": {"epsilon": "much"}}')
    (cells / "dp-sgd-eps2-seed1/public/plan.json").write_text("[")
    (cells / "dp-sgd-eps2-seed2/public/records.jsonl").write_text('{"round": 1, "epsilon": {}, "accuracy": 0.1}\n{')
    (made.folder / "public/cells.json").write_bytes(b"\xff")
    (made.folder / "public/results.csv").write_text('cell,method\n"open')
    doc = document(made.folder)
    damage = "\n".join(doc.damage)
    for name in ("cells.json", "results.csv", "dp-sgd-eps2-seed0", "dp-sgd-eps2-seed1", "dp-sgd-eps2-seed2"):
        assert name in damage, name
    assert "60.00" in "".join(rows(table(doc, "Unit record"))[-1].values()) and page(doc)


@pytest.mark.parametrize("value", ["1e400", "-1", "true", "[]", '"x"', "{}", "null", "1" * 400, "0.5"])
def test_no_value_in_a_record_breaks_the_page(made, value):
    made.add("dp-sgd", 2.0, [0.8, 0.9]).add("none", None, [0.9])
    at = made.folder / "cells" / "dp-sgd-eps2-seed0" / "public"
    for name in ("result.json", "plan.json", "audit.json"):
        data = json.loads((at / name).read_text()) if (at / name).exists() else {"unit": 1, "viewer": 1}
        marked = {k: "@" if not isinstance(v, dict) else dict.fromkeys(v, "@") for k, v in data.items()}
        marked |= {k: data[k] for k in ("method",) if k in data}
        (at / name).write_text(json.dumps(marked).replace('"@"', value))
    lines = f'{{"round": 1, "epsilon": {{}}, "accuracy": {value}, "loss": {value}, "noise": {value}}}\n'
    (at / "records.jsonl").write_text(lines)
    (made.folder / "public" / "cells.json").write_text(f'{{"cells": {value}, "charged": {value}}}')
    assert "90.00 %" in page(document(made.folder))


def test_names_are_text_and_links_out_of_the_folder_are_not_followed(made, tmp_path):
    hostile = "<script>alert(1)</script>"
    made.add(hostile, 2.0, [0.8], notes=[hostile, "two\nlines \x1b[31m"])
    other = MadeUp(tmp_path / "other").add("secret", 2.0, [0.1])
    (made.folder / "cells" / "linked").symlink_to(other.folder / "cells" / "secret-eps2-seed0")
    text = page(document(made.folder))
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text and "\x1b" not in text
    assert "secret" not in text


def test_the_private_part_is_never_read(made):
    private = made.add("dp-sgd", 2.0, [0.8]).folder / "private"
    private.mkdir()
    cell = made.folder / "cells" / "dp-sgd-eps2-seed0" / "private"
    cell.mkdir()
    before = document(made.folder).to_json()
    for at in (private / "comparison.json", private / "failures.json", cell / "records.jsonl", cell / "result.json"):
        at.write_text('{"secret": 17}')
    assert document(made.folder).to_json() == before


def test_the_bill_is_the_sentence_that_was_printed_or_a_plain_sum(made):
    made.add("dp-sgd", 2.0, [0.8, 0.9])
    doc = document(made.folder)
    assert any("public benchmark" in t for t in texts(doc))
    index = json.loads((made.folder / "public/cells.json").read_text())
    index["charged"] = {"runs": 2, "sentence": "The data are your own, so 2 runs are charged to them."}
    (made.folder / "public/cells.json").write_text(json.dumps(index))
    assert any("so 2 runs are charged" in t for t in texts(document(made.folder)))
    for path in made.folder.glob("cells/*/public/plan.json"):
        path.write_text(path.read_text().replace('"public_data": true', '"public_data": false'))
    (made.folder / "public/cells.json").unlink()
    assert any("2 runs with epsilon = 4 in total (a plain sum)" in t for t in texts(document(made.folder)))


def test_settings_that_differ_are_beside_each_other(whole):
    assert ("clip", "0.5", "1.0", "-", "-", "-", "-") in table(whole, "Settings that differ").rows
    assert ("dataset", "patients") in next(b for s in whole.sections if s.id == "settings" for b in s.blocks
                                          if hasattr(b, "rows") and not hasattr(b, "header")).rows  # fmt: skip


def test_many_epsilons_are_drawn_to_scale(made):
    for k in range(20):
        made.add("dp-sgd", 0.5 + k, [0.5 + k / 50])
    drawn = chart(document(made.folder), "accuracy")
    assert drawn.x.scale == "log" and len(drawn.series[0].points) == 20


def test_another_folder_is_one_clear_error(tmp_path, made):
    made.add("dp-sgd", 2.0, [0.8])
    run = made.folder / "cells" / "dp-sgd-eps2-seed0"
    for path, match in ((tmp_path / "none", "there is no folder"), (tmp_path, "not the folder of a comparison"),
                        (run, "not the folder of a comparison")):  # fmt: skip
        with pytest.raises(RunError, match=match) as error:
            document(path)
        assert "\n" not in str(error.value) and not is_comparison(path)
    assert find(made.folder / "public") == made.folder and is_comparison(made.folder)
    assert all(isinstance(c, Chart) for c in document(made.folder).charts())
