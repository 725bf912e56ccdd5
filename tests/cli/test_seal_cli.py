"""`sordino report RUN --verify` and `--sign`: whoever looks finds what somebody changed, and who signed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess

import pytest

import sordino
from sordino.cli import signature
from sordino.cli.seal import examine, lines, sign, verify
from sordino.core.errors import RunError
from sordino.ledger import home
from sordino.report.files import write_report
from support.problems import federation, held_out, linear

needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen (OpenSSH)")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run with its report, and the registry that it was charged to."""
    out = tmp_path_factory.mktemp("sealed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SORDINO_HOME", str(out / "home"))
        keys = {"rounds": 2, "client_rate": 0.5, "epsilon": 2.0, "device": "cpu", "seed": 0}
        run = sordino.train(linear(), federation(), test=held_out(), out=str(out), name="clinic", **keys).folder
        book = sqlite3.connect(home.registry())
        book.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that the file can be copied
        book.close()
    write_report(run)
    return run, out / "home"


@pytest.fixture
def run(made, tmp_path, monkeypatch):
    """A copy of the run and of its registry."""
    shutil.copytree(made[1], tmp_path / "home")
    monkeypatch.setenv("SORDINO_HOME", str(tmp_path / "home"))
    return shutil.copytree(made[0], tmp_path / "clinic")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Two keys without, and one with a passphrase."""
    folder = tmp_path_factory.mktemp("keys")
    for name, secret in (("meier", ""), ("eve", ""), ("locked", "abcdef")):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", secret, "-C", name, "-f", folder / name], check=True)
    return folder


def signers(keys, tmp_path, who="dr.meier@hospital.example", key="meier", options=""):
    path = tmp_path / "signers"
    path.write_text(f"{who} {options}{(keys / f'{key}.pub').read_text()}")
    return path


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def told(run, **what):
    return "\n".join(lines(examine(run, **what)))


# --- everybody, and the owner


def test_an_untouched_run_is_well_for_everybody_and_for_its_owner(run, capsys):
    assert verify(run) and verify(run, owner=True)
    said = capsys.readouterr().out
    assert "report.html shows these records." in said and "the same sources as this installation" in said
    assert "is intact and still holds entry" in said and "nothing was added since" in said
    assert "who made the seal, nothing here proves" in said


@pytest.mark.parametrize("name", ["result.json", "spec.toml", "model.safetensors", "report.html"])
def test_everybody_sees_a_public_file_that_was_changed(run, name, capsys):
    flipped(run / "public" / name)
    assert not verify(run) and name in capsys.readouterr().out


def test_everybody_sees_what_was_added_and_removed(run):
    (run / "public" / "extra\x1b[31m.json").write_text("{}")
    (run / "public" / "records.jsonl").unlink()
    said = told(run)
    assert "records.jsonl is missing" in said and "extra" in said and "\x1b" not in said and not examine(run).well


def test_a_seal_that_was_made_to_fit_changed_files_deceives_everybody_but_the_owner(run):
    seal, result = run / "public" / "seal.json", run / "public" / "result.json"
    before = json.loads(seal.read_text())["files"]["result.json"]
    result.write_text(result.read_text().replace('"epsilon": ', '"epsilon":  ', 1))
    seal.write_text(seal.read_text().replace(before, hashlib.sha256(result.read_bytes()).hexdigest()))
    write_report(run)
    assert examine(run).well
    found = examine(run, owner=True)
    assert not found.well and "does not open" in told(run, owner=True)


@pytest.mark.parametrize("name", ["records.jsonl", "result.json", "ledger.json", "spec.toml"])
def test_the_owner_sees_a_private_file_that_was_changed_and_nobody_else_does(run, name):
    flipped(run / "private" / name)
    assert examine(run).well
    try:
        found = examine(run, owner=True)
    except RunError:
        return
    assert not found.well and f"{name} changed or went missing" in told(run, owner=True)


def test_another_key_opens_nothing(run):
    (run / "private" / "seal.key").write_bytes(b"k" * 32)
    assert "does not open with the key of the run" in told(run, owner=True) and examine(run).well


def test_a_public_copy_is_well_and_has_nothing_for_an_owner(run, tmp_path):
    copy = shutil.copytree(run / "public", tmp_path / "handed-out")
    found = examine(copy)
    assert found.well and found.report == "renamed" and "was then called clinic" in "\n".join(lines(found))
    with pytest.raises(RunError, match="no private part"):
        examine(copy, owner=True)


def test_parts_of_a_run_are_the_run(run):
    assert examine(run / "public", owner=True).well and examine(run / "private", owner=True).well


def test_json_says_the_same(run, capsys):
    assert verify(run, owner=True, as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert data["well"] and data["ledger"]["state"] == "kept" and data["private"]["opens"] and data["report"] == "same"
    assert verify(run, as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert data["private"] is None and data["ledger"] is None and data["signature"]["verdict"] == "none"


@pytest.mark.parametrize("spoil", ["folder", "no seal", "damaged"])
def test_what_cannot_be_checked_is_one_clear_error(run, tmp_path, spoil):
    if spoil == "folder":
        run = tmp_path / "nowhere"
    elif spoil == "no seal":
        (run / "public" / "seal.json").unlink()
    else:
        (run / "public" / "seal.json").write_text("{")
    with pytest.raises(RunError, match=r"no run folder|has no seal|damaged"):
        verify(run)


@pytest.mark.parametrize("name", ["seal.key", "ledger.json"])
def test_a_pipe_or_a_device_in_place_of_an_owners_file_stops_nobody(run, name):
    """Whoever opened one of them would wait for ever, or read for ever."""
    path = run / "private" / name
    for make in (os.mkfifo, lambda p: p.symlink_to("/dev/zero")):
        path.unlink()
        make(path)
        if name == "seal.key":
            with pytest.raises(RunError, match=r"seal\.key.*not a plain file"):
                examine(run, owner=True)
        else:
            assert "not a plain file" in str(examine(run, owner=True).ledger) and not examine(run, owner=True).well


def test_without_its_plan_a_sealed_run_is_still_compared(run):
    (run / "public" / "plan.json").unlink()
    assert "plan.json is missing" in told(run)


def test_a_report_that_is_a_link_is_not_read(run, tmp_path):
    page = run / "public" / "report.html"
    page.rename(tmp_path / "elsewhere.html")
    page.symlink_to(tmp_path / "elsewhere.html")
    assert examine(run).report == "unreadable" and not examine(run).well


def test_without_a_report_nothing_is_said_of_it(run):
    (run / "public" / "report.html").unlink()
    assert examine(run).report is None and examine(run).well and "Report:" not in told(run)


# --- the ledger


def edited(statement):
    """Change the registry behind its back, triggers and all."""
    book = sqlite3.connect(home.registry())
    for name in ("no_update", "no_delete", "in_order"):
        book.execute(f"DROP TRIGGER {name}")
    book.execute(statement)
    book.commit()
    book.close()


def test_the_ledger_may_move_on(run, tmp_path):
    sordino.train(linear(), federation(), test=held_out(), out=str(tmp_path), name="more", rounds=1, device="cpu")
    found = examine(run, owner=True)
    assert found.well and found.ledger.now > found.ledger.seen and "it has moved on by" in told(run, owner=True)


@pytest.mark.parametrize(
    "statement, state, words",
    [
        ("DELETE FROM entry WHERE id > 1", "cut", "its end was cut off, or an old copy put back"),
        ("DELETE FROM entry", "cut", "its end was cut off"),
        ("DELETE FROM entry WHERE id = 1", "damaged", "row 1 is missing"),
        ("UPDATE entry SET hash = 'ff' WHERE id = (SELECT max(id) FROM entry)", "other", "it was rewritten"),
        ("UPDATE entry SET epsilon = 0.1 WHERE kind = 'plan'", "damaged", "was edited"),
    ],
)
def test_a_ledger_that_was_changed_is_seen_by_the_owner(run, statement, state, words):
    edited(statement)
    found = examine(run, owner=True)
    assert found.ledger.state == state and words in told(run, owner=True) and not found.well
    assert examine(run).well  # the ledger is nobody else's business


def test_another_ledger_is_told_from_a_missing_one(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SORDINO_HOME", str(tmp_path / "nobody"))
    assert examine(run, owner=True).ledger.state == "missing" and not examine(run, owner=True).well
    monkeypatch.setenv("SORDINO_HOME", str(tmp_path / "other"))
    for k in (1, 2):
        sordino.train(linear(), federation(), test=held_out(), out=str(tmp_path), name=f"x{k}", rounds=2, device="cpu")
    assert "does not know this run: it is another ledger" in told(run, owner=True)


def test_checking_changes_nothing(run):
    def state():
        paths = [p for p in (*run.rglob("*"), home.registry()) if p.is_file()]
        return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in paths}

    before = state()
    examine(run, owner=True)
    assert state() == before


# --- signatures


@needs_ssh
def test_a_signature_is_good_and_vouched_for_by_the_file_of_signers(run, keys, tmp_path, capsys):
    sign(run, keys / "meier")
    assert examine(run, owner=True).well and examine(run).signature.verdict == "good"
    assert "Nobody vouches here for whose key that is" in told(run)
    file = signers(keys, tmp_path)
    found = examine(run, signers=file)
    assert found.well and found.signature.signer == "dr.meier@hospital.example"
    assert found.signature.fingerprint.startswith("SHA256:") and "good, by dr.meier@hospital.example" in told(
        run, signers=file
    )
    assert found.report == "same"  # although it was written before the run was signed
    write_report(run)
    assert examine(run).report == "same"


@needs_ssh
@pytest.mark.parametrize("options", ["key", 'namespaces="git" ', 'valid-before="20200101" '])
def test_a_key_that_the_signers_do_not_name_for_this_is_a_stranger(run, keys, tmp_path, options):
    sign(run, keys / "meier")
    file = signers(keys, tmp_path, key="eve") if options == "key" else signers(keys, tmp_path, options=options)
    found = examine(run, signers=file)
    assert found.signature.verdict == "stranger" and not found.well and "does not name" in told(run, signers=file)


@needs_ssh
def test_a_signature_of_another_seal_is_bad(run, keys, tmp_path):
    sign(run, keys / "meier")
    good = (run / "public" / "seal.json.sig").read_bytes()
    seal = run / "public" / "seal.json"
    seal.write_text(seal.read_text().replace('"sordino": "', '"sordino": "9'))
    assert examine(run).signature.verdict == "bad" and not examine(run).well
    for junk in (b"", b"nonsense", good[: len(good) // 2], b"\0" * 200_000):
        (run / "public" / "seal.json.sig").write_bytes(junk)
        assert examine(run).signature.verdict == "bad"


@needs_ssh
def test_signers_were_given_and_nobody_signed(run, keys, tmp_path):
    file = signers(keys, tmp_path)
    assert not examine(run, signers=file).well and "One was asked for" in told(run, signers=file)
    with pytest.raises(RunError, match="cannot read the signers"):
        examine(run, signers=tmp_path / "absent")


@needs_ssh
def test_only_a_run_that_is_as_sealed_is_signed(run, keys):
    flipped(run / "private" / "records.jsonl")
    with pytest.raises(RunError, match="not as it was sealed, so it was not signed"):
        sign(run, keys / "meier")
    assert not (run / "public" / "seal.json.sig").exists()


@needs_ssh
def test_keys_that_cannot_be_used_are_one_clear_error_and_no_question(run, keys, tmp_path):
    open_to_all = tmp_path / "open"
    shutil.copy(keys / "meier", open_to_all)
    open_to_all.chmod(0o644)
    none = tmp_path / "none"
    none.write_text("no key\n")
    none.chmod(0o600)
    for path, words in (
        (keys / "locked", "passphrase, and sordino asks for none"),
        (open_to_all, "chmod 600" if os.access(open_to_all, os.R_OK) else "Permission"),
        (none, "not a private key"),
        (tmp_path / "absent", "No such file"),
    ):
        with pytest.raises(RunError, match=words):
            sign(run, path)
    assert not list((run / "public").glob("seal.json.sig*"))


@needs_ssh
def test_the_answer_without_ssh_keygen(run, keys, monkeypatch):
    sign(run, keys / "meier")
    monkeypatch.setattr(signature, "PROGRAM", "no-such-program")
    found = examine(run)
    assert found.signature.verdict == "unchecked" and not found.well and "could not be checked" in told(run)
    with pytest.raises(RunError, match="not installed"):
        sign(run, keys / "meier")
