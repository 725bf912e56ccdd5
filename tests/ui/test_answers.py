"""What the view says about runs: the list, live runs, runs beside each other, the calculator, the ledger, attacks."""

from __future__ import annotations

import base64
import json
import shutil

import pytest

from sordino.core.errors import RunError
from sordino.privacy import tightest
from sordino.privacy.events import GaussianEvent, Repeated, Sampled
from sordino.ui.api import ViewAnswers
from support.views import line, locked, make_run

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def runs(tmp_path):
    """Three runs: a finished one, one that goes on or has died, and one whose guarantee differs."""
    folder = tmp_path / "runs"
    make_run(folder, "alpha")
    make_run(folder, "beta", done=7, method="dp-fedavg")
    make_run(folder, "gamma", method="nbafl-paper", epsilon=9.5, unit="client", relation="replace")
    return folder


def asked(answers, *parts, **query):
    """Return an answer without an error."""
    found = answers.answer(parts, query)
    assert found is not None and "error" not in found, found
    return found


def ids(answers):
    """Return the ids of all runs by name."""
    return {item.name: item.id for item in answers.shelf.items()}


def names(answer):
    """Return the names of the runs in a list."""
    return [row["name"] for row in answer["rows"]]


def blocks(document, kind):
    """Return all blocks of a kind in a document."""
    return [b for s in document["sections"] for b in s["blocks"] if b["block"] == kind]


# --- the list


def test_the_list_says_what_each_run_is_and_has_spent(runs):
    answers = ViewAnswers([runs])
    rows = {row["name"]: row for row in asked(answers, "runs")["rows"]}
    assert (rows["alpha"]["state"], rows["alpha"]["epsilon"], rows["alpha"]["score"]) == ("finished", 2.0, 0.82)
    beta = rows["beta"]
    assert (beta["state"], beta["rounds"], beta["planned"], beta["total"]) == ("stopped", 7, 20, 2.0)
    assert beta["epsilon"] == pytest.approx(0.4 * 7**0.5)
    with locked(runs / "beta"):
        assert {r["name"]: r["state"] for r in asked(answers, "runs")["rows"]}["beta"] == "running"


def test_the_list_is_sorted_filtered_and_paged(runs):
    answers = ViewAnswers([runs])
    assert names(asked(answers, "runs", sort="name")) == ["alpha", "beta", "gamma"]
    assert names(asked(answers, "runs", sort="-epsilon")) == ["gamma", "alpha", "beta"]
    assert names(asked(answers, "runs", find="FEDAVG stopped")) == ["beta"]
    second = asked(answers, "runs", sort="name", size="2", page="2")
    assert (names(second), second["pages"], second["found"]) == (["gamma"], 2, 3)
    assert names(asked(answers, "runs", sort="name", size="2", page="99")) == ["gamma"]
    assert "cannot be sorted" in answers.answer(["runs"], {"sort": "__class__"})["error"]


def test_a_run_without_a_value_comes_last_either_way(runs):
    (runs / "gamma" / "public" / "result.json").unlink()
    (runs / "gamma" / "public" / "records.jsonl").unlink()
    answers = ViewAnswers([runs])
    for sort in ("score", "-score"):
        assert names(asked(answers, "runs", sort=sort))[-1] == "gamma"


def test_records_that_are_cut_are_marked_in_the_list(runs):
    path = runs / "alpha" / "public" / "records.jsonl"
    path.write_text(path.read_text()[:900])
    (runs / "gamma" / "public" / "plan.json").write_text("{")
    marked = {row["name"] for row in asked(ViewAnswers([runs]), "runs")["rows"] if row["damaged"]}
    assert marked == {"alpha", "gamma"}


def test_a_folder_that_is_removed_while_it_is_shown_is_told(runs, monkeypatch):
    monkeypatch.setattr("sordino.ui.shelf.EVERY", 0.0)
    answers = ViewAnswers([runs])
    id = ids(answers)["alpha"]
    shutil.rmtree(runs)
    answer = asked(answers, "runs")
    assert answer["rows"] == [] and "no longer there" in answer["missing"][0]
    for part in ("live", "report"):
        assert "there is no such run" in answers.answer(["run", id, part], {})["error"]


