"""Client-level privacy on MNIST: what ideas are worth against plain clipped and noised updates, at one honest budget.

    python benchmarks/client_level.py choose     # clips and rounds, on held-out training records
    python benchmarks/client_level.py confirm    # the chosen ones on the test set, 5 seeds

A thousand clients, a linear model on fixed features, one full-batch step a round, delta = 1e-5. Every method has its
own best clip and number of rounds, chosen on 5,000 held-out training records; `choose` never opens the
test set. Two rankings: noise inside the clients (against a curious server; nbafl is the plain way), and noise at the
server (against everyone but the server; dp-fedavg is the plain way).
"""

import itertools
import statistics
import tempfile

from held_out import choose_or_confirm
from torch import Tensor

import sordino
from sordino.core.rng import Stream
from sordino.data import partition
from sordino.data.clients import ArrayClients
from sordino.models.linear import linear

CLIENTS, SEEDS, DELTA = 1000, 5, 1e-5
CLIPS, ROUNDS = (0.1, 0.3, 1.0, 3.0), (5, 10, 30, 100)
RATE = 4.0  # of learning: all updates but the smallest are clipped, so that the clip is the length of a step
EPSILONS = {"server": (2.0, 8.0), "public": (0.5, 2.0)}
METHODS = {"server": ("nbafl", "adaptive-noise"), "public": ("dp-fedavg", "dp-ftrl", "dp-fedsam")}
CHOSEN: dict[tuple[str, float], tuple[float, int]] = {  # (method, epsilon) -> clip, rounds
    ("nbafl", 2.0): (0.1, 30), ("nbafl", 8.0): (0.3, 30),
    ("adaptive-noise", 2.0): (0.3, 10), ("adaptive-noise", 8.0): (1.0, 5),
    ("dp-fedavg", 0.5): (0.3, 30), ("dp-fedavg", 2.0): (1.0, 100),
    ("dp-ftrl", 0.5): (0.3, 30), ("dp-ftrl", 2.0): (1.0, 30),
    ("dp-fedsam", 0.5): (0.3, 100), ("dp-fedsam", 2.0): (1.0, 100),
}  # fmt: skip


def accuracy(
    method: str, epsilon: float, how: tuple[float, int], x: Tensor, y: Tensor, test: tuple[Tensor, Tensor],
    seed: int,
) -> float:  # fmt: skip
    clip, rounds = how
    dealt = ArrayClients.split(x, y, partition.iid(len(x), CLIENTS, Stream.research(seed).at("partition")))
    with tempfile.TemporaryDirectory() as out:
        result = sordino.train(
            linear((x.shape[1],), 10), dealt, test=test, method=method, unit="client", epsilon=epsilon, delta=DELTA,
            clip=clip, learning_rate=RATE, rounds=rounds, averaging="tail:0.25", seed=seed, out=out,
            evaluate_every=10**6,
        )  # fmt: skip
    return 100 * (result.accuracy or 0.0)


def choose(x: Tensor, y: Tensor, test: tuple[Tensor, Tensor]) -> None:
    print("| method | epsilon | clip | rounds | accuracy % |\n|" + " --- |" * 5, flush=True)
    for viewer, methods in METHODS.items():
        for method, epsilon, clip, rounds in itertools.product(methods, EPSILONS[viewer], CLIPS, ROUNDS):
            found = accuracy(method, epsilon, (clip, rounds), x, y, test, 0)
            print(f"| {method} | {epsilon:g} | {clip:g} | {rounds} | {found:.2f} |", flush=True)


def confirm(x: Tensor, y: Tensor, test: tuple[Tensor, Tensor]) -> None:
    print(
        "| against | epsilon | method | clip, rounds | accuracy % | seeds |\n|" + " --- |" * 6,
        flush=True,
    )
    for viewer, methods in METHODS.items():
        for epsilon, method in itertools.product(EPSILONS[viewer], methods):
            how = CHOSEN[method, epsilon]
            found = [accuracy(method, epsilon, how, x, y, test, seed) for seed in range(SEEDS)]
            shown = " / ".join(f"{a:.2f}" for a in found)
            spread = f"{statistics.mean(found):.2f} ± {statistics.stdev(found):.2f}"
            print(
                f"| {viewer} | {epsilon:g} | `{method}` | {how[0]:g}, {how[1]} | {spread} | {shown} |",
                flush=True,
            )


if __name__ == "__main__":
    choose_or_confirm(__doc__, choose, confirm)
