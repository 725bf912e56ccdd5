"""The federation of processes: the same bits as the simulator, whatever their number; and no process is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import sordino
from sordino.core import plugin
from sordino.core.errors import DataError, RunError, SpecError
from sordino.core.rng import Stream
from sordino.data.clients import adopt
from sordino.federations import wire
from sordino.federations.base import Work
from sordino.federations.blocks import block_of, by_block, dealt, members, owned, usual
from sordino.federations.shared import SharedReader, SharedWriter
from sordino.federations.simulator import ClientPart, Simulator
from sordino.federations.workers import Workers
from sordino.runs import loop
from sordino.spec import spec
from support.methods import CPU, RNG
from support.problems import registry
from support.split import (
    BLOCKS,
    METHODS,
    SIZES,
    bad_client,
    clients,
    died,
    exchange,
    job,
    played,
    same,
    slow_client,
    train,
    weights,
    workers_of,
)


@pytest.fixture(scope="module")
def several():
    """Federations of one, two and three processes that hold the small federation's clients."""
    made = job(method="nbafl")
    found = {count: workers_of(made, count) for count in (1, 2, 3)}
    yield found
    for federation in found.values():
        federation.close()


@pytest.mark.parametrize("name", METHODS)
def test_any_number_of_processes_gives_the_bits_of_the_simulator_with_as_many_blocks(several, tmp_path, name):
    made = job(**METHODS[name])
    simulator = Simulator(CPU, made.federation.data, RNG, blocks=BLOCKS)
    wanted = played(made, simulator, tmp_path / "clients.sqlite")
    assert not torch.equal(wanted.params, loop.begin(made).params)
    for count, federation in several.items():
        (tmp_path / str(count)).mkdir()
        assert same(played(made, federation, tmp_path / str(count) / "clients.sqlite"), wanted), count


def test_messages_are_the_same_rows_in_the_same_order(several, tmp_path):
    made = job(**METHODS["none"])
    simulator, state = Simulator(CPU, made.federation.data, RNG, blocks=BLOCKS), loop.begin(made)
    for kind, federation in (("s", simulator), ("w", several[2])):
        (tmp_path / kind).mkdir()
        federation.open(Work(made.method, made.model, made.plan))
        federation.resume(tmp_path / kind / "clients.sqlite", 0)
    late = 0
    for cohort in ([0, 1, 2, 3, 4, 5, 6], [2, 5], []):
        one, other = (f.ask("train", state, cohort) for f in (simulator, several[2]))
        assert np.array_equal(one.ids, other.ids) and torch.equal(one.weight, other.weight)
        assert torch.equal(one["update"], other["update"])
        late += len(set(one.ids.tolist()) - set(cohort))
    assert late  # somebody answered a round later, out of a process


def test_blocks_follow_from_the_population_alone():
    for population, blocks in ((7, 4), (50, 16), (16, 16), (1000, 3)):
        dealt = [members(b, population, blocks) for b in range(blocks)]
        assert np.array_equal(np.concatenate(dealt), np.arange(population)) and all(len(d) for d in dealt)
        for b, ids in enumerate(dealt):
            assert set(block_of(ids, population, blocks)) == {b}
        for count in range(1, blocks + 1):
            shares = [b for k in range(count) for b in owned(k, count, blocks)]
            assert shares == list(range(blocks))
    assert usual(10) == usual(1000) == 64 and usual(10, "cuda") == 4  # on a CPU for any machine and cohort
    assert [c.tolist() for c in by_block(np.array([0, 3, 4, 6]), 7, 2)] == [[0, 3], [4, 6]]
    assert [c.tolist() for c in by_block(np.array([], dtype=np.int64), 7, 2)] == [[]]


