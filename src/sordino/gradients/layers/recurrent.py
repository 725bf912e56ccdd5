"""Book-keeping for nn.RNN, nn.LSTM and nn.GRU, unrolled into linear maps.

A cell consists of two linear maps and element-wise functions. The map of the inputs runs over all time steps at once;
the map of the hidden state is used once per step, and its terms are added over time, as for any layer that is used more
than once. For the formulas see the documentation of torch.nn.LSTM, torch.nn.GRU and torch.nn.RNN.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sordino.gradients.layers.base import TapedLayer
from sordino.gradients.layers.dropout import drop
from sordino.gradients.layers.linear import LinearMap
from sordino.gradients.tape import Unsupported

State = tuple[Tensor, ...]


class TapedRecurrent(TapedLayer):
    """Stand-in for nn.RNN, nn.LSTM and nn.GRU."""

    absolute = False

    names = r"(weight|bias)_(ih|hh|hr)_l\d+(_reverse)?"

    @property
    def places(self) -> tuple[int, int]:
        return (0 if self.module.batch_first else 1), 1

    def linear(self, x: Tensor, weight: str, bias: str | None) -> Tensor:
        """Apply a linear map with these parameters of the module to x."""
        op = LinearMap(self.tape, self.needed(weight), None if bias is None else self.weight(bias))
        return self.tape.run(op, x)

    def __call__(self, x: Tensor, hx: Any = None) -> Any:
        m: Any = self.module
        if not isinstance(x, Tensor) or x.dim() != 3:
            raise Unsupported(f"{type(m).__name__} is given a packed or unbatched sequence")
        first = x if m.batch_first else x.transpose(0, 1)  # [records, time, features]
        directions = 2 if m.bidirectional else 1
        start = self._start(first, hx, m.num_layers * directions)
        ends: list[State] = []
        for layer in range(m.num_layers):
            outs = []
            for direction in range(directions):
                suffix = f"_l{layer}" + ("_reverse" if direction else "")
                out, end = self._run(first, start[layer * directions + direction], suffix, bool(direction))
                outs.append(out)
                ends.append(end)
            first = torch.cat(outs, -1) if directions == 2 else outs[0]
            if m.dropout > 0 and m.training and layer < m.num_layers - 1:
                first = drop(first, m.dropout, self.tape)
        last = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
        return first if m.batch_first else first.transpose(0, 1), last if isinstance(m, nn.LSTM) else last[0]

    def _start(self, x: Tensor, hx: Any, count: int) -> list[State]:
        m: Any = self.module
        if hx is not None:
            parts = hx if isinstance(m, nn.LSTM) else (hx,)
            return [tuple(part[i] for part in parts) for i in range(count)]
        hidden = x.new_zeros(x.shape[0], m.proj_size or m.hidden_size)
        if isinstance(m, nn.LSTM):
            return [(hidden, x.new_zeros(x.shape[0], m.hidden_size))] * count
        return [(hidden,)] * count

    def _run(self, x: Tensor, state: State, suffix: str, reverse: bool) -> tuple[Tensor, State]:
        """Run one layer in one direction; return the outputs [records, time, hidden] and the last state."""
        inputs = self.linear(x, "weight_ih" + suffix, "bias_ih" + suffix).unbind(1)
        outs: list[Tensor] = []
        for step in reversed(inputs) if reverse else inputs:
            state = self._cell(step, state, suffix)
            outs.append(state[0])
        return torch.stack(outs[::-1] if reverse else outs, 1), state

    def _cell(self, inputs: Tensor, state: State, suffix: str) -> State:
        m: Any = self.module
        h = state[0]
        hidden = self.linear(h, "weight_hh" + suffix, "bias_hh" + suffix)
        if isinstance(m, nn.LSTM):
            i, f, c, o = (inputs + hidden).chunk(4, -1)
            cell = f.sigmoid() * state[1] + i.sigmoid() * c.tanh()
            h = o.sigmoid() * cell.tanh()
            return (self.linear(h, "weight_hr" + suffix, None) if m.proj_size else h), cell
        if isinstance(m, nn.GRU):
            (r, z, n), (hr, hz, hn) = inputs.chunk(3, -1), hidden.chunk(3, -1)
            z = (z + hz).sigmoid()
            return ((1 - z) * (n + (r + hr).sigmoid() * hn).tanh() + z * h,)
        total = inputs + hidden
        return (total.relu() if m.nonlinearity == "relu" else total.tanh(),)
