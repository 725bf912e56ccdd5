"""A model's trainable parameters as one vector, and back.

`Layout` is made once from a module. It names the slice of every trainable parameter, in the order of
`named_parameters()`: a tied parameter has one slice, a frozen parameter and a buffer have none, so they can
neither move nor leave the client.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Slot:
    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    slots: tuple[Slot, ...]

    @staticmethod
    def of(module: nn.Module) -> Layout:
        slots, start = [], 0
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                stop = start + math.prod(parameter.shape)
                slots.append(Slot(name, tuple(parameter.shape), start, stop))
                start = stop
        return Layout(tuple(slots))

    @property
    def dim(self) -> int:
        return self.slots[-1].stop if self.slots else 0

    def layers(self) -> dict[str, slice]:
        """{name of a layer: its slice of the vector}, in order.

        A layer is all trainable parameters of one module (`0.weight` and `0.bias` of `0`), and `named_parameters()`
        gives them one after the other; the model's own parameters, if any, are the layer named "".
        """
        found = {}
        for name, group in groupby(self.slots, lambda slot: slot.name.rpartition(".")[0]):
            slots = list(group)
            found[name] = slice(slots[0].start, slots[-1].stop)
        return found

    def layer_of(self) -> dict[str, int]:
        """{name of a parameter: number of its layer}."""
        place = {name: i for i, name in enumerate(self.layers())}
        return {slot.name: place[slot.name.rpartition(".")[0]] for slot in self.slots}

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Named views of a vector [dim] or of rows [clients, dim]; writing to a view writes to the vector."""
        lead = vector.shape[:-1]
        return {s.name: vector[..., s.start : s.stop].view((*lead, *s.shape)) for s in self.slots}

    def read(self, module: nn.Module) -> Tensor:
        """The module's trainable parameters as a fresh vector [dim]."""
        parameters = dict(module.named_parameters())
        if not self.slots:
            return torch.zeros(0)
        return torch.cat([parameters[s.name].detach().reshape(-1) for s in self.slots]).clone()

    def write(self, module: nn.Module, vector: Tensor) -> None:
        """Copy a vector [dim] into the module's trainable parameters, in place."""
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, view in self.views(vector.detach()).items():
                parameters[name].copy_(view)
