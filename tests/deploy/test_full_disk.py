"""A full disk at a site: the server gets one fixed text, nothing is paid twice or too little, no row leaves twice."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.full_disk import FullDisk
from tests.support.sites import LocalPost, agree, job_of, local_sites

from sordino.deploy import gathering
from sordino.deploy.agreement import Agreement, checked
from sordino.deploy.daemon import SiteDaemon
from sordino.deploy.site import FAILED, FederationSite
from sordino.deploy.site_account import read_ledger
from sordino.federations import letters
from sordino.masking.identity import SIGNATURE
from sordino.runs import loop, run

KEYS: dict[str, Any] = {"dataset": "breast-cancer", "epsilon": 4.0, "normalise": "none", "clients": 3}
KEEPING = {"method": "dp-fedavg", "algorithm": "scaffold", "rounds": 12, "local_steps": 1, "seed": 1}
TEST = (torch.zeros(1, 30), torch.zeros(1, dtype=torch.int64))
ROUND = [
    ("ledger.sqlite", "INSERT"),
    ("ledger.sqlite", "COMMIT"),
    ("clients.sqlite", "BEGIN"),
    ("clients.sqlite", "INSERT"),
    ("clients.sqlite", "COMMIT"),
    ("answers.sqlite", "BEGIN"),
    ("answers.sqlite", "UPDATE"),
    ("answers.sqlite", "INSERT"),
    ("answers.sqlite", "COMMIT"),
]
OPENING = [
    ("ledger.sqlite", "INSERT"),
    ("ledger.sqlite", "COMMIT"),
    ("answers.sqlite", "CREATE"),
    ("sums.sqlite", "CREATE"),
    ("agreement", ""),
    ("clients.sqlite", "CREATE"),
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_HOME", str(tmp_path / "home"))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


def opened(folder: Path, **keys: Any) -> tuple[LocalPost, Agreement]:
    post = local_sites(folder, "breast-cancer")
    agreement = agree(post, KEYS | keys, TEST)
    gathering.open_everywhere(post, agreement)
    return post, agreement


def requests(agreement: Agreement) -> list[bytes]:
    """Return a request for every round of a job, each with other weights: what a client keeps then depends on them."""
    job = agreement.job()
    state, draw = letters.state_tensors(loop.begin(job)), torch.Generator().manual_seed(0)
    header, out = {"verb": "ask", "job": agreement.id, "phase": "train", "clients": [0]}, []
    for round in range(job.plan.rounds):
        state["state.params"] = torch.randn(len(state["state.params"]), generator=draw)
        out.append(letters.packed(header | {"round": round}, state))
    return out


def paid(site: FederationSite, job: str, kind: str = "round") -> list[int | None]:
    """Return the rounds (or plans) that the site's own ledger has of a job, in order."""
    with read_ledger(site.folder) as ledger:
        return [json.loads(e.what).get("round") for e in ledger.chain.select(f"kind = '{kind}'") if e.job == job[:32]]


def failed(reply: bytes) -> bool:
    """Return whether a reply is the fixed error, and nothing else, under its signature."""
    return reply[SIGNATURE:] == letters.packed({"error": FAILED})


def last_line(site: FederationSite) -> str:
    return (site.folder / "log.txt").read_text().splitlines()[-1]


def test_a_round_that_could_not_be_written_is_paid_once_and_answered_once(tmp_path: Path, disk: FullDisk) -> None:
    post, agreement = opened(tmp_path / "sites", **KEEPING)
    healthy, twin = opened(tmp_path / "twin", **KEEPING)
    site, other = post.sites["site-1"], healthy.sites["site-1"]
    sent, wanted = requests(agreement), requests(twin)
    for round, (place, stage) in enumerate(ROUND):
        with disk.at(f"sites/site-1/{'' if 'ledger' in place else 'jobs/'}", stage, place):
            assert failed(site.answer(sent[round])), (place, stage)
            assert failed(site.answer(sent[round]))  # the site lives on, and says the same
        assert paid(site, agreement.id) == list(range(round + (place != "ledger.sqlite")))  # paid before it was trained
        assert "disk is full" in last_line(site)  # one clear line, without a traceback
        reply = site.answer(sent[round])
        _, tensors = letters.unpacked(reply[SIGNATURE:])
        _, expected = letters.unpacked(other.answer(wanted[round])[SIGNATURE:])
        assert torch.equal(tensors["field.update"], expected["field.update"])  # clients kept nothing of what failed
        assert site.answer(sent[round]) == reply  # the same bytes: no further release
        assert paid(site, agreement.id) == list(range(round + 1))  # once, although it was asked for four times
    header, tensors = letters.unpacked(site.answer(sent[0])[SIGNATURE:])
    assert "later rounds" in header["refused"] and not tensors


def test_a_job_that_could_not_be_written_down_is_charged_once(tmp_path: Path, disk: FullDisk) -> None:
    post = local_sites(tmp_path / "sites", "breast-cancer")
    site = post.sites["site-1"]
    for place, stage in OPENING:
        agreement = agree(post, KEYS | KEEPING, TEST)
        letter = letters.packed({"verb": "open", "agreement": agreement.to_json()})
        with disk.at("sites/site-1/", stage, place):
            assert failed(site.answer(letter)), (place, stage)
            assert "space" in last_line(site) or "disk is full" in last_line(site)
        if place != "ledger.sqlite":
            assert not list((site.folder / "jobs").glob("*/agreement.new"))
        assert letters.unpacked(site.answer(letter)[SIGNATURE:])[0] == {"job": agreement.id}
        assert len(paid(site, agreement.id, "plan")) == 1, (place, stage)
        assert not failed(site.answer(requests(agreement)[0]))


