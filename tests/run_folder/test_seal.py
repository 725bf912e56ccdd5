"""The seal of a run: whatever is changed afterwards is found, and nothing in it tells what stays private."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys

import pytest

import sordino
from sordino.core.errors import RunError
from sordino.ledger import home
from sordino.ledger.ledger import Ledger
from sordino.run_folder import seal
from sordino.run_folder.export import export
from sordino.run_folder.folder import RunFolder
from sordino.run_folder.seal import check_seal, plugin_hashes, reseal, write_seal
from support.brought import put_method
from support.killed import dies
from support.problems import federation, held_out, linear

KEYS = {"rounds": 3, "client_rate": 0.5, "epsilon": 2.0, "checkpoint_seconds": 0.0, "device": "cpu", "name": "it"}


def train(out, seed=0, **keys):
    return sordino.train(linear(), federation(), test=held_out(), **KEYS | {"out": str(out), "seed": seed} | keys)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two finished runs with other draws."""
    out = tmp_path_factory.mktemp("sealed")
    return [train(out / str(seed), seed).folder for seed in (0, 1)]


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made[0], tmp_path / "it")


def flipped(path, at):
    """Change one bit of a byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def found(run, owner=True):
    """Whether a check finds the folder in order; damage counts as found."""
    try:
        return check_seal(run, owner).well
    except RunError:
        return False


def test_an_untouched_run_agrees_with_its_seal_for_everybody_and_for_its_owner(run):
    report = check_seal(run)
    assert report.well and report.same_code and not report.plugins
    assert set(report.intact) == {p.name for p in (run / "public").iterdir()} - {"seal.json"}
    assert {"result.json", "accounting.json", "model.safetensors", "records.jsonl"} <= set(report.intact)
    assert report.private is report.ledger is report.latest is report.head is None  # not asked for
    owners = check_seal(run, owner=True)
    assert owners.well and owners.private and owners.ledger and owners.latest
    written = json.loads((run / "private" / "ledger.json").read_text())
    assert owners.head == (written["job"], written["entries"], written["head"])


def test_the_head_is_in_the_ledger_also_after_it_has_grown(tmp_path):
    first = train(tmp_path, name="first").folder
    train(tmp_path, name="second")
    job, entries, head = check_seal(first, owner=True).head
    book = Ledger(home.registry(), "read")
    try:
        assert book.chain.head()[0] > entries
        assert not book.chain.verify([("seal", entries, head)])
        assert book.chain.verify([("seal", entries, "0" * 64)])
        assert job in {entry.job for entry in book.chain.select()}
    finally:
        book.close()


def test_any_byte_of_a_public_file_is_seen(run):
    for path in sorted((run / "public").iterdir()):
        size, whole = path.stat().st_size, path.read_bytes()
        for at in {0, size // 3, size // 2, size - 1}:
            flipped(path, at)
            assert not found(run, owner=path.name == "seal.json"), f"{path.name}, byte {at}"
            path.write_bytes(whole)
    assert found(run)


def test_every_single_byte_of_the_seal_itself_is_seen_by_its_owner(run):
    path = run / "public" / "seal.json"
    whole = path.read_bytes()
    for at in range(len(whole)):
        flipped(path, at)
        assert not found(run), f"byte {at}: {whole[max(0, at - 20) : at + 20]!r}"
    path.write_bytes(whole)
    for other in (whole + b"\n", whole[:-1], json.dumps(json.loads(whole)).encode(), b"", b"[]", b"{}", b"null"):
        path.write_bytes(other)  # the same values in other bytes: damaged
        assert not found(run, owner=False)


@pytest.mark.parametrize("name", ["extra.json", "seal.json.bak", "audit.json", "x.tmp", ".hidden", "folder/"])
def test_a_file_that_was_added_is_seen(run, name):
    path = run / "public" / name
    path.mkdir() if name.endswith("/") else path.write_text("{}")
    report = check_seal(run)
    assert report.added == (name.rstrip("/"),) and not report.well


def test_what_a_crash_left_behind_is_no_file_of_the_run(run):
    (run / "public" / "result.json.tmp").write_text("{")
    assert check_seal(run).well


def test_files_that_are_removed_renamed_or_exchanged_are_seen(run):
    public = run / "public"
    (public / "inputs.json").rename(public / "inputs2.json")
    (public / "model.safetensors").unlink()
    report = check_seal(run)
    assert report.missing == ("inputs.json", "model.safetensors") and report.added == ("inputs2.json",)
    shutil.copy(public / "plan.json", public / "spare")
    (public / "plan.json").write_bytes((public / "result.json").read_bytes())
    (public / "spare").replace(public / "result.json")
    assert set(check_seal(run).changed) == {"plan.json", "result.json"}


def test_a_link_to_the_same_bytes_is_not_the_file(run, tmp_path):
    path = run / "public" / "result.json"
    shutil.move(path, tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    assert check_seal(run).changed == ("result.json",)


def test_lines_in_another_order_are_seen(run):
    for part in ("public", "private"):
        path = run / part / "records.jsonl"
        whole = path.read_text()
        path.write_text("".join(reversed(whole.splitlines(keepends=True))))
        assert not found(run, owner=part == "private")
        path.write_text(whole)
    assert found(run)


def test_any_change_of_a_private_file_is_seen_by_the_owner_alone(run):
    named = json.loads((run / "private" / "seal.json").read_text())["files"]
    assert {"records.jsonl", "result.json", "ledger.json", "participation.json", "spec.toml"} <= named.keys()
    for name in named:
        path = run / "private" / name
        whole = path.read_bytes()
        for at in (0, len(whole) // 2, len(whole) - 1):
            flipped(path, at)
            assert check_seal(run, owner=True).private_changed == (name,) and check_seal(run).well
        path.unlink()
        assert check_seal(run, owner=True).private_changed == (name,)
        path.write_bytes(whole)
    (run / "private" / "audit.json").write_text("{}")
    assert check_seal(run, owner=True).private_changed == ("audit.json",)


def test_a_private_manifest_made_to_fit_does_not_open_the_commitment(run):
    (run / "private" / "records.jsonl").write_text("")
    manifest = json.loads((run / "private" / "seal.json").read_text())
    manifest["files"]["records.jsonl"] = hashlib.sha256(b"").hexdigest()
    (run / "private" / "seal.json").write_text(json.dumps(manifest))
    report = check_seal(run, owner=True)
    assert report.private is False and report.ledger and not report.private_changed and not report.well


@pytest.mark.parametrize(("field", "value"), [("head", "0" * 64), ("entries", 1), ("job", "another")])
def test_another_head_of_the_ledger_does_not_open_its_commitment(run, field, value):
    manifest = json.loads((run / "private" / "seal.json").read_text())
    manifest["ledger"][field] = value
    (run / "private" / "seal.json").write_text(json.dumps(manifest))
    report = check_seal(run, owner=True)
    assert report.ledger is False and report.head is None and report.private and not report.well


def test_whoever_writes_a_new_hash_into_the_seal_is_found_out_by_the_owner(run):
    text = (run / "public" / "result.json").read_text()
    (run / "public" / "result.json").write_text(text.replace('"epsilon": ', '"epsilon":  '))
    path = run / "public" / "seal.json"
    sealed = json.loads(path.read_text())
    sealed["files"]["result.json"] = hashlib.sha256((run / "public" / "result.json").read_bytes()).hexdigest()
    path.write_text(json.dumps(sealed, indent=2) + "\n")
    assert check_seal(run).well  # nobody without the key can tell; a signature would
    report = check_seal(run, owner=True)
    assert report.private is False and report.latest is False and not report.well


def test_an_earlier_seal_put_back_with_its_files_is_found_out_by_the_owner(run):
    before = {p.name: p.read_bytes() for p in (run / "public").iterdir()}
    RunFolder(run).publish_json("audit.json", {"alarm": True})
    reseal(RunFolder(run), "audit.json")
    assert found(run)
    shutil.rmtree(run / "public")
    (run / "public").mkdir()
    for name, data in before.items():
        (run / "public" / name).write_bytes(data)
    assert found(run, owner=False)
    report = check_seal(run, owner=True)
    assert report.latest is False and not report.well


def test_the_seal_and_files_of_another_run_are_found_out(run, made):
    for part in ("public", "private"):
        other = shutil.copy(made[1] / part / "seal.json", run.parent / f"{part}.json")
        mine = (run / part / "seal.json").read_bytes()
        shutil.copy(other, run / part / "seal.json")
        assert not found(run)
        (run / part / "seal.json").write_bytes(mine)
    shutil.copytree(made[1] / "public", run / "public", dirs_exist_ok=True)
    assert found(run, owner=False)  # a whole public part of another run is intact
    report = check_seal(run, owner=True)
    assert report.private is False and report.ledger is False and report.latest is False


def test_another_key_opens_nothing_and_a_missing_one_is_named(run):
    key = run / "private" / "seal.key"
    key.write_bytes(bytes(32))
    report = check_seal(run, owner=True)
    assert report.private is False and report.ledger is False
    key.unlink()
    with pytest.raises(RunError, match="without which no commitment opens"):
        check_seal(run, owner=True)


def test_the_key_is_secret_and_random(made):
    keys = [(run / "private" / "seal.key") for run in made]
    assert all(key.stat().st_mode & 0o777 == 0o600 and key.stat().st_size == 32 for key in keys)
    assert len({key.read_bytes() for key in keys}) == 2


def test_the_public_seal_tells_the_same_whoever_was_drawn(made):
    """Nothing but commitments differs in form, and no hash in it is one of private contents."""
    seals = [json.loads((run / "public" / "seal.json").read_text()) for run in made]
    assert len(json.dumps(seals[0])) == len(json.dumps(seals[1]))
    assert seals[0]["private"] != seals[1]["private"] and seals[0]["ledger"] != seals[1]["ledger"]
    for run, sealed in zip(made, seals, strict=True):
        manifest = json.loads((run / "private" / "seal.json").read_text())
        text = json.dumps(sealed)
        guesses = [*manifest["files"].values(), manifest["ledger"]["head"], manifest["ledger"]["job"]]
        guesses += [  # of somebody who knows everything but the key
            seal._commitments(key, manifest["public"], manifest)[name]
            for key in (b"", bytes(32), b"sordino")
            for name in ("private", "ledger")
        ]
        assert not [guess for guess in guesses if guess in text]
        assert seal._commitments((run / "private" / "seal.key").read_bytes(), manifest["public"], manifest) == {
            name: sealed[name] for name in ("private", "ledger")
        }


def test_kinds_of_contents_have_commitments_apart():
    assert seal.commitment(b"k", "private", {}) != seal.commitment(b"k", "ledger", {})
    assert seal.commitment(b"k", "private", {"a": 1, "b": 2}) == seal.commitment(b"k", "private", {"b": 2, "a": 1})


def test_a_copy_of_the_public_part_can_be_checked_and_only_by_everybody(run, tmp_path):
    export(run, tmp_path / "handout")
    assert check_seal(tmp_path / "handout").well
    with pytest.raises(RunError, match="has no private part, so its commitments cannot be opened"):
        check_seal(tmp_path / "handout", owner=True)
    flipped(tmp_path / "handout" / "plan.json", 5)
    assert check_seal(tmp_path / "handout").changed == ("plan.json",)


def test_a_run_without_a_seal_says_what_to_do(run, tmp_path):
    with pytest.raises(RunError, match="there is no run folder"):
        check_seal(tmp_path / "nowhere")
    with pytest.raises(RunError, match="is not a run folder"):
        check_seal(tmp_path)
    (tmp_path / "compared" / "cells").mkdir(parents=True)
    with pytest.raises(RunError, match="is a comparison, whose runs are sealed one by one"):
        check_seal(tmp_path / "compared")
    (run / "public" / "seal.json").unlink()
    with pytest.raises(RunError, match=r"has no seal.*sordino resume"):
        check_seal(run)
    (run / "public" / "result.json").unlink()
    with pytest.raises(RunError, match="is not finished, so it has no seal"):
        check_seal(run)


def test_a_seal_of_a_newer_version_is_not_called_damaged(run):
    path = run / "public" / "seal.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2, "more": 1}, indent=2) + "\n")
    with pytest.raises(RunError, match="written by a newer version"):
        check_seal(run)


@pytest.mark.parametrize("name", ["../private/seal.key", "/etc/passwd", "a/b", ".", "", "seal.json", "report.html"])
def test_a_seal_that_names_files_elsewhere_is_refused(run, name):
    path = run / "public" / "seal.json"
    sealed = json.loads(path.read_text())
    sealed["files"] |= {name: "0" * 64}
    path.write_text(json.dumps(sealed, indent=2) + "\n")
    with pytest.raises(RunError, match="damaged"):
        check_seal(run)


def test_a_later_audit_is_covered_and_nothing_else_is_sealed_anew(run):
    flipped(run / "public" / "plan.json", 3)
    (run / "public" / "seal.json.sig").write_text("a signature of the earlier seal")
    folder = RunFolder(run)
    folder.publish_json("audit.json", {"alarm": False})
    reseal(folder, "audit.json")
    report = check_seal(run, owner=True)
    assert "audit.json" in report.intact and report.changed == ("plan.json",) and report.private and report.latest
    assert not (run / "public" / "seal.json.sig").exists()
    (run / "public" / "audit.json").write_text("{}")  # changed by others, before an audit of another viewer
    folder.write_json("audit.json", {"alarm": True})
    reseal(folder, "audit.json", "private")
    report = check_seal(run, owner=True)
    assert set(report.changed) == {"audit.json", "plan.json"} and not report.private_changed and report.private


def test_sealing_again_without_a_change_keeps_seal_and_signature(run):
    before = (run / "public" / "seal.json").read_bytes()
    (run / "public" / "seal.json.sig").write_text("a signature")
    write_seal(RunFolder(run), json.loads((run / "private" / "ledger.json").read_text()))
    assert (run / "public" / "seal.json").read_bytes() == before and (run / "public" / "seal.json.sig").exists()


def test_strange_files_in_the_public_part_are_neither_sealed_nor_in_the_way(run):
    (run / "public" / "my notes (1).txt").write_text("from a file manager")
    (run / "public" / "backup").mkdir()
    (run / "public" / "audit.json").symlink_to(run / "private" / "seal.key")
    write_seal(RunFolder(run), json.loads((run / "private" / "ledger.json").read_text()))
    assert set(check_seal(run).added) == {"my notes (1).txt", "backup", "audit.json"}


def test_a_run_that_died_is_sealed_when_it_is_resumed_or_finished(tmp_path):
    for name, keys in (("resumed", {}), ("finished", {"finish": True})):
        assert dies("paid", 2, lambda name=name: train(tmp_path, name=name))
        assert not (tmp_path / name / "public" / "seal.json").exists()
        sordino.train(linear(), federation(), test=held_out(), resume=tmp_path / name, **keys)
        assert check_seal(tmp_path / name, owner=True).well
    assert dies("finishing", 0, lambda: train(tmp_path, name="late"))
    sordino.train(linear(), federation(), test=held_out(), resume=tmp_path / "late")
    assert check_seal(tmp_path / "late", owner=True).well
    key = (tmp_path / "late" / "private" / "seal.key").read_bytes()
    sordino.train(linear(), federation(), test=held_out(), resume=tmp_path / "late")  # once more, at its end
    assert check_seal(tmp_path / "late", owner=True).well
    assert (tmp_path / "late" / "private" / "seal.key").read_bytes() == key


def test_the_code_is_every_source_and_its_place(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.py").write_text("1")
    (tmp_path / "y.py").write_text("2")
    (tmp_path / "notes.txt").write_text("3")
    whole = seal.code_hash(tmp_path)
    seen = {whole}
    for change in (
        lambda: (tmp_path / "y.py").write_text("3"),
        lambda: (tmp_path / "a" / "x.py").rename(tmp_path / "a" / "z.py"),
        lambda: (tmp_path / "a" / "new.py").write_text(""),
        lambda: (tmp_path / "y.py").unlink(),
    ):
        change()
        seal.code_hash.cache_clear()
        seen.add(seal.code_hash(tmp_path))
    (tmp_path / "notes.txt").write_text("4")
    last = seal.code_hash(tmp_path)
    seal.code_hash.cache_clear()
    assert len(seen) == 5 and seal.code_hash(tmp_path) == last


def test_the_file_of_a_plug_in_is_hashed_and_built_in_ones_are_not(tmp_path, monkeypatch):
    text = (
        '"""Mine."""\nfrom sordino.methods.dp_sgd import DpSgd\n__all__ = ["Mine"]\nclass Mine(DpSgd):\n    """It."""\n'
    )
    name = put_method(monkeypatch, tmp_path, "mine", text)
    hashes = plugin_hashes([("methods", "mine"), ("methods", "dp-sgd"), ("models", "no such"), ("algorithms", None)])
    assert hashes == {"methods/mine": hashlib.sha256(text.encode()).hexdigest()}, name


def test_checking_imports_no_torch():
    code = "import sys, sordino.run_folder.seal; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
