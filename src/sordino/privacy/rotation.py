"""A public random rotation, after which no coordinate of a row is much longer than the others.

Rows are padded with zeros to a power of two, multiplied by public signs and transformed by the orthonormal Hadamard
matrix H: y = H D x. A coordinate of y is a sum of +-x_i / sqrt(d), so by Hoeffding's inequality it exceeds t |x| /
sqrt(d) with probability at most 2 e^(-t^2 / 2) over the signs, whatever x is (Ailon and Chazelle 2006; Kairouz, Liu,
Steinke 2021, arXiv:2102.06387, Section 4 and Lemma 29). The rotation keeps L2 norms, so it costs no privacy, and anyone
can undo it. The signs differ from round to round.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from sordino.core import check
from sordino.core.rng import Stream

PUBLIC = Stream.research(0).at("rotation")  # known to everyone, in every run


def padded(dim: int) -> int:
    """Return the number of coordinates of a rotated row: the next power of two."""
    check.count(dim=dim)
    return 1 << (dim - 1).bit_length()


def signs(dim: int, round: int) -> Tensor:
    """Return the public signs of a round, +1.0 or -1.0 [padded(dim)]."""
    wide = padded(dim)
    words = PUBLIC.at("round", round).words(max(2, wide // 64), 0)
    bits = np.unpackbits(words.astype("<u8").view(np.uint8))[:wide]
    return torch.from_numpy(1.0 - 2.0 * bits.astype(np.float64))


def rotated(rows: Tensor, round: int) -> Tensor:
    """Return the rotated rows [rows, padded(dim)] in float64."""
    dim = rows.shape[1]
    wide = torch.nn.functional.pad(rows.double(), (0, padded(dim) - dim))
    return hadamard(wide * signs(dim, round).to(wide.device))


def restored(rows: Tensor, round: int, dim: int) -> Tensor:
    """Return the rows [rows, dim] whose rotation these are."""
    return (hadamard(rows.double()) * signs(dim, round).to(rows.device))[:, :dim]


def hadamard(rows: Tensor) -> Tensor:
    """Return the orthonormal Walsh-Hadamard transform of rows whose length is a power of two; its own inverse."""
    count, dim = rows.shape
    half = 1
    while half < dim:
        pairs = rows.reshape(count, dim // (2 * half), 2, half)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        rows = torch.stack((first + second, first - second), dim=2).reshape(count, dim)
        half *= 2
    return rows / math.sqrt(dim)
