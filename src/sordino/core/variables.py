"""Conversion of the typed state of a method or an algorithm to tensors and back, for checkpoints.

A state is a frozen dataclass whose fields are tensors, numbers, booleans or None. `flat` converts it to named tensors;
`restored` puts these into a freshly initialised state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sordino.core.errors import RunError

NONE = "?"  # suffix of the name of a field that is None


def flat(name: str, state: Any) -> dict[str, Tensor]:
    """Return the fields of a state as tensors named `name.field`.

    A field that is None becomes an empty tensor named `name.field?`.
    """
    if state is None:
        return {}
    fields = {f.name: getattr(state, f.name) for f in dataclasses.fields(state)}
    return {f"{name}.{key}{NONE if value is None else ''}": _tensor(value) for key, value in fields.items()}


def restored(name: str, fresh: Any, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    """Return `fresh` with the values that `flat` saved under that name.

    Args:
        name: the prefix that was given to `flat`.
        fresh: the state at the start of a run, or None for a method without state.
        tensors: all tensors of the checkpoint.
        device: the device for fields that are None in `fresh`.

    Raises:
        RunError: if the checkpoint has other fields than `fresh`.
    """
    prefix = f"{name}."
    entries = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    saved = {key.removesuffix(NONE): None if key.endswith(NONE) else value for key, value in entries.items()}
    known = set() if fresh is None else {f.name for f in dataclasses.fields(fresh)}
    if strange := set(saved) - known:
        raise RunError(
            f"the checkpoint holds {prefix}{sorted(strange)[0]}, which this run does not have: it was written by "
            "another version or method. Resume it with that one, or start a new run."
        )
    if fresh is None:
        return None
    if missing := sorted(known - set(saved)):
        raise RunError(
            f"the checkpoint lacks {prefix}{missing[0]}: it was written by another version or method. Resume it with "
            "that one, or start a new run."
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
    """Return a saved tensor in the form that the field has in a fresh state: a tensor or a number.

    A tensor that a fresh state keeps on the host is restored to the host, whatever the device of the model.
    """
    if isinstance(like, Tensor):
        return saved.to(like.device)
    return saved.to(device) if like is None else saved.item()
