"""Letters between a server and its sites: a header of plain values and named tensors, as bytes without any code.

The other side may be hostile, so nothing is unpickled. A letter is a safetensors file whose metadata holds the header
as JSON. Whatever is not such a letter raises RunError with a fixed text, which names no content.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from sordino.core.errors import RunError
from sordino.core.message import Message
from sordino.core.saved import written
from sordino.core.types import State

HEADER = "sordino"  # name of the header in the metadata of the file
LONGEST_HEADER = 64 << 20  # bytes
FIELD, WEIGHT, IDS, STATE = "field.", "weight", "ids", "state."
FLOATS = (torch.float16, torch.float32, torch.float64)
DTYPES = (*FLOATS, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)


def packed(header: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> bytes:
    """Return a letter."""
    named = {name: value.detach().cpu().contiguous() for name, value in (tensors or {}).items()}
    return save(named, {HEADER: json.dumps(header, allow_nan=False, sort_keys=True)})


def unpacked(letter: bytes, most: int = 1 << 32) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the header and the tensors of a letter of at most `most` bytes.

    Raises:
        RunError: if the bytes are no letter, or too many.
    """
    if len(letter) > most:
        raise RunError(f"a letter of {len(letter):,} bytes arrived, where at most {most:,} are taken.")
    try:
        length = int.from_bytes(letter[:8], "little")
        if length > min(LONGEST_HEADER, len(letter)):
            raise ValueError
        header = json.loads(json.loads(letter[8 : 8 + length])["__metadata__"][HEADER])
        tensors = load(letter)
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise RunError("bytes arrived that are no letter of Sordino.") from error
    if not isinstance(header, dict) or any(value.dtype not in DTYPES for value in tensors.values()):
        raise RunError("a letter arrived with a header or a type of number that Sordino does not send.")
    return header, tensors


def state_tensors(state: State) -> dict[str, Tensor]:
    """Return a public state as the tensors of a letter; core/saved.py restores it."""
    return {STATE + name: value for name, value in written(state).items()}


def message_letter(message: Message, header: Mapping[str, Any]) -> bytes:
    """Return a letter that carries a message of clients."""
    tensors = {FIELD + name: value for name, value in message.fields.items()}
    if message.weight is not None:
        tensors[WEIGHT] = message.weight
    if message.ids is not None:
        tensors[IDS] = torch.from_numpy(np.asarray(message.ids, dtype=np.int64))
    more = {"heavy": message.heavy, "released": sorted(message.released)}
    return packed({**header, **more}, tensors)


def message_of(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Message:
    """Return the message in a letter.

    Raises:
        RunError: if the letter holds no message, or rows whose numbers differ, are not finite or do not match.
    """
    fields = {name.removeprefix(FIELD): value for name, value in tensors.items() if name.startswith(FIELD)}
    weight, ids = tensors.get(WEIGHT), tensors.get(IDS)
    rows = {len(value) for value in (*fields.values(), weight, ids) if value is not None and value.ndim}
    whole = all(value.ndim for value in fields.values())
    if not fields or not whole or len(rows) > 1 or not set(tensors) <= {WEIGHT, IDS, *(FIELD + n for n in fields)}:
        raise RunError("a letter arrived that holds no message of clients.")
    numbers = [value for value in (*fields.values(), weight) if value is not None and value.is_floating_point()]
    if not all(bool(torch.isfinite(value).all()) for value in numbers):
        raise RunError("a message arrived with numbers that are not finite.")
    if weight is not None and (weight.ndim != 1 or not weight.is_floating_point() or bool((weight < 0).any())):
        raise RunError("a message arrived with weights that are no weights.")
    if ids is not None and (ids.ndim != 1 or ids.dtype != torch.int64):
        raise RunError("a message arrived with senders that are no clients.")
    released = header.get("released", [])
    if not isinstance(released, list) or not all(isinstance(name, str) for name in released):
        raise RunError("a letter arrived that holds no message of clients.")
    return Message(
        fields,
        weight,
        None if ids is None else ids.numpy(),
        heavy=header.get("heavy") is True,
        released=frozenset(released) & set(fields),
    )


def alike(message: Message, template: Message, clients: int) -> str | None:
    """Return why a message of so many clients differs in form from a template, or None if it does not."""
    if set(message.fields) != set(template.fields):
        return f"fields {sorted(message.fields)} where {sorted(template.fields)} were expected"
    for name, value in message.fields.items():
        like = template.fields[name]
        if value.dtype != like.dtype or value.shape[1:] != like.shape[1:] or len(value) != clients:
            return (
                f"{name} of shape {list(value.shape)} ({value.dtype}) where {[clients, *like.shape[1:]]} "
                f"({like.dtype}) was expected"
            )
    if (message.weight is None) != (template.weight is None):
        return "weights where none were expected, or the reverse"
    if message.weight is not None and not math.isfinite(float(message.weight.sum())):
        return "weights that are not finite"
    return None
