"""Book-keeping for nn.Embedding, also with padding_idx."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from sordino.gradients.layers.base import TapedLayer, tokens
from sordino.gradients.tape import Op, Tape, Weight
from sordino.gradients.terms import Lookup


class EmbeddingTable(Op):
    """A table lookup y_t = E[i_t]; the gradient of row r is the sum of g_t over the tokens with i_t = r."""

    def __init__(self, tape: Tape, weight: Weight, padding: int | None) -> None:
        super().__init__(tape, weight)
        self.weight, self.padding = weight, padding

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight.value
        if not self.tape.stacked:
            return F.embedding(x, w)
        return w[self.tape.split.owner(x.device).view(-1, *(1,) * (x.dim() - 1)), x]

    def backward(self, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        if self.padding is not None:
            g = g.masked_fill((x == self.padding).unsqueeze(-1), 0)
        self.tape.note(self.weight, Lookup(tokens(x, 0), tokens(g), self.weight.value.shape[-2]))
        return None


class Embedding(TapedLayer):
    """Stand-in for nn.Embedding."""

    absolute = False

    @classmethod
    def refuses(cls, module: nn.Module) -> str | None:
        if getattr(module, "max_norm", None) is not None:
            return "renormalises its weight (max_norm)"
        if getattr(module, "scale_grad_by_freq", False):
            return "scales gradients by frequency in the batch"
        return None

    def __call__(self, x: Tensor) -> Tensor:
        padding = self.module.padding_idx
        op = EmbeddingTable(self.tape, self.needed("weight"), padding if isinstance(padding, int) else None)
        return self.tape.run(op, x)
