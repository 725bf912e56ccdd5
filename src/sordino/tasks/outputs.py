"""Models that return an object with the predictions in it, as Hugging Face models do, wrapped to return the tensor.

Everything else in Sordino sees a model that returns one tensor with a row per record. The wrapper adds no parameters;
`unwrapped` takes it away again from the trained model, whose parameters then have their own names.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sordino.core.errors import ModelError
from sordino.core.state import Snapshot


class Logits(nn.Module):
    """A module whose output is the tensor `logits` of what the wrapped module returns."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, one row per record."""
        tensor = tensor_of(self.module(x))
        if tensor is None:
            raise ModelError("the model must return a tensor, or an object with a tensor `logits`, in every call.")
        return tensor


def tensor_of(output: Any) -> Tensor | None:
    """Return the predictions in a model's output: itself, its attribute `logits` or its entry "logits"; else None."""
    if isinstance(output, Tensor):
        return output
    inner = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    return inner if isinstance(inner, Tensor) else None


def tensor_valued(module: nn.Module, sample: Tensor) -> nn.Module:
    """Return the module, wrapped if it returns an object with logits for the sample.

    A module that fails on the sample, or returns something else, is returned unchanged: `validate` says what is wrong.
    """
    try:
        with Snapshot(module), torch.no_grad():
            output = copy.deepcopy(module).eval()(sample)
    except Exception:  # whatever the user's forward raises
        return module
    return module if isinstance(output, Tensor) or tensor_of(output) is None else Logits(module)


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module as its user knows it, without wrappers; changes modules that contain one."""
    if isinstance(module, Logits):
        return module.module
    for name, child in list(module.named_children()):
        if isinstance(child, Logits):
            setattr(module, name, child.module)
    return module
