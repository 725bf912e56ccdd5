"""MNIST on fixed features for benchmarks that choose settings on held-out training records and confirm them on the test
set."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from sordino.core.rng import Stream
from sordino.data.load import load
from sordino.features.scattering import scattering

HELD_OUT = 5_000
Work = Callable[[Tensor, Tensor, tuple[Tensor, Tensor]], None]  # records, labels, what accuracies are measured on


def choose_or_confirm(words: str | None, choose: Work, confirm: Work) -> None:
    """What the command line asks for; `choose` never sees the test set. words: how the benchmark is called."""
    if sys.argv[1:] not in (["choose"], ["confirm"]):
        sys.exit(words)
    data = load("mnist")
    order = torch.from_numpy(Stream.research(99).permutation(len(data.y_train)))
    x, y = scattering(data.x_train)[order], data.y_train[order]
    if sys.argv[1] == "choose":
        choose(x[HELD_OUT:], y[HELD_OUT:], (x[:HELD_OUT], y[:HELD_OUT]))
    else:
        confirm(x, y, (scattering(data.x_test), data.y_test))
