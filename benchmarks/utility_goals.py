"""What private training reaches at small epsilons on MNIST and Fashion-MNIST, and how the settings were chosen.

    python benchmarks/utility_goals.py choose     # every candidate on 5,000 held-out training records, 3 seeds
    python benchmarks/utility_goals.py confirm    # the chosen ones on the test set, 3 seeds

`choose` never opens the test set. Both print a Markdown table; names of goals (see GOALS) may follow to run only these.
Fifty clients everywhere; goals behind a secure sum send through that channel, where the noise is there once for all.
"""

import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import sordino
from sordino.core.rng import Stream
from sordino.data import partition
from sordino.data.clients import ArrayClients
from sordino.data.load import load
from sordino.features.scattering import scattering
from sordino.features.silhouettes import silhouettes
from sordino.models.linear import linear

CLIENTS, HELD_OUT, SEEDS, DELTA, TAIL = 50, 5_000, (0, 1, 2), 1e-5, "tail:0.25"
FEATURES: dict[str, Callable[[Tensor], Tensor]] = {"mnist": scattering, "fashion-mnist": silhouettes}


@dataclass(frozen=True)
class Setting:
    rounds: int
    learning_rate: float
    momentum: float = 0.0  # at the server

    @property
    def keys(self) -> dict[str, Any]:
        own = {"rounds": self.rounds, "learning_rate": self.learning_rate}
        return own | ({"algorithm": "fedavgm", "server_momentum": self.momentum} if self.momentum else {})

    def __str__(self) -> str:
        return f"{self.rounds} rounds, learning rate {self.learning_rate:g}" + (
            f", server momentum {self.momentum:g}" if self.momentum else ""
        )


@dataclass(frozen=True)
class Goal:
    dataset: str
    secure_sum: bool
    epsilon: float
    wanted: float  # accuracy, %
    chosen: Setting  # by `choose`
    others: tuple[Setting, ...]

    @property
    def name(self) -> str:
        return f"{self.dataset}-{'sum' if self.secure_sum else 'server'}-{self.epsilon:g}"


GOALS = (
    Goal("mnist", False, 0.3, 92.5, Setting(50, 1), (Setting(50, 2), Setting(50, 4), Setting(10, 8))),
    Goal("mnist", False, 0.5, 94.5, Setting(50, 2), (Setting(50, 1), Setting(50, 4), Setting(10, 8))),
    Goal("mnist", False, 2, 97, Setting(50, 8), (Setting(50, 4), Setting(50, 16), Setting(100, 8))),
    Goal("mnist", True, 0.5, 97.5, Setting(50, 16), (Setting(50, 8), Setting(50, 32), Setting(50, 4, 0.9))),
    Goal("fashion-mnist", False, 1, 84, Setting(100, 4), (Setting(100, 2), Setting(100, 8), Setting(50, 4))),
    Goal("fashion-mnist", False, 2, 86, Setting(100, 8), (Setting(200, 4), Setting(100, 4), Setting(100, 1, 0.9))),
    Goal("fashion-mnist", True, 1, 88.5, Setting(100, 4, 0.9), (Setting(100, 2, 0.9), Setting(100, 8, 0.9))),
)


def accuracy(goal: Goal, how: Setting, x: Tensor, y: Tensor, test: tuple[Tensor, Tensor], seed: int) -> float:
    dealt = ArrayClients.split(x, y, partition.iid(len(x), CLIENTS, Stream.research(seed).at("partition")))
    channel = "secure-sum" if goal.secure_sum else "direct"
    with tempfile.TemporaryDirectory() as out:
        result = sordino.train(
            linear((x.shape[1],), 10), dealt, test=test, method="dp-sgd", epsilon=goal.epsilon, delta=DELTA, seed=seed,
            averaging=TAIL, out=out, evaluate_every=10**6, channel=channel, **how.keys,
        )  # fmt: skip
    return 100 * (result.accuracy or 0.0)


def row(goal: Goal, how: Setting, x: Tensor, y: Tensor, test: tuple[Tensor, Tensor]) -> None:
    found = [accuracy(goal, how, x, y, test, seed) for seed in SEEDS]
    shown = " / ".join(f"{a:.2f}" for a in found)
    viewer = "secure sum" if goal.secure_sum else "curious server"
    print(
        f"| {goal.dataset} | {viewer} | {goal.epsilon:g} | {how} | {goal.wanted:g} | {statistics.mean(found):.2f} "
        f"| {shown} |",
        flush=True,
    )


def main() -> None:
    names = [goal.name for goal in GOALS]
    if sys.argv[1:2] not in (["choose"], ["confirm"]) or not set(sys.argv[2:]) <= set(names):
        sys.exit(f"{__doc__}\nGOALS: {' '.join(names)}")
    print("| data | viewer | epsilon | setting | goal % | mean accuracy % | seeds 0 / 1 / 2 |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    asked = [goal for goal in GOALS if goal.name in (sys.argv[2:] or names)]
    for dataset in dict.fromkeys(goal.dataset for goal in asked):
        data, features = load(dataset), FEATURES[dataset]
        order = torch.from_numpy(Stream.research(99).permutation(len(data.y_train)))
        x, y = features(data.x_train)[order], data.y_train[order]
        if sys.argv[1] == "confirm":
            test = features(data.x_test), data.y_test
        else:
            test, x, y = (x[:HELD_OUT], y[:HELD_OUT]), x[HELD_OUT:], y[HELD_OUT:]
        for goal in asked:
            if goal.dataset == dataset:
                for how in (goal.chosen, *(goal.others if sys.argv[1] == "choose" else ())):
                    row(goal, how, x, y, test)


if __name__ == "__main__":
    main()
