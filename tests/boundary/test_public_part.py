"""What `public/`, standard output and callbacks tell of the secret draw and of the data: nothing beyond the model.

The attacker here sees everything that a run hands out. A method that ignores its clients (`silent`) takes the model out
of the picture: whatever still differs between two runs with other draws, or other data, is a leak.
"""

from __future__ import annotations

import dataclasses
import json
import re
import stat
import sys
import tarfile
import tomllib
import zipfile

import pytest
import torch

import sordino
from sordino.cli.main import main
from sordino.comparisons import compare
from sordino.core.errors import BoundaryError, DataError, RunError
from sordino.core.record import OwnerRecord, RoundRecord
from sordino.privacy import tightest
from sordino.privacy.events import GaussianEvent, Repeated, Sampled
from sordino.report.page import page
from sordino.report.reading import read_run
from sordino.report.run.report import document
from sordino.run_folder import boundary
from sordino.run_folder.export import export
from sordino.run_folder.folder import RunFolder
from sordino.runs import build, run
from sordino.runs.describe import describe
from sordino.spec import spec
from support.brought import put_method
from support.problems import federation, held_out, linear

SILENT = '''
"""Charge like DP-FedAvg and learn nothing, so that a run shows its clients in no other way than through its records."""
from dataclasses import dataclass, replace
from sordino.methods.dp_fedavg import DpFedAvg

__all__ = ["Silent"]

@dataclass(frozen=True)
class Silent(DpFedAvg):
    def merge(self, state, seen, plan):
        return state
'''


@pytest.fixture
def silent(tmp_path, monkeypatch):
    return put_method(monkeypatch, tmp_path, "silent", SILENT)


def train(out, clients, **keys):
    keys = {"rounds": 6, "client_rate": 0.5, "epsilon": 2.0, "seed": 0, "device": "cpu", "test": held_out()} | keys
    return sordino.train(linear(), clients, out=str(out), name="it", **keys)


def public(folder):
    """Every byte that may be handed out."""
    return {p.name: p.read_bytes() for p in sorted((folder / "public").iterdir())}


def without_commitments(files):
    """The same, with the two commitments of the seal blanked: 64 hexadecimal digits each, under a random key."""
    text, blanked = re.subn(rb'"(private|ledger)": "[0-9a-f]{64}"', rb'"\1": ""', files["seal.json"])
    assert blanked == 2
    return files | {"seal.json": text}


def reported(folder):
    """The public report, with the hashes of files and the commitments blanked."""
    return re.sub("[0-9a-f]{16,64}", "", page(document(read_run(folder))))


def test_other_draws_and_other_data_leave_the_same_public_part(tmp_path, silent):
    told, cohorts, heard, pages = [], set(), [], set()
    for seed in range(6):
        clients = federation(seed=seed % 2)  # also other records: no hash of them is handed out
        heard.append([])
        result = train(
            tmp_path / str(seed), clients, method=silent, seed=seed, watch=lambda r, to=heard[-1]: to.append(r)
        )
        told.append(public(result.folder))
        pages.add(reported(result.folder))
        cohorts.add(tuple(r.clients for r in result.private.history))
    assert len(cohorts) > 3  # the draws did differ
    assert set(told[0]) == {
        "spec.toml", "plan.json", "inputs.json", "records.jsonl", "model.safetensors", "result.json",
        "accounting.json", "seal.json",
    }  # fmt: skip
    assert len({files["seal.json"] for files in told}) == 6  # every run has a key of its own
    assert all(without_commitments(files) == without_commitments(told[0]) for files in told)
    assert all(records == heard[0] for records in heard)  # callbacks
    assert len(pages) == 1 and "The guarantee" in next(iter(pages))


