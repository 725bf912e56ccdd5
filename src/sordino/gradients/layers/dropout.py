"""Dropout whose mask depends on nothing but the client's own seed.

Srivastava et al. (2014), JMLR 15: keep with probability 1 - p and scale by 1 / (1 - p). The flat batch holds many
clients, so the mask of each client's rows is drawn from the client's own generator; no global random state is read or
changed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sordino.gradients.layers.base import TapedLayer
from sordino.gradients.tape import Tape, Unsupported


def drop(x: Tensor, p: float, tape: Tape, shape: tuple[int, ...] | None = None) -> Tensor:
    """Return x with each entry (or each entry of `shape`, which is broadcast) dropped with probability p."""
    shape = tuple(x.shape) if shape is None else shape
    keep = x.new_empty(shape)
    for k, rows in tape.split.slices():
        keep[rows] = torch.rand(keep[rows].shape, generator=tape.draw.generator(k, x.device), device=x.device)
    return x * ((keep >= p).to(x.dtype) / (1 - p)) if p < 1 else x * 0


class Dropout(TapedLayer):
    """Stand-in for nn.Dropout, which drops single entries."""

    def shape(self, x: Tensor) -> tuple[int, ...]:
        """Return the shape of the mask."""
        return tuple(x.shape)

    def __call__(self, x: Tensor) -> Tensor:
        p = float(self.module.p)  # type: ignore[arg-type]
        return drop(x, p, self.tape, self.shape(x)) if self.module.training and p > 0 else x


class ChannelDropout(Dropout):
    """Stand-in for nn.Dropout1d, nn.Dropout2d and nn.Dropout3d, which drop whole channels."""

    def shape(self, x: Tensor) -> tuple[int, ...]:
        if x.dim() != 2 + self.spatial:
            raise Unsupported(f"{type(self.module).__name__} is given {x.dim()} dimensions")
        return (*x.shape[:2], *(1,) * self.spatial)

    @property
    def spatial(self) -> int:
        """Number of spatial dimensions."""
        kinds = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
        return 1 + [isinstance(self.module, kind) for kind in kinds].index(True)