def test_a_log_that_cannot_be_written_does_not_stop_the_site(
    tmp_path: Path, disk: FullDisk, capsys: pytest.CaptureFixture[str]
) -> None:
    post, agreement = opened(tmp_path / "sites", method="dp-sgd", rounds=1)
    site = post.sites["site-1"]
    with disk.at("site-1/log.txt"):
        header, _ = letters.unpacked(site.answer(letters.packed({"verb": "dance"}))[SIGNATURE:])
        assert "refused" in header
        assert not failed(site.answer(requests(agreement)[0]))
    assert "refused: the letter asks for nothing" in capsys.readouterr().err


# --- behind a secure sum

STEPS = [
    ("keys", "sums.sqlite", "INSERT"),
    ("shares", "sums.sqlite", "COMMIT"),
    ("masked", "sums.sqlite", "INSERT"),
    ("masked", "answers.sqlite", "COMMIT"),
    ("masked", "ledger.sqlite", "INSERT"),
    ("unmask", "sums.sqlite", "BEGIN"),
]


def test_a_sum_is_made_by_the_others_and_no_row_is_masked_twice(tmp_path: Path, disk: FullDisk) -> None:
    post = local_sites(tmp_path / "sites", "breast-cancer", sites=4)
    more = {"method": "nbafl", "channel": "secure-sum", "clients": 4, "allowed_dropouts": 1, "mode": "secure"}
    test = gathering.public_test(checked(KEYS), None, None, None)
    agreement = agree(post, KEYS | more | {"rounds": len(STEPS)}, test)
    job = job_of(post, agreement, test, out=str(tmp_path / "runs"))
    site, again, left = post.sites["site-4"], [], {}

    def answered(name: str, request: bytes) -> bytes:
        """Take the place of the site's own answer: fail once as told, then be asked the same with space again."""
        header, _ = letters.unpacked(request)
        step, file, stage = STEPS[header["round"]]
        if name != "site-4" or header["step"] != step:
            return request
        with disk.at("sites/site-4", stage, file):
            assert failed(site.answer(request)), (step, file)
        assert "disk is full" in last_line(site)
        return request

    def noted(name: str, reply: bytes) -> bytes | None:
        header, _ = letters.unpacked(post.requests[-1][1])
        if name != "site-4" or header.get("step") not in ("masked", STEPS[header["round"]][0]):
            return reply
        said, tensors = letters.unpacked(reply[SIGNATURE:])
        if header["step"] == STEPS[header["round"]][0]:
            again.append(said.get("refused", "answered"))
        if header["step"] == "masked" and tensors:
            left.setdefault(header["round"], set()).add(reply)
        return reply

    post.spoil_request, post.spoil = answered, noted
    result = run.execute(job, own_model=False)
    assert [record.lost for record in result.history] == [None] * len(STEPS)
    assert again[:2] == again[4:] == ["answered"] * 2  # nothing had left, so it is answered with space again
    assert all("was started anew" in text for text in again[2:4])  # a row under masks: the sum goes on without it
    assert all(len(rows) == 1 for rows in left.values()) and set(left) == {0, 1, 4, 5}
    counted = {name: s.participations for name, s in job.federation.status.items()}  # type: ignore[attr-defined]
    assert counted == {"site-1": 6, "site-2": 6, "site-3": 6, "site-4": 4}
    for name in post.sites:
        assert paid(post.sites[name], agreement.id) == list(range(6))  # also for rounds of which nothing left


# --- a real one


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of eight megabytes, for root alone."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small file system")
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(file: Path, free: int) -> None:
    """Fill the file system with a file, but for so many bytes."""
    with file.open("wb", buffering=0) as output, pytest.raises(OSError, match="No space left"):
        while True:
            output.write(bytes(1 << 12))
    os.truncate(file, file.stat().st_size - free)


def asked(path: Path, letter: bytes) -> bytes:
    """Send a letter to a daemon as Flower's process does, and return the reply."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(30)
        line.connect(str(path))
        line.sendall(len(letter).to_bytes(8, "big") + letter)
        reply = b"".join(iter(lambda: line.recv(1 << 16), b""))
    return reply[8:]


def test_a_daemon_lives_through_a_disk_that_is_really_full(tmp_path: Path, small_disk: Path) -> None:
    post = local_sites(small_disk, "breast-cancer")
    keys = {name: value for name, value in KEEPING.items() if name != "seed"} | {"mode": "secure", "rounds": 10}
    agreement = agree(post, KEYS | keys, TEST)
    site, outcomes = post.sites["site-1"], []
    with tempfile.TemporaryDirectory(prefix="sordino") as short:
        daemon = SiteDaemon(Path(short) / "site.sock", site.answer, largest=1 << 20)
        serving = threading.Thread(target=lambda: (daemon.serve(), site.close()), daemon=True)
        serving.start()
        opening = letters.packed({"verb": "open", "agreement": agreement.to_json()})
        fill(small_disk / "filler", 0)
        assert failed(asked(daemon.path, opening))
        (small_disk / "filler").unlink()
        assert not failed(asked(daemon.path, opening))
        for round, letter in enumerate(requests(agreement)):
            fill(small_disk / "filler", [0, 1, 2, 3, 4, 6, 8, 12, 16, 400][round] << 12)
            first = asked(daemon.path, letter)
            outcomes.append(failed(first))
            (small_disk / "filler").unlink()
            reply = asked(daemon.path, letter)
            assert letters.unpacked(reply[SIGNATURE:])[1]
            assert outcomes[-1] or reply == first
            assert paid(site, agreement.id) == list(range(round + 1))
        daemon.stop()
        serving.join(5)
    assert outcomes[0] and not outcomes[-1]  # the disk was full, and then it was not
