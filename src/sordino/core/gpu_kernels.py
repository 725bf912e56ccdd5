"""Kernels for random numbers on a GPU, in Triton; `gpu_random` calls them.

A program computes `size` blocks of one client's stream, all in registers, and writes every number once.
"""

from __future__ import annotations

import triton
import triton.language as tl

TURN = tl.constexpr(6.283185307179586)


@triton.jit
def _pair(u, v):
    """Return two normals for uniforms u and v in (0, 1) (Box and Muller 1958)."""
    radius = tl.sqrt(-2.0 * tl.log(u))
    return radius * tl.cos(TURN * v), radius * tl.sin(TURN * v)


@triton.jit
def _unit32(word):
    return (word.to(tl.float64) + 0.5) * 2.3283064365386963e-10  # 2^-32


@triton.jit
def _unit53(low, high):
    word = (high.to(tl.uint64) << 32) | low.to(tl.uint64)
    return ((word >> 11).to(tl.float64) + 0.5) * 1.1102230246251565e-16  # 2^-53


@triton.jit
def _philox(c0, c1, c2, c3, k0, k1):
    """Return the four words of Philox4x32-10 (Salmon et al. 2011) for counters and key, all uint32."""
    for _ in range(10):
        high0, low0 = tl.umulhi(c0, 0xD2511F53), c0 * 0xD2511F53
        high2, low2 = tl.umulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def _words32(at, client, k0, k1, c3, size: tl.constexpr):
    """Return the four words of Philox for the counters (at, client) and the words of a stream's key."""
    zero = tl.zeros([size], dtype=tl.uint32)
    c1, c2 = zero + (client & 0xFFFFFFFF).to(tl.uint32), zero + ((client >> 32) & 0xFFFFFFFF).to(tl.uint32)
    third = zero + c3.to(tl.uint32, bitcast=True)
    key0, key1 = zero + k0.to(tl.uint32, bitcast=True), zero + k1.to(tl.uint32, bitcast=True)
    return _philox(at.to(tl.uint32), c1, c2, third, key0, key1)


@triton.jit(do_not_specialize=["k0", "k1", "c3", "n", "many"])
def philox_words(out, ids, k0, k1, c3, n, many, size: tl.constexpr):
    """Write words of 32 bits [4, clients, n]; `many` is clients times n."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * size + tl.arange(0, size)
    w0, w1, w2, w3 = _words32(at, tl.load(ids + row), k0, k1, c3, size)
    first, step = out + row * n + at, many.to(tl.int64)
    tl.store(first, w0.to(tl.int64), mask=at < n)
    tl.store(first + step, w1.to(tl.int64), mask=at < n)
    tl.store(first + 2 * step, w2.to(tl.int64), mask=at < n)
    tl.store(first + 3 * step, w3.to(tl.int64), mask=at < n)


@triton.jit(do_not_specialize=["k0", "k1", "c3", "dim", "blocks"])
def philox_normals(out, ids, k0, k1, c3, dim, blocks, size: tl.constexpr):
    """Write standard normals [clients, dim]; the numbers are those of `RowStream.normal` computed by torch."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * size + tl.arange(0, size)
    w0, w1, w2, w3 = _words32(at, tl.load(ids + row), k0, k1, c3, size)
    one, two = _pair(_unit32(w0), _unit32(w2))
    three, four = _pair(_unit32(w1), _unit32(w3))
    first = out + row * dim
    live = at < blocks
    kind = out.dtype.element_ty
    tl.store(first + at, one.to(kind), mask=live & (at < dim))
    tl.store(first + blocks + at, three.to(kind), mask=live & (blocks + at < dim))
    tl.store(first + 2 * blocks + at, two.to(kind), mask=live & (2 * blocks + at < dim))
    tl.store(first + 3 * blocks + at, four.to(kind), mask=live & (3 * blocks + at < dim))


@triton.jit
def _quarter(a, b, c, d):
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _word(value, zero):
    return zero + value.to(tl.uint32, bitcast=True)


