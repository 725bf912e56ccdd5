"""How the defaults of `sordino run` were chosen, and what they reach.

    python benchmarks/default_recipe.py choose     # learning rate, clip, rounds on 5,000 held-out training records
    python benchmarks/default_recipe.py confirm    # the defaults on the test set, 3 seeds, with and without privacy

`choose` never opens the test set. Both print a Markdown table.
"""

import statistics
import sys
import tempfile
from typing import Any

import torch
from torch import Tensor

import sordino
from sordino.core.rng import Stream
from sordino.data import partition
from sordino.data.clients import ArrayClients
from sordino.data.load import load
from sordino.data.scattering import scattering
from sordino.models.linear import linear

CLIENTS, HELD_OUT, SEEDS = 50, 5_000, (0, 1, 2)


def accuracy(x: Tensor, y: Tensor, test: tuple[Tensor, Tensor], seed: int, **keys: Any) -> float:
    clients = ArrayClients.split(x, y, partition.iid(len(x), CLIENTS, Stream.research(seed).at("partition")))
    with tempfile.TemporaryDirectory() as out:
        keys = {"epsilon": 2.0, "delta": 1e-5, "seed": seed, "out": out, "evaluate_every": 10**6, **keys}
        result = sordino.train(linear((x.shape[1],), 10), clients, test=test, **keys)
    return 100 * (result.accuracy or 0.0)


def row(name: str, x: Tensor, y: Tensor, test: tuple[Tensor, Tensor], **keys: Any) -> None:
    found = [accuracy(x, y, test, seed, **keys) for seed in SEEDS]
    shown = " / ".join(f"{a:.2f}" for a in found)
    print(f"| {name} | {statistics.mean(found):.2f} | {shown} |", flush=True)


def main() -> None:
    if sys.argv[1:] not in (["choose"], ["confirm"]):
        sys.exit(__doc__)
    data = load("mnist")
    order = torch.from_numpy(Stream.research(99).permutation(len(data.y_train)))
    x, y = scattering(data.x_train)[order], data.y_train[order]
    print("| setting | mean accuracy % | seeds 0 / 1 / 2 |\n| --- | --- | --- |")
    if sys.argv[1] == "confirm":
        test = scattering(data.x_test), data.y_test
        row("dp-sgd, epsilon 2, defaults", x, y, test, method="dp-sgd", learning_rate=8.0)
        row("fedavg, no privacy, defaults", x, y, test, method="fedavg", learning_rate=8.0)
        return
    held = x[:HELD_OUT], y[:HELD_OUT]
    x, y = x[HELD_OUT:], y[HELD_OUT:]
    for lr in (4.0, 8.0, 16.0):
        row(f"learning rate {lr:g}", x, y, held, method="dp-sgd", learning_rate=lr)
    for clip in (0.5, 2.0):
        row(
            f"clip {clip:g}, learning rate {8 / clip:g}", x, y, held, method="dp-sgd", learning_rate=8 / clip, clip=clip
        )
    for rounds in (25, 100):
        row(f"{rounds} rounds", x, y, held, method="dp-sgd", learning_rate=8.0, rounds=rounds)
    row("no privacy", x, y, held, method="fedavg", learning_rate=8.0)


if __name__ == "__main__":
    main()
