"""Images in bfloat16 with channels last on a GPU: group norms, and gradients of convolutions without patches.

The kernels read patches from the image itself, so the patches, which take as many times its memory as the kernel has
positions, are never made. Where there is no Triton, or where its kernels do not give what PyTorch gives, `ready` is
false and layers compute as they do elsewhere.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.core.devices import trusted
from sordino.gradients.layers.patches import Geometry
from sordino.gradients.memory import channels_last, is_last

TOKENS = 32  # output positions from which forming a gradient for its norm alone beats Gram matrices of patches
WIDEST = 1024  # largest number of channels of a group norm
PARTS = 2048  # programs among which a sum over records is divided
CLOSE = 2e-2  # relative difference between numbers of the kernels and those of PyTorch, rounded to bfloat16


def _kernels() -> Any:
    from sordino.gradients import gpu_kernels

    return gpu_kernels


@cache
def ready(device: torch.device) -> bool:
    """Return whether images can be processed by the kernels on this device."""
    return trusted(known_answers, device, "images take longer in bfloat16")


def known_answers(device: torch.device) -> bool:
    """Return whether the kernels give what PyTorch gives in float32."""
    generator = torch.Generator().manual_seed(0)

    def image(*size: int) -> Tensor:
        return channels_last(torch.randn(size, generator=generator).to(device, torch.bfloat16))

    shape = Geometry((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1, (5, 6))
    x, g = image(3, 32, 5, 6), image(3, 64, 5, 6)
    a, b = shape.patches(x.float()), shape.tokens(g.float())
    each = torch.bmm(b.transpose(1, 2), a)
    values, squares = gradients(x, g, shape)
    pairs = [(values, each), (squares, each.square().sum((1, 2))), (added(x, g, shape), each.sum(0))]
    weight, bias = torch.randn(2, 32, generator=generator).to(device)
    wide, w, c = (t.detach().clone().requires_grad_() for t in (x[:1].float().contiguous(), weight, bias))
    slope = image(1, 32, 5, 6)
    with torch.enable_grad():
        y = F.group_norm(wide, 8, w, c, 1e-5)
        expected = torch.autograd.grad(y, (wide, w, c), slope.float())
    made, mean, rstd = group_norm(x[:1], weight, bias, 8, 1e-5)
    found = group_norm_backward(slope, x[:1], mean, rstd, weight, 8)
    pairs += [(made, y.detach()), *((a.view(b.shape), b) for a, b in zip(found, expected, strict=True))]
    return all(bool((got.float() - want).norm() <= CLOSE * want.norm()) for got, want in pairs)


def ours(*images: Tensor) -> bool:
    """Return whether these are images that the kernels can process."""
    return all(x.dtype == torch.bfloat16 and is_last(x) for x in images) and ready(images[0].device)


def group_norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the group norm of x [n, c, h, w], and mean and reciprocal deviation of each channel's group [n, c]."""
    n, c, h, w = x.shape
    y, mean, rstd = torch.empty_like(x), weight.new_empty(n, c), weight.new_empty(n, c)
    rows = _rows(c, h * w)
    with torch.cuda.device_of(x):
        _kernels().norm_forward[(n,)](
            x, weight.contiguous(), bias.contiguous(), y, mean, rstd, h * w, eps, c, groups, rows, num_warps=8
        )
    return y, mean, rstd


def group_norm_backward(
    g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x [n, c, h, w], and those of weight and bias for each record [n, c]."""
    n, c, h, w = x.shape
    gx, gw, gb = torch.empty_like(x), torch.empty_like(mean), torch.empty_like(mean)
    rows = _rows(c, h * w)
    with torch.cuda.device_of(x):
        _kernels().norm_backward[(n,)](
            g, x, mean, rstd, weight.contiguous(), gx, gw, gb, h * w, c, groups, rows, num_warps=8
        )
    return gx, gw, gb


def grouped(c: int, groups: int) -> bool:
    """Return whether the kernels can compute this group norm."""
    return _power(c) == c <= WIDEST and _power(groups) == groups


def _rows(c: int, positions: int) -> int:
    return max(1, min(8192 // c, _power(positions)))


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def gradients(x: Tensor, g: Tensor, shape: Geometry, width: int = 1, keep: bool = True) -> tuple[Tensor, Tensor]:
    """Return the gradients of a convolution's weight and their squared norms, of each unit of `width` records.

    Args:
        x: [n, c, h, w], the input.
        g: [n, p, h', w'], the gradient of the output.
        shape: the geometry of the convolution, which has a single group.
        width: number of consecutive records whose gradients are added.
        keep: whether to return the gradients [units, p, K c] with the norms [units], or an empty tensor.
    """
    values, squares = _products(x, g, shape, width, keep, True)
    return values, squares.sum(1)


def added(x: Tensor, g: Tensor, shape: Geometry) -> Tensor:
    """Return the gradient of a convolution's weight [p, K c], added over all records."""
    tiles = math.prod(shape.kernel) * -(-x.shape[1] // 64) * -(-g.shape[1] // 64)
    span = max(1, -(-x.shape[0] * tiles // PARTS))
    return _products(x, g, shape, span, True, False)[0].sum(0)


def _products(x: Tensor, g: Tensor, shape: Geometry, span: int, keep: bool, square: bool) -> tuple[Tensor, Tensor]:
    (n, c, h, w), p, positions = x.shape, g.shape[1], math.prod(shape.kernel)
    units, t = -(-n // span), math.prod(shape.out)
    size_t = min(64, max(16, _power(span * t)))
    size_p, size_c = min(64, max(16, _power(p))), min(64, max(16, _power(c)))
    tiles = positions * -(-p // size_p) * -(-c // size_c)
    out = x.new_empty((units, p, positions * c) if keep else (0,), dtype=torch.float32)
    squares = x.new_empty((units, tiles) if square else (0,), dtype=torch.float32)
    before = [pair[0] for pair in shape.padding]
    geometry = (*shape.kernel, *shape.stride, *before, *shape.dilation)
    blocks = (size_t, size_p, size_c)
    with torch.cuda.device_of(x):
        _kernels().kernel_products[(units * tiles,)](
            x, g, out, squares, n, span, h, w, c, *shape.out, p, *geometry, keep, square, *blocks, num_stages=3
        )
    return out, squares


def reach(x: Tensor, g: Tensor, shape: Geometry, width: int = 1) -> Tensor:
    """Return S = sum_t |g_t| |a_t| [units] as `half.reach` does, without the patches a_t.

    |a_t|² is the sum of |x|² over the points of the kernel at t: one number per point of the image is added, by
    average pooling in float32, in place of all channels. All terms are positive, so that at most as many additions as
    the kernel has positions make it smaller by a share of 2^-24 each, for which `half.ROUNDED` has room.
    """
    tiny = torch.finfo(torch.float32).tiny
    positions = math.prod(shape.kernel)
    points = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float32).square()
    inputs = shape.windows(points).sqrt() + (positions * (x.shape[1] + 1) * tiny) ** 0.5
    outputs = torch.linalg.vector_norm(g, dim=1, dtype=torch.float32).flatten(1) + (g.shape[1] * tiny) ** 0.5
    each: Tensor = (inputs * outputs).sum(1)
    return each.view(-1, width).sum(1)
