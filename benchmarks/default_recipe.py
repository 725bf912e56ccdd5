"""How the defaults of `sordino run` were chosen, and what they reach.

    python benchmarks/default_recipe.py choose     # learning rate, clip, rounds on 5,000 held-out training records
    python benchmarks/default_recipe.py features   # what the parts of the features are worth, on the same records
    python benchmarks/default_recipe.py confirm    # the defaults on the test set, 3 seeds, with and without privacy

`choose` and `features` never open the test set. All print a Markdown table.
"""

import statistics
import sys
import tempfile
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import sordino
from sordino.core.rng import Stream
from sordino.data import partition
from sordino.data.clients import ArrayClients
from sordino.data.load import load
from sordino.features import scattering as parts
from sordino.features.scattering import scattering
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


def without(part: str, images: Tensor) -> Tensor:
    """The features with one part switched off."""
    if part == "everything, raw pixels":
        return parts.NORM * F.normalize(images.flatten(1).float())
    mean, whiten = parts.public_whitening(28, 28)
    off = {
        "nothing, as shipped": {},
        "deslanting": {"deslant": lambda x: x},
        "whitening": {"public_whitening": lambda h, w: (mean, torch.eye(len(whiten)))},
        "deslanting and whitening": {
            "deslant": lambda x: x,
            "public_whitening": lambda h, w: (mean, torch.eye(len(whiten))),
        },
    }[part]
    kept = {name: getattr(parts, name) for name in off}
    try:
        for name, value in off.items():
            setattr(parts, name, value)
        return scattering(images)
    finally:
        for name, value in kept.items():
            setattr(parts, name, value)


def features(images: Tensor, y: Tensor) -> None:
    """Best of three learning rates for each."""
    print("| without | best learning rate | mean accuracy % |\n| --- | --- | --- |")
    names = ("nothing, as shipped", "deslanting", "whitening", "deslanting and whitening", "everything, raw pixels")
    for name in names:
        x = without(name, images)
        held, rest = (x[:HELD_OUT], y[:HELD_OUT]), (x[HELD_OUT:], y[HELD_OUT:])
        found = {}
        for lr in (2.0, 8.0, 32.0):
            scores = [accuracy(*rest, held, seed, method="dp-sgd", learning_rate=lr) for seed in SEEDS]
            found[statistics.mean(scores)] = lr
        print(f"| {name} | {found[max(found)]:g} | {max(found):.2f} |", flush=True)


def main() -> None:
    if sys.argv[1:] not in (["choose"], ["features"], ["confirm"]):
        sys.exit(__doc__)
    data = load("mnist")
    order = torch.from_numpy(Stream.research(99).permutation(len(data.y_train)))
    if sys.argv[1] == "features":
        return features(data.x_train[order], data.y_train[order])
    x, y = scattering(data.x_train)[order], data.y_train[order]
    print("| setting | mean accuracy % | seeds 0 / 1 / 2 |\n| --- | --- | --- |")
    if sys.argv[1] == "confirm":
        test = scattering(data.x_test), data.y_test
        row("dp-sgd, epsilon 2, defaults", x, y, test, method="dp-sgd", learning_rate=8.0)
        row("fedavg, no privacy, defaults", x, y, test, method="none", learning_rate=8.0)
        return None
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
    row("no privacy", x, y, held, method="none", learning_rate=8.0)
    return None


if __name__ == "__main__":
    main()
