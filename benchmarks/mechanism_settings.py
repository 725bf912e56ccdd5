"""How the learning rates of 003 Table 1 were chosen, for each mechanism by itself (papers/feng.py: RATES).

    python benchmarks/mechanism_settings.py [mnist adult breast-cancer] [--jobs 2]
    python benchmarks/mechanism_settings.py --draws    # how long a draw takes, Gaussian noise = 1: harmonizer.SECONDS

On a fifth of the training records, never on the test set: udp-fl, epsilon 2, 20 clients, 30 rounds of 2 full-batch
steps, clip 1, three seeds. Prints a Markdown table of the mean accuracies, one line a dataset and mechanism.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

import sordino
from sordino.core.rng import RowStream, Stream
from sordino.data import partition
from sordino.data.clients import ArrayClients
from sordino.methods.udp_fl.harmonizer import MECHANISMS
from sordino.methods.udp_fl.noises import RowStaircase, laplace
from sordino.privacy.clip import Bounded
from sordino.privacy.release import Use
from sordino.runs.prepare import prepare
from sordino.spec import spec

DATASETS, CLIENTS, SEEDS = ("mnist", "adult", "breast-cancer"), 20, (0, 1, 2)
RATES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


def one(dataset: str, mechanism: str) -> list[float]:
    """Mean accuracy at every rate, %."""
    torch.set_num_threads(1)
    found = prepare(spec.from_dict({"dataset": dataset, "clients": CLIENTS, "method": "udp-fl"}))
    order = torch.from_numpy(Stream.research(99).permutation(len(found.clients.y)))
    x, y = found.clients.x[order], found.clients.y[order]
    out = len(y) // 5
    scores = []
    for rate in RATES:
        each = []
        for seed in SEEDS:
            parts = partition.iid(len(y) - out, CLIENTS, Stream.research(seed).at("partition"))
            with tempfile.TemporaryDirectory() as folder:
                result = sordino.train(
                    found.module, ArrayClients.split(x[out:], y[out:], parts), test=(x[:out], y[:out]),
                    method="udp-fl", mechanism=mechanism, epsilon=2.0, rounds=30, local_steps=2, learning_rate=rate,
                    seed=seed, out=folder, evaluate_every=10**6, checkpoint_seconds=1e9,
                )  # fmt: skip
            each.append(100 * (result.accuracy or 0.0))
        scores.append(statistics.mean(each))
    return scores


def draws(rows: int = 20, dim: int = 26_010, times: int = 21) -> dict[str, float]:
    """Milliseconds of a draw for that many rows, the median, on one core."""
    torch.set_num_threads(1)
    like, z = torch.zeros(rows, dim), 1.0
    kinds: dict[str, Callable[[RowStream], object]] = {
        "gaussian": lambda rng: rng.normal(dim, like),
        "laplace": lambda rng: laplace(rng, like),  # l2-laplace: the same draw
        "staircase": lambda rng: RowStaircase(z, dim).apply(Bounded(like, 1.0, 1), rng, Use()),
    }
    took: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(times):
        for name, draw in kinds.items():
            rng = Stream.research(turn).rows(range(rows))
            begun = time.perf_counter()
            draw(rng)
            took[name].append(1e3 * (time.perf_counter() - begun))
    return {name: statistics.median(each) for name, each in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", choices=[*DATASETS, []])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--draws", action="store_true")
    asked = parser.parse_args()
    if asked.draws:
        found = draws()
        print("\n".join(f"{k}: {v:.1f} ms, {v / found['gaussian']:.1f} times Gaussian" for k, v in found.items()))
        return
    grid = list(itertools.product(asked.datasets or DATASETS, MECHANISMS))
    print("| data | mechanism | " + " | ".join(f"rate {r:g}" for r in RATES) + " | chosen |")
    print("|" + " --- |" * (3 + len(RATES)), flush=True)
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
        for (dataset, mechanism), scores in zip(grid, pool.map(one, *zip(*grid, strict=True)), strict=True):
            best = RATES[max(range(len(RATES)), key=lambda i: scores[i])]
            shown = " | ".join(f"{s:.2f}" for s in scores)
            print(f"| {dataset} | {mechanism} | {shown} | {best:g} |", flush=True)


if __name__ == "__main__":
    main()
