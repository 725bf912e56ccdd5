"""Sites behind a shuffler of its own: the simulator's sums, nothing that names a sender, refusals and lost rounds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from tests.support.sites import OPEN, LocalPost, agree, job_of, local_sites

from sordino.core import plugin
from sordino.core.errors import LostRound, RunError, SpecError
from sordino.core.message import Message
from sordino.deploy import roster as rosters
from sordino.deploy.folder import read_roster
from sordino.deploy.shuffling import mix_at, shuffler_of
from sordino.federations import letters
from sordino.federations.base import Work
from sordino.federations.flower import BYTES
from sordino.masking.errors import MaskingError
from sordino.masking.once import Once
from sordino.masking.session import Session
from sordino.masking.shuffler import RowShuffler, new_shuffler_key
from sordino.runs import build, loop
from sordino.runs.job import Job
from sordino.spec import spec as specs

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
SITES = 5
KEYS: dict[str, Any] = {
    "dataset": "breast-cancer", "clients": SITES, "rounds": 2, "epsilon": 8.0, "seed": 1, "method": "sign-bits",
    "algorithm": "fedavg", "client_rate": 1.0, "channel": "shuffler", "normalise": "none", "min_cohort": SITES,
}  # fmt: skip
TEST = (torch.zeros(1, 30), torch.zeros(1, dtype=torch.int64))
POLICY = replace(OPEN, methods=("sign-bits",))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(plugin.VARIABLE, str(EXAMPLES))


class Mixed:
    """A shuffler that notes what it was given and what it gave back."""

    def __init__(self, least: int) -> None:
        self.secret, self.least = X25519PrivateKey.generate(), least
        self.public = self.secret.public_key().public_bytes_raw().hex()
        self.given: list[tuple[Session, dict[int, bytes]]] = []
        self.rows: list[list[bytes]] = []
        self.change: Callable[[dict[int, bytes]], dict[int, bytes]] = dict
        self.at: RowShuffler | None = None

    def join(self, post: LocalPost) -> None:
        """Put the key into every party's roster."""
        post.roster = replace(post.roster, shuffler=self.public, shuffler_least=self.least)
        for site in post.sites.values():
            site.roster = post.roster
        keys = rosters.keys(post.roster)
        self.at = RowShuffler(self.secret, post.roster.name, keys, self.least, Once())

    def __call__(self, session: Session, sealed: dict[int, bytes]) -> list[bytes]:
        assert self.at is not None
        self.given.append((session, sealed))
        rows = self.at.shuffle(session, self.change(sealed))
        self.rows.append(rows)
        return rows


def opened(tmp_path: Path, least: int = SITES, **more: Any) -> tuple[LocalPost, Mixed, Job]:
    post, mix = local_sites(tmp_path / "sites", "breast-cancer", sites=SITES, policy=POLICY), Mixed(least)
    mix.join(post)
    job = job_of(post, agree(post, KEYS | more, TEST), TEST, mix=mix)
    job.federation.open(Work(job.method, job.model, job.plan))
    return post, mix, job


def asked(job: Job, round: int = 0) -> Message:
    state = replace(loop.begin(job), round=round)
    return job.federation.ask("train", state, range(SITES))


def summed(message: Message, dim: int) -> torch.Tensor:
    signs = torch.where(message["bit"], 1.0, -1.0)
    return torch.zeros(dim).index_add(0, message["place"].long(), signs)


def test_the_rows_are_those_of_the_simulator_and_nothing_names_a_sender(tmp_path: Path) -> None:
    post, mix, job = opened(tmp_path)
    message = asked(job)
    here = build.from_spec(specs.from_dict(KEYS))
    here.federation.open(Work(here.method, here.model, job.plan))
    there = here.federation.ask("train", loop.begin(here), range(SITES))
    assert len(message) == SITES and message.ids is None and message.weight is None
    assert torch.allclose(summed(message, job.plan.dim), summed(there, job.plan.dim), atol=1e-5)
    replies = [letters.unpacked(reply[64:]) for _, reply in post.seen[-SITES:]]
    assert all(set(tensors) == {BYTES} and not header for header, tensors in replies)
    assert len({tensors[BYTES].numel() for _, tensors in replies}) == 1
    for row in mix.rows[0]:
        header, tensors = letters.unpacked(row)
        assert set(header) == {"heavy", "released"} and set(tensors) == {"field.place", "field.bit"}
        for _, reply in post.seen:
            assert row[-40:] not in reply
    assert len({len(row) for row in mix.rows[0]}) == 1


def test_a_second_batch_is_refused_and_the_round_is_lost(tmp_path: Path) -> None:
    _, mix, job = opened(tmp_path)
    asked(job)
    with pytest.raises(MaskingError, match="not answered twice"):
        mix(*mix.given[0])
    with pytest.raises(LostRound, match="did not mix"):
        asked(job)  # sites repeat their answers; the shuffler mixes them once
    assert len(mix.rows) == 1
    assert len(asked(job, 1)) == SITES


def test_forged_replayed_and_swapped_rows_are_refused(tmp_path: Path) -> None:
    _, mix, job = opened(tmp_path)
    asked(job)
    old = mix.given[0][1]
    for change in (
        lambda sealed: sealed | {1: sealed[1][:-1] + bytes([sealed[1][-1] ^ 1])},
        lambda sealed: sealed | {1: old[1]},  # of the round before
        lambda sealed: sealed | {1: sealed[2]},
    ):
        mix.change = change
        with pytest.raises(LostRound, match="did not mix"):
            asked(job, 1)
    assert len(mix.rows) == 1
    mix.change = dict
    assert len(asked(job, 1)) == SITES


