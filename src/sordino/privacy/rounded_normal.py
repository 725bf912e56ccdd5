"""Exact sampling of normals rounded to integers: P(k) = Phi((k + 1/2) / s) - Phi((k - 1/2) / s), for any scale s.

Box and Muller (1958): for two uniform real numbers u and v, s sqrt(-2 ln u) cos(2 pi v) and s sqrt(-2 ln u) sin(2 pi v)
are normal and independent. A word of the keystream is taken as the leading bits of such a real number, whose remaining
bits have not been drawn yet. float64 gives the product up to an error that is bounded in advance. If no half-integer
lies within that error, the rounding is decided; if one does (for about one number in 10^6 at a scale of 10^5), the pair
is recomputed in interval arithmetic, with as many further bits of the same two numbers as it takes. Between the two,
what a GPU leaves undecided is tried with the 64 binary digits of the processor's wide numbers (`closer`).

A draw is thus the rounding of a normal number and not of its approximation: its distance from the distribution is zero.
The assumptions are: the keystream is uniform; numpy's logarithm and square root and torch's sine and cosine (on a GPU:
all four are CUDA's) are within 2^-44 (256 units in the last place) of the true values, those of the wide numbers within
2^-60; mpmath's intervals contain them.

The error, for a scale of 1: the argument of the logarithm is off by the rounding of the word, 2^-53, and by the bits
not drawn, 2^-63 / u. With a radius R = sqrt(-2 ln u) between LEAST and MOST this moves R by at most 2^-41.8, and the
functions by 1.6 x 2^-44 R. The angle is off by 2^-49.7, its sine by 2^-44 more. The total is less than 2^-39.7; `ERROR`
is larger than that. Pairs with a radius outside these limits (7 in 10^7) are always recomputed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.core import gpu_random
from sordino.core.devices import sent
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream, Stream

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Use = Callable[[slice, slice, Tensor, Tensor], None]  # rows, columns, integers [rows, columns], scratch of that shape

BLOCK = 1 << 15  # numbers drawn at once; the memory of a block (650 kB) fits into the cache
GPU_BLOCK = 1 << 25  # the same on a GPU, where a block takes about 1.5 GB
ERROR = 2.0**-39  # error of a number, relative to the scale
LEAST, MOST = 2.0**-10, math.sqrt(44 * math.log(2))  # limits of the radius: u from 2^-22 to 1 - 2^-21
WIDEST = 2.0**36  # largest scale; the error is then at most 1/8
TURN = 2 * math.pi * 2.0**-64


def on_gpu(rng: RowStream, device: torch.device) -> bool:
    """Return whether integers are drawn on this device.

    Those of a seed are always drawn by the processor, so that a seed means the same on every machine.
    """
    return rng.stream.secure and gpu_random.ready(device)


def blocks(rng: RowStream, n: int, scale: float | Floats, use: Use, device: torch.device | None = None) -> None:
    """Draw integers [clients, n] block by block and pass each block to `use`.

    The integers are exact in float64. Row i depends only on its client.

    Args:
        rng: the streams of the clients.
        n: the number of integers per client.
        scale: one number, or one per client.
        use: called with rows, columns, the integers and scratch memory of the same shape; it must keep neither.
        device: where the integers are wanted; they are there if `on_gpu` says so, else on the processor.
    """
    clients = len(rng.ids)
    scales = np.broadcast_to(np.asarray(scale, dtype=np.float64), (clients,))
    if not (scales >= 0).all() or not (scales <= WIDEST).all():
        raise SpecError(
            f"rounded Gaussian noise can be 0 to {WIDEST:.2g} lattice steps wide, not {scales.min():g} to"
            f" {scales.max():g}; use a coarser lattice."
        )
    if device is not None and on_gpu(rng, device):
        many = max(1, GPU_BLOCK // max(2, n + n % 2))
        for first in range(0, clients, many):
            rows = slice(first, min(first + many, clients))
            for start in range(0, n, GPU_BLOCK):
                columns = slice(start, min(start + GPU_BLOCK, n))
                part = RowStream(rng.stream, rng.ids[rows])
                noise = gpu_block(part, columns, scales[rows], device)
                use(rows, columns, noise, torch.empty_like(noise))
        return
    many = max(1, BLOCK // max(2, n + n % 2))
    workspace = _workspace()
    for first in range(0, clients, many):
        rows = slice(first, min(first + many, clients))
        for start in range(0, n, BLOCK):
            columns = slice(start, min(start + BLOCK, n))
            use(rows, columns, *_block(RowStream(rng.stream, rng.ids[rows]), columns, scales[rows], workspace))
    _idle.append(workspace)


class _Workspace:
    """The memory of one block, which is reused because allocating it again would cost as much as the arithmetic."""

    def __init__(self) -> None:
        self.words = np.empty(BLOCK + 2, dtype=np.uint64)
        self.radius, self.noise = np.empty(BLOCK // 2), np.empty(BLOCK)

    @cached_property
    def context(self) -> Any:
        """Return a context for interval arithmetic.

        All threads share mpmath's own context, and creating another one is slow.
        """
        from mpmath.ctx_iv import MPIntervalContext  # imported here because most blocks do not need it

        return MPIntervalContext()


_idle: list[_Workspace] = []  # workspaces that no thread is using


def _workspace() -> _Workspace:
    try:
        return _idle.pop()
    except IndexError:
        return _Workspace()


def _block(rng: RowStream, columns: slice, scales: Floats, workspace: _Workspace) -> tuple[Tensor, Tensor]:
    """Return the integers of these columns for a few clients, and scratch memory of that shape, in the workspace."""
    n, start, clients = columns.stop - columns.start, columns.start, len(rng.ids)
    half = (n + 1) // 2
    for row, client in enumerate(rng.ids.tolist()):
        rng.stream.fill(workspace.words[2 * half * row :], 2 * half, client, start)
    words = workspace.words[: 2 * clients * half].reshape(clients, 2 * half)
    noise = workspace.noise[: 2 * clients * half].reshape(clients, 2 * half)
    radius = workspace.radius[: clients * half].reshape(clients, half)
    cosine, sine = noise[:, :half], noise[:, half:]
    first = np.right_shift(words[:, :half], 1, out=words[:, :half])
    np.multiply(first.view(np.int64), 2.0**-63, out=radius)
    with np.errstate(divide="ignore"):  # a word of zeros, recomputed below
        np.log(radius, out=radius)
    radius *= -2
    np.sqrt(radius, out=radius)
    unsure = None
    if radius.min() < LEAST or radius.max() > MOST:
        unsure = ~((radius >= LEAST) & (radius <= MOST))
        radius[unsure] = 1.0
    radius *= scales[:, None]
    angle = torch.from_numpy(np.multiply(words[:, half:].view(np.int64), TURN, out=sine))
    torch.cos(angle, out=torch.from_numpy(cosine))
    angle.sin_()
    cosine *= radius
    sine *= radius
    nearest = np.rint(noise, out=words.view(np.float64))
    noise -= nearest
    reach = 0.5 - float(scales.max()) * ERROR
    low, high = torch.aminmax(torch.from_numpy(noise))
    if float(low) < -reach or float(high) > reach:
        close = np.abs(noise) > reach
        close = close[:, :half] | close[:, half:]
        unsure = close if unsure is None else unsure | close
    for row, at in np.argwhere(unsure).tolist() if unsure is not None else ():
        client = int(rng.ids[row])
        leading = _word(rng.stream, client, start + at) >> 1, signed(_word(rng.stream, client, start + half + at))
        more = Bits(rng.stream.at("further bits", start + at), client)
        nearest[row, at], nearest[row, half + at] = settle(*leading, float(scales[row]), more, workspace.context)
    return torch.from_numpy(nearest[:, :n]), torch.from_numpy(noise[:, :n])


def gpu_block(rng: RowStream, columns: slice, scales: Floats, device: torch.device) -> Tensor:
    """Return the integers of these columns for a few clients, as `_block` does, from the keystream of the device."""
    n, start, key = columns.stop - columns.start, columns.start, rng.chacha_key()
    half = (n + 1) // 2
    scale = sent(torch.from_numpy(np.array(scales)), device)[:, None]
    words = gpu_random.chacha_words(key, sent(torch.from_numpy(rng.ids), device), 2 * half, start)
    radius = (words[:, :half] >> 1).bitwise_and_(2**63 - 1).double().mul_(2.0**-63).log_().mul_(-2).sqrt_()
    unsure = ~((radius >= LEAST) & (radius <= MOST))
    radius = radius.masked_fill_(unsure, 1.0).mul_(scale)
    angle = words[:, half:].double().mul_(TURN)
    noise = torch.cat([angle.cos().mul_(radius), angle.sin_().mul_(radius)], dim=1)
    nearest = noise.round()
    close = noise.sub_(nearest).abs_() > 0.5 - float(scales.max()) * ERROR
    unsure |= close[:, :half] | close[:, half:]
    place = unsure.nonzero()
    if len(place):
        rows, columns_ = place.unbind(1)
        leading = (words[rows, columns_] >> 1).bitwise_and_(2**63 - 1), words[rows, columns_ + half]
        values = _settled(rng, scales, start, *(v.cpu().numpy() for v in (rows, columns_, *leading)))
        nearest[rows, columns_], nearest[rows, columns_ + half] = values.to(device).unbind(1)
    return nearest[:, :n]


def _settled(
    rng: RowStream, scales: Floats, start: int, rows: Ints, columns: Ints, first: Ints, second: Ints
) -> Tensor:
    """Return the integers [numbers, 2] of pairs whose rounding float64 does not decide; see `settle`."""
    pairs, sure = closer(first, second, scales[rows])
    workspace = _workspace()
    for i in np.flatnonzero(~sure).tolist():
        more = Bits(rng.stream.at("further bits", start + int(columns[i])), int(rng.ids[rows[i]]))
        pairs[i] = settle(int(first[i]), int(second[i]), float(scales[rows[i]]), more, workspace.context)
    _idle.append(workspace)
    return torch.from_numpy(pairs)


def closer(first: Ints, second: Ints, scales: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Return pairs of integers [numbers, 2] computed with 64 digits, and which of them are certain.

    The arguments are as in `settle`, whose results these are where they are certain. Where the processor has no such
    numbers, none is. With u the middle of its interval, which is 2^-63 wide, -2 ln u is off by at most 3 x 2^-64 / u
    and the radius R by 3 x 2^-64 / (u R); the functions and roundings move the result by less than 2^-59 R.
    """
    if np.finfo(np.longdouble).nmant < 63:
        return np.zeros((len(first), 2)), np.zeros(len(first), dtype=bool)
    wide = np.longdouble
    u, turn = (first.astype(wide) + wide(0.5)) * wide(2) ** -63, 2 * np.arctan2(wide(0), wide(-1))
    angle = (second.astype(wide) + wide(0.5)) * (turn * wide(2) ** -64)
    with np.errstate(divide="ignore", invalid="ignore"):
        radius = np.sqrt(-2 * np.log(u))
        values = np.stack([np.cos(angle), np.sin(angle)], axis=1) * (radius * scales)[:, None]
        error = scales * (wide(2) ** -62 / (u * radius) + radius * wide(2) ** -57)
    nearest = np.rint(values)
    inside = 0.5 - np.abs(values - nearest) > error[:, None]
    return nearest.astype(np.float64), inside.all(axis=1) & np.isfinite(values).all(axis=1) & (first > 0)