def test_runs_inside_a_comparison_and_a_copy_of_a_public_part_are_found(runs, tmp_path):
    shutil.move(runs / "alpha", tmp_path / "kept" / "cells" / "one")
    shutil.copytree(runs / "gamma" / "public", tmp_path / "kept" / "copied")
    answers = ViewAnswers([tmp_path / "kept"])
    whole = ids(answers)["kept"]
    (cell,) = answers.shelf.cells(answers.shelf.item(whole))
    assert asked(ViewAnswers([tmp_path / "kept"]), "run", cell.id, "live")["line"]["name"] == "one"
    copied = ViewAnswers([tmp_path / "kept" / "copied"])
    assert asked(copied, "runs")["rows"][0]["state"] == "finished"


# --- a live run


def test_curves_grow_with_the_records(runs):
    answers = ViewAnswers([runs])
    id = ids(answers)["beta"]
    with locked(runs / "beta"):
        before = asked(answers, "run", id, "live")
        with (runs / "beta" / "public" / "records.jsonl").open("a") as file:
            file.write(line(8) + line(9)[:50])  # the second is being written
        after = asked(answers, "run", id, "live")
    assert (before["rounds"], after["rounds"], after["line"]["state"]) == (7, 8, "running")
    epsilon = next(c for c in after["charts"] if c["id"] == "live-epsilon")
    assert [s["name"] for s in epsilon["series"]] == [
        "against the server",
        "against the public",
        "total of the guarantee",
    ]
    assert epsilon["series"][0]["points"][-1] == [8, pytest.approx(0.4 * 8**0.5)]
    assert after["damage"] == []


def test_a_run_that_was_resumed_is_read_anew(runs):
    answers, path = ViewAnswers([runs]), runs / "beta" / "public" / "records.jsonl"
    id = ids(answers)["beta"]
    asked(answers, "run", id, "live")
    path.unlink()
    path.write_text(line(1, accuracy=0.1) + line(2, accuracy=0.2))
    quality = next(c for c in asked(answers, "run", id, "live")["charts"] if c["id"] == "live-quality")
    assert quality["series"][0]["points"] == [[1, 0.1], [2, 0.2]]


def test_damaged_records_are_shown_up_to_the_damage(runs):
    path = runs / "beta" / "public" / "records.jsonl"
    path.write_text(line(1) + line(2) + "{]\n" + line(4))
    shown = asked(ViewAnswers([runs]), "run", ids(ViewAnswers([runs]))["beta"], "live")
    assert shown["rounds"] == 2
    assert shown["damage"] == [
        "records.jsonl is damaged in line 3: the 2 rounds before it are shown, and nothing after it."
    ]


def test_a_regression_shows_its_error(runs):
    record = json.loads(line(1)) | {"accuracy": None, "metrics": {"rmse": 0.25}}
    (runs / "beta" / "public" / "records.jsonl").write_text(json.dumps(record) + "\n")
    answers = ViewAnswers([runs])
    row = next(r for r in asked(answers, "runs")["rows"] if r["name"] == "beta")
    assert (row["measure"], row["score"]) == ("rmse", 0.25)
    shown = asked(answers, "run", row["id"], "live")
    assert [s["name"] for s in shown["charts"][1]["series"]] == ["RMSE", "loss"]
    beside = asked(answers, "compare", runs=f"{row['id']},{ids(answers)['alpha']}")
    assert "RMSE 0.25" in str(blocks(beside, "DataTable")) and "82.0 %" in str(blocks(beside, "DataTable"))


def test_the_public_view_reads_nothing_private(runs):
    secret = "measured-in-private"
    private = runs / "alpha" / "private"
    (private / "records.jsonl").write_text(json.dumps({"round": 1, "note": secret}) + "\n")
    (private / "notes.txt").write_text(secret)
    (private / "attacks").mkdir()
    (private / "attacks" / "a-public.json").write_text(json.dumps({"attack": secret, "sentence": secret}))
    answers = ViewAnswers([runs])
    id = ids(answers)["alpha"]
    parts = [answers.answer(["run", id, part], {}) for part in ("live", "report", "attacks", "line")]
    text = json.dumps([*parts, answers.answer(["attacks"], {}), answers.answer(["runs"], {})])
    assert secret not in text and "for the owner" in text


def test_the_owner_of_a_copy_sees_the_public_report_and_why(runs, tmp_path):
    shutil.copytree(runs / "alpha" / "public", tmp_path / "handout" / "alpha" / "public")
    answers = ViewAnswers([tmp_path / "handout"], "owner")
    shown = asked(answers, "run", ids(answers)["alpha"], "report")
    assert shown["audience"] == "public" and "no private part" in shown["damage"][0]


# --- beside each other


