"""What the rehearsal before every run takes: by method, for a small network and for the benchmark CNN.

    python benchmarks/rehearsal.py

Plans have ten local steps with a tenth of the records each, of which a rehearsal plays two. Prints one JSON line for
each model and method: parameters, and the median and the longest of ten rehearsals in milliseconds of one processor,
the first left out, which settles how the model's gradients are computed."""

import statistics
import time
from dataclasses import replace

import torch
from common import answer, cnn
from torch import nn

from sordino.core import plugin
from sordino.runs import build
from sordino.runs.rehearse import rehearse
from sordino.spec import spec

METHODS = ("dp-sgd", "fed-cdp", "udp-fl", "dp-fedavg", "dp-ftrl", "nbafl")
CLIENTS, RECORDS, TIMES = 10, 60, 10


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 10))


def job(method: str, module: nn.Module, shape: tuple[int, ...]) -> build.Job:
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(RECORDS, *shape, generator=rng), torch.randint(0, 10, (RECORDS,), generator=rng)
    keys = {"method": method, "mode": "research", "rounds": 10, "device": "cpu"}
    made = build.build(spec.from_dict(keys), module, [(x, y)] * CLIENTS)
    return replace(made, plan=replace(made.plan, local=replace(made.plan.local, steps=10, batch_rate=0.1)))


def measure(method: str, name: str, module: nn.Module, shape: tuple[int, ...]) -> None:
    made, taken = job(method, module, shape), []
    for _ in range(TIMES + 1):
        start = time.process_time()
        rehearse(made)
        taken.append(1000 * (time.process_time() - start))
    times = {"median_ms": round(statistics.median(taken[1:]), 1), "longest_ms": round(max(taken[1:]), 1)}
    answer(model=name, method=method, parameters=made.model.layout.dim, **times)


def main() -> None:
    torch.set_num_threads(1)
    for name, make, shape in (("mlp", mlp, (20,)), ("cnn", cnn, (1, 28, 28))):
        for method in METHODS:
            if plugin.ours("methods", method):
                torch.manual_seed(0)
                measure(method, name, make(), shape)


if __name__ == "__main__":
    main()
