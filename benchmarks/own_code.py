"""What it costs that one's own module or loss is given one record at a time.

    python benchmarks/own_code.py [--records 256] [--turns 9]

The same layers three times, in turns: in `nn.Sequential`, which takes whole batches; in a class with a forward of its
own; and that class with per-sample gradients of everything by vmap, the way that was not taken. Prints the median of
the time of a clipped sum over that of `nn.Sequential`, and whether the sums have the same bits.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.gradients.engine import CohortGradients
from sordino.tasks.losses import cross_entropy


class Own(nn.Module):
    """The layers of a Sequential, run by code that nobody knows."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.ReLU(),
        nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=256)
    parser.add_argument("--turns", type=int, default=9)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | own code / nn.Sequential | all by vmap / nn.Sequential | same bits |\n| --- | --- | --- | --- |")
    for make in (cnn, mlp):
        torch.manual_seed(0)
        known = make()
        x, y = torch.randn(asked.records, 1, 28, 28), torch.randint(0, 10, (asked.records,))
        batch = Batch(x, y, (asked.records,))
        paths = {"known": (known, "auto"), "own": (Own(known), "auto"), "vmap": (Own(known), "vmap")}
        work = {name: _sums(module, path, batch) for name, (module, path) in paths.items()}
        same = torch.equal(work["known"](), work["own"]())
        work["vmap"]()
        took: dict[str, list[float]] = {name: [] for name in work}
        for _ in range(asked.turns):
            for name, one in work.items():
                begun = time.process_time()
                one()
                took[name].append(time.process_time() - begun)
        middle = {name: statistics.median(each) for name, each in took.items()}
        ratios = [f"{middle[name] / middle['known']:.2f}" for name in ("own", "vmap")]
        print(f"| {make.__name__} | {' | '.join(ratios)} | {'yes' if same else 'no'} |", flush=True)


def _sums(module: nn.Module, path: str, batch: Batch) -> Callable[[], Tensor]:
    layout = Layout.of(module)
    gradients, weights = CohortGradients.of(module, cross_entropy, layout, path), layout.read(module)
    return lambda: gradients.sums(weights, batch, 1.0, seeds=[0])


if __name__ == "__main__":
    main()
