"""Small federations, models and jobs that the tests share: a fraction of a second each."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sordino.contract.method import Local, Plan
from sordino.data.clients import adopt
from sordino.privacy.samplers import Poisson
from sordino.runs import build
from sordino.runs.prepare import with_tags
from sordino.spec import spec

FEATURES, CLASSES = 20, 3
Pair = tuple[Tensor, Tensor]


def federation(sizes: Sequence[int] = (12,) * 8, seed: int = 0) -> list[Pair]:
    """Clients of the given sizes; three Gaussian classes in 20 dimensions."""
    draw = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(CLASSES, FEATURES, generator=draw)
    pairs = []
    for n in sizes:
        y = torch.randint(0, CLASSES, (n,), generator=draw)
        pairs.append((centres[y] + torch.randn(n, FEATURES, generator=draw), y))
    return pairs


def held_out(records: int = 60, seed: int = 0) -> Pair:
    return federation((records,), seed)[0]


def linear(seed: int = 0) -> nn.Module:
    return _seeded(lambda: nn.Linear(FEATURES, CLASSES), seed)


def mlp(seed: int = 0) -> nn.Module:
    return _seeded(lambda: nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, CLASSES)), seed)


def _seeded(make: Any, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # no GPU is asked for
        return make()


def job(module: nn.Module | None = None, clients: Any = None, loss: Any = None, **keys: Any) -> build.Job:
    """A job on the small federation; seeded, full batches and all clients unless the keys say otherwise."""
    keys = (
        {"mode": "research", "rounds": 3, "learning_rate": 0.1, "device": "cpu"}
        | NEEDS.get(str(keys.get("method")), {})
        | keys
    )
    held = federation() if clients is None else clients
    if str(keys.get("method")).startswith("fedsdp"):
        held = marked(held)
    return build.build(spec.from_dict(keys), module or mlp(), held, loss, None)


NEEDS = {"pfa": {"budgets": "0.3:0.5,8:0.5", "epsilon": 8.0}}  # keys without which a method cannot run


def marked(clients: Any) -> Any:
    """Every third record carries a private attribute."""
    held = adopt(clients)
    if held.tags is None:
        held = with_tags(held, [(torch.arange(n) % 3 == 0).numpy() for n in held.all_sizes().tolist()])
    return held


def plan(**keys: Any) -> Plan:
    """A calibrated plan for eight clients of twelve records."""
    known = {
        "rounds": 3,
        "population": 8,
        "sampler": Poisson(1.0),
        "local": Local(),
        "noise_multiplier": 1.0,
        "sizes": (12,),
        "mean_client": 12.0,
    }
    return Plan(**(known | keys))


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    one, other = a.state_dict(), b.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def registry() -> Path:
    """The ledger that runs of this test are charged to."""
    return Path(os.environ["SORDINO_HOME"]) / "registry" / "ledger.sqlite"


def charges(folder: Path) -> list[int]:
    """The rounds of a run folder in its ledger, in the order in which they were paid."""
    kept = json.loads((folder / "private" / "ledger.json").read_text())
    path = registry() if kept["path"] is None else folder / kept["path"]
    if not path.exists():
        return []
    with_db = sqlite3.connect(path)
    try:
        query = "SELECT what FROM entry WHERE kind = 'round' AND job = ? ORDER BY id"
        return [json.loads(what)["round"] for (what,) in with_db.execute(query, (kept["job"],))]
    finally:
        with_db.close()
