"""Every model plug-in once, as small as it gets, and as its docstring counts its parameters."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sordino.core import plugin

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    small: Shape  # what tests run on
    outputs: int
    full: Shape  # what the docstring counts the parameters of,
    full_outputs: int  # with so many outputs
    kind: str = "classification"  # or "next-token", "regression"
    learns: bool = True  # quick enough to be taught something
    narrow: Mapping[str, Any] = field(default_factory=dict)  # constants of the plug-in, for fewer channels a layer

    def build(self, name: str, full: bool = False) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            make = plugin.load("models", name)
            return make(self.full, self.full_outputs) if full else make(self.small, self.outputs)

    def build_narrow(self, name: str) -> nn.Module:
        """As small, and where layers are wide, with every layer but fewer channels in it."""
        with pytest.MonkeyPatch.context() as patch:
            for constant, value in self.narrow.items():
                patch.setattr(sys.modules[plugin.load("models", name).__module__], constant, value)
            return self.build(name)

    def records(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """A problem that can be learnt: which half is brighter, what comes next in a cycle, a smooth curve."""
        g = torch.Generator().manual_seed(seed)
        if self.kind == "next-token":
            start = torch.randint(self.outputs, (n, 1), generator=g)
            cycle = (start + torch.arange(self.small[0] + 1)) % self.outputs
            return cycle[:, :-1], cycle[:, 1:]
        x = torch.randn(n, *self.small, generator=g)
        if self.kind == "regression":
            return x, (2 * x.flatten(1).mean(1)).sigmoid().unsqueeze(1)
        y = torch.randint(2, (n,), generator=g)
        x[..., : self.small[-1] // 2] += (2 * y - 1).view(-1, *(1,) * len(self.small))
        return x, y


MNIST, CIFAR = ((1, 28, 28), 10), ((3, 32, 32), 10)
CASES = {
    "cnn": Case((1, 16, 16), 3, *MNIST),
    "cnn-cifar": Case((3, 8, 8), 3, *CIFAR),
    "cnn-femnist": Case((1, 8, 8), 3, *MNIST),
    "cnn-medical": Case((3, 16, 16), 3, (3, 64, 64), 6),
    "cnn-mnist": Case((1, 16, 16), 3, *MNIST),
    "cnn-mnist-plain": Case((1, 16, 16), 3, *MNIST),
    "cnn-wind": Case((2, 8), 1, (4, 24), 1, "regression"),
    "linear": Case((6,), 3, *MNIST),
    "lstm": Case((6,), 5, (80,), 80, "next-token"),
    "mlp": Case((2, 5), 3, *MNIST),
    "resnet18": Case((3, 8, 8), 3, *CIFAR, learns=False, narrow={"CHANNELS": (16, 32, 64, 128), "GROUPS": 8}),
    "scattering-cnn": Case((5, 8, 8), 3, (267, 8, 8), 10),
    "transformer": Case((6,), 5, (80,), 80, "next-token"),
    "wide-resnet": Case((3, 8, 8), 3, *CIFAR, learns=False, narrow={"WIDTH": 1}),
}
