"""Kernels for images in bfloat16 with channels last, in Triton; `images` calls them.

Products are those of bfloat16 numbers, which are exact in float32, and all additions are in float32. Nothing is added
by atomic operations, so that results repeat bit for bit.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["records", "span"])
def kernel_products(
    x,
    g,
    out,
    squares,
    records,
    span,
    height,
    width,
    c,
    out_height,
    out_width,
    p,
    kernel_height,
    kernel_width,
    step_y,
    step_x,
    before_y,
    before_x,
    far_y,
    far_x,
    keep: tl.constexpr,
    square: tl.constexpr,
    size_t: tl.constexpr,
    size_p: tl.constexpr,
    size_c: tl.constexpr,
):
    """Write sum_t g_t a_tᵀ of each unit of `span` records for one kernel position and one tile of p x c entries.

    With `keep` entries go to out [units, p, kernel positions, c], with `square` the sum of the tile's squares to
    squares [units, tiles]. Patches a_t are read from the image x, g from the output image.
    """
    tiles_p, tiles_c = tl.cdiv(p, size_p), tl.cdiv(c, size_c)
    positions = kernel_height * kernel_width
    tiles = positions * tiles_p * tiles_c
    unit = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    position = tile // (tiles_p * tiles_c)
    row = (tile // tiles_c) % tiles_p * size_p + tl.arange(0, size_p)
    column = tile % tiles_c * size_c + tl.arange(0, size_c)
    off_y = position // kernel_width * far_y - before_y
    off_x = position % kernel_width * far_x - before_x
    each = out_height * out_width
    total = tl.zeros([size_p, size_c], dtype=tl.float32)
    for start in range(0, span * each, size_t):
        t = start + tl.arange(0, size_t)
        record = unit * span + t // each
        at = t % each
        live = (t < span * each) & (record < records)
        y = at // out_width * step_y + off_y
        z = at % out_width * step_x + off_x
        inside = live & (y >= 0) & (y < height) & (z >= 0) & (z < width)
        left = tl.load(
            g + (record * each + at)[None, :] * p + row[:, None], mask=live[None, :] & (row < p)[:, None], other=0.0
        )
        right = tl.load(
            x + ((record * height + y) * width + z)[:, None] * c + column[None, :],
            mask=inside[:, None] & (column < c)[None, :],
            other=0.0,
        )
        total = tl.dot(left, right, total)
    if keep:
        place = out + ((unit * p + row)[:, None] * positions + position) * c + column[None, :]
        tl.store(place, total, mask=(row < p)[:, None] & (column < c)[None, :])
    if square:
        tl.store(squares + unit * tiles + tile, tl.sum(tl.sum(total * total, 1), 0))


@triton.jit
def _by_group(values, groups: tl.constexpr, c: tl.constexpr):
    """Return for every channel the sum over its group: [c] -> [c]."""
    each = tl.sum(tl.reshape(values, [groups, c // groups]), 1)
    return tl.reshape(tl.broadcast_to(each[:, None], [groups, c // groups]), [c])


@triton.jit
def norm_forward(
    x, weight, bias, y, mean, rstd, positions, eps, c: tl.constexpr, groups: tl.constexpr, size: tl.constexpr
):
    """Write the group norm y of one record, and the mean and reciprocal deviation of each channel's group [n, c]."""
    record = tl.program_id(0).to(tl.int64)
    channel, first = tl.arange(0, c), record * positions * c
    total, square = tl.zeros([c], dtype=tl.float32), tl.zeros([c], dtype=tl.float32)
    for start in range(0, positions, size):
        t = start + tl.arange(0, size)
        place = t[:, None] * c + channel[None, :]
        value = tl.load(x + first + place, mask=(t < positions)[:, None], other=0.0).to(tl.float32)
        total += tl.sum(value, 0)
        square += tl.sum(value * value, 0)
    many = positions * (c // groups)
    middle = _by_group(total, groups, c) / many
    spread = _by_group(square, groups, c) / many - middle * middle
    scale = 1.0 / tl.sqrt(tl.where(spread < 0.0, 0.0, spread) + eps)  # keeps nan
    tl.store(mean + record * c + channel, middle)
    tl.store(rstd + record * c + channel, scale)
    scale = scale * tl.load(weight + channel)
    shift = tl.load(bias + channel) - middle * scale
    for start in range(0, positions, size):
        t = start + tl.arange(0, size)
        place, live = t[:, None] * c + channel[None, :], (t < positions)[:, None]
        value = tl.load(x + first + place, mask=live, other=0.0).to(tl.float32)
        tl.store(y + first + place, (value * scale[None, :] + shift[None, :]).to(y.dtype.element_ty), mask=live)


@triton.jit
def norm_backward(
    g, x, mean, rstd, weight, gx, gw, gb, positions, c: tl.constexpr, groups: tl.constexpr, size: tl.constexpr
):
    """Write the gradients of one record with respect to x, and to weight and bias [n, c]."""
    record = tl.program_id(0).to(tl.int64)
    channel, first = tl.arange(0, c), record * positions * c
    both, alone = tl.zeros([c], dtype=tl.float32), tl.zeros([c], dtype=tl.float32)
    for start in range(0, positions, size):
        t = start + tl.arange(0, size)
        place, live = t[:, None] * c + channel[None, :], (t < positions)[:, None]
        value = tl.load(x + first + place, mask=live, other=0.0).to(tl.float32)
        slope = tl.load(g + first + place, mask=live, other=0.0).to(tl.float32)
        both += tl.sum(slope * value, 0)
        alone += tl.sum(slope, 0)
    middle, scale = tl.load(mean + record * c + channel), tl.load(rstd + record * c + channel)
    w = tl.load(weight + channel)
    along = (both - middle * alone) * scale  # sum of g xhat
    tl.store(gw + record * c + channel, along)
    tl.store(gb + record * c + channel, alone)
    many = positions * (c // groups)
    slant = _by_group(along * w, groups, c) / many * scale * scale
    level = _by_group(alone * w, groups, c) / many * scale - middle * slant
    for start in range(0, positions, size):
        t = start + tl.arange(0, size)
        place, live = t[:, None] * c + channel[None, :], (t < positions)[:, None]
        value = tl.load(x + first + place, mask=live, other=0.0).to(tl.float32)
        slope = tl.load(g + first + place, mask=live, other=0.0).to(tl.float32)
        back = slope * (w * scale)[None, :] - value * slant[None, :] - level[None, :]
        tl.store(gx + first + place, back.to(gx.dtype.element_ty), mask=live)