def test_blocks_are_dealt_so_that_nobody_is_idle_while_others_have_two():
    for count in range(1, 7):
        turns = dealt(dict.fromkeys([9, 2, 4, 11, 30], 1.0), count)
        assert sorted(b for blocks in turns for b in blocks) == [2, 4, 9, 11, 30]
        assert max(map(len, turns)) - min(map(len, turns)) <= 1
    assert dealt({0: 5.0, 1: 1.0, 2: 2.0, 3: 2.0}, 2) == [[0], [2, 3, 1]]
    assert dealt({}, 2) == [[], []]


def test_clients_that_keep_nothing_are_computed_by_whoever_is_free_and_others_at_home():
    cohort = np.array([0, 1, 2])  # blocks 0, 0 and 1, all of them at home with the first of two workers
    for keys, wanted in (
        ({"method": "nbafl"}, [[0], [1]]),
        ({"method": "dp-sgd", "algorithm": "scaffold"}, [[0, 1], []]),
        ({"method": "nbafl", "late": 0.3}, [[0, 1], [2, 3]]),  # every block may hold answers of the last round
    ):
        made = job(federation="workers", workers=2, blocks=BLOCKS, **keys)
        assert made.federation._turns(loop.begin(made), cohort) == wanted
        assert made.federation._turns(loop.begin(made), cohort[:0])[0][:1] == [0]  # an empty message, from the first
    sizes = job(method="dp-sgd", local_steps=1, batch_rate=1.0, federation="workers", workers=2, blocks=len(SIZES))
    costs = sizes.federation._costs(np.arange(len(SIZES)))
    assert np.allclose(costs, SIZES)


def test_records_in_shared_memory_are_read_by_all_and_changed_by_nobody():
    values = {"a": torch.arange(600).reshape(20, 30), "b": torch.randn(7, 3).bfloat16(), "c": torch.zeros(0, 4)}
    writer = SharedWriter()
    part = ClientPart(adopt(clients()), np.arange(3))
    first, second = writer.put(values, "the records"), writer.put(part, "the records")
    one, two = (SharedReader(writer.handle) for _ in range(2))
    found = one.get(first)
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in values.items())
    assert all(value.data_ptr() % 64 == 0 for value in found.values() if value.numel())
    assert len(first.structure) < 2000  # the tensors are elsewhere
    found["a"][:] = 0
    assert torch.equal(two.get(first)["a"], values["a"])
    assert torch.equal(one.get(second).fetch([1], CPU).x, part.fetch([1], CPU).x)
    with pytest.raises(RunError, match="must send the records"):
        writer.put(lambda: 0, "the records")
    writer.close()


def test_a_part_holds_the_records_of_its_clients_alone():
    made = job(method="nbafl")
    part = ClientPart(made.federation.data, np.arange(len(SIZES))).only(np.array([2, 3]))
    assert torch.equal(part.fetch([3], CPU).x, made.federation.data.fetch([3], CPU).x)
    assert part.fetch([2, 3], CPU).sizes == (9, 8)
    with pytest.raises(DataError, match=r"client 4 .* held elsewhere"):
        part.fetch([4], CPU)
    alone = wire.packed(part)
    assert len(alone) < len(wire.packed(made.federation.data)) / 2


def test_tensors_travel_as_they_are():
    values = [torch.arange(6).reshape(2, 3), torch.tensor(True), torch.zeros(0, 4), torch.randn(3)[1:].bfloat16()]
    for value in values:
        found = wire.unpacked(wire.packed(value))
        assert found.dtype == value.dtype and torch.equal(found, value)


# --- whole runs


PLUGINS = Path(__file__).parent.parent.parent / "examples" / "plugins"
PROCESSES = {"federation": "workers", "blocks": BLOCKS}


def running(monkeypatch):
    """Return the list into which every federation notes its processes."""
    pids, start = [], Workers._start

    def noted(self):
        start(self)
        pids.extend(self.processes)

    monkeypatch.setattr(Workers, "_start", noted)
    return pids