def test_standard_output_does_not_tell_of_the_draw(small_npz, tmp_path, silent, monkeypatch, capfd):
    said, cohorts = set(), set()
    figures = re.compile(
        r"accuracy [\d.]+ %|\n(Accuracy|worst|class|client|Estimate)[^\n]*"
    )  # of first weights, which are seeded; an estimate is timed on made-up records
    for seed in range(4):
        here = tmp_path / str(seed)
        here.mkdir()
        monkeypatch.chdir(here)
        flags = {"dataset": small_npz, "method": silent, "client-rate": 0.3, "clients": 6, "rounds": 12, "seed": seed}
        words = [str(w) for k, v in flags.items() for w in (f"--{k}", v)]
        monkeypatch.setattr(sys, "argv", ["sordino", "run", *words, "--name", "it"])
        main()
        text = figures.sub("", capfd.readouterr().out)
        monkeypatch.setattr(sys, "argv", ["sordino", "run", *words, "--name", "other", "--json"])
        main()
        told = json.loads(capfd.readouterr().out)
        said.add((text, json.dumps({k: v for k, v in told.items() if k not in ("accuracy", "metrics")})))
        cohorts.add(tuple(r.clients for r in RunFolder(here / "runs" / "it").owner_records()))
    assert len(cohorts) == 4 and len(said) == 1
    assert "epsilon" in next(iter(said))[0]


def test_one_client_drawn_or_not_is_told_the_same_epsilon(tmp_path):
    """Once 0 was printed if it was not drawn, and 1.9997 if it was."""
    found, drawn = set(), set()
    for seed in range(8):
        keys = {"method": "dp-fedavg", "rounds": 1, "client_rate": 0.5}
        result = train(tmp_path / str(seed), federation((12,)), seed=seed, **keys)
        found.add((result.guarantee.epsilon, tuple(result.history[0].epsilon.items())))
        drawn.add(result.private.history[0].clients)
    assert drawn == {0, 1} and len(found) == 1
    ((epsilon, _),) = found
    assert 1.9 < epsilon <= 2


def test_the_printed_epsilon_of_a_hidden_draw_is_the_planned_one(tmp_path):
    """DP-FedAvg at rate 0.1: what is printed holds while cohort sizes are secret, and they are."""
    result = train(tmp_path, federation(), method="dp-fedavg", client_rate=0.1, rounds=20, epsilon=3.0)
    z = json.loads((result.folder / "public" / "plan.json").read_text())["noise_multiplier"]
    planned = tightest.epsilon(Repeated(Sampled(GaussianEvent(z), 0.1), 20), 1e-5)
    assert result.guarantees["public"].epsilon == pytest.approx(planned, rel=1e-3)
    text = "".join(p.read_text(errors="replace") for p in (result.folder / "public").glob("*.json*"))
    for word in ("bytes_up", "bytes_down", "seconds", "answers", "decided", "fingerprint", "head"):  # stood there once
        assert f'"{word}"' not in text


def test_every_public_field_is_listed_and_an_unlisted_one_is_refused(tmp_path):
    folder = RunFolder.create(str(tmp_path), "it")
    with pytest.raises(BoundaryError, match=r"sizes\.json is not listed in run_folder/boundary\.py"):
        folder.publish_json("sizes.json", {"clients": 3})
    with pytest.raises(BoundaryError, match=r"result\.json: the field cohort is not listed"):
        folder.publish_json("result.json", {"rounds": 3, "cohort": [1, 2]})
    with pytest.raises(BoundaryError, match=r"the field guarantees\.public\.most is not listed"):
        folder.publish_json("result.json", {"guarantees": {"public": {"epsilon": 1.0, "most": 3}}})

    @dataclasses.dataclass(frozen=True)
    class Talkative(RoundRecord):
        clients: int = 0

    with pytest.raises(BoundaryError, match=r"records\.jsonl: the field clients is not listed"):
        folder.append(Talkative(1, {"server": 1.0}, clients=3), OwnerRecord(1, 3, 0, 0, 0.0))
    assert not list(folder.public.iterdir())


def test_the_table_names_every_key_of_a_spec_or_hides_it():
    listed = {*boundary.TABLE["spec.toml"], *boundary.HIDDEN}
    assert {f.name for f in spec.fields()} == listed
    assert {f.name for f in dataclasses.fields(RoundRecord)} == {
        k.removesuffix(".*") for k in boundary.TABLE["records.jsonl"]
    }
    assert all(len(reason) > 20 for table in (*boundary.TABLE.values(), boundary.FILES) for reason in table.values())


