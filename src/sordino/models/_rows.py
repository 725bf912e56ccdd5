"""Rows of unit length: the first layer of models for tables, and the middle of a declared range as their last one.

A record x becomes [x, 1] / |[x, 1]|, which bounds every gradient of a linear model without any declared bound. After
private statistics are released, rows are centred and their columns scaled as well, and brought to unit length again:

    u = x / |[x, 1]|,    row = unit( scale * [u - shift, b] )

Scaling makes columns comparable, so that one learning rate suits all of them. Columns whose bounds nobody declared may
be in units that differ by orders of magnitude, below which the noise would hide the small ones: they are put on a
logarithmic scale first.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

BLOCK = 1 << 18  # numbers mapped at once on a CPU: few enough to stay in its cache from one operation to the next
SMALLEST = 1e-12  # length below which a row counts as zero


class UnitRows(nn.Module):
    """Map records [n, d] to rows [n, d + 1] of unit length.

    The constants are public: they are set once, from charged statistics, and are part of the model. Before that a row
    is [x, 1] / |[x, 1]|.
    """

    shift: Tensor  # [d]
    scale: Tensor  # [d + 1]
    last: Tensor  # [2]: weights of 1 / |[x, 1]| and of 1 in the last column

    def __init__(self, features: int, log: bool = False) -> None:
        super().__init__()
        self.log = log  # whether columns are put on the scale sign(v) log(1 + |v|) first
        self.register_buffer("shift", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features + 1))
        self.register_buffer("last", torch.tensor([1.0, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        """Return rows [n, d + 1] of unit length."""
        if x.is_cuda or x.dim() != 2 or torch.compiler.is_compiling() or torch._C._get_tracing_state():
            return self._mapped(x)  # an exported model takes any number of records
        many = max(1, BLOCK // max(1, x.shape[-1]))
        if len(x) <= many:
            return self._mapped(x)
        return torch.cat([self._mapped(part) for part in x.split(many)])

    def _mapped(self, x: Tensor) -> Tensor:
        direction, inverse = unit(logarithmic(x) if self.log else x)
        last = self.last[0] * inverse + self.last[1]
        row = torch.cat([direction - self.shift, last], dim=-1) * self.scale
        length: Tensor = torch.linalg.vector_norm(row, dim=-1, keepdim=True)
        return row / length.clamp_min(SMALLEST)

    def centre(self, shift: Tensor, middle: float, scale: Tensor) -> None:
        """Set the constants: the shift [d], the last column b, and the scale [d + 1]."""
        with torch.no_grad():
            self.shift.copy_(shift)
            self.scale.copy_(scale)
            self.last.copy_(torch.tensor([0.0, middle]))

    def reset(self) -> None:
        """Forget the constants, as before anything was released."""
        with torch.no_grad():
            self.shift.zero_()
            self.scale.fill_(1.0)
            self.last.copy_(torch.tensor([1.0, 0.0]))


class Midpoint(nn.Module):
    """Add a public constant to every prediction, so that an untrained model predicts the middle of the range."""

    def __init__(self, middle: float = 0.5) -> None:
        super().__init__()
        self.middle = middle

    def forward(self, x: Tensor) -> Tensor:
        """Return the predictions with the constant added."""
        return x + self.middle


def logarithmic(x: Tensor) -> Tensor:
    """Return sign(x) log(1 + |x|), which makes columns of very different units comparable without looking at them."""
    return x.sign() * x.abs().log1p()


def unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x / |[x, 1]| and 1 / |[x, 1]| [n, 1], without overflow for large numbers."""
    largest = x.abs().amax(dim=-1, keepdim=True).clamp_min(1.0)
    small, one = x / largest, 1.0 / largest
    length = (small.square().sum(dim=-1, keepdim=True) + one.square()).sqrt()
    return small / length, one / length