def _word(stream: Stream, client: int, at: int) -> int:
    """Return a single word of a client's keystream."""
    return int(stream.words(2, client, at - at % 2)[at % 2])


def signed(word: int) -> int:
    """Return the same 64 bits as a signed integer."""
    return word - (word >> 63 << 64)


class Bits:
    """The bits of two real numbers after those already drawn."""

    def __init__(self, stream: Stream, client: int) -> None:
        self._stream, self._client = stream, client

    def words(self, level: int) -> tuple[int, int]:
        """Return the next 64 bits of each number, at level 0, 1, 2 and so on."""
        first, second = self._stream.words(2, self._client, 2 * level).tolist()
        return first, second


def settle(first: int, second: int, scale: float, more: Bits, context: Any) -> tuple[int, int]:
    """Return the pair of integers for the real numbers first / 2^63 (radius) and second / 2^64 (angle).

    Both begin with the given bits and continue with those of `more`. An interval that contains the true number is
    narrowed until it contains no half-integer.
    """
    if scale == 0:
        return 0, 0
    level, ones = 0, 0  # ones: number of bits drawn beyond the first 64 of each
    while True:
        context.prec = 192 + ones
        if first > 0:
            u = context.mpf([first, first + 1]) / 2 ** (63 + ones)
            angle = context.mpf([second, second + 1]) * context.pi / 2 ** (63 + ones)
            radius = context.sqrt(-2 * context.log(u)) * scale
            pair = [_integer(radius * turned + 0.5) for turned in (context.cos(angle), context.sin(angle))]
            if pair[0] is not None and pair[1] is not None:
                return pair[0], pair[1]
        upper, lower = more.words(level)
        first, second, level, ones = (first << 64) + upper, (second << 64) + lower, level + 1, ones + 64


def _integer(interval: Any) -> int | None:
    """Return the common integer part of all numbers in an interval, or None if there are several."""
    from mpmath.libmp import to_int

    low, high = (int(to_int(end, "f")) for end in interval._mpi_)
    return low if low == high else None
