"""Book-keeping for nn.Linear, with any number of leading dimensions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.half import total
from sordino.gradients.layers.base import TapedLayer, tokens
from sordino.gradients.tape import Op, Tape, Weight
from sordino.gradients.terms import Dense, Outer


class LinearMap(Op):
    """A linear map y_t = W x_t + b for every token t; dL/dW = sum_t g_t x_tᵀ, dL/db = sum_t g_t."""

    half = True

    def __init__(self, tape: Tape, weight: Weight, bias: Weight | None) -> None:
        super().__init__(tape, weight, bias)
        self.weight, self.bias = tape.narrow(weight), None if bias is None else tape.narrow(bias)

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.value
        if self.tape.stacked:
            return self.tape.split.linear(x, self.weight.value, bias)
        return F.linear(x, self.weight.value, bias)

    def backward(self, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        gx = None
        if wanted:
            stacked, w = self.tape.stacked, self.weight.value
            gx = self.tape.split.linear(g, w.transpose(1, 2)) if stacked else torch.matmul(g, w)
        if self.weight.slot is not None:
            self.tape.note(self.weight, Outer(tokens(x), tokens(g)))
        if self.bias is not None and self.bias.slot is not None:
            self.tape.note(self.bias, Dense(total(tokens(g))))
        return gx


class Linear(TapedLayer):
    """Stand-in for nn.Linear."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.tape.run(LinearMap(self.tape, self.needed("weight"), self.weight("bias")), x)
