"""What a run on one's own table or pictures shows of the records: nothing that is exact, and one figure at the end.

The attack: from the model and the exact losses that a run published of "its test rows", taken unasked from the private
table, the label of a protected user was recovered. Here one user's label changes under the same seed, and everything
that is handed out is compared."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest
from PIL import Image

import sordino
from sordino.cli.main import main
from sordino.core.errors import DataError, RunError, SpecError
from sordino.measures.held_out import HELD_OUT
from sordino.runs import build, run
from sordino.runs.fingerprint import fingerprints
from sordino.runs.prepare import prepare
from sordino.spec import spec
from support.problems import federation, held_out, linear

KEYS = {"rounds": 3, "seed": 3, "device": "cpu", "learning_rate": 0.5, "features": "none"}


def table(folder, users, rows, sites=2, flipped=(), extra="", name="t.csv"):
    """Rows with a number of their own, a label, a person and a site; the labels of some rows are flipped."""
    draw = np.random.default_rng(0)
    lines = ["id,b,y,who,site" + (",part" if extra else "")]
    for i in range(rows):
        b = draw.normal()
        label = int(b > 0) ^ (i in flipped)
        lines.append(f"{i / rows},{b},{label},u{i % users},s{i % users % sites}" + (extra and f",{extra(i)}"))
    (folder / name).write_text("\n".join(lines) + "\n")
    named = {"label_column": "y", "user_column": "who", "client_column": "site", "data_dir": str(folder)}
    return KEYS | named | {"dataset": name}


def called(capsys, monkeypatch, folder, keys, name):
    """Standard output, standard error and every public file of a run."""
    flags = [w for k, v in keys.items() for w in (f"--{k.replace('_', '-')}", str(v))]
    monkeypatch.setattr(sys, "argv", ["sordino", "run", *flags, "--out", str(folder / name), "--name", "it"])
    main()
    told = capsys.readouterr()
    public = folder / name / "it" / "public"
    return told.out.replace(name, "OUT") + told.err, {p.name: p.read_bytes() for p in sorted(public.iterdir())}


def numbers_taken_out(text):
    return re.sub(r"accuracy\W+[\d.]+|Accuracy with privacy: [\d.]+", "accuracy", text)


def held_rows(keys, rows):
    job = build.from_spec(spec.from_dict(keys))
    return job, [round(float(v) * rows) for v in job.federation.parts[HELD_OUT].data.x[:, 0]]


CASES = [  # method, unit, users, rows, sites
    ({"unit": "user", "epsilon": 8.0}, 300, 600, 2),
    ({"epsilon": 8.0}, 300, 600, 2),
    ({"method": "dp-fedavg", "epsilon": 60.0}, 60, 720, 60),
    ({"method": "dp-fedavg", "unit": "user", "epsilon": 8.0, "normalise": "none"}, 300, 600, 4),
]


@pytest.mark.parametrize(("more", "users", "rows", "sites"), CASES, ids=["user", "record", "client", "user-central"])
def test_a_held_out_label_moves_the_charged_figure_and_nothing_else(
    more, users, rows, sites, tmp_path, capsys, monkeypatch
):
    keys = table(tmp_path, users, rows, sites) | more
    job, held = held_rows(keys, rows)
    whose = [i for i in held if i % users == held[0] % users] if more.get("unit") == "user" else held[:1]
    one = called(capsys, monkeypatch, tmp_path, keys, "run-A")
    table(tmp_path, users, rows, sites, flipped=whose)
    other = called(capsys, monkeypatch, tmp_path, keys, "run-B")
    assert numbers_taken_out(one[0]) == numbers_taken_out(other[0])
    assert one[1].keys() == other[1].keys() and one[1]["model.safetensors"] == other[1]["model.safetensors"]
    sealed = [json.loads(data[1]["seal.json"])["files"].items() for data in (one, other)]
    assert {name for name, _ in sealed[0] ^ sealed[1]} == {"records.jsonl", "result.json"}
    for name in one[1].keys() - {"model.safetensors", "seal.json", "report.html"}:  # the last is made of all others
        first, second = (data[1][name].decode() for data in (one, other))
        assert numbers_taken_out(first) == numbers_taken_out(second), name
        assert (first == second) == (name not in ("records.jsonl", "result.json"))
    records = [[json.loads(line) for line in data[1]["records.jsonl"].decode().splitlines()] for data in (one, other)]
    for r in records[0][:-1]:
        assert r["accuracy"] is r["loss"] is r["metrics"] is r["evaluated_on"] is None
    a, b = records[0][-1], records[1][-1]
    assert a["loss"] is a["metrics"] is None  # neither a loss nor a figure of a class or a client
    assert "with noise of deviation" in a["evaluated_on"] and "charged" in a["evaluated_on"]
    units = job.held_out.units
    assert 0 < abs(a["accuracy"] - b["accuracy"]) <= 1 / units + 1e-9  # what the noise is for, and no more
    exact = a["accuracy"] * units * 60  # a whole number, were it without noise
    assert abs(exact - round(exact)) > 1e-4
    assert f"deviation {job.evaluation.deviation:.2g}" in one[0]


@pytest.mark.parametrize("more", [{"unit": "user"}, {}, {"method": "dp-fedavg"}], ids=["user", "record", "client"])
def test_too_few_people_for_a_figure_are_told_of_and_none_is_shown(more, tmp_path, capsys, monkeypatch):
    """The table of the attack: 40 users. All of them are trained on, none is looked at otherwise."""
    keys = table(tmp_path, 40, 120) | {"epsilon": 2.0} | more
    text, files = called(capsys, monkeypatch, tmp_path, keys, "run-C")
    for line in files["records.jsonl"].decode().splitlines():
        record = json.loads(line)
        assert record["accuracy"] is record["loss"] is record["metrics"] is record["evaluated_on"] is None
    result = json.loads(files["result.json"])
    assert result["accuracy"] is None and not result["metrics"] and "ccuracy" not in text
    assert "no evaluation: " in text and "test = PATH" in text and "public_share" in text and "in total" in text
    assert "test rec" not in result["guarantee"]["sentence"] and "rows" not in result["guarantee"]["sentence"]
    job = build.from_spec(spec.from_dict(keys))
    assert job.held_out is None and job.test is None and len(job.federation.data.y) == 120


def test_pictures_without_a_test_folder_are_not_shown(tmp_path):
    draw = np.random.default_rng(0)
    for i in range(40):
        path = tmp_path / "pets" / "train" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 255, (6, 6), dtype=np.uint8)).save(path)
    job = build.from_spec(
        spec.from_dict(KEYS | {"dataset": "pets", "data_dir": str(tmp_path), "clients": 4, "model": "linear"})
    )
    assert job.test is None and job.held_out is None and len(job.federation.data.y) == 40
    assert any(n.startswith("no evaluation: ") for n in job.notes) and "test" not in job.promise.sentence()


@pytest.mark.parametrize("rows", [500, 60])
def test_training_rows_are_not_taken_for_test_rows(rows, tmp_path):
    """The table itself, or a part of it, as test data: exact figures of private records in every round."""
    keys = table(tmp_path, 40, 500, 8)
    lines = (tmp_path / "t.csv").read_text().splitlines()
    (tmp_path / "part.csv").write_text("\n".join(lines[: rows + 1]) + "\n")
    with pytest.raises(DataError, match=f"{rows} of {rows} test records are also training records of t.csv"):
        build.from_spec(spec.from_dict(keys | {"test": "part.csv"}))


# --- what the sentence says


SAID = [
    (
        {},
        "each client has; whether the label is a class or a number; the number of classes.",
    ),
    ({"split_column": "part"}, "; the 100 rows with part = test."),
    ({"split_column": "part", "unit": "user"}, "; the 100 rows with part = test, whosever they are."),
    ({"test": "more.csv"}, "; the 30 rows of the test table."),
    ({"public_share": 0.2}, r"; \d\d\d of 500 records \(public_share = 0.2\)."),
    ({"public_share": 0.2, "unit": "user"}, r"; \d+ of 500 records \(public_share = 0.2, all those of some users\)."),
    (
        {"public_share": 0.4, "method": "dp-fedavg"},
        r"; \d+ of 500 records \(public_share = 0.4, all those of some clients\).",
    ),
    ({"public_data": True}, r"; all records \(public_data\)."),
    (
        {"server_data": 0.2},
        r"how many records each client has; the \d+ records that the server holds; whether the label",
    ),
    ({"budgets": "1:0.5,2:0.5"}, "how many records each client has; the clients' own budgets; whether the label"),
    ({"unit": "user"}, "how many users each client has; how many users are held out; whether the label"),
    (
        {"unit": "user", "evaluate_on": "validation"},
        "each client has; how many users are held out; whether the label is a class or a number; the number of",
    ),
]


@pytest.mark.parametrize(("more", "words"), SAID, ids=[str(m) for m, _ in SAID])
def test_the_sentence_says_what_was_taken_as_public(more, words, tmp_path):
    table(tmp_path, 40, 30, 8, name="more.csv")
    marked = (lambda i: "test" if i < 100 else "train") if "split_column" in more else ""
    keys = table(tmp_path, 40, 500, 8, extra=marked)
    job = build.from_spec(spec.from_dict(keys | more))
    sentence = job.promise.sentence()
    assert re.search(words, sentence) and sentence.count("Taken as public: ") == 1
    assert job.promise.to_json()["public"] == job.public and "t.csv" not in sentence and "more.csv" not in sentence


def test_declared_people_are_wholly_public_and_the_others_wholly_private(tmp_path):
    keys = table(tmp_path, 40, 500, 8)
    found = prepare(spec.from_dict(keys | {"public_share": 0.3, "unit": "user"}))
    assert not set(found.data.user_train.tolist()) & set(found.data.user_test.tolist())
    found = prepare(spec.from_dict(keys | {"public_share": 0.3, "method": "dp-fedavg"}))
    assert found.clients.count < 8 and found.test_clients is None and len(found.test[1])
    with pytest.raises(DataError, match="drawn by client, takes none of them"):
        prepare(spec.from_dict(keys | {"public_share": 1e-6, "method": "dp-fedavg"}))
    dealt = prepare(spec.from_dict(keys | {"public_share": 0.3, "method": "dp-fedavg", "partition": "iid"}))
    assert dealt.clients.count == 50  # made of the private records alone


def test_a_declared_share_does_not_make_other_data_of_a_table(tmp_path):
    """A budget on the data holds whatever share of them is declared public."""
    keys = table(tmp_path, 40, 500, 8)
    names = [fingerprints(build.from_spec(spec.from_dict(keys | more)).owner.brought)[1]
             for more in ({}, {"public_share": 0.1}, {"public_share": 0.3, "unit": "user"})]  # fmt: skip
    assert len(set(names)) == 1


def test_a_run_with_a_test_file_goes_on_from_another_folder(tmp_path, monkeypatch):
    keys = table(tmp_path, 40, 500, 8) | {"test": "more.csv", "out": str(tmp_path / "runs"), "name": "it"}
    table(tmp_path, 40, 30, 8, name="more.csv")
    monkeypatch.chdir(tmp_path)
    done = run.execute(build.from_spec(spec.from_dict(keys | {"data_dir": "."})), own_model=False)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    again = run.execute(run.resume_spec(done.folder.absolute()), own_model=False, at=done.folder.absolute())
    assert again.accuracy == done.accuracy is not None
    table(tmp_path, 40, 31, 8, name="more.csv")
    with pytest.raises(RunError, match="must be the same"):
        run.execute(run.resume_spec(done.folder.absolute()), own_model=False, at=done.folder.absolute())


def test_from_python_the_test_records_are_said_and_nothing_is_held_out_unasked():
    plain = build.build(spec.from_dict({"device": "cpu"}), linear(), federation())
    assert (
        plain.held_out is None
        and len(plain.federation.data.y) == 96
        and plain.evaluation.on is None
        and not plain.notes
    )
    shown = build.build(spec.from_dict({"device": "cpu"}), linear(), federation(), None, held_out())
    assert shown.promise.sentence().endswith("Taken as public: how many records each client has; the 60 test records.")
    assert "taken as public" in sordino.train.__doc__


# --- no label of a private record moves another one


@pytest.mark.parametrize("law", ["iid", "quantity:0.5", "natural"])
def test_a_changed_label_leaves_every_other_record_where_it_is(law, tmp_path):
    keys = table(tmp_path, 40, 500, 8) | {"partition": law, "clients": 6, "method": "none"}
    one = prepare(spec.from_dict(keys))
    table(tmp_path, 40, 500, 8, flipped=(7,))
    other = prepare(spec.from_dict(keys))
    assert np.array_equal(one.clients.x, other.clients.x) and np.array_equal(one.clients.starts, other.clients.starts)
    assert int((one.clients.y != other.clients.y).sum()) == 1


@pytest.mark.parametrize("law", ["dirichlet:0.5", "shards:2"])
def test_labels_deal_public_records_only(law, tmp_path):
    keys = table(tmp_path, 40, 500, 8) | {"partition": law, "clients": 6}
    with pytest.raises(
        SpecError, match=r"which are private here.*iid, quantity or natural; or public_data = true"
    ) as e:
        build.from_spec(spec.from_dict(keys))
    assert "\n" not in str(e.value)
    assert build.from_spec(spec.from_dict(keys | {"public_data": True})).plan.population == 6
