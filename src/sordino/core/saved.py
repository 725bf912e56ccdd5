"""Conversion between a state and the named tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sordino.core.errors import RunError
from sordino.core.types import State
from sordino.core.variables import flat, restored

PARTS = ("method", "algorithm", "inputs")  # parts of a state that have variables


def written(state: State) -> dict[str, Tensor]:
    """Return a state as named tensors that share no memory."""
    out = {"params": state.params}
    if state.average is not None:
        out["average"] = state.average
    for part in PARTS:
        out |= flat(part, getattr(state, part))
    seen: set[int] = set()
    for name, value in out.items():  # safetensors refuses tensors that share memory
        if value.numel() and value.data_ptr() in seen:
            out[name] = value.clone()
        seen.add(value.data_ptr())
    return out


@dataclass(frozen=True)
class Saved:
    """The contents of a checkpoint."""

    tensors: Mapping[str, Tensor]
    done: int  # rounds completed

    def __post_init__(self) -> None:
        if "params" not in self.tensors:
            raise KeyError("params")

    def restored(self, fresh: State, device: torch.device) -> State:
        """Return the state that was saved.

        Args:
            fresh: the state with which the same run starts; the saved tensors replace its values.
            device: where the tensors go.

        Raises:
            RunError: if the checkpoint does not fit this run, or an earlier version wrote it.
        """
        if any(name.startswith("extra.") for name in self.tensors):
            raise RunError("the checkpoint was written by an earlier version of sordino: resume it with that one.")
        average = self.tensors.get("average")
        if (average is None) != (fresh.average is None) or self.tensors["params"].shape != fresh.params.shape:
            raise RunError("the checkpoint does not fit this run: it was written by another model or configuration.")
        parts = {name: restored(name, getattr(fresh, name), self.tensors, device) for name in PARTS}
        return replace(
            fresh,
            params=self.tensors["params"].to(device),
            round=self.done,
            average=None if average is None else average.to(device),
            **parts,
        )
