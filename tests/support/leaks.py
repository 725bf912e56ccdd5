"""Small networks on digits, and one round of a run as its server, its clients and the public saw it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import sordino
from sordino.attacks.base import Knowledge
from sordino.core.local_training import Local
from sordino.core.types import Model
from sordino.core.vector import Layout
from sordino.core.view import View
from sordino.data.load import load
from sordino.gradients import CohortGradients
from sordino.tasks.losses import cross_entropy

SHAPE, LOW, HIGH = (1, 28, 28), -0.4242, 2.8215  # of an MNIST digit as models get it
BOX = {"shape": SHAPE, "low": LOW, "high": HIGH}


@cache
def _mnist() -> tuple[Tensor, Tensor]:
    data = load("mnist")
    return data.prepare(data.x_train[:1000]), data.y_train[:1000].long()


def digits(count: int) -> tuple[Tensor, Tensor]:
    """The first digits of MNIST, scaled."""
    x, y = _mnist()
    return x[:count].clone(), y[:count].clone()


def pixels(x: Tensor) -> Tensor:
    """Digits in [0, 1]."""
    return (x * 0.3081 + 0.1307).clamp(0, 1)


def seeded(make: Any, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return make()


def lenet(activation: type[nn.Module] = nn.Tanh, spread: float | None = None) -> nn.Module:
    """The LeNet of Zhu et al. (2019), with two convolutions; they draw all weights from [-spread, spread]."""
    net = seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 12, 5, padding=2, stride=2), activation(),
            nn.Conv2d(12, 12, 5, padding=2, stride=2), activation(), nn.Flatten(), nn.Linear(588, 10),
        )
    )  # fmt: skip
    if spread is not None:
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in net.parameters():
                weight.uniform_(-spread, spread, generator=draw)
    return net


def modelled(module: nn.Module) -> Model:
    layout = Layout.of(module)
    return Model(module, layout, cross_entropy, CohortGradients.of(module, cross_entropy, layout))


def known(module: nn.Module, **more: Any) -> Knowledge:
    """What an attacker knows of a run by `watched`."""
    return Knowledge(**{"model": modelled(module), "classes": 10, "local": Local(learning_rate=0.1)} | more)


def watched(module: nn.Module, clients: Any, tmp_path: Any, **keys: Any) -> dict[str, list[View]]:
    """The views of a run, by viewer; one round unless the keys say otherwise."""
    seen: dict[str, list[View]] = {}
    usual = {"rounds": 1, "seed": 0, "method": "none", "learning_rate": 0.1, "device": "cpu", "out": str(tmp_path)}
    sordino.train(module, clients, observe=lambda v: seen.setdefault(v.viewer, []).append(v), **usual | keys)
    seen["client"] = [View("client", v.round, v.phase, v.state) for v in seen["server"]]
    return seen
