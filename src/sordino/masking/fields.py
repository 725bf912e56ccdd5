"""The named arrays of whole numbers that a secure sum adds up, each modulo a power of two of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.masking.errors import MaskingError
from sordino.masking.session import joined

WIDEST = 62  # bits of the largest modulus, as in channels/secure_sum.py
CONTAINERS = ((8, "<u1"), (16, "<u2"), (32, "<u4"), (64, "<u8"))  # bits, and the numbers that hold them on the wire
MOST_BYTES = 1 << 31  # of one upload

Words = NDArray[np.unsignedinteger[Any]]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class MaskedField:
    """The public form of one array."""

    name: str
    bits: int  # numbers are added modulo 2^bits
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= WIDEST:
            raise MaskingError(f"the field {self.name} must have from 1 to {WIDEST} bits, not {self.bits}.")
        if any(size < 0 for size in self.shape) or self.size * self.container.itemsize > MOST_BYTES:
            raise MaskingError(f"the field {self.name} is larger than {MOST_BYTES} bytes.")

    @property
    def size(self) -> int:
        """Return the number of words."""
        return math.prod(self.shape)

    @property
    def container(self) -> np.dtype[Any]:
        """Return the type of the words on the wire: the narrowest that holds the bits."""
        return np.dtype(next(name for width, name in CONTAINERS if self.bits <= width))


Layout = tuple[MaskedField, ...]


def layout_of(shapes: Mapping[str, tuple[int, ...]], bits: Mapping[str, int]) -> Layout:
    """Return the layout of an upload, in the order of names."""
    if set(shapes) != set(bits) or not shapes:
        raise MaskingError("every field of a masked upload needs a shape and a number of bits.")
    layout = tuple(MaskedField(name, bits[name], tuple(shapes[name])) for name in sorted(shapes))
    if total_bytes(layout) > MOST_BYTES:
        raise MaskingError(f"a masked upload has at most {MOST_BYTES} bytes.")
    return layout


def described(layout: Layout) -> bytes:
    """Return the canonical bytes of a layout."""
    return joined(*(joined(field.name, field.bits, *field.shape) for field in layout))


def total_bytes(layout: Layout) -> int:
    """Return the number of bytes of all words."""
    return sum(field.size * field.container.itemsize for field in layout)


def residues(arrays: Mapping[str, NDArray[Any]], layout: Layout) -> dict[str, Words]:
    """Return whole numbers modulo 2^bits, as flat arrays of words; the arrays themselves do not change."""
    out: dict[str, Words] = {}
    for field in layout:
        array = np.asarray(arrays[field.name])
        if array.dtype.kind not in "biu":
            raise MaskingError(
                f"the field {field.name} must hold whole numbers, not {array.dtype}; see fixed_point.py."
            )
        if array.shape != field.shape:
            raise MaskingError(f"the field {field.name} does not have the announced shape.")
        wide = array.astype(np.uint64) if array.dtype.kind in "bu" else array.astype(np.int64).view(np.uint64)
        out[field.name] = (wide.reshape(-1) & np.uint64(2**field.bits - 1)).astype(field.container)
    return out


def reduce_words(words: Mapping[str, Words], layout: Layout) -> None:
    """Take words modulo 2^bits, in place."""
    for field in layout:
        part = words[field.name]
        np.bitwise_and(part, part.dtype.type(2**field.bits - 1), out=part)


def centred(words: Mapping[str, Words], layout: Layout) -> dict[str, Ints]:
    """Return residues as signed numbers from -2^(bits - 1) to 2^(bits - 1) - 1, in their shapes."""
    out = {}
    for field in layout:
        half, mask = np.uint64(1 << (field.bits - 1)), np.uint64(2**field.bits - 1)
        shifted = (words[field.name].astype(np.uint64) + half) & mask
        out[field.name] = (shifted.astype(np.int64) - np.int64(half)).reshape(field.shape)
    return out