def test_paths_and_seeds_of_own_data_are_not_in_the_public_spec(small_npz, tmp_path):
    budgets = tmp_path / "secret-place" / "budgets.csv"
    budgets.parent.mkdir()
    budgets.write_text("client,epsilon\n0,1.0\n")
    wanted = spec.from_dict({"dataset": str(small_npz), "data_dir": "/home/me", "budgets": str(budgets), "seed": 7,
                             "test": "clinic", "out": "/home/me/runs", "ledger": "/home/me/l.sqlite",
                             "name": "patients"})  # fmt: skip
    shown = boundary.public_spec(wanted, public_data=False, own_model=False)
    text = json.dumps(shown)
    assert not any(word in text for word in ("home", "secret-place", str(tmp_path), "patients", "clinic"))
    assert "seed" not in shown and shown["dataset"] == boundary.OWN and spec.from_dict(shown).method == "dp-sgd"
    kept = boundary.public_spec(
        spec.from_dict({"seed": 7, "budgets": "0.5:0.4,2:0.6"}), public_data=True, own_model=False
    )
    assert (kept["seed"], kept["dataset"], kept["budgets"]) == (7, "mnist", "0.5:0.4,2:0.6")


def test_the_private_part_is_the_owners_alone(tmp_path):
    result = train(tmp_path, federation(), method="dp-fedavg")
    mode = (result.folder / "private").stat().st_mode
    assert stat.S_IMODE(mode) == 0o700 and not list(result.folder.glob("*.*"))
    assert {p.name for p in result.folder.iterdir()} == {"public", "private"}
    assert "OwnersPart" not in repr(result) and result.private.history[0].clients >= 0


@pytest.mark.parametrize("name", ["out", "out.zip", "out.tar.gz"])
def test_export_takes_the_public_part_alone(tmp_path, name):
    result = train(tmp_path, federation(), method="dp-fedavg")
    names = export(result.folder, target := tmp_path / name)
    assert names == sorted(public(result.folder))
    if target.is_dir():
        assert {p.name: p.read_bytes() for p in target.iterdir()} == public(result.folder)
        assert tomllib.loads((target / "spec.toml").read_text())["method"] == "dp-fedavg"
    elif name.endswith("zip"):
        with zipfile.ZipFile(target) as archive:
            assert {i.filename: archive.read(i) for i in archive.infolist()} == public(result.folder)
            assert {i.date_time[0] for i in archive.infolist()} == {1980}
    else:
        with tarfile.open(target) as archive:
            assert {m.name: m.mtime for m in archive} == dict.fromkeys(names, 0)
    with pytest.raises(RunError, match="exists already"):
        export(result.folder, target)


def test_export_refuses_what_may_not_leave(tmp_path):
    with pytest.raises(RunError, match="there is no run folder"):
        export(tmp_path / "nowhere", tmp_path / "out")
    plain = train(tmp_path / "plain", federation(), method="none", epsilon=2.0)
    with pytest.raises(RunError, match=r"No guarantee .* --anyway"):
        export(plain.folder, tmp_path / "out")
    assert export(plain.folder, tmp_path / "out", anyway=True)
    good = train(tmp_path / "good", federation(), method="dp-fedavg").folder
    (good / "public" / "draws.csv").write_text("1,2,3\n")
    with pytest.raises(BoundaryError, match=r"draws\.csv is not listed"):
        export(good, tmp_path / "other")
    (good / "public" / "draws.csv").unlink()
    (good / "public" / "result.json").rename(tmp_path / "result.json")
    with pytest.raises(RunError, match="is not finished"):
        export(good, tmp_path / "other")
    (tmp_path / "result.json").rename(good / "public" / "result.json")
    with pytest.raises(RunError, match="is inside the run folder"):
        export(good, good / "public" / "x.zip")
    with pytest.raises(RunError, match=r"is not a run folder; runs in it: .*good/it"):
        export(good.parent, tmp_path / "other")
    with pytest.raises(RunError, match="is the public part of a run"):
        export(good / "public", tmp_path / "other")
    model = (good / "public" / "model.safetensors").read_bytes()
    (good / "public" / "model.safetensors").write_text("junk")
    with pytest.raises(RunError, match=r"model\.safetensors is damaged"):
        export(good, tmp_path / "other")
    (good / "public" / "model.safetensors").unlink()
    with pytest.raises(RunError, match=r"model\.safetensors is missing"):
        export(good, tmp_path / "other")
    (good / "public" / "model.safetensors").write_bytes(model)
    flat = tmp_path / "flat"
    flat.mkdir()
    (flat / "plan.json").write_text("{}")
    with pytest.raises(RunError, match="no public part"):
        export(flat, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_folder_of_an_earlier_version_is_read_and_not_resumed(tmp_path, monkeypatch, capsys):
    result = train(tmp_path, federation(), method="dp-fedavg", adaptive_clip=True)
    flat = tmp_path / "old"
    flat.mkdir()
    owners = {r.round: json.loads(r.to_line()) for r in result.private.history}
    for part in ("private", "public"):
        for path in (result.folder / part).iterdir():
            (flat / path.name).write_bytes(path.read_bytes())
    rounds = [json.loads(r.to_line()) | owners[r.round] for r in result.history]
    (flat / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rounds))
    monkeypatch.setattr(sys, "argv", ["sordino", "explain", str(flat), "--owner"])
    main()
    assert "Updates were clipped at" in capsys.readouterr().out
    with pytest.raises(RunError, match="made by an earlier version"):
        sordino.train(linear(), federation(), resume=flat)