def test_rows_of_different_states_do_not_mix(tmp_path: Path) -> None:
    post, mix, job = opened(tmp_path)

    def other(name: str, request: bytes) -> bytes:
        header, tensors = letters.unpacked(request)
        shift = 1.0 if name == "site-2" and header.get("verb") == "ask" else 0.0
        return letters.packed(header, {key: value + shift for key, value in tensors.items()})

    post.spoil_request = other
    with pytest.raises(LostRound, match="did not mix"):
        asked(job)
    assert not mix.rows


def test_too_few_reports_are_lost_and_the_shuffler_insists_too(tmp_path: Path) -> None:
    post, mix, job = opened(tmp_path, least=SITES - 1, allowed_dropouts=1)
    assert job.plan.sure == SITES - 1
    post.down = {"site-3"}
    assert len(asked(job)) == SITES - 1
    post.down = {"site-3", "site-4"}
    with pytest.raises(LostRound):
        asked(job, 1)
    assert len(mix.given) == 1
    mix.change = lambda sealed: {k: sealed[k] for k in list(sealed)[:3]}
    post.down = set()
    with pytest.raises(LostRound, match="did not mix"):
        asked(job, 1)


def test_garbage_in_a_sealed_row_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    post, mix, job = opened(tmp_path, least=SITES - 1, allowed_dropouts=1)
    real, bad = letters.message_letter, post.sites["site-2"].identity

    def spoiled(message: Message, header: Any) -> bytes:
        return real(message, header) if spoiled.who is not bad else b"x" * len(real(message, header))  # type: ignore[attr-defined]

    from sordino.federations import mixed

    whole = mixed.sealed_row

    def row(message: Message, public: str, member: int, identity: Any, at: Session) -> bytes:
        spoiled.who = identity  # type: ignore[attr-defined]
        sealed = whole(message, public, member, identity, at)
        spoiled.who = None  # type: ignore[attr-defined]
        return sealed

    spoiled.who = None  # type: ignore[attr-defined]
    monkeypatch.setattr(mixed, "sealed_row", row)
    monkeypatch.setattr(letters, "message_letter", spoiled)
    assert len(asked(job)) == SITES - 1
    assert len(mix.rows[0]) == SITES


@pytest.mark.parametrize(
    ("changes", "why"), [({"shuffler": None}, "names none"), ({"shuffler_least": 4}, "counts on 5")]
)
def test_a_site_trusts_its_own_roster_alone(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    post, mix = local_sites(tmp_path / "sites", "breast-cancer", sites=SITES, policy=POLICY), Mixed(SITES)
    mix.join(post)
    post.sites["site-2"].roster = replace(post.roster, **changes)
    with pytest.raises(RunError, match=f"site-2: .*{why}"):
        job_of(post, agree(post, KEYS, TEST), TEST, mix=mix)


def test_nothing_is_amplified_unless_rounds_can_be_lost(tmp_path: Path) -> None:
    keys = {k: v for k, v in KEYS.items() if k != "min_cohort"}
    sizes = {"loose": keys, "kept": KEYS}
    post = local_sites(tmp_path / "sites", "breast-cancer", sites=SITES, policy=POLICY)
    jobs = {name: agree(post, k, TEST).job(TEST) for name, k in sizes.items()}
    assert (jobs["loose"].plan.sure, jobs["kept"].plan.sure) == (1, SITES)
    assert not jobs["loose"].plan.everyone
    strict = replace(POLICY, min_cohort=SITES)
    with pytest.raises(RunError, match="mixes cohorts of 4"):
        less = local_sites(tmp_path / "strict", "breast-cancer", sites=SITES, policy=strict)
        agree(less, KEYS | {"min_cohort": 4}, TEST)


def test_one_client_per_site_and_a_shuffler_are_needed(tmp_path: Path) -> None:
    post = local_sites(tmp_path / "two", "breast-cancer", sites=2, policy=POLICY, clients=2)
    with pytest.raises(SpecError, match="one client per site"):
        agree(post, KEYS | {"clients": 4, "min_cohort": 2}, TEST)
    post, mix = local_sites(tmp_path / "sites", "breast-cancer", sites=SITES, policy=POLICY), Mixed(SITES)
    mix.join(post)
    with pytest.raises(SpecError, match="needs a shuffler"):
        job_of(post, agree(post, KEYS, TEST), TEST)


def test_a_shuffler_behind_a_port(tmp_path: Path) -> None:
    post = local_sites(tmp_path / "sites", "breast-cancer", sites=SITES, policy=POLICY)
    public = new_shuffler_key(tmp_path / "shuffler.key")
    post.roster = replace(post.roster, shuffler=public, shuffler_least=SITES)
    for site in post.sites.values():
        site.roster = post.roster
    (tmp_path / "federation.toml").write_text(post.roster.to_toml())
    assert read_roster(tmp_path / "federation.toml") == post.roster
    place = (tmp_path / "shuffler.key", SITES, tmp_path / "register", ("127.0.0.1", 0))
    with pytest.raises(SpecError, match="--least 5"):
        shuffler_of(post.roster, place[0], 4, *place[2:])
    server = shuffler_of(post.roster, *place)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        address = "{}:{}".format(*server.address)
        job = job_of(post, agree(post, KEYS, TEST), TEST, mix=mix_at(address))
        job.federation.open(Work(job.method, job.model, job.plan))
        assert len(asked(job)) == SITES
    finally:
        server.close()
        thread.join()
    with pytest.raises(RunError, match=r"does not answer.*resume"):
        asked(job, 1)
