"""Small generator and discriminator networks of attacks, with weights drawn from the attacker's own randomness."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.attacks.base import Knowledge, Victim
from sordino.core.view import View

WIDTH = 64  # channels of the coarsest layer


def generator(noise: int, shape: tuple[int, ...], draw: torch.Generator) -> nn.Module:
    """Return a network from noise [n, noise] to unbounded records [n, *shape].

    Pictures are made by two convolutions after doubling the sides, as in DCGAN (Radford et al. 2016, arXiv:1511.06434)
    with nearest neighbours in place of transposed convolutions; other records by a hidden layer.
    """
    with torch.device("meta"):
        if len(shape) == 3:
            coarse = tuple(-(-side // 4) for side in shape[1:])
            net: nn.Module = nn.Sequential(
                nn.Linear(noise, WIDTH * math.prod(coarse)), nn.Unflatten(1, (WIDTH, *coarse)),
                nn.GroupNorm(8, WIDTH), nn.ReLU(),
                nn.Upsample(scale_factor=2), nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.GroupNorm(8, WIDTH), nn.ReLU(),
                nn.Upsample(scale_factor=2), nn.Conv2d(WIDTH, WIDTH // 2, 3, padding=1), nn.GroupNorm(8, WIDTH // 2),
                nn.ReLU(), nn.Conv2d(WIDTH // 2, shape[0], 3, padding=1), _Cropped(shape[1], shape[2]),
            )  # fmt: skip
        else:
            size = math.prod(shape)
            net = nn.Sequential(
                nn.Linear(noise, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, size), nn.Unflatten(1, shape)
            )
    return drawn(net, draw)


def discriminator(shape: tuple[int, ...], draw: torch.Generator) -> nn.Module:
    """Return a network from records to logits, positive where a record looks real.

    Pictures are judged by patches of 7 x 7 pixels (Isola et al. 2017, arXiv:1611.07004, Section 3.2.2), each with a
    logit of its own, so that it learns strokes and textures, which all classes share, and not the layout of a class.
    """
    with torch.device("meta"):
        if len(shape) == 3:
            net: nn.Module = nn.Sequential(
                nn.Conv2d(shape[0], WIDTH // 2, 3, stride=2, padding=1), nn.LeakyReLU(0.2),
                nn.Conv2d(WIDTH // 2, WIDTH, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(WIDTH, 1, 1),
            )  # fmt: skip
        else:
            net = nn.Sequential(
                nn.Flatten(), nn.Linear(math.prod(shape), WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, 1)
            )
    return drawn(net, draw)


def conditioned(noise: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return the input of a generator that makes records of labels y: noise [n, noise] and one-hot labels."""
    return torch.cat([noise, F.one_hot(y, classes).to(noise.dtype)], dim=1)


def wanted(victim: Victim, knowledge: Knowledge) -> Tensor:
    """Return the labels of the records to make [records]: those asked for in turn, or all in turn."""
    labels = victim.labels or tuple(range(knowledge.classes or 1))
    return torch.tensor([labels[k % len(labels)] for k in range(victim.records)])


def broadcasts(views: Sequence[View]) -> list[Tensor]:
    """Return the models that a viewer saw, one a round, in order."""
    return [params for _, params in sorted({view.round: view.state.params for view in views}.items())]


def drawn(net: nn.Module, draw: torch.Generator) -> nn.Module:
    """Return a network on the CPU with weights from a generator: He et al. (2015), biases 0, scales of norms 1."""
    net = net.to_empty(device="cpu")
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if weight.ndim > 1:
                fan = math.prod(weight.shape[1:])
                weight.copy_(torch.randn(weight.shape, generator=draw) * math.sqrt(2 / fan))
            else:
                weight.fill_(1.0 if name.endswith("weight") else 0.0)
    return net


class _Cropped(nn.Module):
    """Cuts pictures to a size."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.height, self.width = height, width

    def forward(self, x: Tensor) -> Tensor:
        """Return the upper left part of pictures."""
        return x[:, :, : self.height, : self.width]
