"""Runs whose clients keep something: killed anywhere, they end with the same model and the same rows, bit for bit."""

from __future__ import annotations

import sqlite3

import pytest

import sordino
from sordino.core import faults
from sordino.core.errors import RunError
from sordino.run_folder.folder import CHECKPOINT, RunFolder
from sordino.runs import run
from support.brought import put_method
from support.killed import dies
from support.problems import federation, held_out, job, mlp, same_weights

CLIENTS, TEST = federation((6,) * 8), held_out(30)
KINDS = {
    "scaffold": {"algorithm": "scaffold"},
    "ditto": {"algorithm": "ditto"},
    "fedrep": {"algorithm": "fedrep"},
    "late": {"algorithm": "fedavg", "late": 0.4, "dropout": "0.1-0.3"},
    "private": {"algorithm": "scaffold", "method": "dp-sgd", "epsilon": 6.0, "batch_rate": 0.5, "slow": 0.5},
    "private late": {"algorithm": "ditto", "method": "dp-fedavg", "epsilon": 6.0, "late": 0.4},
}
ROUNDS = 4


def train(**keys):
    return sordino.train(mlp(), CLIENTS, test=TEST, **keys)


def keys(kind, out, every=0.0, **more):
    return {
        "mode": "research",
        "method": "none",
        "client_rate": 0.6,
        "local_steps": 3,
        "rounds": ROUNDS,
        "checkpoint_seconds": every,
        "evaluate_every": ROUNDS,
        "out": str(out),
        "name": "it",
        "device": "cpu",
    } | KINDS[kind] | more  # fmt: skip


def killed(point, number, **keys):
    """Whether the run died when it passed the point for the number-th time."""
    return dies(point, number, lambda: train(**keys))


def rows(folder):
    """What every client keeps at the end, read from the file by other means."""
    file = sqlite3.connect(folder / "private" / "clients.sqlite")
    try:
        found = file.execute("SELECT kind, client, row FROM kept ORDER BY kind, client, done").fetchall()
    finally:
        file.close()
    newest = {(kind, client): row for kind, client, row in found}
    return {key: row for key, row in newest.items() if row is not None}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = train(**keys(kind, tmp_path_factory.mktemp("whole")))
            assert rows(made[kind].folder)
        return made[kind]

    return get


def check_same(result, whole):
    assert same_weights(result.model, whole.model)
    assert rows(result.folder) == rows(whole.folder)
    assert [r.answers for r in result.private.history] == [r.answers for r in whole.private.history]


NAMES = list(KINDS)


@pytest.mark.parametrize("every", [0.0, 1e6])
@pytest.mark.parametrize("place", range(len(faults.POINTS)))
def test_killed_anywhere_it_ends_with_the_same_rows(place, every, tmp_path, whole):
    """In the third round, or at a point that is passed once; the kinds take turns."""
    kind = NAMES[(place + 2 * (every > 0)) % len(NAMES)]
    for number in (2, 0):
        out = tmp_path / str(number)
        if killed(faults.POINTS[place], number, **keys(kind, out, every)):
            check_same(train(resume=out / "it"), whole(kind))
            return
    raise AssertionError("it was never there")


@pytest.mark.parametrize("kind", ["fedrep", "private", "private late"])
def test_killed_again_and_again(kind, tmp_path, whole):
    assert killed("trained", 1, **keys(kind, tmp_path))
    folder = tmp_path / "it"
    for point in ("stored", "paid", "saving", "recorded", "saved"):
        assert killed(point, 0, resume=folder)
    check_same(train(resume=folder), whole(kind))


@pytest.mark.parametrize("kind", ["ditto", "private late"])
def test_rows_that_leave_memory_change_nothing(kind, tmp_path, whole):
    """Memory for less than one row: everything is read back from the file, in chunks of one client."""
    result = train(**keys(kind, tmp_path, memory_gb=1e-7))
    assert len(rows(result.folder)) == len(rows(whole(kind).folder))
    one, other = (sordino.train(mlp(), CLIENTS, test=TEST, **keys(kind, tmp_path / n, memory_gb=1e-7)) for n in "ab")
    check_same(one, other)
    for a, b in zip(result.model.parameters(), whole(kind).model.parameters(), strict=True):
        assert a.allclose(b, atol=1e-5)