def test_runs_beside_each_other_warn_where_their_guarantees_differ(runs):
    answers = ViewAnswers([runs])
    known = ids(answers)
    same = asked(answers, "compare", runs=f"{known['alpha']},{known['beta']}")
    assert blocks(same, "Paragraph") == []
    other = asked(answers, "compare", runs=f"{known['alpha']},{known['gamma']}")
    (warning,) = blocks(other, "Paragraph")
    assert warning["tone"] == "warning" and "record and client" in warning["text"] and "replacing" in warning["text"]
    assert [c["id"] for c in blocks(other, "Chart")] == ["compare-epsilon", "compare-accuracy", "compare-loss"]
    assert "choose 2 to 8 runs" in answers.answer(["compare"], {"runs": known["alpha"]})["error"]


def test_claimed_accounted_and_audited_stand_beside_each_other(runs):
    result = json.loads((runs / "gamma" / "public" / "result.json").read_text())
    (runs / "gamma" / "public" / "result.json").write_text(json.dumps(result | {"claim": {"epsilon": 1.5}}))
    (runs / "alpha" / "public" / "audit.json").write_text(json.dumps({"least": 2.5}))
    answers = ViewAnswers([runs])
    known = ids(answers)
    shown = asked(answers, "compare", runs=f"{known['gamma']},{known['alpha']}")
    (table,) = blocks(shown, "DataTable")
    columns = [table["header"].index(name) for name in ("claimed", "accounted", "audited")]
    assert [[row[c] for c in columns] for row in table["rows"]] == [["1.5", "9.5", ""], ["", "2", "2.5"]]
    assert table["caution"] == [0]
    assert "The audit of alpha" in blocks(shown, "Paragraph")[-1]["text"]


# --- the calculator


def test_the_calculator_answers_as_the_accountants_do(runs):
    answers = ViewAnswers([runs])
    given = {"noise": "1.1", "rate": "0.02", "steps": "300", "delta": "1e-6"}
    for relation in ("add/remove", "replace"):
        event = Repeated(Sampled(GaussianEvent(1.1), 0.02, relation), 300)
        (tiles,) = blocks(asked(answers, "epsilon", relation=relation, **given), "Tiles")
        shown = float(tiles["tiles"][0]["value"])
        assert 0 <= shown - tightest.epsilon(event, 1e-6) < 1.1e-3
    (tiles,) = blocks(asked(answers, "noise", epsilon="2", rate="0.02", steps="300", delta="1e-6"), "Tiles")
    noise = float(tiles["tiles"][0]["value"])
    assert 1.97 < tightest.epsilon(Repeated(Sampled(GaussianEvent(noise), 0.02, "add/remove"), 300), 1e-6) <= 2
    charts = blocks(asked(answers, "curves", **given), "Chart")
    assert [c["id"] for c in charts] == ["epsilon-by-steps", "epsilon-by-noise"]
    assert all(p[1] is not None for c in charts for s in c["series"] for p in s["points"])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"noise": "0"}, "noise must lie between 0.2 and 200"),
        ({"noise": "nan"}, "noise must lie"),
        ({"noise": "x"}, "must be a number"),
        ({"steps": "1e12"}, "steps must lie"),
        ({"steps": "1.5"}, "steps must be a whole number"),
        ({"rate": "2"}, "rate must lie"),
        ({"delta": "0.5"}, "delta must lie"),
        ({"relation": "swap"}, "relation must be"),
    ],
)
def test_numbers_out_of_range_are_one_sentence(runs, change, text):
    query = {"noise": "1", "rate": "0.1", "steps": "10", "delta": "1e-5"} | change
    for what in ("epsilon", "curves"):
        assert text in ViewAnswers([runs]).answer([what], query)["error"]


def test_the_planner_is_asked_for_numbers_and_its_answer_is_shown(runs):
    heard = []

    def planner(numbers):
        heard.append(numbers)
        setting = {
            "unit": "record", "viewer": "server", "noise_by": "every client", "methods": ["dp-sgd"], "feasible": True,
            "noise_multiplier": 14.1, "rounds": 50, "nsr_run": 0.05, "accuracy_kept": [0.6, 0.9], "verdict": "works",
        }  # fmt: skip
        return {"settings": [setting], "verdicts": ["Works: a record."], "notes": ["A note."]}

    query = {
        "clients": "1e2", "records": "500", "parameters": "20000", "epsilon": "2", "delta": "1e-5", "client_rate": "1",
        "batch_rate": "0.5", "rounds": "",
    }  # fmt: skip
    (table,) = blocks(asked(ViewAnswers([runs], planner=planner), "plan", **query), "DataTable")
    assert table["rows"][0][3:] == ["dp-sgd", "works", "14.1", "50", "0.05", "60 to 90 %"]
    counts = {"clients": 100, "records": 500, "parameters": 20000}
    assert heard == [counts | {"epsilon": 2.0, "delta": 1e-5, "client_rate": 1.0, "batch_rate": 0.5}]


