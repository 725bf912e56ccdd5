"""Conversion between a model's trainable parameters and one vector.

A `Layout` is made once from a module. It gives the slice of every trainable parameter, in the order of
`named_parameters()`: a tied parameter has one slice; frozen parameters and buffers have none, so they can neither
change nor leave the client.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Slot:
    """The slice of the vector that holds one parameter."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """The positions of all trainable parameters of a module in one vector."""

    slots: tuple[Slot, ...]

    @staticmethod
    def of(module: nn.Module) -> Layout:
        """Return the layout of a module."""
        slots, start = [], 0
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                stop = start + math.prod(parameter.shape)
                slots.append(Slot(name, tuple(parameter.shape), start, stop))
                start = stop
        return Layout(tuple(slots))

    @property
    def dim(self) -> int:
        """Return the length of the vector."""
        return self.slots[-1].stop if self.slots else 0

    def layers(self) -> dict[str, slice]:
        """Return the slice of the vector of every layer, by name and in order.

        A layer consists of all trainable parameters of one module (`0.weight` and `0.bias` of `0`), which
        `named_parameters()` returns consecutively. Parameters of the model itself, if any, form the layer named "".
        """
        slices = {}
        for name, group in groupby(self.slots, lambda slot: slot.name.rpartition(".")[0]):
            slots = list(group)
            slices[name] = slice(slots[0].start, slots[-1].stop)
        return slices

    def layer_of(self) -> dict[str, int]:
        """Return the index of the layer of every parameter, by the parameter's name."""
        place = {name: i for i, name in enumerate(self.layers())}
        return {slot.name: place[slot.name.rpartition(".")[0]] for slot in self.slots}

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return named views of a vector [dim] or of rows [clients, dim]; writing to a view writes to the vector."""
        lead = vector.shape[:-1]
        return {s.name: vector[..., s.start : s.stop].view((*lead, *s.shape)) for s in self.slots}

    def read(self, module: nn.Module) -> Tensor:
        """Return the module's trainable parameters as a new vector [dim]."""
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
