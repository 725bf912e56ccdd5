"""Typed state of a method or an algorithm, as tensors on file and back.

A state is a frozen dataclass whose fields are tensors, numbers, truth values or None; `flat` writes it down as named
tensors and `restored` puts these into the object that a fresh start gives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sordino.core.errors import RunError

NONE = "?"  # behind the name of a field that is None


def flat(name: str, state: Any) -> dict[str, Tensor]:
    """Return the fields of a state as tensors under `name.field`; under `name.field?`, empty, where a field is None."""
    if state is None:
        return {}
    fields = {f.name: getattr(state, f.name) for f in dataclasses.fields(state)}
    return {f"{name}.{key}{NONE if value is None else ''}": _tensor(value) for key, value in fields.items()}


def restored(name: str, fresh: Any, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    """Return `fresh` with the values that `flat` wrote down under that name."""
    prefix = f"{name}."
    found = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    saved = {key.removesuffix(NONE): None if key.endswith(NONE) else value for key, value in found.items()}
    known = set() if fresh is None else {f.name for f in dataclasses.fields(fresh)}
    if strange := set(saved) - known:
        raise RunError(
            f"the checkpoint holds {prefix}{sorted(strange)[0]}, which this run does not have: it was written by "
            "another version or method. Resume it with that one, or start anew."
        )
    if fresh is None:
        return None
    if missing := sorted(known - set(saved)):
        raise RunError(
            f"the checkpoint lacks {prefix}{missing[0]}: it was written by another version or method. Resume it with "
            "that one, or start anew."
        )
    values = {k: None if v is None else _value(getattr(fresh, k), v, device) for k, v in saved.items()}
    return dataclasses.replace(fresh, **values)


def _tensor(value: Any) -> Tensor:
    if value is None:
        return torch.zeros(0)
    if isinstance(value, Tensor):
        return value
    if isinstance(value, bool):
        return torch.tensor(value)
    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)


def _value(like: Any, saved: Tensor, device: torch.device) -> Any:
    """Return a saved tensor as what stands in its place in a fresh state: a tensor where that one is, or a number.

    Tensors that lie on the host in a fresh state lie there again, whatever device the model is on."""
    if isinstance(like, Tensor):
        return saved.to(like.device)
    return saved.to(device) if like is None else saved.item()