# --- attacks, the ledger


def test_the_gallery_shows_figures_and_pictures_and_follows_no_link(runs, tmp_path):
    folder = runs / "alpha" / "private" / "attacks"
    folder.mkdir()
    figures = [{"metric": "AUC", "value": 0.61, "low": 0.5, "high": 0.7, "chance": 0.5, "unit": "number"}]
    told = {"attack": "loss-threshold", "view": "public", "sentence": "An outsider finds members.", "figures": figures}
    (folder / "loss-threshold-public.json").write_text(json.dumps(told))
    (folder / "loss-threshold-public.png").write_bytes(PNG)
    (tmp_path / "elsewhere.png").write_bytes(PNG)
    (folder / "loss-threshold-public-2.png").symlink_to(tmp_path / "elsewhere.png")
    (folder / "loss-threshold-public-3.png").write_text("<svg onload=alert(1)>")
    shown = asked(ViewAnswers([runs], "owner"), "attacks")
    (picture,), (table,) = blocks(shown, "PictureFile"), blocks(shown, "DataTable")
    assert base64.b64decode(picture["png"]) == PNG
    assert table["rows"] == [["AUC", "0.61 (0.5 to 0.7)", "", "0.5"]]
    assert len(shown["damage"]) == 2 and "leads out of its folder" in shown["damage"][0]


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    """A ledger with two charges."""
    from sordino.ledger.ledger import Charge, Ledger
    from sordino.privacy.events import Cost

    monkeypatch.setenv("SORDINO_HOME", str(tmp_path / "home"))
    path = tmp_path / "home" / "registry" / "ledger.sqlite"
    with Ledger(path) as book:
        charge = Charge(Cost("record", "add/remove", "server", GaussianEvent(5.0)), 1.25, 1e-5)
        for run in ("alpha", "<b>beta</b>"):
            book.charge("evaluation", "benchmark iris", charge, {"run": run, "purpose": "test"}, job=run)
        yield path, book


def test_the_ledger_is_read_while_another_process_holds_it(runs, ledger):
    path, _ = ledger  # still open, with a log of changes beside it
    before = sorted(p.name for p in path.parent.iterdir())
    answers = ViewAnswers([runs], "owner")
    shown = asked(answers, "ledger")
    together, charges = blocks(shown, "DataTable")
    assert together["rows"] == [["a record", "add/remove", "server", "2.5", "2e-05", "0"]]
    assert [row[0] for row in charges["rows"]] == ["<b>beta</b>", "alpha"]
    assert asked(answers, "chain") == {"intact": True, "sentence": "The chain of 2 entries is intact."}
    assert sorted(p.name for p in path.parent.iterdir()) == before


def test_the_ledger_is_the_owners(runs, ledger):
    """Its totals count people by their data and not by names, so they would tell whose data overlap."""
    for part in ("ledger", "chain"):
        told = ViewAnswers([runs]).answer([part], {})
        assert set(told) == {"error"} and "for the owner" in told["error"]
        assert not any(word in told["error"] for word in ("beta", "iris", "2.5", str(ledger[0].parent)))


def test_a_ledger_that_was_edited_is_told(runs, ledger):
    import sqlite3

    path, book = ledger
    book.close()
    with sqlite3.connect(path) as db:
        db.execute("DROP TRIGGER no_update")
        db.execute("UPDATE entry SET epsilon = 0.01 WHERE id = 1")
    db.close()
    told = asked(ViewAnswers([runs], "owner"), "chain")
    assert not told["intact"] and "row 1 was edited" in told["sentence"]


def test_without_a_ledger_nothing_is_made(runs, tmp_path, monkeypatch):
    monkeypatch.setenv("SORDINO_HOME", str(tmp_path / "nothing"))
    assert "there is no ledger yet" in ViewAnswers([runs], "owner").answer(["ledger"], {})["error"]
    assert not (tmp_path / "nothing").exists()


def test_an_unknown_address_has_no_answer(runs):
    answers = ViewAnswers([runs])
    for parts in ([], ["nothing"], ["run"], ["run", "x", "y"], ["run", "x", "live", "z"]):
        assert answers.answer(parts, {}) is None
    with pytest.raises(RunError):
        answers.shelf.item("x")
