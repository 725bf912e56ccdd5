"""A run may die anywhere; what is charged stays charged, and what goes on is the same run."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

import sordino
from sordino.core import faults
from sordino.core.errors import RunError
from sordino.run_folder.folder import CHECKPOINT, PREVIOUS, RunFolder
from sordino.runs import build, run
from sordino.spec import spec
from support.killed import Killed, dies, kill_at
from support.problems import charges, federation, held_out, mlp, registry, same_weights

ROUNDS, TARGET = 5, 3.0
CLIENTS, TEST = federation(), held_out()


def train(**keys):
    return sordino.train(mlp(), CLIENTS, test=TEST, **keys)


def keys(out, mode="research", every=0.0, **more):
    """Everything that a state can hold: adaptive clip, server momentum, averaging."""
    return {
        "method": "dp-fedavg",
        "adaptive_clip": True,
        "algorithm": "fedavgm",
        "server_momentum": 0.5,
        "averaging": "tail:0.5",
        "learning_rate": 0.5,
        "rounds": ROUNDS,
        "epsilon": TARGET,
        "mode": mode,
        "checkpoint_seconds": every,
        "out": str(out),
        "name": "it",
        "device": "cpu",
    } | more


def run_killed(point, number, **keys):
    """Whether the run died there."""
    return dies(point, number, lambda: train(**keys))


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory):
    return train(**keys(tmp_path_factory.mktemp("whole")))


@pytest.fixture
def unrehearsed(monkeypatch):
    """Runs that are begun and resumed without a rehearsal, which leaves nothing: `unkilled` has had one."""
    monkeypatch.setattr(run, "rehearse", lambda job: None)


def loss_of(model):
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(model(TEST[0]), TEST[1]))


@pytest.mark.parametrize("every", [0.0, 1e6])
@pytest.mark.parametrize("point", faults.POINTS)
def test_a_research_run_killed_anywhere_ends_as_if_it_had_not_been(point, every, tmp_path, unkilled, unrehearsed):
    died = 0
    for number in (0, 2, 4):
        folder = tmp_path / str(number) / "it"
        if not run_killed(point, number, **keys(folder.parent, every=every)):
            continue
        died += 1
        before = charges(folder)
        result = train(resume=folder)
        assert same_weights(result.model, unkilled.model)
        assert charges(folder) == list(range(ROUNDS)) and charges(folder)[: len(before)] == before
        assert [r.round for r in result.history] == [1, 2, 3, 4, 5]
        assert result.guarantee == unkilled.guarantee and result.guarantee.epsilon <= TARGET
        assert [r.loss for r in result.history] == [r.loss for r in unkilled.history]
        assert (folder / "public" / "model.safetensors").read_bytes() == (
            unkilled.folder / "public" / "model.safetensors"
        ).read_bytes()
    assert died >= 1


@pytest.mark.parametrize("every", [0.0, 1e6])
@pytest.mark.parametrize("point", faults.POINTS)
def test_a_secure_run_killed_anywhere_never_overspends(point, every, tmp_path, unrehearsed):
    """The noise of a re-run is fresh, so it is charged again; the run ends with fewer rounds, not a higher epsilon."""
    died = 0
    for number in (0, 2, 4):
        folder = tmp_path / str(number) / "it"
        if not run_killed(point, number, **keys(folder.parent, "secure", every)):
            continue
        died += 1
        before = charges(folder)
        saved = RunFolder(folder).load_state()
        kept = saved[1] if saved is not None else 0
        result = train(resume=folder)
        assert charges(folder)[: len(before)] == before  # an interrupted round stays charged
        assert len(charges(folder)) == ROUNDS
        merged = ROUNDS - (len(before) - kept)
        assert [r.round for r in result.history] == list(range(1, merged + 1))
        assert result.guarantee.epsilon <= TARGET and result.guarantee.mode == "secure"
        if merged:
            assert loss_of(result.model) == pytest.approx(result.history[-1].loss, rel=1e-5)
    assert died >= 1


def test_a_secure_run_that_always_dies_after_paying_spends_no_more_than_its_budget(tmp_path):
    folder = tmp_path / "it"
    assert run_killed("paid", 0, **keys(tmp_path, "secure"))
    for _ in range(ROUNDS - 1):
        assert run_killed("paid", 0, resume=folder)
    assert not run_killed("paid", 0, resume=folder)  # nothing is left to pay with
    assert charges(folder) == [0] * ROUNDS
    result = train(resume=folder)
    assert result.history == [] and 0.99 * TARGET < result.guarantee.epsilon <= TARGET
    assert same_weights(result.model, mlp())


def test_killed_again_and_again_it_is_still_the_same_run(tmp_path, unkilled):
    folder = tmp_path / "it"
    assert run_killed("merged", 1, **keys(tmp_path))
    for point in ("saving", "paid", "recorded", "trained"):
        assert run_killed(point, 0, resume=folder)
    assert same_weights(train(resume=folder).model, unkilled.model)
    assert charges(folder) == list(range(ROUNDS))


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    result = train(**keys(tmp_path))
    again = train(resume=result.folder)
    assert same_weights(again.model, result.model) and again.history == result.history
    assert again.guarantee == result.guarantee and len(charges(result.folder)) == ROUNDS


@pytest.mark.slow
@pytest.mark.parametrize("point", ["paid", "recorded"])
def test_a_capped_sampled_run_resumes_with_the_same_cohorts(point, tmp_path):
    capped = {"method": "dp-sgd", "client_rate": 0.5, "max_participations": 2, "rounds": 6, "epsilon": 4.0}
    start = {"learning_rate": 0.1, "device": "cpu", "name": "it", "seed": 0}
    whole = train(**capped, **start, out=str(tmp_path / "whole"))
    assert run_killed(point, 3, **capped, **start, out=str(tmp_path))
    result = train(resume=tmp_path / "it")
    assert same_weights(result.model, whole.model)
    assert [r.clients for r in result.private.history] == [r.clients for r in whole.private.history]


# --- damage


def stopped(tmp_path, number=3, **more):
    """A run killed after some rounds, with a checkpoint for every one of them."""
    assert run_killed("paid", number, **keys(tmp_path, **more))
    return tmp_path / "it"


def spoil(path: Path, at=0.7):
    data = bytearray(path.read_bytes())
    data[int(at * len(data))] ^= 0xFF
    path.write_bytes(bytes(data))


DAMAGES = {
    "flipped": spoil,
    "header": lambda p: spoil(p, 0.02),
    "last": lambda p: spoil(p, 0.999),
    "cut": lambda p: p.write_bytes(p.read_bytes()[:-40]),
    "empty": lambda p: p.write_bytes(b""),
    "text": lambda p: p.write_text("not a checkpoint"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(damage, tmp_path, unkilled):
    folder = stopped(tmp_path)
    DAMAGES[damage](folder / "private" / CHECKPOINT)
    result = train(resume=folder)
    assert same_weights(result.model, unkilled.model)
    assert any(CHECKPOINT in note and "damaged" in note for note in result.notes)


def test_two_damaged_checkpoints_are_an_error_and_nothing_is_trained(tmp_path):
    folder = stopped(tmp_path)
    spoil(folder / "private" / CHECKPOINT)
    spoil(folder / "private" / PREVIOUS)
    before = charges(folder)
    with pytest.raises(RunError, match=r"cannot resume .*damaged.*Start a new run"):
        train(resume=folder)
    assert charges(folder) == before and not (folder / "public" / "model.safetensors").exists()


@pytest.mark.parametrize("mode", ["research", "secure"])
def test_a_run_whose_checkpoints_are_gone_does_not_begin_again(mode, tmp_path):
    """Its rounds are charged, and a model of later ones alone would pass for one of all."""
    assert run_killed("paid", 2, **keys(tmp_path, mode))
    for name in (CHECKPOINT, PREVIOUS):
        (tmp_path / "it" / "private" / name).unlink()
    before = charges(tmp_path / "it")
    with pytest.raises(RunError, match=r"both checkpoints are gone, after \d rounds were charged"):
        train(resume=tmp_path / "it")
    assert charges(tmp_path / "it") == before


@pytest.mark.parametrize("tail", [b'{"round": 4, "cli', b"\x00\x00\x00", b"\xff\xfe{", b"{}\n", b"[1]\n"])
def test_a_torn_last_record_is_dropped(tail, tmp_path, unkilled):
    folder = stopped(tmp_path)
    with (folder / "public" / "records.jsonl").open("ab") as file:
        file.write(tail)
    result = train(resume=folder)
    assert [r.round for r in result.history] == [1, 2, 3, 4, 5]
    assert len((folder / "public" / "records.jsonl").read_text().splitlines()) == ROUNDS
    assert same_weights(result.model, unkilled.model)


def test_a_lost_or_damaged_ledger_is_an_error(tmp_path):
    """What was spent is no longer known: going on would report less than was spent."""
    folder = stopped(tmp_path)
    ledger, note = registry(), folder / "private" / "ledger.json"
    kept, kept_note = ledger.read_bytes(), note.read_text()
    ledger.write_bytes(b"no database at all" * 100)
    with pytest.raises(RunError, match="cannot open the ledger"):
        train(resume=folder)
    ledger.unlink()
    with pytest.raises(RunError, match=r"ledger .* is gone or empty, but .*units\.sqlite knows the data of 1 runs"):
        train(resume=folder)
    assert not ledger.exists()
    for text in ("", "[]", "{}", '{"path": 3, "entries": 1, "head": "", "job": "x"}'):
        note.write_text(text)
        with pytest.raises(RunError, match=r"ledger\.json"):
            train(resume=folder)
    ledger.write_bytes(kept)
    note.write_text(kept_note)
    assert train(resume=folder).guarantee.epsilon <= TARGET


def test_a_ledger_that_was_cut_or_put_back_is_an_error(tmp_path):
    """An old copy would let the run pay for the same rounds twice."""
    folder = stopped(tmp_path, 1)
    ledger = registry()
    old = ledger.read_bytes()
    assert run_killed("paid", 2, resume=folder)  # two rounds more, one of them noted in the folder
    new = ledger.read_bytes()
    ledger.write_bytes(old)
    with pytest.raises(RunError, match=r"cut or replaced by another copy: row \d had hash .*it ends at row \d"):
        train(resume=folder)
    assert ledger.read_bytes() == old
    ledger.write_bytes(new)
    assert train(resume=folder).guarantee.epsilon <= TARGET


@pytest.mark.parametrize("mode", ["research", "secure"])
def test_a_ledger_that_is_removed_under_a_run_stops_it_before_the_next_release(mode, tmp_path):
    merged = []

    def hook(name):
        merged.append(name == "merged")
        if name == "merged" and sum(merged) == 2:
            registry().unlink()

    faults.set_hook(hook)
    with pytest.raises(RunError, match=r"removed or replaced|No such file") as error:
        train(**keys(tmp_path, mode))
    assert "round 3 was not run" in str(error.value) and "\n" not in str(error.value)
    assert sum(merged) == 2
    faults.set_hook(None)
    with pytest.raises(RunError, match="is gone"):
        train(resume=tmp_path / "it")


def test_two_processes_on_one_folder_are_refused(tmp_path):
    folder = stopped(tmp_path)
    other = RunFolder(folder)
    other.lock()
    try:
        with pytest.raises(RunError, match="in use by another process"):
            train(resume=folder)
    finally:
        other.close()
    train(resume=folder)


def test_a_name_that_is_taken_is_refused(tmp_path):
    train(**keys(tmp_path))
    with pytest.raises(RunError, match="exists already"):
        train(**keys(tmp_path))


@pytest.mark.parametrize("who", [0, 5])
@pytest.mark.parametrize("what", ["x", "y"])
def test_other_data_is_refused(who, what, tmp_path):
    folder = stopped(tmp_path)
    other = [(x.clone(), y.clone()) for x, y in CLIENTS]
    if what == "x":
        other[who][0][3, 4] += 1
    else:
        other[who][1][3] = (other[who][1][3] + 1) % 3
    with pytest.raises(RunError, match="other data"):
        sordino.train(mlp(), other, test=TEST, resume=folder)


def test_another_budgets_file_or_mask_is_refused(tmp_path):
    """The same noise at another scale, round by round, would be two equations for what it hides."""
    budgets, mask = tmp_path / "b.csv", [torch.arange(len(y)) % 2 for _, y in CLIENTS]

    def wrote(low):
        rows = [f"{k},{low if k < 2 else 8.0}" for k in range(len(CLIENTS))]
        budgets.write_text("\n".join(["client,epsilon", *rows]))

    common = {"epsilon": 8.0, "rounds": 4, "checkpoint_seconds": 1e9, "out": str(tmp_path), "device": "cpu"}
    common |= {"seed": 0}
    wrote(0.5)
    assert run_killed("merged", 2, method="udp-fl", budgets=str(budgets), name="b", **common)
    wrote(8.0)
    with pytest.raises(RunError, match="must be the same"):
        train(resume=tmp_path / "b")
    wrote(0.5)
    assert len(train(resume=tmp_path / "b").history) == 4
    assert run_killed("merged", 2, method="fedsdp", private_data=mask, name="m", **common)
    with pytest.raises(RunError, match="must be the same"):
        train(resume=tmp_path / "m", private_data=[1 - m for m in mask])
    assert len(train(resume=tmp_path / "m", private_data=mask).history) == 4


def test_another_spec_or_model_or_client_count_is_refused(tmp_path):
    folder = stopped(tmp_path)
    with pytest.raises(RunError, match="another model"):
        sordino.train(torch.nn.Linear(20, 3), CLIENTS, test=TEST, resume=folder)
    with pytest.raises(RunError, match="must be the same"):
        sordino.train(mlp(), CLIENTS[:-1], test=TEST, resume=folder)
    text = (folder / "private" / "spec.toml").read_text()
    (folder / "private" / "spec.toml").write_text(text.replace("epsilon = 3.0", "epsilon = 30.0"))
    with pytest.raises(RunError, match="another spec"):
        train(resume=folder)
    (folder / "private" / "spec.toml").write_text(text)
    with pytest.raises(RunError, match="without rounds"):
        train(resume=folder, rounds=7)
    train(resume=folder)


@pytest.mark.parametrize("every", [0.0, 1e6])
@pytest.mark.parametrize("point", ["drawn", "merged", "recorded"])
def test_a_model_initialised_anew_does_not_change_the_run(point, every, tmp_path, unkilled):
    """A research round is charged once because its re-run is the same release; from other weights it is not."""
    assert run_killed(point, 0, **keys(tmp_path, every=every))
    try:
        result = sordino.train(mlp(seed=77), CLIENTS, test=TEST, resume=tmp_path / "it")
    except RunError as error:
        assert "another model" in str(error)
    else:
        assert same_weights(result.model, unkilled.model)


def test_another_frozen_parameter_is_refused(tmp_path):
    """It is in no checkpoint, and the gradients depend on it."""

    def module(seed):
        made = mlp(seed)
        made[0].weight.requires_grad_(False)
        return made

    kill_at("paid", 2)
    with pytest.raises(Killed):
        sordino.train(module(0), CLIENTS, test=TEST, **keys(tmp_path))
    faults.set_hook(None)
    with pytest.raises(RunError, match="another model"):
        sordino.train(module(1), CLIENTS, test=TEST, resume=tmp_path / "it")
    sordino.train(module(0), CLIENTS, test=TEST, resume=tmp_path / "it")


@pytest.mark.parametrize("name", ["job.json", "spec.toml"])
def test_a_folder_without_its_head_is_an_error(name, tmp_path):
    folder = stopped(tmp_path)
    path = folder / "private" / name
    path.unlink()
    (folder / "public" / "spec.toml").unlink()
    with pytest.raises(sordino.SordinoError, match=name):
        train(resume=folder)
    with pytest.raises(RunError, match="no run folder"):
        train(resume=tmp_path / "nowhere")
    if name == "job.json":
        for text in ("[1, 2]", "{", ""):
            path.write_text(text)
            with pytest.raises(RunError, match="damaged"):
                train(resume=folder)


# --- a full disk


def full_disk(monkeypatch, names):
    """From now on, synchronising a file of such a name fails as on a full disk."""
    real = os.fsync

    def fsync(handle):
        path = str(Path(f"/proc/self/fd/{handle}").readlink())
        if any(name in path for name in names):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)


def test_a_full_disk_at_a_checkpoint_is_one_clear_line_and_the_old_one_stays(tmp_path, monkeypatch, unkilled):
    folder = stopped(tmp_path, 2)
    before = (folder / "private" / CHECKPOINT).read_bytes()
    with monkeypatch.context() as patch:
        full_disk(patch, ["checkpoint"])
        with pytest.raises(RunError, match=r"cannot write .*checkpoint.*No space left on device") as error:
            train(resume=folder)
    assert "\n" not in str(error.value)
    assert (folder / "private" / CHECKPOINT).read_bytes() == before and not list(folder.rglob("*.tmp"))
    assert same_weights(train(resume=folder).model, unkilled.model)


def test_a_full_disk_at_the_end_is_resumed_too(tmp_path, monkeypatch, unkilled):
    with monkeypatch.context() as patch:
        full_disk(patch, ["model.safetensors"])
        with pytest.raises(RunError, match=r"cannot write .*model\.safetensors"):
            train(**keys(tmp_path))
    assert same_weights(train(resume=tmp_path / "it").model, unkilled.model)


@pytest.mark.parametrize("folder", [None, "data"])
def test_a_run_on_public_data_with_a_relative_path_goes_on_from_elsewhere(small_npz, tmp_path, monkeypatch, folder):
    (tmp_path / "start" / "data").mkdir(parents=True)
    (tmp_path / "start" / "data" / "it.npz").write_bytes(small_npz.read_bytes())
    monkeypatch.chdir(tmp_path / "start")
    named = {"dataset": "data/it.npz"} if folder is None else {"dataset": "it.npz", "data_dir": folder}
    usual = {"features": "none", "clients": 8, "rounds": 3, "device": "cpu", "public_data": True, "name": "it"}
    kill_at("recorded", 1)
    try:
        with pytest.raises(Killed):
            run.execute(build.from_spec(spec.from_dict(usual | named)), own_model=False)
    finally:
        faults.set_hook(None)
    monkeypatch.chdir(tmp_path)
    at = tmp_path / "start" / "runs" / "it"
    done = run.execute(run.resume_spec(at), own_model=False, at=at)
    assert [r.round for r in done.history] == [1, 2, 3] and charges(at) == [0, 1, 2]
