"""Clients keep their own state from round to round, however many there are and however they are cut into chunks."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
import torch
from torch import nn

import sordino
from sordino.contract.method import Method, Release
from sordino.contract.site import ALGORITHM
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.data.clients import LazyClients
from sordino.federations.base import Work
from sordino.federations.simulator import Simulator
from sordino.privacy.release import Unproven
from sordino.runs import loop
from support.methods import federation_of, play
from support.problems import CLASSES, FEATURES, federation, job, linear, mlp

RNG = Stream.research(1)
KEEPERS = {"scaffold": {}, "ditto": {}, "fedrep": {"head_steps": 1}}


def make(client):
    draw = torch.Generator().manual_seed(client)
    return torch.randn(4, FEATURES, generator=draw), torch.randint(0, CLASSES, (4,), generator=draw)


def go(made, federation, cohorts, state=None):
    state = state or loop.begin(made)
    for cohort in cohorts:
        state = play(made, cohort, state, federation, RNG).after
    return state


def built(algorithm, clients=None, **keys):
    keys = {"method": "none", "local_steps": 3, "batch_rate": 0.5} | KEEPERS.get(algorithm, {}) | keys
    return job(mlp(), clients, algorithm=algorithm, **keys)


@pytest.mark.parametrize("method", ["none", "dp-sgd", "dp-fedavg"])
@pytest.mark.parametrize("algorithm", [*KEEPERS, "q-fedavg", "fednova"])
def test_chunks_do_not_change_what_clients_keep_and_send(algorithm, method):
    made = built(algorithm, method=method, epsilon=8.0)
    cohorts = [[0, 1, 2, 5], [7, 2, 1], [], [3]]
    whole, alone = (federation_of(made, rng=RNG, memory_gb=m) for m in (2.0, 1e-9))  # all at once; one client a chunk
    one, other = go(made, whole, cohorts), go(made, alone, cohorts)
    assert torch.allclose(one.params, other.params, atol=1e-5)
    keepers = [0, 1, 2, 3, 5, 7] if algorithm in KEEPERS else []
    assert whole.store.clients(ALGORITHM) == alone.store.clients(ALGORITHM) == keepers
    nobody = made.plan.algorithm.keeps(one, 8)
    ours, theirs = (f.store.read(ALGORITHM, range(8), nobody) for f in (whole, alone))
    assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("algorithm", KEEPERS)
def test_a_clients_row_depends_on_its_own_rounds_alone(algorithm):
    """Who else is there, and in what order, changes nothing of what a client keeps from a given state."""
    made = built(algorithm)
    state = loop.begin(made)
    kept = []
    for cohort in ([4], [0, 4, 6], [6, 4, 0]):
        federation = federation_of(made, rng=RNG)
        go(made, federation, [cohort], state)
        kept.append(federation.store.read(ALGORITHM, [4], made.plan.algorithm.keeps(state, 1)))
    assert torch.allclose(kept[0], kept[1], atol=1e-6) and torch.allclose(kept[1], kept[2], atol=1e-6)
    assert not torch.equal(kept[0], made.plan.algorithm.keeps(state, 1))


def test_drawn_clients_that_fail_keep_what_they_had():
    made = built("scaffold", dropout="0.5")
    federation = federation_of(made, rng=RNG)
    go(made, federation, [range(8)])
    kept = federation.store.clients(ALGORITHM)
    assert 0 < len(kept) < 8


def test_late_messages_wait_in_the_store_and_are_handed_over_once():
    made = built("fedavg", late=0.5)
    federation, state = federation_of(made, rng=RNG), loop.begin(made)

    def arrive(cohort, number):
        return federation.ask("train", replace(state, round=number), cohort)

    first = arrive(range(8), 0)
    waiting = federation.store.clients("late train")
    assert 0 < len(waiting) < 8 and len(first) == 8 - len(waiting)
    assert sorted([*first.ids.tolist(), *waiting]) == list(range(8))
    assert arrive([], 1).ids.tolist() == waiting
    assert not any(federation.store.clients(kind) for kind in ("late train", "late train update"))
    assert len(arrive([], 2)) == 0


class Notes(Method):
    """Sends fields of several types in two phases: its number and the round, so that a row shows where it is from."""

    phases = ("ask", "tell")

    def releases(self, plan, round=0, state=None):
        told = Release("number", Unproven("a test"), "client", phase="tell")
        return Release("flag", Unproven("a test"), "client", phase="ask"), told

    def train(self, state, site):
        who = torch.from_numpy(site.rng.ids)
        origin = torch.full((len(who),), state.round, dtype=torch.int64)
        if site.phase == "ask":
            return Message({"flag": site.out["flag"](who[:, None] % 2 == 0), "origin": origin}), site.kept()
        number = site.out["number"](who[:, None].double() / 3)
        return Message(
            {"number": number, "origin": origin, "size": who.float()[:, None, None]}, 1 + who.float()
        ), site.kept()


def test_late_fields_of_any_type_come_a_round_later_with_their_weights_and_senders():
    """Every phase keeps its own: what was late in one is not taken for an answer in the other."""
    made = built("fedavg", late=0.5, dropout="0.2")
    clients = Simulator(torch.device("cpu"), made.federation.data, RNG)
    clients.open(Work(Notes(), made.model, made.plan))
    law, origins = made.plan.stragglers, set()
    factor = law.weights(law.failing(range(8), clients.public.at("dropout")))
    for number in range(6):
        state = replace(loop.begin(made), round=number)
        asked, told = (clients.ask(phase, state, range(8)) for phase in ("ask", "tell"))
        assert asked.ids.tolist() == told.ids.tolist() and len(set(told.ids.tolist())) == len(told)
        who = torch.from_numpy(told.ids)
        assert asked["flag"].dtype == torch.bool and torch.equal(asked["flag"][:, 0], who % 2 == 0)
        assert told["number"].dtype == torch.float64 and torch.equal(told["number"][:, 0], who.double() / 3)
        assert told["size"].shape[1:] == (1, 1) and torch.equal(told["size"].flatten(), who.float())
        assert told["origin"].dtype == torch.int64 and torch.equal(asked["origin"], told["origin"])
        assert torch.allclose(told.weight.double(), (1 + who) * torch.from_numpy(factor)[who], rtol=1e-6)
        origins |= set((number - told["origin"]).tolist())
    assert origins == {0, 1}  # some were late, by one round


# --- a million clients


def million(tmp_path, name, count, **keys):
    """A run in which a client is drawn with probability 50 / count; 4 rounds."""
    keys = {"method": "none", "algorithm": "scaffold", "rounds": 4, "client_rate": 50 / count, "local_steps": 2} | keys
    clients = LazyClients(count, 4, make)
    return sordino.train(linear(), clients, out=str(tmp_path), name=name, device="cpu", seed=0, **keys)


@pytest.mark.parametrize("keys", [{}, {"algorithm": "ditto"}, {"algorithm": "fedavg", "late": 0.5}])
def test_only_those_who_were_drawn_have_rows(keys, tmp_path):
    import sqlite3

    result = million(tmp_path, "it", 1_000_000, **keys)
    drawn = sum(r.clients for r in result.private.history)
    assert 100 < drawn < 320  # 200 expected
    file = sqlite3.connect(result.folder / "private" / "clients.sqlite")
    try:
        clients = file.execute("SELECT COUNT(DISTINCT client) FROM kept").fetchone()[0]
    finally:
        file.close()
    assert clients <= drawn and (clients > drawn - 5 or "late" in keys)
    assert (
        result.folder / "private" / "clients.sqlite"
    ).stat().st_size < 3 * 1000 * drawn + 65536  # rows of 252 or so bytes


def test_what_the_clients_cost_in_memory_does_not_follow_their_number():
    """The federation alone: tracemalloc sees Python's and the store's bookkeeping."""
    peaks = []
    for count in (10_000, 1_000_000):
        made = job(linear(), LazyClients(count, 4, make), method="none", algorithm="scaffold", local_steps=2)
        federation, state = federation_of(made, rng=RNG), loop.begin(made)
        cohorts = [list(range(i, count, count // 20)) for i in range(3)]
        go(made, federation, cohorts[:1], state)
        tracemalloc.start()
        go(made, federation, cohorts, state)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(federation.store.clients(ALGORITHM)) == 60
    assert peaks[1] < peaks[0] + 200_000


def test_a_federation_of_one_and_of_clients_with_one_record():
    for clients in (federation((1,)), federation((1,) * 3)):
        for algorithm in KEEPERS:
            made = built(algorithm, clients)
            state = go(made, federation_of(made, rng=RNG), [range(len(clients))] * 2)
            assert bool(state.params.isfinite().all())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["dp-sgd", "none"])
def test_on_a_gpu_a_seed_repeats_a_run_bit_for_bit(method, tmp_path):
    """Recorded steps (enough of them to be recorded) add in one order."""
    pictures = torch.Generator().manual_seed(0)
    clients = [(torch.randn(40, 1, 12, 12, generator=pictures), torch.arange(40) % 3) for _ in range(12)]
    found = []
    for turn in "ab":
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 3))
        keys = {"method": method, "rounds": 6, "local_steps": 4, "batch_rate": 0.5, "device": "cuda", "seed": 3}
        keys |= {"epsilon": 4.0} if method == "dp-sgd" else {}
        sordino.train(model, clients, out=str(tmp_path), name=turn, **keys)
        found.append((tmp_path / turn / "public" / "model.safetensors").read_bytes())
    assert found[0] == found[1]
