"""Clients whose gradients are zero: whatever moves the model is noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sordino.core.message import Message
from sordino.runs import build
from support.problems import Pair, job

SIZES = (10,) * 4


def zero_layer(width: int, bias: bool = True) -> nn.Linear:
    """Return a linear layer of one output with zero weights; its gradient is zero on zero inputs and zero targets."""
    layer = nn.Linear(width, 1, bias=bias)
    for weights in layer.parameters():
        nn.init.zeros_(weights)
    return layer


def zero_clients(width: int, sizes: Sequence[int] = SIZES) -> list[Pair]:
    """Return clients of these sizes, all of whose inputs and targets are zero."""
    return [(torch.zeros(n, width), torch.zeros(n)) for n in sizes]


def silent_job(width: int, sizes: Sequence[int] = SIZES, bias: bool = True, **keys: Any) -> build.Job:
    """Return a job in which the layer stays at zero but for the noise that the method adds."""
    return job(zero_layer(width, bias), zero_clients(width, sizes), "squared_error", **keys)


def silence(clients: int, dim: int) -> Message:
    """Return a message of so many clients whose updates are zero."""
    return Message({"update": torch.zeros(clients, dim)})
