"""Ray actors as workers: the bits of the simulator, one error for a dead actor, and a Ray that is left as it was."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch

from sordino.core.errors import DataError, RunError, SpecError
from sordino.core.rng import Stream
from sordino.federations import ray_workers, wire
from sordino.federations.base import Work
from sordino.federations.host import Host, Share
from sordino.federations.ray_workers import RayActors
from sordino.federations.simulator import ClientPart, Simulator
from sordino.federations.workers import Workers
from sordino.runs import build, loop
from sordino.spec import spec
from support.methods import CPU, RNG
from support.split import (
    BLOCKS,
    METHODS,
    SIZES,
    Failing,
    died,
    job,
    played,
    same,
    train,
    weights,
    workers_of,
)

ray = pytest.importorskip("ray")
ACTORS = {"federation": "ray", "blocks": BLOCKS}


@pytest.fixture(scope="module")
def cluster():
    """One local Ray for all tests here, which every run finds connected and must leave so."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own: files that it leaves open
        ray.init("local", num_cpus=5, object_store_memory=80_000_000, include_dashboard=False, log_to_driver=False,
                 logging_level=logging.ERROR)  # fmt: skip
    yield ray
    assert ray.is_initialized()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.shutdown()
        gc.collect()


@pytest.fixture(scope="module")
def one_and_two(cluster):
    """Federations of one and two actors that hold the small federation's clients."""
    made = job(method="nbafl")
    found = {count: workers_of(made, count, transport=RayActors()) for count in (1, 2)}
    yield found
    pids = [pid for federation in found.values() for pid in federation.processes]
    for federation in found.values():
        federation.close()
    assert len(pids) == 3 and died(pids)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp-sgd", "scaffold", "adaptive, late", "secure sum"])
def test_one_actor_and_two_give_the_bits_of_the_simulator(one_and_two, tmp_path, name):
    made = job(**METHODS[name])
    simulator = Simulator(CPU, made.federation.data, RNG, blocks=BLOCKS)
    wanted = played(made, simulator, tmp_path / "clients.sqlite")
    assert not torch.equal(wanted.params, loop.begin(made).params)
    for count, federation in one_and_two.items():
        (tmp_path / str(count)).mkdir()
        assert same(played(made, federation, tmp_path / str(count) / "clients.sqlite"), wanted), count


@pytest.mark.slow
def test_a_folder_that_another_machine_does_not_have_is_one_line(one_and_two, tmp_path):
    with pytest.raises(RunError, match=r"is not a folder on .*: set `out` to a folder that all machines"):
        one_and_two[1].resume(tmp_path / "elsewhere" / "clients.sqlite", 0)


def running(monkeypatch):
    """Return the list into which every federation notes its processes."""
    pids, start = [], Workers._start

    def noted(self):
        start(self)
        pids.extend(self.processes)

    monkeypatch.setattr(Workers, "_start", noted)
    return pids


@pytest.mark.slow
def test_a_dead_actor_is_one_error_and_the_run_resumes_with_another_number(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the folder is named relative to it, which an actor must not need to know
    whole = train("runs", "whole", blocks=BLOCKS)
    pids = running(monkeypatch)
    monkeypatch.setattr(ray_workers, "PIECE", 500)  # a share goes in many pieces

    def kill(record):
        if record.round == 2:
            os.kill(pids[1], signal.SIGKILL)

    with pytest.raises(RunError, match=r"worker 2 of 2 on .*, which holds clients of this run, is gone") as error:
        train("runs", "it", watch=kill, workers=2, **ACTORS)
    assert "\n" not in str(error.value) and "resume the run" in str(error.value) and died(pids)
    stored = Path("runs/it/private/spec.toml")
    stored.write_text(stored.read_text().replace("workers = 2", "workers = 1"))
    del pids[:]
    result = train("runs", "it", resume="runs/it")
    assert len(pids) == 1 and died(pids)
    assert torch.equal(weights(result), weights(whole))
    assert result.guarantee == whole.guarantee and result.guarantees == whole.guarantees


@pytest.mark.slow
def test_an_error_in_an_actor_is_the_error_of_the_simulator(one_and_two):
    made, texts = job(method="nbafl"), []
    for federation in (Simulator(CPU, made.federation.data, RNG, blocks=BLOCKS), one_and_two[1]):
        federation.open(Work(Failing(), made.model, made.plan))
        with pytest.raises(DataError) as error:
            federation.ask("train", loop.begin(made), [1, 3])
        texts.append(str(error.value))
    assert texts[0] == texts[1] == "a client of 5 records fails"
    assert "in train" in str(error.value.__cause__)  # where it happened


def test_in_secure_mode_no_key_is_sent_or_held_by_the_server():
    made = job(method="nbafl", mode="secure", federation="ray", workers=2, blocks=2)
    federation = made.federation
    shares = [wire.unpacked(wire.unpacked(data)[1]) for data in federation._shares()]
    assert [share.rng for share in shares] == [None, None]  # each actor draws its own
    assert made.rng.secure and not [v for v in vars(federation).values() if isinstance(v, Stream) and v.secure]
    keys = [Host(share)._rng.key for share in (*shares, shares[0])]
    assert len({made.rng.key, *keys}) == 4
    with pytest.raises(SpecError, match="federation = ray nobody but the clients may hold it"):
        job(method="dp-sgd", mode="secure", standardise=True, **ACTORS)


@pytest.mark.slow
def test_more_than_ray_has_is_refused_before_any_cost(cluster, tmp_path):
    with pytest.raises(RunError, match="workers = 6 need a CPU each, and Ray has 5"):
        train(tmp_path, "many", workers=6, federation="ray", blocks=7)
    with pytest.raises(RunError, match="device = cuda, but Ray has no GPU"):
        train(tmp_path, "gpu", workers=1, **ACTORS, device="cuda")
    assert not any(tmp_path.iterdir())


def test_without_ray_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SpecError, match=r'pip install "sordino\[ray\]"') as error:
        job(method="none", **ACTORS)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("127.0.0.1:1", "Connection refused"),
        ("ray://127.0.0.1:10001", "start the run on a machine of the cluster"),
        ("head:port", "invalid literal"),
    ],
)
def test_a_cluster_that_does_not_answer_is_one_line_before_any_cost(tmp_path, monkeypatch, address, found):
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # as if none of the tests had a Ray
    with pytest.raises(RunError, match=f"cannot reach the Ray of RAY_ADDRESS = {address} .*{found}"):
        train(tmp_path, "far", workers=1, **ACTORS)
    assert not any(tmp_path.iterdir())


