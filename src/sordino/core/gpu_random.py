"""Random numbers made on a GPU: Philox4x32-10 for research, ChaCha20 for secure streams.

Noise for a thousand clients is gigabytes of numbers a round, which a processor would take seconds to make and send.
ChaCha20 (Bernstein 2008, "ChaCha, a variant of Salsa20"; RFC 8439, here with a counter and a nonce of 64 bits each) is
a cryptographic generator, keyed by the path of the stream; the nonce is the client and the counter numbers the blocks.
Philox is for seeds alone: nobody has shown that its output cannot be told from random numbers. Where there is no
Triton, torch and the processor make the numbers: see `rng`.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from torch import Tensor

from sordino.core.devices import trusted

BLOCK = 256  # blocks of a cipher that one program computes


def _kernels() -> Any:
    from sordino.core import gpu_kernels

    return gpu_kernels


@cache
def ready(device: torch.device) -> bool:
    """Return whether numbers can be made on this device: there is Triton, and its words are those of the processor."""
    return trusted(known_answers, device, "no noise from the GPU itself")


def known_answers(device: torch.device) -> bool:
    """Return whether the kernels give the numbers that the processor gives for the same keys."""
    key, clients, n = bytes(range(32)), (0, 3, 2**40 + 1), 100
    ids = torch.tensor(clients, device=device)
    words = np.stack([host_words(key, client, n) for client in clients])
    if not (chacha_words(key, ids, n).cpu().numpy().view(np.uint64) == words).all():
        return False
    unit = ((words >> np.uint64(11)) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(unit[:, 0::2])), 2 * math.pi * unit[:, 1::2]
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).reshape(len(clients), n)
    return bool(np.abs(chacha_normals(key, ids, n, torch.float64).cpu().numpy() - pairs).max() < 1e-9)


def philox_normals(key: bytes, ids: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Return standard normals [clients, dim], those of `RowStream.normal` in research mode.

    Args:
        key: the key of the stream, of which twelve bytes are used.
        ids: [clients], int64, on the device.
        dim: the number of normals per client.
        dtype: float32 or float64.
    """
    out = torch.empty(len(ids), dim, dtype=dtype, device=ids.device)
    blocks = (dim + 3) // 4
    if out.numel():
        grid = (len(ids), -(-blocks // BLOCK))
        _kernels().philox_normals[grid](out, ids, *_signed(key[:12]), dim, blocks, size=BLOCK)
    return out


def philox_words(key: bytes, ids: Tensor, n: int) -> Tensor:
    """Return words [4, clients, n] of 32 bits, those of `RowStream._words` for the counters 0 to n - 1."""
    out = torch.empty(4, len(ids), n, dtype=torch.int64, device=ids.device)
    if out.numel():
        _kernels().philox_words[(len(ids), -(-n // BLOCK))](out, ids, *_signed(key[:12]), n, len(ids) * n, size=BLOCK)
    return out


def chacha_normals(key: bytes, ids: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Return standard normals [clients, dim] from uniforms of 53 bits; see `philox_normals` for the arguments."""
    out = torch.empty(len(ids), dim, dtype=dtype, device=ids.device)
    if out.numel():
        grid = (len(ids), -(-dim // (8 * BLOCK)))
        _kernels().chacha_normals[grid](out, ids, *_signed(key), dim, size=BLOCK)
    return out


def chacha_words(key: bytes, ids: Tensor, n: int, start: int = 0) -> Tensor:
    """Return words [clients, n] of 64 bits as signed integers, from word `start` on, a multiple of 8."""
    out = torch.empty(len(ids), n, dtype=torch.int64, device=ids.device)
    if out.numel():
        grid = (len(ids), -(-n // (8 * BLOCK)))
        _kernels().chacha_words[grid](out, ids, *_signed(key), n, start // 8, size=BLOCK)
    return out


def host_words(key: bytes, client: int, n: int, start: int = 0) -> NDArray[np.uint64]:
    """Return the same words of one client, computed by the processor."""
    block, skipped = divmod(start, 8)
    nonce = block.to_bytes(8, "little") + (client % 2**64).to_bytes(8, "little")
    stream = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor().update(bytes(8 * (skipped + n)))
    return np.frombuffer(stream, dtype="<u8")[skipped:]


def _signed(key: bytes) -> list[int]:
    """Return the words of a key as kernels take them."""
    return [int(word) for word in np.frombuffer(key, dtype="<i4")]
