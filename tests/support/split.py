"""A small federation for the tests of workers, whichever transport they use; other processes import this module."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import nn

import sordino
from sordino.core.errors import DataError
from sordino.federations.base import Work
from sordino.federations.workers import Workers
from sordino.methods.nbafl import NbAFL
from sordino.runs import build, loop
from sordino.spec import spec
from support.methods import RNG, play

SIZES, FEATURES, CLASSES, BLOCKS = (12, 5, 9, 8, 12, 20, 7), 10, 3, 4
METHODS = {
    "dp-sgd": {"method": "dp-sgd", "batch_rate": 0.5, "local_steps": 2},
    "scaffold": {"method": "dp-sgd", "algorithm": "scaffold", "local_steps": 2},
    "adaptive, late": {"method": "dp-fedavg", "adaptive_clip": True, "late": 0.4, "dropout": "0.1-0.3"},
    "nbafl": {"method": "nbafl"},
    "dp-ftrl": {"method": "dp-ftrl"},
    "none": {"method": "none", "late": 0.3},
    "secure sum": {"method": "dp-sgd", "channel": "secure-sum"},
}
COHORTS = ([0, 1, 2, 3, 4, 5, 6], [1, 4, 5], [0, 2, 3, 6], [], [1, 2])


def clients():
    draw = torch.Generator().manual_seed(0)
    pairs = []
    for n in SIZES:
        y = torch.randint(0, CLASSES, (n,), generator=draw)
        pairs.append((torch.randn(n, FEATURES, generator=draw) + y[:, None], y))
    return pairs


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def job(data=None, **keys):
    usual = {"mode": "research", "rounds": len(COHORTS), "epsilon": 6.0, "device": "cpu"}
    return build.build(spec.from_dict(usual | keys), network(), clients() if data is None else data)


def workers_of(made, count, rng=RNG, blocks=BLOCKS, transport=None):
    rebuild = build.partial(build.settled_model, keys=build._model_keys(made.spec))
    return Workers(made.federation.data, rng, rebuild, count, blocks=blocks, transport=transport)


def played(made, federation, path):
    """Return the state after a few rounds of a federation that begins with an empty file."""
    federation.open(Work(made.method, made.model, made.plan))
    federation.resume(path, 0)
    state = loop.begin(made)
    for cohort in COHORTS:
        state = play(made, cohort, state, federation).after
    return state


def same(a, b):
    parts = [(x.params, y.params) for x, y in [(a, b)]]
    for one, other in ((a.method, b.method), (a.algorithm, b.algorithm)):
        assert type(one) is type(other)
        parts += [(v, vars(other)[k]) for k, v in vars(one).items()] if one is not None else []
    return all(torch.equal(torch.as_tensor(x), torch.as_tensor(y)) for x, y in parts if x is not None)


def train(out, name, **keys):
    usual = {"mode": "research", "rounds": 4, "epsilon": 6.0, "method": "dp-sgd", "algorithm": "scaffold", "late": 0.0}
    usual |= {"client_rate": 0.7, "checkpoint_seconds": 0.0, "out": str(out), "name": name, "device": "cpu"}
    if "resume" in keys:
        usual = {}
    return sordino.train(network(), keys.pop("clients", None) or clients(), **usual | keys)


def weights(result):
    return torch.cat([p.detach().flatten() for p in result.model.parameters()])


def died(pids, seconds=10.0):
    """Whether all processes are gone soon."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


def exchange(folder):
    """Give the files of the first two blocks one another's names."""
    for old, new in (("clients-0", "aside"), ("clients-1", "clients-0"), ("aside", "clients-1")):
        for path in folder.glob(f"{old}.sqlite*"):
            path.rename(path.with_name(path.name.replace(old, new)))


class Failing(NbAFL):
    """A method whose clients raise an error."""

    def train(self, state, site):
        raise DataError(f"a client of {site.data.sizes[0]} records fails")


def slow_client(i):
    if i == 3:
        time.sleep(60)
    return torch.ones(3, FEATURES), torch.zeros(3, dtype=torch.int64)


def bad_client(i):
    size = 3 if i != 3 else 2
    return torch.ones(size, FEATURES), torch.zeros(size, dtype=torch.int64)