def test_a_killed_process_is_one_error_and_the_run_resumes_with_another_number(tmp_path, monkeypatch):
    whole = train(tmp_path, "whole", blocks=BLOCKS)
    pids = running(monkeypatch)

    def kill(record):
        if record.round == 2:
            os.kill(pids[1], signal.SIGKILL)

    with pytest.raises(RunError, match="process 2 of 2, which holds clients of this run, was killed by signal 9") as e:
        train(tmp_path, "it", watch=kill, workers=2, **PROCESSES)
    assert "\n" not in str(e.value) and died(pids)
    private = tmp_path / "it" / "private"
    assert {p.name for p in private.glob("clients*.sqlite")} == {f"clients-{b}.sqlite" for b in range(BLOCKS)}
    text = (private / "spec.toml").read_text()
    assert "workers = 2" in text
    (private / "spec.toml").write_text(text.replace("workers = 2", "workers = 3"))
    exchange(private)
    with pytest.raises(RunError, match="files were swapped"):
        train(tmp_path, "it", resume=tmp_path / "it")
    exchange(private)
    del pids[:]
    result = train(tmp_path, "it", resume=tmp_path / "it")
    assert len(pids) == 3 and died(pids)
    assert torch.equal(weights(result), weights(whole))
    assert result.guarantee == whole.guarantee and result.guarantees == whole.guarantees


def test_a_method_of_ones_own_runs_in_processes_too(tmp_path, monkeypatch):
    monkeypatch.setenv(plugin.VARIABLE, str(PLUGINS))
    keys = {"method": "sign-bits", "algorithm": "fedavg", "channel": "shuffler", "client_rate": 1.0, "rounds": 2}
    one = train(tmp_path, "s", blocks=BLOCKS, **keys)
    two = train(tmp_path, "w", workers=2, **PROCESSES, **keys)
    assert torch.equal(weights(one), weights(two)) and one.guarantee == two.guarantee


def test_an_interrupt_ends_processes_that_are_at_work(monkeypatch, tmp_path):
    pids = running(monkeypatch)
    made = job(sordino.LazyClients(4, 3, slow_client), method="none")
    federation = workers_of(made, 1)
    federation.open(Work(made.method, made.model, made.plan))
    federation._start()
    assert federation.processes == pids
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            federation.ask("train", loop.begin(made), [3])
    finally:
        signal.signal(signal.SIGALRM, handler)
    start = time.monotonic()
    federation.close()
    assert died(pids) and time.monotonic() - start < 4


def test_an_error_in_a_process_is_the_error_of_the_simulator(monkeypatch, tmp_path):
    texts, pids = [], running(monkeypatch)
    for name, keys in (("s", {}), ("w", {"workers": 2, **PROCESSES})):
        lazy = sordino.LazyClients(4, 3, bad_client)
        with pytest.raises(DataError) as error:
            train(tmp_path, name, clients=lazy, client_rate=1.0, **keys)
        texts.append(str(error.value))
    assert texts[0] == texts[1] and "client 3 has 2 records where 3 were declared" in texts[0]
    assert len(pids) == 2 and died(pids)


def test_what_cannot_be_sent_is_one_line(monkeypatch, tmp_path):
    pids = running(monkeypatch)
    lazy = sordino.LazyClients(4, 3, lambda i: slow_client(0))
    with pytest.raises(RunError, match="must send what makes the clients' records to other processes") as error:
        train(tmp_path, "lazy", clients=lazy, **PROCESSES)
    assert "\n" not in str(error.value) and "federation = simulator" in str(error.value)
    with pytest.raises(RunError, match="must send the loss"):
        train(tmp_path, "loss", loss=lambda p, y: nn.functional.cross_entropy(p, y, reduction="none"), **PROCESSES)
    assert not pids and not any(tmp_path.iterdir()) and not registry().exists()