def test_keys_that_go_together():
    assert spec.from_dict({"federation": "ray", "workers": 2, "device": "cuda"}).in_workers
    with pytest.raises(SpecError, match=r"must be one of .*ray"):
        spec.from_dict({"federation": "rays"})


def test_what_a_script_defines_is_sent_by_value_and_tensors_as_they_are():
    double = {}
    exec("def double(x):\n    return 2 * x", {"__name__": "__main__"}, double)
    sent = {"f": double["double"], "t": torch.arange(3).bfloat16()}
    with pytest.raises(RunError, match="must send the loss"):
        wire.packed(sent, "the loss")
    got = wire.unpacked(ray_workers.packed(sent))
    assert got["f"](21) == 42 and got["t"].dtype == torch.bfloat16 and torch.equal(got["t"], sent["t"])
    with pytest.raises(RunError, match="must send the loss"):
        ray_workers.packed((i for i in range(3)), "the loss")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["dp-sgd", "scaffold", "adaptive, late"])
def test_a_host_on_a_gpu_answers_as_one_on_a_cpu(tmp_path, name):
    made = job(**METHODS[name])
    everyone = ClientPart(made.federation.data, torch.arange(len(SIZES)).numpy())
    rebuild = build.partial(build.settled_model, keys=build._model_keys(made.spec))
    rows = {}
    for device in ("cpu", "cuda"):
        host = Host(Share(0, {0: everyone}, [0], {}, 1, len(SIZES), RNG, RNG, 2.0, device))
        parts = made.method, made.plan, made.model.module, made.model.loss, rebuild
        host.open(*wire.unpacked(wire.packed(parts)))
        state = wire.unpacked(wire.packed(loop.begin(made)))
        sent = host.ask(made.method.phases[0], state, list(range(len(SIZES))), [[0]])
        rows[device] = wire.unpacked(wire.packed(sent))[0][0]
    assert len(rows["cpu"]) and rows["cuda"].fields.keys() == rows["cpu"].fields.keys()
    for field, value in rows["cpu"].fields.items():
        assert rows["cuda"][field].device == CPU
        torch.testing.assert_close(rows["cuda"][field], value, rtol=1e-3, atol=1e-4)


SCRIPT = """
    import sys, time, torch, sordino
    from torch import nn
    from sordino.federations.workers import Workers

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(torch.tanh(x))

    def train():
        pairs = [(torch.randn(4, 3), torch.zeros(4, dtype=torch.int64)) for _ in range(4)]
        sordino.train(Net(), pairs, method="none", rounds=1, out=sys.argv[1], seed=0, device="cpu", federation="ray",
                      workers=1, progress=False)

    start = Workers._start
    def noted(self):
        start(self)
        print(*self.processes, flush=True)
    Workers._start = noted

    train()
    import ray
    print(ray.is_initialized())
"""


@pytest.mark.slow
def test_a_local_ray_starts_and_ends_with_the_run_and_runs_what_a_script_defines(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(script), str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    pid, connected = done.stdout.splitlines()
    assert connected == "False" and died([int(pid)]) and not done.stderr
    assert (tmp_path / "runs").is_dir()
