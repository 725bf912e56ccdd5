"""CIFAR-10 at epsilon 8, 10 clients behind a secure sum, fixed features, nothing pretrained and no public pictures.

    python benchmarks/cifar_goal.py choose [0 3]   # every setting, or those named, on 5,000 held-out training records
    python benchmarks/cifar_goal.py confirm        # the chosen one (0) on the test set, 3 seeds

`choose` never reads a test record. Wants a GPU: features of 50,000 pictures are 3.4 GB, a run is half a minute to some
minutes of one. How the constants of the features were chosen: benchmarks/feature_constants.py.
"""

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import sordino
from sordino.core import plugin
from sordino.core.rng import Stream
from sordino.data import partition
from sordino.data.clients import ArrayClients
from sordino.data.load import load
from sordino.features.colour_scattering import colour_scattering

CLIENTS, HELD_OUT, EPSILON, DELTA = 10, 5_000, 8.0, 1e-5


@dataclass(frozen=True)
class Setting:
    model: str
    rounds: int
    rate: float  # of a client's records in a step
    learning_rate: float
    momentum: float = 0.0  # at the server
    schedule: str = "linear"

    @property
    def keys(self) -> dict[str, Any]:
        own: dict[str, Any] = {"rounds": self.rounds, "batch_rate": self.rate, "schedule": self.schedule}
        own |= {"learning_rate": self.learning_rate}
        return own | ({"algorithm": "fedavgm", "server_momentum": self.momentum} if self.momentum else {})

    def __str__(self) -> str:
        batch = "full batches" if self.rate == 1 else f"batch rate {self.rate:g}"
        text = f"{self.model}, {self.rounds} rounds, {batch}, learning rate {self.learning_rate:g} ({self.schedule})"
        return text + (f", server momentum {self.momentum:g}" if self.momentum else "")


CHOSEN = Setting("linear", 200, 1.0, 64.0, schedule="cosine")
OTHERS = (
    Setting("linear", 200, 1.0, 128.0, schedule="cosine"),
    Setting("linear", 200, 1.0, 256.0, schedule="cosine"),
    Setting("scattering-cnn", 400, 0.33, 2.0, 0.9),
    Setting("scattering-cnn", 400, 0.33, 4.0, 0.9),
    Setting("scattering-cnn", 800, 0.33, 2.0, 0.9),
    Setting("scattering-cnn", 300, 0.16, 3.0, 0.9),
    Setting("linear", 400, 1.0, 128.0, schedule="cosine"),
)


def accuracy(how: Setting, x: Tensor, y: Tensor, test: tuple[Tensor, Tensor], seed: int) -> float:
    dealt = ArrayClients.split(x, y, partition.iid(len(x), CLIENTS, Stream.research(seed).at("partition")))
    torch.manual_seed(seed)
    module = plugin.load("models", how.model)(tuple(x.shape[1:]), 10)
    with tempfile.TemporaryDirectory() as out:
        result = sordino.train(
            module, dealt, test=test, method="dp-sgd", channel="secure-sum", epsilon=EPSILON, delta=DELTA, seed=seed,
            averaging="ema:0.97", out=out, evaluate_every=10**6, checkpoint_seconds=1e9, **how.keys,
        )  # fmt: skip
    return 100 * (result.accuracy or 0.0)


def main() -> None:
    settings = (CHOSEN, *OTHERS)
    named = [int(text) for text in sys.argv[2:] if text.isdigit() and int(text) < len(settings)]
    if sys.argv[1:2] not in (["choose"], ["confirm"]) or len(named) < len(sys.argv[2:]):
        sys.exit(__doc__)
    data, device = load("cifar10"), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    order = torch.from_numpy(Stream.research(99).permutation(len(data.y_train)))
    x, y = colour_scattering(data.x_train.to(device))[order].cpu(), data.y_train[order]
    confirm = sys.argv[1] == "confirm"
    if confirm:
        test = colour_scattering(data.x_test.to(device)).cpu(), data.y_test
    else:
        test, x, y = (x[:HELD_OUT], y[:HELD_OUT]), x[HELD_OUT:], y[HELD_OUT:]
    print("| setting | mean accuracy % | seeds | seconds a run |\n| --- | --- | --- | --- |", flush=True)
    for how in [CHOSEN] if confirm else [settings[i] for i in named or range(len(settings))]:
        begun = time.monotonic()
        found = [accuracy(how, x, y, test, seed) for seed in ((0, 1, 2) if confirm else (0,))]
        shown = " / ".join(f"{a:.2f}" for a in found)
        seconds = (time.monotonic() - begun) / len(found)
        print(f"| {how} | {statistics.mean(found):.2f} | {shown} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