def test_explain_keeps_the_draw_to_the_owner(tmp_path, monkeypatch, capsys):
    result = train(tmp_path, federation(), method="dp-fedavg", adaptive_clip=True)

    def explain(*more):
        monkeypatch.setattr(sys, "argv", ["sordino", "explain", str(result.folder), "--json", *more])
        main()
        return json.loads(capsys.readouterr().out)["rounds"]

    assert {"clients", "bytes_up", "seconds"}.isdisjoint(explain()[0]) and explain()[0]["decided"] is None
    assert [r["clients"] for r in explain("--owner")] == [r.clients for r in result.private.history]


def test_a_comparison_on_private_data_tells_neither_times_nor_records(small_npz, monkeypatch, capfd):
    """Not in its tables, nor on a standard output that is no terminal; why a cell failed is the owner's."""
    monkeypatch.chdir(small_npz.parent)
    real = run.execute

    def fails(job, **more):
        if job.spec.method == "dp-fedavg":
            raise DataError("label 7 in record 12 is out of range.")
        return real(job, **more)

    monkeypatch.setattr(compare.run, "execute", fails)
    words = [
        "--methods",
        "dp-sgd,dp-fedavg",
        "--epsilon",
        "4",
        "--seeds",
        "1",
        "--rounds",
        "2",
        "--dataset",
        "small.npz",
    ]
    monkeypatch.setattr(
        sys, "argv", ["sordino", "compare", *words, "--clients", "8", "--device", "cpu", "--name", "it"]
    )
    with pytest.raises(SystemExit, match="1"):
        main()
    told, folder = capfd.readouterr(), small_npz.parent / "runs" / "it"
    text = told.out + "".join(p.read_text() for p in (folder / "public").glob("*.[cm][sd]*"))
    assert "DataError: its reason is the owner's" in text and "record 12" not in text
    assert not re.search(r"\d s\b|seconds \d|bytes_up|min left|s left", text), text
    assert "label 7 in record 12" in (folder / "private" / "failures.json").read_text()
    assert "seconds" not in (folder / "public" / "results.csv").read_text().splitlines()[0]


def test_what_is_told_of_ones_own_code_depends_on_no_record(tmp_path):
    """Why gradients are clipped one way or the other is settled on a record; of one's own code only that it is."""

    class Watching(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.odd = torch.nn.Linear(20, 3), 0

        def forward(self, x):
            if bool((x[:, 0] < -50).any()):
                self.odd = self.odd + 1
            return self.layer(x)

    told = []
    for first in (0.0, -99.0):
        clients = federation()
        clients[0][0][0, 0] = first
        made = build.build(spec.from_dict({"device": "cpu", "seed": 0}), Watching(), clients)
        told.append(describe(made)["gradient_reason"])
    assert told[0] == told[1] and "one record at a time" in told[0]
