"""A federation of sites in this process: the simulator's results, the sites' own rules, hostile servers and sites."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.sites import OPEN, LocalPost, agree, job_of, local_sites

from sordino.core.errors import RunError, SpecError
from sordino.deploy import gathering
from sordino.deploy.agreement import Agreement, checked
from sordino.deploy.policy import Policy, read
from sordino.deploy.policy_file import template
from sordino.deploy.site_account import read_ledger
from sordino.deploy.site_data import rounded_down
from sordino.federations import letters
from sordino.federations.flower import BYTES
from sordino.runs import build, run
from sordino.spec import spec as specs

KEYS: dict[str, Any] = {"dataset": "breast-cancer", "clients": 3, "rounds": 2, "epsilon": 4.0, "seed": 1}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_HOME", str(tmp_path / "home"))


def trained(post: LocalPost, tmp_path: Path, **more: Any) -> tuple[run.Result, Agreement]:
    keys = KEYS | more
    test = gathering.public_test(checked(keys), None, None, None)
    agreement = agree(post, keys, test)
    result = run.execute(job_of(post, agreement, test, out=str(tmp_path / "federated")), own_model=False)
    return result, agreement


def simulated(tmp_path: Path, **more: Any) -> run.Result:
    job = build.from_spec(specs.from_dict(KEYS | more | {"out": str(tmp_path / "simulated")}))
    return run.execute(job, own_model=False)


def weights(result: run.Result) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in result.model.parameters()])


@pytest.mark.parametrize(
    "more",
    [
        {"method": "dp-sgd"},
        {"method": "dp-sgd", "channel": "secure-sum", "clients": 5},  # 91 records each: their sizes need no rounding
        {"method": "dp-sgd", "normalise": "centred"},
        {"method": "dp-fedavg", "algorithm": "scaffold", "client_rate": 0.6, "rounds": 3, "local_steps": 2},
        {"method": "nbafl", "channel": "secure-sum", "algorithm": "fedavgm", "clients": 5},
    ],
    ids=[
        "dp-sgd",
        "dp-sgd behind a secure sum",
        "dp-sgd on centred rows",
        "dp-fedavg with state of clients",
        "nbafl behind a secure sum",
    ],
)
def test_sites_give_the_model_of_the_simulator(tmp_path: Path, more: dict[str, Any]) -> None:
    post = local_sites(tmp_path / "sites", "breast-cancer", sites=more.get("clients", 3))
    here, there = simulated(tmp_path, **more), trained(post, tmp_path, **more)[0]
    assert float((weights(here) - weights(there)).abs().max()) <= 1e-5 * float(weights(here).abs().max())
    assert there.guarantee.epsilon == pytest.approx(here.guarantee.epsilon, rel=1e-9)
    assert here.accuracy == there.accuracy


def test_a_site_that_is_down_is_missing_and_the_others_go_on(tmp_path: Path) -> None:
    post = local_sites(tmp_path / "sites", "breast-cancer")
    test = gathering.public_test(checked(KEYS), None, None, None)
    job = job_of(post, agree(post, KEYS | {"normalise": "none"}, test), test, out=str(tmp_path / "runs"))
    post.down = {"site-2"}
    post.sites["site-3"].policy = replace(OPEN, largest_letter=10)  # fails on everything from here on
    result = run.execute(job, own_model=False)
    status = job.federation.status  # type: ignore[attr-defined]
    assert (status["site-1"].participations, status["site-2"].silent, status["site-3"].failed) == (2, 2, 2)
    assert result.guarantees["public"].epsilon == result.guarantees["server"].epsilon  # no credit for others' noise


def test_a_release_outside_the_rounds_needs_every_site(tmp_path: Path) -> None:
    post = local_sites(tmp_path / "sites", "breast-cancer")
    test = gathering.public_test(checked(KEYS), None, None, None)
    job = job_of(post, agree(post, KEYS, test), test, out=str(tmp_path / "runs"))
    post.down = {"site-2"}
    with pytest.raises(RunError, match="needs every site"):
        run.execute(job, own_model=False)


def test_rows_that_are_centred_alone_have_no_second_release(tmp_path: Path) -> None:
    post = local_sites(tmp_path / "sites", "breast-cancer")
    for job, (scale, refused) in enumerate({"rows": False, "centred": True}.items()):
        keys = KEYS | {"normalise": scale, "seed": job}
        agreement = agree(post, keys, (torch.zeros(1, 30), torch.zeros(1, dtype=torch.int64)))
        gathering.open_everywhere(post, agreement)
        header = {"verb": "once", "job": agreement.id, "what": "rows", "number": 1, "shift": [0.0] * 30}
        assert ("no release rows 1" in said(post, letters.packed(header, {})).get("refused", "")) is refused


# --- the site's own rules


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[LocalPost, Agreement]]:
    post = local_sites(tmp_path / "sites", "breast-cancer")
    agreement = agree(post, KEYS | {"normalise": "none"}, (torch.zeros(1, 30), torch.zeros(1, dtype=torch.int64)))
    gathering.open_everywhere(post, agreement)
    yield post, agreement
    for site in post.sites.values():
        site.close()


def request(agreement: Agreement, round: int = 0, **more: Any) -> bytes:
    size = 62  # parameters of the linear model for 30 columns and 2 classes
    header = {"verb": "ask", "job": agreement.id, "round": round, "phase": "train", "clients": [0]}
    tensors = more.pop("tensors", {"state.params": torch.zeros(size)})
    return letters.packed({**header, **more}, tensors)


def said(post: LocalPost, letter: bytes, name: str = "site-1") -> dict[str, Any]:
    replies = post.exchange({name: letter})
    return letters.unpacked(replies.answered[name])[0]


def test_a_round_is_answered_once_and_in_order(opened: tuple[LocalPost, Agreement]) -> None:
    post, agreement = opened
    first, second = post.exchange({"site-1": request(agreement)}), post.exchange({"site-1": request(agreement)})
    assert first.answered == second.answered  # the same bytes: no further release
    other = request(agreement, tensors={"state.params": torch.ones(62)})
    assert "answered already" in said(post, other)["refused"]
    assert "field.update" not in said(post, other)
    assert "refused" not in said(post, request(agreement, 1))
    assert "later rounds" in said(post, request(agreement))["refused"]
    with read_ledger(post.sites["site-1"].folder) as ledger:
        rounds = [json.loads(e.what)["round"] for e in ledger.chain.select("kind = 'round'")]
    assert rounds == [0, 1]  # one charge each, whatever was repeated


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"round": 2}, "2 rounds"),
        ({"round": -1}, "2 rounds"),
        ({"phase": "other"}, "phase"),
        ({"clients": [1]}, "not at this site"),
        ({"clients": [0, 0]}, "not at this site"),
        ({"noise_multiplier": 0.1}, "other entries"),
        ({"clip": 100.0}, "other entries"),
        ({"local_steps": 50}, "other entries"),
        ({"job": "0" * 64}, "no such job"),
        ({"job": "../../etc"}, "no such job"),
        ({"tensors": {"state.params": torch.zeros(63)}}, "does not fit"),
        ({"tensors": {"state.params": torch.full((62,), float("nan"))}}, "not finite"),
        ({"tensors": {"state.params": torch.full((62,), 1e30)}}, "beyond any training"),
        ({"tensors": {"state.params": torch.zeros(62), "more": torch.zeros(1)}}, "state of a round"),
        ({"verb": "evaluate"}, "nothing that a site does"),
        ({"verb": "sum", "step": "keys"}, "no step of a secure sum"),
    ],
)
def test_what_was_not_agreed_on_is_refused_and_nothing_leaves(
    opened: tuple[LocalPost, Agreement], more: dict[str, Any], why: str
) -> None:
    post, agreement = opened
    reply = post.exchange({"site-1": request(agreement, **more)}).answered["site-1"]
    header, tensors = letters.unpacked(reply)
    assert why in header["refused"]
    assert not tensors
    with read_ledger(post.sites["site-1"].folder) as ledger:
        assert not list(ledger.chain.select("kind = 'round'"))


def test_an_agreement_that_was_changed_is_another_job(opened: tuple[LocalPost, Agreement]) -> None:
    post, agreement = opened
    for change in ({"clip": 50.0}, {"epsilon": 400.0}, {"local_steps": 9}):
        other = replace(agreement, keys={**agreement.keys, **change})
        assert other.id != agreement.id
        header = {"verb": "ask", "job": other.id, "round": 0, "phase": "train", "clients": [0]}
        assert "no such job" in said(post, letters.packed(header, {"state.params": torch.zeros(62)}))["refused"]


def strict(**more: Any) -> Policy:
    return replace(OPEN, epsilon_per_job=5.0, epsilon_total=9.0, delta_per_job=1e-5, delta_total=1e-4, **more)


@pytest.mark.parametrize(
    ("policy", "more", "why"),
    [
        (strict(methods=("nbafl",)), {}, "method dp-sgd"),
        (strict(units=("client",)), {}, "unit record"),
        (strict(viewers=("public",)), {}, "viewer server"),
        (strict(channels=("secure-sum",)), {}, "channel direct"),
        (strict(min_cohort=4), {}, "3 clients"),
        (strict(secure_noise=True), {}, "mode = secure"),
        (strict(), {"delta": 1e-3}, "delta"),
        (strict(), {"epsilon": 6.0}, "5 per job"),
        (strict(allowed_dropouts=0), {"channel": "secure-sum", "allowed_dropouts": 1}, "missing"),
    ],
)
def test_a_policy_refuses_with_a_reason(tmp_path: Path, policy: Policy, more: dict[str, Any], why: str) -> None:
    post = local_sites(tmp_path / "sites", "breast-cancer", policy=policy)
    with pytest.raises(RunError, match=why):
        gathering.open_everywhere(post, agree(post, KEYS | {"normalise": "none"} | more))


def test_the_total_of_a_site_ends_further_jobs(tmp_path: Path) -> None:
    post = local_sites(tmp_path / "sites", "breast-cancer", policy=strict())
    for _ in range(2):  # 4 and 4 of 9
        gathering.open_everywhere(post, agree(post, KEYS | {"normalise": "none"}))
    with pytest.raises(RunError, match="total budget of this site does not cover"):
        gathering.open_everywhere(post, agree(post, KEYS | {"normalise": "none"}))
    with read_ledger(post.sites["site-1"].folder) as ledger:
        assert len(list(ledger.chain.select("kind = 'plan'"))) == 2


def test_a_site_that_was_started_anew_knows_its_jobs(tmp_path: Path) -> None:
    post = local_sites(tmp_path / "sites", "breast-cancer")
    agreement = agree(post, KEYS | {"normalise": "none"}, (torch.zeros(1, 30), torch.zeros(1, dtype=torch.int64)))
    gathering.open_everywhere(post, agreement)
    first = post.exchange({"site-1": request(agreement)}).answered
    old = post.sites["site-1"]
    old.close()
    post.sites["site-1"] = type(old)(old.name, old.policy, old.data, old.roster, old.identity, old.folder)
    assert post.exchange({"site-1": request(agreement)}).answered == first
    other = request(agreement, tensors={"state.params": torch.ones(62)})
    assert "answered already" in said(post, other)["refused"]


def test_a_failure_at_a_site_tells_the_server_nothing(
    opened: tuple[LocalPost, Agreement], monkeypatch: pytest.MonkeyPatch
) -> None:
    post, agreement = opened

    def explode(*_: object) -> None:
        raise ValueError("patient 4711 has a tumour")

    monkeypatch.setattr("sordino.deploy.site_job.SiteJob.answer", explode)
    reply = post.exchange({"site-1": request(agreement)}).answered["site-1"]
    assert b"4711" not in reply
    assert "4711" in (post.sites["site-1"].folder / "log.txt").read_text()
    with read_ledger(post.sites["site-1"].folder) as ledger:
        assert len(list(ledger.chain.select("kind = 'round'"))) == 1  # paid before anything was computed


# --- hostile bytes and sites


@pytest.mark.parametrize(
    "letter",
    [b"", b"\x00" * 40, b"\xff" * 8, (2**40).to_bytes(8, "little") + b"{}", b'{"a":' * 2000, letters.packed({})],
)
def test_garbage_is_refused_by_a_site(tmp_path: Path, letter: bytes) -> None:
    post = local_sites(tmp_path / "sites", "breast-cancer", sites=2)
    header, tensors = letters.unpacked(post.exchange({"site-1": letter}).answered["site-1"])
    assert set(header) <= {"refused", "error"}
    assert not tensors


def test_hostile_answers_are_left_out_of_the_round(tmp_path: Path) -> None:
    post = local_sites(tmp_path / "sites", "breast-cancer")
    test = gathering.public_test(checked(KEYS), None, None, None)
    agreement = agree(post, KEYS | {"normalise": "none", "rounds": 5}, test)
    job = job_of(post, agreement, test, out=str(tmp_path / "runs"))
    rounds = iter(("nan", "shape", "garbage", "forged", "other"))
    now = ""

    def spoil(name: str, reply: bytes) -> bytes | None:
        nonlocal now
        if name == "site-1":
            now = next(rounds)
        if name != "site-2":
            return reply
        header, tensors = letters.unpacked(reply[64:])
        if now == "nan":
            tensors["field.update"] = tensors["field.update"] * float("nan")
        elif now == "shape":
            tensors["field.update"] = tensors["field.update"][:, :-1].contiguous()
        elif now == "other":
            tensors["ids"] = tensors["ids"] + 1
        site = post.sites["site-2"]
        body = b"garbage" if now == "garbage" else letters.packed(header, tensors)
        from sordino.deploy import roster as rosters

        signer = post.sites["site-3"].identity if now == "forged" else site.identity
        return rosters.signed(post.roster, signer, post.requests[-1][1], body)

    post.spoil = spoil
    result = run.execute(job, own_model=False)
    status = job.federation.status  # type: ignore[attr-defined]
    assert status["site-2"].failed == 5
    assert status["site-2"].participations == 0
    assert status["site-1"].participations == status["site-3"].participations == 5
    assert bool(torch.isfinite(weights(result)).all())


# --- secure sums


def test_the_server_of_a_secure_sum_never_sees_a_row_a_size_or_a_metric(tmp_path: Path) -> None:
    post = local_sites(tmp_path / "sites", "breast-cancer")
    keys = {"method": "nbafl", "channel": "secure-sum", "normalise": "none", "rounds": 1}
    trained(post, tmp_path, **keys)
    rows = []
    for name, letter in post.requests:
        header, tensors = letters.unpacked(letter)
        if header.get("step") == "masked":
            state = {k: v for k, v in tensors.items() if k != BYTES}
            job, _, _ = post.sites[name]._jobs[header["job"]]
            rows.append((name, job.answer("train", job.state(state, 0), list(job.member.clients))["update"]))
    assert len(rows) == 3
    for _, row in rows:  # in research mode a row can be computed again; nothing that left holds it
        fixed = np.rint(row.double().numpy() * 2**32).astype("<i8").tobytes()
        for _, reply in post.seen:
            assert row.numpy().tobytes()[:64] not in reply
            assert fixed[:64] not in reply
    sizes = [n for name, reply in post.seen for n in letters.unpacked(reply[64:])[0].get("sizes", [])]
    assert all(n == rounded_down(n) for n in sizes)  # 151 and 152 records are told as 150
    told = {key for _, reply in post.seen for key in letters.unpacked(reply[64:])[0]}
    assert told <= {"name", "records", "sizes", "users", "job"}


def test_a_sum_with_a_missing_member_is_lost_or_made_by_the_others(tmp_path: Path) -> None:
    keys = {"method": "nbafl", "channel": "secure-sum", "normalise": "none", "rounds": 3}
    for allowed, lost in ((0, True), (1, False)):
        post = local_sites(tmp_path / f"sites {allowed}", "breast-cancer", sites=4)
        more = keys | {"clients": 4, "allowed_dropouts": allowed}
        test = gathering.public_test(checked(KEYS), None, None, None)
        agreement = agree(post, KEYS | more, test)
        job = job_of(post, agreement, test, out=str(tmp_path / f"runs {allowed}"))

        def lose(name: str, request: bytes) -> bytes | None:
            header, _ = letters.unpacked(request)
            gone = name == "site-4" and header.get("step") == "masked" and header["round"] == 1
            return None if gone else request

        post.spoil_request = lose
        result = run.execute(job, own_model=False)
        assert [record.lost is not None for record in result.history] == [False, lost, False]
        counts = {name: s.participations for name, s in job.federation.status.items()}  # type: ignore[attr-defined]
        assert counts["site-4"] == 2


def test_a_row_is_never_masked_for_two_sums(tmp_path: Path) -> None:
    post = local_sites(tmp_path / "sites", "breast-cancer")
    keys = {"method": "nbafl", "channel": "secure-sum", "normalise": "none", "rounds": 1}
    trained(post, tmp_path, **keys)
    for name, letter in [r for r in post.requests if b'"masked' in r[1] or b"masked" in r[1][:2000]][:1]:
        header, tensors = letters.unpacked(letter)
        tensors["state.params"] = tensors["state.params"] + 1
        assert "answered already" in said(post, letters.packed(header, tensors), name)["refused"]


# --- files and keys


def test_keys_for_simulations_are_refused() -> None:
    for more in (
        {"dropout": "0.1"},
        {"late": 0.1},
        {"server_data": 0.1},
        {"baseline": True},
        {"federation": "workers"},
    ):
        with pytest.raises(SpecError, match=next(iter(more))):
            checked(KEYS | more)
    with pytest.raises(SpecError, match="private_data"):
        checked(KEYS | {"private_data": "file:/etc/passwd", "method": "fedsdp"})
    with pytest.raises(SpecError, match="budgets names a file of one machine"):
        checked(KEYS | {"budgets": "budgets.csv"})


def test_a_policy_file_must_say_everything(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    with pytest.raises(SpecError, match="trains nothing"):
        read(path)
    path.write_text("epsilon_per_job = 1.0\n")
    with pytest.raises(SpecError, match="delta_per_job"):
        read(path)
    path.write_text("epsilon = 1.0\n")
    with pytest.raises(SpecError, match="unknown key epsilon"):
        read(path)


def test_the_first_policy_of_a_job_without_privacy_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(template(specs.from_dict(KEYS | {"method": "none"}), 3))
    assert read(path).epsilon_total == math.inf
    path.write_text(path.read_text().replace("= inf", "= nan"))
    with pytest.raises(SpecError, match="must be finite"):
        read(path)


def test_a_round_that_every_site_refuses_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    post = local_sites(tmp_path / "sites", "breast-cancer")
    test = gathering.public_test(checked(KEYS), None, None, None)
    job = job_of(post, agree(post, KEYS | {"normalise": "none"}, test), test, out=str(tmp_path / "runs"))

    def widen(name: str, request: bytes) -> bytes:
        header, tensors = letters.unpacked(request)
        return letters.packed(header, {k: torch.cat([v, v]) for k, v in tensors.items()})

    post.spoil_request = widen  # another shape of the model
    with pytest.raises(RunError, match="every site refuses the job's rounds: the state does not fit"):
        run.execute(job, own_model=False)


def test_public_sizes_are_rounded_down() -> None:
    assert [rounded_down(n) for n in (7, 42, 151, 999, 12000, 12345)] == [7, 42, 150, 990, 12000, 12000]