def test_resuming_a_finished_run_changes_no_row(tmp_path):
    result = train(**keys("scaffold", tmp_path))
    before = rows(result.folder)
    again = train(resume=result.folder)
    assert same_weights(again.model, result.model) and rows(result.folder) == before


def test_runs_whose_clients_keep_nothing_have_no_file(tmp_path):
    result = train(**keys("scaffold", tmp_path, algorithm="fedprox"))
    assert not (result.folder / "private" / "clients.sqlite").exists()


def test_a_job_that_is_run_again_and_its_baseline_start_with_clients_that_keep_nothing(tmp_path):
    made = job(mlp(), CLIENTS, method="dp-sgd", algorithm="scaffold", local_steps=2, out=str(tmp_path), epsilon=5.0)
    first, again = (run.execute(made, own_model=True) for _ in range(2))
    assert same_weights(first.model, again.model) and rows(first.folder) == rows(again.folder)
    beside = run.execute(run.without_privacy(made), own_model=True)
    alone = run.execute(
        job(mlp(), CLIENTS, method="none", algorithm="scaffold", local_steps=2, out=str(tmp_path)), own_model=True
    )
    assert same_weights(beside.model, alone.model) and rows(beside.folder) == rows(alone.folder)


TOML = """
dataset = "small.npz"
features = "none"
clients = 8
method = "none"
algorithm = "ditto"
late = 0.3
local_steps = 2
client_rate = 0.6
rounds = 40
checkpoint_seconds = 0.01
device = "cpu"
seed = 0
"""


@pytest.mark.slow
def test_really_killed_with_rows_in_the_write_ahead_log(small_npz, sordino_command):
    here = small_npz.parent
    (here / "it.toml").write_text(TOML)
    done = sordino_command("run", "it.toml", "--name", "whole", "--json", cwd=here)
    assert done.returncode == 0, done.stderr
    folder, command = here / "runs" / "it", ("run", "it.toml", "--name", "it", "--json")
    for i, delay in enumerate((0.0, 0.007)):
        at = {"file": str(folder / "public" / "records.jsonl"), "kill": 14 * (i + 1), "delay": delay}
        assert sordino_command(*command, cwd=here, **at).returncode == -9
        assert (folder / "private" / "clients.sqlite-wal").stat().st_size > 0
        command = ("resume", "runs/it", "--json")
    done = sordino_command(*command, cwd=here)
    assert done.returncode == 0, done.stderr
    whole = here / "runs" / "whole"
    assert (folder / "public" / "model.safetensors").read_bytes() == (
        whole / "public" / "model.safetensors"
    ).read_bytes()
    assert rows(folder) == rows(whole)


# --- damage


def stopped(tmp_path, kind="scaffold", point="paid", number=3, **more):
    assert killed(point, number, **keys(kind, tmp_path, **more))
    folder = tmp_path / "it"
    return folder, folder / "private" / "clients.sqlite"


@pytest.mark.parametrize("trouble", ["missing", "empty", "older"])
def test_a_lost_file_of_client_state_is_an_error(trouble, tmp_path):
    folder, path = stopped(tmp_path, number=1)
    old = path.read_bytes()
    assert killed("paid", 2, resume=folder)
    new = path.read_bytes()
    if trouble == "missing":
        path.unlink()
    else:
        path.write_bytes(old if trouble == "older" else b"")
    with pytest.raises(RunError, match=r"clients\.sqlite") as error:
        train(resume=folder)
    assert "\n" not in str(error.value)
    path.write_bytes(new)
    train(resume=folder)


def test_a_file_that_is_no_database_is_an_error_and_nothing_is_trained(tmp_path, whole):
    folder, path = stopped(tmp_path)
    kept = path.read_bytes()
    path.write_bytes(b"no database at all " * 300)
    with pytest.raises(RunError, match=r"cannot use .*clients\.sqlite"):
        train(resume=folder)
    path.write_bytes(kept)
    check_same(train(resume=folder), whole("scaffold"))


def test_a_run_that_kept_nothing_yet_may_be_without_a_file(tmp_path, whole):
    folder, path = stopped(tmp_path, number=0)
    assert RunFolder(folder).load_state()[1] == 0
    path.unlink()
    check_same(train(resume=folder), whole("scaffold"))


@pytest.mark.parametrize(("kind", "point"), [("scaffold", "paid"), ("late", "recorded"), ("late", "saved")])
def test_the_checkpoint_before_still_has_its_rows(kind, point, tmp_path, whole):
    folder, _ = stopped(tmp_path, kind, point)
    (folder / "private" / CHECKPOINT).write_bytes(b"")
    result = train(resume=folder)
    assert any("damaged" in note for note in result.notes)
    check_same(result, whole(kind))


