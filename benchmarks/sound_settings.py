"""How the settings of sound runs were chosen (src/sordino/experiments: SOUND in xue.py, LINEAR in base.py).

    python benchmarks/sound_settings.py mnist fashion-mnist [--jobs 8]
    python benchmarks/sound_settings.py cifar10 --features colour-scattering    # a linear model on them

On 5,000 records held out of the training set, never on the test set: dp-sgd, one full-batch step a round, 50 clients.
Prints a Markdown table of accuracies on them, one line a setting, the best first.
"""

import argparse
import itertools
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor

import sordino
from sordino.core import plugin
from sordino.core.rng import Stream
from sordino.data import partition
from sordino.data.clients import ArrayClients
from sordino.data.load import load
from sordino.features.catalogue import FEATURES

MODELS = {"mnist": "cnn-mnist-plain", "fashion-mnist": "cnn-mnist-plain", "cifar10": "cnn-cifar"}
CLIENTS, HELD_OUT, EPSILONS = 50, 5_000, (0.5, 2.0)
ROUNDS, CLIPS, PRODUCTS = (30, 60, 120), (0.1, 0.5, 2.0), (0.25, 0.5, 1.0, 2.0, 4.0)  # learning rate times clip
LONGER, LARGER = (50, 100, 200), (1.0, 2.0, 4.0, 8.0)  # with features: rounds, and learning rates at clip 1


@lru_cache(maxsize=1)
def records(dataset: str, features: str | None) -> tuple[Tensor, Tensor]:
    data = load(dataset)
    if features is None:
        return data.prepare(data.x_train), data.y_train
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return FEATURES[features](data.x_train.to(device)).cpu(), data.y_train


def one(dataset: str, features: str | None, rounds: int, clip: float, product: float, seed: int) -> list[float]:
    torch.set_num_threads(1)
    x, y = records(dataset, features)
    order = torch.from_numpy(Stream.research(99).permutation(len(x)))
    out, kept = order[:HELD_OUT], order[HELD_OUT:]
    parts = partition.iid(len(kept), CLIENTS, Stream.research(seed).at("partition"))
    clients = ArrayClients.split(x[kept], y[kept], parts)
    found = []
    for epsilon in EPSILONS:
        torch.manual_seed(seed)
        module = plugin.load("models", MODELS[dataset] if features is None else "linear")(tuple(x.shape[1:]), 10)
        keys: dict[str, Any] = {
            "method": "dp-sgd", "epsilon": epsilon, "rounds": rounds, "clip": clip, "learning_rate": product / clip,
            "seed": seed, "evaluate_every": 10**6, "checkpoint_seconds": 1e9,
        }  # fmt: skip
        keys |= {} if features is None else {"averaging": "tail:0.25"}
        with tempfile.TemporaryDirectory() as folder:
            result = sordino.train(module, clients, test=(x[out], y[out]), out=folder, **keys)
        found.append(100 * (result.accuracy or 0.0))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("datasets", nargs="+", choices=list(MODELS))
    parser.add_argument("--features", choices=list(FEATURES))
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    axes = (ROUNDS, CLIPS, PRODUCTS) if asked.features is None else (LONGER, (1.0,), LARGER)
    grid = list(itertools.product(*axes))
    for dataset in asked.datasets:
        with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
            found = list(pool.map(one, *zip(*((dataset, asked.features, *g, 0) for g in grid), strict=True)))
        heads = [f"{', '.join(filter(None, (dataset, asked.features)))}: rounds", "clip", "learning rate"]
        heads += [f"epsilon {e:g}" for e in EPSILONS]
        print(f"\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
        for (rounds, clip, product), scores in sorted(zip(grid, found, strict=True), key=lambda p: -sum(p[1])):
            shown = " | ".join(f"{s:.2f}" for s in scores)
            print(f"| {rounds} | {clip:g} | {product / clip:g} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