def test_in_secure_mode_the_server_holds_no_key_of_the_clients(tmp_path):
    made = job(method="nbafl", mode="secure", federation="workers", workers=2, blocks=2)
    federation = made.federation
    assert isinstance(federation, Workers) and federation._rng is None and made.rng.secure
    keys = {k: v for k, v in vars(federation).items() if isinstance(v, Stream) and v.secure}
    assert not keys  # what it has is the public stream, of stragglers' probabilities
    state = loop.begin(made)
    try:
        one, two = (federation.ask("train", state, range(len(SIZES))) for _ in range(2))
        assert torch.equal(one["update"], two["update"])  # a key is drawn once a run
        federation.close()
        again = federation.ask("train", state, range(len(SIZES)))  # new processes draw new ones
        assert not any(torch.equal(a, b) for a, b in zip(one["update"], again["update"], strict=True))
    finally:
        federation.close()


def test_statistics_and_evaluations_beside_the_rounds_are_those_of_the_simulator(tmp_path):
    keys = {"method": "dp-sgd", "algorithm": "fedavg", "standardise": True, "validation": 0.25, "epsilon": 20.0}
    keys |= {"evaluate_on": "validation", "rounds": 2}
    one = train(tmp_path, "s", blocks=BLOCKS, **keys)
    two = train(tmp_path, "w", workers=2, **PROCESSES, **keys)
    assert one.accuracy is not None and one.history[-1].accuracy == two.history[-1].accuracy
    first, second = one.model.state_dict(), two.model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first) and first["0.shift"].abs().min() > 0
    assert one.guarantee == two.guarantee


def test_in_secure_mode_noise_beside_the_rounds_comes_from_the_processes(tmp_path):
    made = job(method="dp-sgd", mode="secure", validation=0.25, evaluate_on="validation", epsilon=8.0, **PROCESSES)
    state = loop.begin(made)

    def figures():  # of several rounds: single ones are often cut off at 0 or 1
        return [loop.evaluate(made, state.params, done)["accuracy"] for done in range(1, 13)]

    try:
        first = figures()
        assert first == figures()  # the same releases of the same processes
        made.federation.close()
        assert first != figures()  # although the server's stream is the same
    finally:
        made.federation.close()
    with pytest.raises(SpecError, match="nobody but the clients may hold it"):
        job(method="dp-sgd", mode="secure", standardise=True, **PROCESSES)


def test_keys_that_do_not_go_together_are_refused():
    with pytest.raises(SpecError, match="set federation too"):
        spec.from_dict({"workers": 2})
    with pytest.raises(SpecError, match="computes on CPUs"):
        spec.from_dict({"federation": "workers", "device": "cuda"})
    with pytest.raises(SpecError, match="federation"):
        spec.from_dict({"federation": "cloud"})


def test_a_process_of_a_comparison_is_told_to_do_without(monkeypatch):
    import multiprocessing

    monkeypatch.setattr(multiprocessing.current_process(), "_config", {"daemon": True})
    with pytest.raises(RunError, match="--jobs 1"):
        job(method="none", federation="workers")


SCRIPT = """
    import sys, time, torch, sordino
    from torch import nn
    from sordino.federations.workers import Workers

    start = Workers._start
    def noted(self):
        start(self)
        print(*self.processes, flush=True)
        if "wait" in sys.argv:
            time.sleep(60)
    Workers._start = noted

    def go():
        pairs = [(torch.randn(4, 3), torch.zeros(4, dtype=torch.int64)) for _ in range(4)]
        sordino.train(nn.Linear(3, 2), pairs, method="none", rounds=1, out=sys.argv[1], seed=0, device="cpu",
                      federation="workers", workers=2)

    if "unguarded" in sys.argv or __name__ == "__main__":
        go()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["wait", "unguarded"])
def test_processes_end_with_the_one_that_started_them(tmp_path, how):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(script), str(tmp_path / "runs"), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        if how == "wait":
            pids = [int(p) for p in process.stdout.readline().split()]
            assert len(pids) == 2 and not died(pids, 0.2)
            process.kill()
            assert died(pids)
        else:
            _, error = process.communicate(timeout=120)
            assert process.returncode != 0
            assert re.search(r"RunError: .*put the call under `if __name__ == '__main__':`", error)