@pytest.mark.parametrize("point", ["stored", "saving"])
def test_the_checkpoint_before_still_has_its_rows_while_one_is_written(point, tmp_path, whole):
    folder, _ = stopped(tmp_path, "scaffold", point)
    (folder / "private" / CHECKPOINT).write_bytes(b"")
    check_same(train(resume=folder), whole("scaffold"))


def test_a_full_disk_is_one_clear_line_and_the_run_goes_on(tmp_path, monkeypatch, whole):
    from sordino.federations.store import Store

    folder, _ = stopped(tmp_path, number=1)
    real = Store.open

    def small(self, path, *rest):
        real(self, path, *rest)
        pages = self._file.execute("PRAGMA page_count").fetchone()[0]
        self._file.execute(f"PRAGMA max_page_count = {pages}")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "open", small)
        with pytest.raises(RunError, match="cannot save what clients keep") as error:
            train(resume=folder)
    assert "\n" not in str(error.value)
    check_same(train(resume=folder), whole("scaffold"))


def test_two_processes_on_one_folder_are_refused(tmp_path, whole):
    folder, _ = stopped(tmp_path)
    other = RunFolder(folder)
    other.lock()
    try:
        with pytest.raises(RunError, match="in use by another process"):
            train(resume=folder)
    finally:
        other.close()
    check_same(train(resume=folder), whole("scaffold"))


def test_every_point_a_run_passes_is_one_that_tests_know(tmp_path):
    passed = set()
    faults.set_hook(passed.add)
    train(**keys("scaffold", tmp_path))
    faults.set_hook(None)
    assert passed <= set(faults.POINTS)


def test_a_file_of_an_earlier_version_is_one_clear_line(tmp_path):
    folder, _ = stopped(tmp_path)
    file = sqlite3.connect(folder / "private" / "clients.sqlite")
    file.execute("PRAGMA user_version = 0")  # as it was before rows had a head
    file.close()
    with pytest.raises(RunError, match=r"clients\.sqlite was written by an earlier version of Sordino"):
        train(resume=folder)


GREEDY = '''
import math
from dataclasses import dataclass, replace

from sordino.methods import Message, Method, Release, local_sgd
from sordino.privacy.mechanisms.gaussian import Gaussian

__all__ = ["Greedy"]


@dataclass(frozen=True)
class Merged:
    rounds: int


@dataclass(frozen=True)
class Greedy(Method):
    """Equal parts of a total, and in the last round all that the merged rounds have left of it."""

    units = ("client",)

    def releases(self, plan, round=0, state=None):
        part = 1 / plan.rounds
        if state is not None and round + 1 == plan.rounds:
            part = 1 - state.method.rounds / plan.rounds
        return (Release("update", Gaussian(plan.z / math.sqrt(part)), "client", 1.0, total=Gaussian(plan.z)),)

    def variables(self, state, layout, plan):
        return Merged(0)

    def train(self, state, site):
        update, mine = local_sgd(state, site)
        return Message({"update": site.out["update"](update)}), site.kept(mine)

    def merge(self, state, seen, plan):
        return replace(super().merge(state, seen, plan), method=Merged(state.method.rounds + 1))
'''


@pytest.fixture
def greedy(tmp_path, monkeypatch):
    name = put_method(monkeypatch, tmp_path, "greedy", GREEDY)
    return {"method": name, "epsilon": 2.0, "rounds": ROUNDS, "checkpoint_seconds": 0.0, "device": "cpu"}


@pytest.mark.parametrize(("mode", "point", "spends"), [("secure", "trained", 1.25), ("secure", "paid", 1.0),
                                                       ("research", "trained", 1.0)])  # fmt: skip
def test_what_a_lost_round_spent_stays_spent(mode, point, spends, greedy, tmp_path):
    """In secure mode a lost round may have been seen; what the method makes of the rest then exceeds the total."""
    assert killed(point, 2, out=str(tmp_path), name="it", mode=mode, **greedy)
    if spends > 1:
        with pytest.raises(RunError, match=r"would take a client to 1\.25 times the total"):
            train(resume=tmp_path / "it")
    else:
        assert train(resume=tmp_path / "it").guarantee.epsilon <= 2.0