@triton.jit
def _chacha(k0, k1, k2, k3, k4, k5, k6, k7, counter, client, zero):
    """Return the sixteen words of ChaCha20 (Bernstein 2008) for a key, 64-bit block counters and a 64-bit nonce."""
    i0, i1, i2, i3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    i4, i5, i6, i7 = _word(k0, zero), _word(k1, zero), _word(k2, zero), _word(k3, zero)
    i8, i9, i10, i11 = _word(k4, zero), _word(k5, zero), _word(k6, zero), _word(k7, zero)
    i12, i13 = (counter & 0xFFFFFFFF).to(tl.uint32), ((counter >> 32) & 0xFFFFFFFF).to(tl.uint32)
    i14, i15 = zero + (client & 0xFFFFFFFF).to(tl.uint32), zero + ((client >> 32) & 0xFFFFFFFF).to(tl.uint32)
    x0, x1, x2, x3, x4, x5, x6, x7 = i0, i1, i2, i3, i4, i5, i6, i7
    x8, x9, x10, x11, x12, x13, x14, x15 = i8, i9, i10, i11, i12, i13, i14, i15
    for _ in range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    return (
        x0 + i0, x1 + i1, x2 + i2, x3 + i3, x4 + i4, x5 + i5, x6 + i6, x7 + i7,
        x8 + i8, x9 + i9, x10 + i10, x11 + i11, x12 + i12, x13 + i13, x14 + i14, x15 + i15,
    )  # fmt: skip


@triton.jit
def _put_word(out, at, low, high, n):
    word = (high.to(tl.uint64) << 32) | low.to(tl.uint64)
    tl.store(out + at, word.to(tl.int64, bitcast=True), mask=at < n)


KEY = ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"]


@triton.jit(do_not_specialize=[*KEY, "n", "start"])
def chacha_words(out, ids, k0, k1, k2, k3, k4, k5, k6, k7, n, start, size: tl.constexpr):
    """Write 64-bit words [clients, n] of each client's keystream, from block `start` on."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * size + tl.arange(0, size)
    zero = tl.zeros([size], dtype=tl.uint32)
    client = tl.load(ids + row)
    w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = _chacha(
        k0, k1, k2, k3, k4, k5, k6, k7, block.to(tl.int64) + start, client, zero
    )
    first, at = out + row * n, block * 8
    _put_word(first, at, w0, w1, n)
    _put_word(first, at + 1, w2, w3, n)
    _put_word(first, at + 2, w4, w5, n)
    _put_word(first, at + 3, w6, w7, n)
    _put_word(first, at + 4, w8, w9, n)
    _put_word(first, at + 5, w10, w11, n)
    _put_word(first, at + 6, w12, w13, n)
    _put_word(first, at + 7, w14, w15, n)


@triton.jit
def _put_pair(out, at, a, b, c, d, dim, kind: tl.constexpr):
    one, two = _pair(_unit53(a, b), _unit53(c, d))
    tl.store(out + at, one.to(kind), mask=at < dim)
    tl.store(out + at + 1, two.to(kind), mask=at + 1 < dim)


@triton.jit(do_not_specialize=[*KEY, "dim"])
def chacha_normals(out, ids, k0, k1, k2, k3, k4, k5, k6, k7, dim, size: tl.constexpr):
    """Write standard normals [clients, dim]: two for every two 64-bit words of the keystream."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * size + tl.arange(0, size)
    zero = tl.zeros([size], dtype=tl.uint32)
    client = tl.load(ids + row)
    w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = _chacha(
        k0, k1, k2, k3, k4, k5, k6, k7, block.to(tl.int64), client, zero
    )
    kind: tl.constexpr = out.dtype.element_ty
    first, at = out + row * dim, block * 8
    _put_pair(first, at, w0, w1, w2, w3, dim, kind)
    _put_pair(first, at + 2, w4, w5, w6, w7, dim, kind)
    _put_pair(first, at + 4, w8, w9, w10, w11, dim, kind)
    _put_pair(first, at + 6, w12, w13, w14, w15, dim, kind)
