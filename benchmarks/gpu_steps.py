"""One local step of clients with weights of their own, ResNet-18 with GroupNorm, on a GPU that does nothing else.

    python benchmarks/gpu_steps.py              # milliseconds a step, the median of --rounds

Without a clip, batches of 50 in bfloat16: passes recorded in lanes, and compiled first (key `compile`; how long that
took is said). Clipped, in float32, batches of 250, and batches of 50 of fifty clients: client after client, all of them
padded, and with weights that all share, as in the first local step of a round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.gradients import CohortGradients, cost, graphed
from sordino.gradients.graphed import Replay
from sordino.models.resnet18 import resnet18
from sordino.tasks.losses import cross_entropy

CLIENTS = 10


def data(records: int, clients: int = CLIENTS) -> Batch:
    many = clients * records
    x, y = torch.randn(many, 3, 32, 32, device="cuda"), torch.randint(0, 10, (many,), device="cuda")
    return Batch(x, y, (records,) * clients)


def median(step: Callable[[], object], rounds: int) -> float:
    """Milliseconds."""
    times = []
    for turn in range(rounds + 4):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        step()
        torch.cuda.synchronize()
        if turn >= 4:
            times.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clipped", action="store_true", help="clipped steps only; compiling takes a minute")
    asked = parser.parse_args()
    rounds = asked.rounds
    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True
    model = resnet18((3, 32, 32), 10).cuda()
    layout = Layout.of(model)
    weights = layout.read(model).repeat(CLIENTS, 1)

    batch = data(50)
    for compiled in () if asked.clipped else (False, True):
        gradients = CohortGradients.of(model, cross_entropy, layout)
        gradients.autocast, gradients.compiled, graphed.OFTEN = True, compiled, 5
        begun = time.perf_counter()
        gradients.sums(weights, batch, None)
        torch.cuda.synchronize()
        first, name = time.perf_counter() - begun, "compiled" if compiled else "recorded"
        took = median(partial(gradients.sums, weights, batch, None), rounds)
        print(f"no clip, batches of 50, bfloat16, {name}: {took:.1f} ms; the first step {first:.1f} s", flush=True)

    for records, clients in ((250, CLIENTS), (50, 50)):
        batch, own = data(records, clients), layout.read(model).repeat(clients, 1)
        for name, alone, one in (("one by one", 0, own), ("padded", 10**15, own), ("one model", 0, own[0])):
            cost.ALONE, gradients = alone, CohortGradients.of(model, cross_entropy, layout)
            took = median(partial(gradients.sums, one, batch, 0.01), rounds)
            made = sum(isinstance(step, Replay) for step in gradients._padded._steps.values())
            print(f"clipped, {clients} batches of {records}, {name}: {took:.0f} ms ({made} recorded)", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
