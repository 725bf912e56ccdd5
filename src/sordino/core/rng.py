"""Named, splittable, counter-based randomness; no global state anywhere.

A `Stream` is a key and a path: `rng.at("round", 3).at("client", 17)` is a fresh, independent stream that depends
on nothing but the root key and the path, so any draw can be repeated alone, in any order, by any process.

Two modes. `research`: the root key comes from a seed; runs repeat bit for bit on the same machine, and whoever
knows the seed can subtract the noise, so the guarantee is for experiments only. `secure`: the root key is 32
bytes from the operating system, never stored.

On a CPU, and in secure mode everywhere, the numbers are an AES-256 counter keystream: keyed by the path, the client in
the upper half of the counter. In research mode on a GPU they are Philox4x32-10, computed on the device for all clients
in one pass (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). Normals come by Box and Muller (1958)
from 53-bit (secure) or 32-bit (research) uniforms, as float32.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

from sordino.core.errors import SpecError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ZEROS = bytes(1 << 18)  # encrypted, they are the keystream
Picks = tuple[Tensor, tuple[int, ...]]  # indices into clients' records laid end to end, and how many of each


@dataclass(frozen=True, repr=False)
class Stream:
    key: bytes  # 32 bytes
    secure: bool

    @staticmethod
    def research(seed: int) -> Stream:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise SpecError(f"seed must be a whole number from 0 to 2^63 - 1, not {seed!r}.")
        return Stream(hashlib.blake2b(b"sordino research %d" % seed, digest_size=32).digest(), secure=False)

    @staticmethod
    def operating_system() -> Stream:
        return Stream(os.urandom(32), secure=True)

    def __repr__(self) -> str:  # a key must not end up in a log
        return f"Stream({'secure' if self.secure else 'research'})"

    def at(self, *path: str | int) -> Stream:
        """The stream of that name below this one."""
        return Stream(hashlib.blake2b(repr(path).encode(), key=self.key, digest_size=32).digest(), self.secure)

    def rows(self, ids: Sequence[int] | Ints) -> RowStream:
        """One stream a client, drawn from together."""
        return RowStream(self, np.asarray(ids, dtype=np.int64))

    def uniform(self, n: int, row: int = -1) -> Floats:
        """n numbers in [0, 1), multiples of 2^-53."""
        return (self.words(n, row) >> np.uint64(11)) / 2.0**53

    def integer(self) -> int:
        """A whole number of 63 bits, to key something else with."""
        return int.from_bytes(self.at("integer").key[:8], "little") >> 1

    def permutation(self, n: int, row: int = -1) -> Ints:
        return np.argsort(self.uniform(n, row), kind="stable")

    def poisson(self, n: int, rate: float, row: int = -1) -> Ints:
        """Indices below n, each kept independently with probability `rate`."""
        return np.flatnonzero(self.uniform(n, row) < rate) if rate < 1 else np.arange(n)

    def fixed(self, n: int, size: int, row: int = -1) -> Ints:
        """`size` of n indices without replacement, sorted."""
        return np.sort(self.permutation(n, row)[:size])

    def words(self, n: int, row: int = -1, start: int = 0) -> NDArray[np.uint64]:
        """n random words of 64 bits: the keystream of this path and row, from word `start`, an even number, on."""
        return np.frombuffer(self._cipher(row, start).update(bytes(8 * n)), dtype=np.uint64)

    def fill(self, room: NDArray[np.uint64], n: int, row: int = -1, start: int = 0) -> NDArray[np.uint64]:
        """`words` into memory that is there already: room for n + 2 words, since the cipher asks for some to spare."""
        zeros = memoryview(ZEROS)[: 8 * n] if 8 * n <= len(ZEROS) else bytes(8 * n)
        self._cipher(row, start).update_into(zeros, room.data.cast("B"))
        return room[:n]

    def _cipher(self, row: int, start: int) -> CipherContext:
        if start % 2:
            raise SpecError(f"a keystream is entered at an even word, not at {start}.")
        return Cipher(algorithms.AES(self.key), modes.CTR(_counter(row, start // 2))).encryptor()


def _counter(row: int, block: int = 0) -> bytes:
    """Where a keystream begins: the lower half counts its blocks."""
    return (row % 2**64).to_bytes(8, "big") + block.to_bytes(8, "big")


@dataclass(frozen=True, repr=False)
class RowStream:
    """One stream a client: row i of every draw depends on the key and on ids[i] alone."""

    stream: Stream
    ids: Ints  # [clients]

    def at(self, *path: str | int) -> RowStream:
        return RowStream(self.stream.at(*path), self.ids)

    def words(self, n: int) -> NDArray[np.uint64]:
        """Random words of 64 bits [clients, n], on the host."""
        if len(self.ids) == 1:
            return self.stream.words(n, int(self.ids[0]))[None]
        found = np.empty((len(self.ids), n), dtype=np.uint64)
        cipher, zeros = self.stream._cipher(0, 0), bytes(8 * n)
        for row, i in zip(found, self.ids.tolist(), strict=True):
            cipher.reset_nonce(_counter(i))  # as a new cipher, in a seventh of the time
            row[:] = np.frombuffer(cipher.update(zeros), dtype=np.uint64)
        return found

    def uniform(self, n: int) -> Floats:
        """Numbers in (0, 1), odd multiples of 2^-54 [clients, n], on the host: never 0, never 1."""
        return np.asarray(((self.words(n) >> np.uint64(11)) + 0.5) * 2.0**-53, dtype=np.float64)

    def unit(self, n: int, device: torch.device) -> Tensor:
        """`uniform` as a tensor on the device; of 32 bits, and drawn there, on a GPU with a seed."""
        if device.type == "cuda" and not self.stream.secure:
            words = self._words(device, (n + 3) // 4)  # [4, clients, n / 4]
            return words.permute(1, 0, 2).reshape(len(self.ids), -1)[:, :n].double().add_(0.5).mul_(2.0**-32)
        return torch.from_numpy(self.uniform(n)).to(device)

    def normal(self, dim: int, like: Tensor) -> Tensor:
        """Standard normals [clients, dim] on the device of `like`."""
        if not len(self.ids):
            return like.new_zeros(0, dim)
        if like.device.type == "cuda" and not self.stream.secure:
            unit = self.unit(4 * ((dim + 3) // 4), like.device)
        elif self.stream.secure:
            unit = torch.from_numpy(((self.words(dim + dim % 2) >> np.uint64(11)) + 0.5) * 2.0**-53)
        else:
            halves = self.words((dim + 1) // 2).view(np.uint32)
            unit = torch.from_numpy(halves.astype(np.float32)).add_(0.5).mul_(2.0**-32)
        return box_muller(unit)[:, :dim].to(like.device, like.dtype)

    def poisson(self, sizes: Sequence[int], rates: Sequence[float], device: torch.device) -> Picks:
        """From each client its records, each kept with probability rates[i]."""
        if device.type == "cuda" and not self.stream.secure:
            width = max(sizes, default=0)
            words = self._words(device, (width + 3) // 4).permute(1, 2, 0).reshape(len(self.ids), -1)[:, :width]
            size = torch.tensor(list(sizes), device=device)
            keep = words < torch.tensor([int(r * 2**32) for r in rates], device=device)[:, None]
            keep &= torch.arange(width, device=device) < size[:, None]
            row, column = keep.nonzero(as_tuple=True)
            return (size.cumsum(0) - size)[row] + column, tuple(keep.sum(dim=1).tolist())
        draws = (self.stream.poisson(n, r, int(i)) for n, r, i in zip(sizes, rates, self.ids, strict=True))
        return flat(list(draws), sizes, device)

    def fixed(self, sizes: Sequence[int], takes: Sequence[int], device: torch.device) -> Picks:
        """From each client takes[i] of its sizes[i] records, without replacement."""
        draws = (self.stream.fixed(n, m, int(i)) for n, m, i in zip(sizes, takes, self.ids, strict=True))
        return flat(list(draws), sizes, device)

    def permutations(self, sizes: Sequence[int]) -> list[Ints]:
        """For each client a random order of its records."""
        return [self.stream.permutation(n, int(i)) for n, i in zip(sizes, self.ids, strict=True)]

    def integers(self) -> list[int]:
        """For each client a whole number of 63 bits (the SplitMix64 finaliser of one key and the client)."""
        base, whole = self.stream.integer(), 2**64 - 1
        out = []
        for i in self.ids.tolist():
            v = (base + (i + 1) * 0x9E3779B97F4A7C15) & whole
            v = ((v ^ (v >> 30)) * 0xBF58476D1CE4E5B9) & whole
            v = ((v ^ (v >> 27)) * 0x94D049BB133111EB) & whole
            out.append((v ^ (v >> 31)) >> 1)
        return out

    def _words(self, device: torch.device, n: int) -> Tensor:
        """Philox4x32-10 on the device: words [4, clients, n], keyed by the stream, counted by (index, client).

        64-bit products wrap around, which leaves both 32-bit halves right.
        """
        mask = 0xFFFFFFFF
        k0, k1 = (int.from_bytes(self.stream.key[i : i + 4], "little") for i in (0, 4))
        ids = torch.from_numpy(self.ids).to(device)[:, None]
        counter = torch.arange(n, device=device)[None, :]
        c0, c1, c2 = counter.expand(len(ids), -1), ids & mask, (ids >> 32) & mask
        c3 = torch.full_like(c1, int.from_bytes(self.stream.key[8:12], "little"))
        for _ in range(10):
            p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
            c0, c1 = (p1 >> 32) & mask ^ c1 ^ k0, p1 & mask
            c2, c3 = (p0 >> 32) & mask ^ c3 ^ k1, p0 & mask
            k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
        return torch.stack([w.expand(len(ids), n) for w in (c0, c1, c2, c3)])


def box_muller(unit: Tensor) -> Tensor:
    """Uniforms in (0, 1) [rows, 2 n] -> standard normals, same shape."""
    half = unit.shape[1] // 2
    radius = unit[:, :half].log().mul_(-2).sqrt_()
    angle = unit[:, half:] * (2 * math.pi)
    return torch.cat([angle.cos().mul_(radius), angle.sin_().mul_(radius)], dim=1)


def flat(chosen: Sequence[Ints], sizes: Sequence[int], device: torch.device) -> Picks:
    """Each client's own indices -> indices into all clients' records, laid one client after the other."""
    starts = np.cumsum([0, *sizes])
    parts = [c + start for c, start in zip(chosen, starts[:-1], strict=True)]
    index = np.concatenate([np.empty(0, np.int64), *parts])
    return torch.from_numpy(index).to(device), tuple(len(c) for c in chosen)
