"""Distributed noise on MNIST: a client's data hidden from the server, behind a secure sum.

    python benchmarks/distributed.py choose     # clip, rounds and peak, on held-out training records
    python benchmarks/distributed.py confirm    # the chosen ones on the test set, 3 seeds each

250 clients of 240 records, a linear model on fixed features, one full-batch step a round, (2, 1e-5) for all data of a
client. `choose` never opens the test set. `dp-fedavg`, which trusts its server, is the plain way for comparison.
"""

import itertools
import statistics
import tempfile
import time
from typing import Any

from held_out import choose_or_confirm
from torch import Tensor

import sordino
from sordino.core.rng import Stream
from sordino.data import partition
from sordino.data.clients import ArrayClients
from sordino.models.linear import linear

CLIENTS, SEEDS, EPSILON, DELTA = 250, 3, 2.0, 1e-5
RATE = 8.0  # of learning
DROPOUTS = {"allowed_dropouts": 25, "dropout": "0.07"}  # 17.5 of 250 are missing on average
CLIPS, ROUNDS, PEAKS = (0.1, 0.3, 1.0), (20, 40, 80), (0.25, 0.5, 1.0, 2.0)
LATTICE = {"clip": 0.3, "rounds": 40}  # the best of `choose`
COINS = {"clip": 1.0, "rounds": 20, "peak": 0.5}
RUNS: dict[str, dict[str, Any]] = {  # by the line of the table
    "skellam": {"method": "distributed", **LATTICE},
    "skellam, 25 of 250 may be missing": {"method": "distributed", **LATTICE, **DROPOUTS},
    "skellam, server and 10 colluders": {"method": "distributed", "viewer": "server+10", **LATTICE},
    "discrete-gaussian": {"method": "distributed", "mechanism": "discrete-gaussian", **LATTICE},
    "poisson-binomial": {"method": "distributed", "mechanism": "poisson-binomial", **COINS},
    "dp-fedavg, public only": {"method": "dp-fedavg", **LATTICE},
}


def run(x: Tensor, y: Tensor, test: tuple[Tensor, Tensor], seed: int, **keys: Any) -> sordino.Result:
    dealt = ArrayClients.split(x, y, partition.iid(len(x), CLIENTS, Stream.research(seed).at("partition")))
    with tempfile.TemporaryDirectory() as out:
        return sordino.train(
            linear((x.shape[1],), 10), dealt, test=test, unit="client", epsilon=EPSILON, delta=DELTA,
            learning_rate=RATE, averaging="tail:0.25", seed=seed, out=out, evaluate_every=10**6, **keys,
        )  # fmt: skip


def choose(x: Tensor, y: Tensor, test: tuple[Tensor, Tensor]) -> None:
    print("| mechanism | clip | rounds | peak | accuracy % |\n|" + " --- |" * 5, flush=True)
    ways = [("skellam", clip, rounds, 2.0) for clip, rounds in itertools.product(CLIPS, ROUNDS)]
    ways += [("poisson-binomial", clip, 20, peak) for clip, peak in itertools.product((0.3, 1.0), PEAKS)]
    ways += [("poisson-binomial", 0.3, rounds, peak) for rounds, peak in itertools.product((10, 40), PEAKS[1:3])]
    for mechanism, clip, rounds, peak in ways:
        keys = {"method": "distributed", "mechanism": mechanism, "clip": clip, "rounds": rounds, "peak": peak}
        found = 100 * (run(x, y, test, 0, **keys).accuracy or 0.0)
        print(f"| {mechanism} | {clip:g} | {rounds} | {peak:g} | {found:.2f} |", flush=True)


def confirm(x: Tensor, y: Tensor, test: tuple[Tensor, Tensor]) -> None:
    print(
        "| noise | accuracy % | seeds | epsilon: server, public | lost rounds | seconds |\n|" + " --- |" * 6, flush=True
    )
    for name, keys in RUNS.items():
        start = time.monotonic()
        results = [run(x, y, test, seed, **keys) for seed in range(SEEDS)]
        found = [100 * (result.accuracy or 0.0) for result in results]
        lost = sum(record.lost is not None for result in results for record in result.history)
        last = results[0].history[-1].epsilon
        print(
            f"| {name} | {statistics.mean(found):.2f} ± {statistics.stdev(found):.2f} | "
            f"{' / '.join(f'{a:.2f}' for a in found)} | {last['server']:.3f}, {last['public']:.3f} | "
            f"{lost} of {sum(len(result.history) for result in results)} | "
            f"{(time.monotonic() - start) / SEEDS:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    choose_or_confirm(__doc__, choose, confirm)
