"""Shadow models: each is the model that the job would have trained on its half of the pool."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import sordino
from sordino.core.errors import SpecError
from sordino.core.types import Batch, State
from sordino.runs import shadows
from sordino.runs.shadows import dealt, halves, train_shadows
from support import problems

RECORDS, CLIENTS, SEED = 48, 4, 5
HALF = [(problems.federation((6,) * CLIENTS)[k]) for k in range(CLIENTS)]


def pool(records=RECORDS, seed=1):
    x, y = problems.federation((records,), seed)[0]
    return Batch(x, y, (records,))


def job(**keys):
    return problems.job(clients=HALF, **{"method": "none"} | keys)


@dataclass
class Spy:
    """Stands for gradients: notes which records every row was given, and sends zeros."""

    seen: list

    def sums(self, weights, batch, clip, *, seeds=None, groups=None):
        self.seen.append([part.tolist() for part in batch.x[:, 0].split(list(batch.sizes))])
        return torch.zeros_like(weights)


def spied(known, **asked):
    spy = Spy([])
    known = replace(known, model=replace(known.model, gradients=spy))
    numbered = Batch(torch.arange(40.0)[:, None].repeat(1, problems.FEATURES), torch.zeros(40).long(), (40,))
    models = train_shadows(known, numbered, seed=SEED, **{"count": 2} | asked)
    return spy.seen, models.members


@pytest.mark.parametrize(
    "keys",
    [
        {"local_steps": 1, "rounds": 3},
        {"local_steps": 3, "rounds": 4, "weight_decay": 0.01, "schedule": "cosine"},
        {"local_steps": 2, "rounds": 3, "optimizer": "momentum", "server_lr": 0.7},
        {"local_steps": 2, "rounds": 4, "averaging": "tail:0.5"},
    ],
)
def test_a_shadow_is_what_the_simulator_trains_on_the_same_records(keys, tmp_path):
    known, records = job(**keys), pool()
    models = train_shadows(known, records, 3, SEED)
    for k in (0, 2):
        mine = [(records.x[i], records.y[i]) for i in dealt(models.members[k], CLIENTS, SEED, k)]
        usual = {"method": "none", "mode": "research", "learning_rate": 0.1, "device": "cpu", "out": str(tmp_path)}
        result = sordino.train(problems.mlp(), mine, **usual | keys)
        real = known.model.layout.read(result.model)
        assert torch.allclose(models.params[k], real, atol=1e-5)
        assert not torch.allclose(models.params[1], real, atol=1e-2)  # trained on the other half


def test_every_record_is_in_half_of_the_models():
    members = halves(30, 6, SEED)
    assert (members.sum(axis=1) == 15).all() and (members.sum(axis=0) == 3).all()
    assert (halves(30, 2, SEED) == members[:2]).all() and (members[0] != members[2]).any()


def test_a_pass_takes_every_record_once():
    seen, members = spied(job(local_epochs=1.0, batch_size=3, rounds=2))
    assert len(seen) == 2 * 2 and len(seen[0]) == 2 * CLIENTS  # batches of 3 and 2 of the 5 records of each row
    for row in range(2 * CLIENTS):
        first = [record for step in seen[:2] for record in step[row]]
        again = [record for step in seen[2:] for record in step[row]]
        assert len(first) == len(set(first)) == 5 and sorted(first) == sorted(again)
        assert members[row // CLIENTS, np.array(first, dtype=int)].all()
    assert seen[:2] != seen[2:]  # in another order


def test_poisson_batches_have_the_rate_of_the_job():
    known = problems.job(clients=HALF, method="dp-sgd", epsilon=8.0, batch_rate=0.25, local_steps=2, rounds=40)
    seen, _ = spied(known, count=8)
    drawn = [len(row) for step in seen for row in step]
    assert len(drawn) == 80 * 8 * CLIENTS
    assert np.mean(drawn) == pytest.approx(0.25 * 5, rel=0.05) and np.var(drawn) == pytest.approx(5 * 3 / 16, rel=0.1)


@pytest.mark.parametrize(("steps", "channel"), [(1, "direct"), (2, "direct"), (1, "secure-sum")])
def test_noise_is_that_of_the_job(steps, channel):
    keys = {"method": "dp-sgd", "epsilon": 0.02, "rounds": 1, "local_steps": steps, "channel": channel}
    known = problems.job(problems.linear(), HALF, **keys)
    models = train_shadows(known, pool(), 60, SEED)
    noise = models.params - models.params.mean(dim=0)
    expected = known.method.noise(State(torch.zeros(1)), known.plan) / CLIENTS**0.5
    assert float(noise.std()) == pytest.approx(expected, rel=0.05)
    if channel == "direct":
        alone = train_shadows(known, pool(), 60, SEED, clients=1)  # four times the records, one noise
        spread = float((alone.params - alone.params.mean(dim=0)).std())
        assert spread == pytest.approx(expected / 2, rel=0.05)


def test_clients_are_drawn_as_in_the_job():
    seen, _ = spied(job(client_rate=0.5, client_sampling="fixed", local_steps=2, rounds=10), count=3)
    assert {len(step) for step in seen} == {2 * 3} and len({str(step) for step in seen}) > 5


def test_a_shadow_does_not_depend_on_its_company(monkeypatch):
    known = problems.job(clients=HALF, method="dp-sgd", epsilon=8.0, batch_rate=0.5, local_steps=2)
    together = train_shadows(known, pool(), 4, SEED)
    monkeypatch.setattr(shadows, "MEMORY", {"cpu": 1})  # one at a time
    assert torch.allclose(train_shadows(known, pool(), 4, SEED).params, together.params, atol=1e-6)
    assert torch.allclose(train_shadows(known, pool(), 2, SEED).params, together.params[:2], atol=1e-6)


def test_stored_shadows_are_found_again_and_damaged_ones_trained_again(tmp_path):
    rounds: list[int] = []

    def trained(seed=SEED, **keys):
        rounds.clear()
        models = train_shadows(
            job(**keys), pool(), 2, seed, progress=lambda done, _: rounds.append(done), folder=tmp_path
        )
        return models.params, bool(rounds)

    first, worked = trained()
    assert worked and rounds[-1] == 6  # two shadows, three rounds
    again, worked = trained()
    assert torch.equal(first, again) and not worked
    path = next(tmp_path.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-9] + b"\0" * 9)
    mended, worked = trained()
    assert torch.equal(first, mended) and worked
    assert trained(seed=6)[1] and trained(learning_rate=0.2)[1] and trained(rounds=2)[1]  # other models, other files
    assert len(list(tmp_path.glob("*.safetensors"))) == 4


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"method": "dp-fedavg", "epsilon": 8.0}, "none and dp-sgd train, not as dp-fedavg"),
        ({"algorithm": "fedavgm"}, "with FedAvg, not with fedavgm"),
        ({"optimizer": "adam"}, "with SGD or momentum, not with adam"),
        ({"dropout": "0.5"}, "dropout or late answers"),
    ],
)
def test_what_cannot_be_imitated_is_refused(keys, words):
    with pytest.raises(SpecError, match=words):
        train_shadows(job(**keys), pool(), 2, SEED)


def test_a_pool_too_small_is_refused():
    with pytest.raises(SpecError, match="half of 7 records is too little for 4 clients"):
        train_shadows(job(), pool(7), 2, SEED)
