"""The papers' ideas against plain DP-SGD, each with its own best learning rate; few clients and many.

    python benchmarks/own_rates.py choose     # learning rates on 5,000 held-out training records, one seed
    python benchmarks/own_rates.py confirm    # the best of each on the test set, 5 seeds

MNIST on fixed features, a linear model, epsilon = 0.5 and delta = 1e-5 in total for a record that is added or removed,
against a curious server: 50 rounds of one full-batch step, the last quarter of the models averaged. Prints Markdown.
"""

import tempfile

from held_out import choose_or_confirm
from torch import Tensor

import sordino
from sordino.core.rng import Stream
from sordino.data import partition
from sordino.data.clients import ArrayClients
from sordino.models.linear import linear
from sordino.report.summary import Spread

EPSILON, ROUNDS, SEEDS = 0.5, 50, 5
METHODS, CLIENTS = ("dp-sgd", "adaptive-noise", "fedsdp"), (50, 700)  # udp-fl is dp-sgd, number for number
RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
CHOSEN = {  # by `choose`
    ("dp-sgd", 50): 2.0, ("adaptive-noise", 50): 4.0, ("fedsdp", 50): 1.0,
    ("dp-sgd", 700): 0.5, ("adaptive-noise", 700): 1.0, ("fedsdp", 700): 0.5,
}  # fmt: skip


def accuracy(
    method: str, clients: int, rate: float, x: Tensor, y: Tensor, test: tuple[Tensor, Tensor], seed: int
) -> float:
    parts = partition.iid(len(x), clients, Stream.research(seed).at("partition"))
    dealt = ArrayClients.split(x, y, parts)
    own = {"private_data": [(y[part] >= 8).long() for part in parts]} if method == "fedsdp" else {}
    with tempfile.TemporaryDirectory() as out:
        result = sordino.train(
            linear((x.shape[1],), 10), dealt, test=test, method=method, epsilon=EPSILON, delta=1e-5, rounds=ROUNDS,
            learning_rate=rate, averaging="tail:0.25", seed=seed, out=out, evaluate_every=10**6,
            checkpoint_seconds=1e9, **own,
        )  # fmt: skip
    return 100 * (result.accuracy or 0.0)


def choose(x: Tensor, y: Tensor, test: tuple[Tensor, Tensor]) -> None:
    print("| clients | method | " + " | ".join(f"rate {r:g}" for r in RATES) + " |\n|" + " --- |" * (2 + len(RATES)))
    for clients in CLIENTS:
        for method in METHODS:
            found = [f"{accuracy(method, clients, rate, x, y, test, 0):.2f}" for rate in RATES]
            print(f"| {clients} | `{method}` | {' | '.join(found)} |", flush=True)


def confirm(x: Tensor, y: Tensor, test: tuple[Tensor, Tensor]) -> None:
    print("| clients | method | learning rate | accuracy % |\n| --- | --- | --- | --- |")
    for clients in CLIENTS:
        for method in METHODS:
            rate = CHOSEN[method, clients]
            found = Spread.of(accuracy(method, clients, rate, x, y, test, seed) for seed in range(SEEDS))
            print(f"| {clients} | `{method}` | {rate:g} | {found.mean:.2f} ± {found.deviation:.2f} |", flush=True)


if __name__ == "__main__":
    choose_or_confirm(__doc__, choose, confirm)
