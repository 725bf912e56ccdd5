"""Named, splittable, counter-based randomness without global state.

A `Stream` is a key derived from a path: `rng.at("round", 3).at("client", 17)` is a fresh, independent stream that
depends only on the root key and the path, so any draw can be repeated in isolation, in any order, by any process.

There are two modes. In `research` mode the root key comes from a seed: runs repeat bit for bit on the same machine, and
anyone who knows the seed can subtract the noise, so the guarantee is for experiments only. In `secure` mode the root
key is 32 bytes from the operating system and is never stored.

On a CPU the numbers are an AES-256 counter keystream that is keyed by the path, with the client in the upper half of
the counter. On a GPU they are made there, for all clients in one pass (see `gpu_random`): in secure mode they are a
ChaCha20 keystream, keyed by the path too (AES from the processor, where there is no Triton), and in research mode
Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). Normals are computed as float32 from
53-bit (secure) or 32-bit (research) uniforms by the method of Box and Muller (1958).
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

from sordino.core import gpu_random
from sordino.core.devices import sent
from sordino.core.errors import SpecError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ZEROS = bytes(1 << 18)  # encrypted to obtain the keystream
Picks = tuple[Tensor, tuple[int, ...]]  # indices into all clients' records laid end to end, and counts per client


@dataclass(frozen=True, repr=False)
class Stream:
    """A random stream, identified by its key."""

    key: bytes  # 32 bytes
    secure: bool

    @staticmethod
    def research(seed: int) -> Stream:
        """Return the root stream of a seed, for experiments that can be repeated."""
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise SpecError(f"seed must be a whole number from 0 to 2^63 - 1, not {seed!r}.")
        return Stream(hashlib.blake2b(b"sordino research %d" % seed, digest_size=32).digest(), secure=False)

    @staticmethod
    def operating_system() -> Stream:
        """Return a root stream with a fresh key from the operating system."""
        return Stream(os.urandom(32), secure=True)

    def __repr__(self) -> str:  # a key must not end up in a log
        return f"Stream({'secure' if self.secure else 'research'})"

    def at(self, *path: str | int) -> Stream:
        """Return the stream at a path below this one."""
        return Stream(hashlib.blake2b(repr(path).encode(), key=self.key, digest_size=32).digest(), self.secure)

    def rows(self, ids: Sequence[int] | Ints) -> RowStream:
        """Return one stream per client, from which all clients draw at once."""
        return RowStream(self, np.asarray(ids, dtype=np.int64))

    def uniform(self, n: int, row: int = -1) -> Floats:
        """Return n numbers in [0, 1), which are multiples of 2^-53."""
        return (self.words(n, row) >> np.uint64(11)) / 2.0**53

    def integer(self) -> int:
        """Return a 63-bit integer, for use as the seed of another generator."""
        return int.from_bytes(self.at("integer").key[:8], "little") >> 1

    def permutation(self, n: int, row: int = -1) -> Ints:
        """Return a random permutation of n indices."""
        return np.argsort(self.uniform(n, row), kind="stable")

    def poisson(self, n: int, rate: float, row: int = -1) -> Ints:
        """Return indices below n, each included independently with probability `rate`."""
        return np.flatnonzero(self.uniform(n, row) < rate) if rate < 1 else np.arange(n)

    def fixed(self, n: int, size: int, row: int = -1) -> Ints:
        """Return `size` of n indices drawn without replacement, sorted."""
        return np.sort(self.permutation(n, row)[:size])

    def words(self, n: int, row: int = -1, start: int = 0) -> NDArray[np.uint64]:
        """Return n random 64-bit words of the keystream.

        Args:
            n: the number of words.
            row: the client that the keystream belongs to; -1 for none.
            start: the word at which to enter the keystream, an even number.
        """
        return np.frombuffer(self._cipher(row, start).update(bytes(8 * n)), dtype=np.uint64)

    def fill(self, room: NDArray[np.uint64], n: int, row: int = -1, start: int = 0) -> NDArray[np.uint64]:
        """Write `words` to existing memory; `room` needs n + 2 words, because the cipher asks for extra space."""
        zeros = memoryview(ZEROS)[: 8 * n] if 8 * n <= len(ZEROS) else bytes(8 * n)
        self._cipher(row, start).update_into(zeros, room.data.cast("B"))
        return room[:n]

    def _cipher(self, row: int, start: int) -> CipherContext:
        if start % 2:
            raise SpecError(f"a keystream is entered at an even word, not at {start}.")
        return Cipher(algorithms.AES(self.key), modes.CTR(_counter(row, start // 2))).encryptor()


def _counter(row: int, block: int = 0) -> bytes:
    """Return the initial counter of a keystream: the upper half is the row, the lower half counts blocks."""
    return (row % 2**64).to_bytes(8, "big") + block.to_bytes(8, "big")


@dataclass(frozen=True, repr=False)
class RowStream:
    """One stream per client: row i of every draw depends only on the key and on ids[i]."""

    stream: Stream
    ids: Ints  # [clients]

    def at(self, *path: str | int) -> RowStream:
        """Return the streams at a path below these, for the same clients."""
        return RowStream(self.stream.at(*path), self.ids)

    def words(self, n: int) -> NDArray[np.uint64]:
        """Return random 64-bit words [clients, n], on the host."""
        if len(self.ids) == 1:
            return self.stream.words(n, int(self.ids[0]))[None]
        out = np.empty((len(self.ids), n), dtype=np.uint64)
        cipher, zeros = self.stream._cipher(0, 0), bytes(8 * n)
        for row, i in zip(out, self.ids.tolist(), strict=True):
            cipher.reset_nonce(_counter(i))  # same as a new cipher, in a seventh of the time
            row[:] = np.frombuffer(cipher.update(zeros), dtype=np.uint64)
        return out

    def uniform(self, n: int) -> Floats:
        """Return numbers in (0, 1) [clients, n], on the host; odd multiples of 2^-54, so never 0 or 1."""
        return np.asarray(((self.words(n) >> np.uint64(11)) + 0.5) * 2.0**-53, dtype=np.float64)

    def unit(self, n: int, device: torch.device) -> Tensor:
        """Return `uniform` as a tensor on the device; on a GPU it is drawn there, in research mode with 32 bits."""
        if device.type == "cuda" and not self.stream.secure:
            words = self._words(device, (n + 3) // 4)  # [4, clients, n / 4]
            return words.permute(1, 0, 2).reshape(len(self.ids), -1)[:, :n].double().add_(0.5).mul_(2.0**-32)
        if gpu_random.ready(device):
            return self._bits53(device, n).double().add_(0.5).mul_(2.0**-53)
        return torch.from_numpy(self.uniform(n)).to(device)

    def normal(self, dim: int, like: Tensor) -> Tensor:
        """Return standard normals [clients, dim] on the device of `like`."""
        if not len(self.ids):
            return like.new_zeros(0, dim)
        if gpu_random.ready(like.device):
            ids = self._on(like.device)
            if self.stream.secure:
                return gpu_random.chacha_normals(self.chacha_key(), ids, dim, like.dtype)
            return gpu_random.philox_normals(self.stream.key, ids, dim, like.dtype)
        if like.device.type == "cuda" and not self.stream.secure:
            unit = self.unit(4 * ((dim + 3) // 4), like.device)
        elif self.stream.secure:
            unit = torch.from_numpy(((self.words(dim + dim % 2) >> np.uint64(11)) + 0.5) * 2.0**-53)
        else:
            halves = self.words((dim + 1) // 2).view(np.uint32)
            unit = torch.from_numpy(halves.astype(np.float32)).add_(0.5).mul_(2.0**-32)
        return box_muller(unit)[:, :dim].to(like.device, like.dtype)

    def poisson(self, sizes: Sequence[int], rates: Sequence[float], device: torch.device) -> Picks:
        """Draw records of each client, each included with probability rates[i]."""
        if self.draws_on(device):
            return picked([self.kept(sizes, rates, device)], sizes)[0]
        draws = (self.stream.poisson(n, r, int(i)) for n, r, i in zip(sizes, rates, self.ids, strict=True))
        return flat(list(draws), sizes, device)

    def draws_on(self, device: torch.device) -> bool:
        """Return whether records are drawn on this device and not on the processor."""
        return device.type == "cuda" and (gpu_random.ready(device) or not self.stream.secure)

    def kept(self, sizes: Sequence[int], rates: Sequence[float], device: torch.device) -> Tensor:
        """Draw records on the device: [clients, largest size], whether a record is included.

        The probabilities are rounded down to multiples of 2^-53, with a seed 2^-32.
        """
        width, size = max(sizes, default=0), sent(torch.tensor(list(sizes), dtype=torch.int64), device)
        whole, bits = (self._bits53(device, width), 53) if self.stream.secure else (self._bits32(device, width), 32)
        keep = whole < sent(torch.tensor([int(r * 2.0**bits) for r in rates], dtype=torch.int64), device)[:, None]
        return keep & (torch.arange(width, device=device) < size[:, None])

    def fixed(self, sizes: Sequence[int], takes: Sequence[int], device: torch.device) -> Picks:
        """Draw takes[i] of the sizes[i] records of each client, without replacement."""
        draws = (self.stream.fixed(n, m, int(i)) for n, m, i in zip(sizes, takes, self.ids, strict=True))
        return flat(list(draws), sizes, device)

    def permutations(self, sizes: Sequence[int]) -> list[Ints]:
        """Return a random order of the records of each client."""
        return [self.stream.permutation(n, int(i)) for n, i in zip(sizes, self.ids, strict=True)]

    def shuffled(self, sizes: Sequence[int], device: torch.device) -> Tensor:
        """Return random orders drawn on the device [clients, largest size], as indices into each client's records.

        A client's order fills the front of its row; what follows has no meaning.
        """
        width, size = max(sizes, default=0), sent(torch.tensor(list(sizes), dtype=torch.int64), device)
        keys = self._bits53(device, width) if self.stream.secure else self._bits32(device, width)
        beyond = torch.arange(width, device=device) >= size[:, None]
        return keys.masked_fill(beyond, 2**53).argsort(dim=1, stable=True)

    def integers(self) -> list[int]:
        """Return a 63-bit integer per client: the SplitMix64 finaliser of one key and the client."""
        v = (self.ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(
            self.stream.integer()
        )
        v = (v ^ (v >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        v = (v ^ (v >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return [int(i) for i in ((v ^ (v >> np.uint64(31))) >> np.uint64(1)).tolist()]

    def _on(self, device: torch.device) -> Tensor:
        """Return the clients' numbers on the device."""
        return sent(torch.from_numpy(self.ids), device)

    def chacha_key(self) -> bytes:
        """Return the key of the ChaCha20 keystream of these clients, for secure streams on a GPU."""
        return self.stream.at("chacha20").key

    def _bits53(self, device: torch.device, n: int) -> Tensor:
        """Return integers below 2^53 [clients, n] of the ChaCha20 keystream, computed on the device."""
        return (
            gpu_random.chacha_words(self.chacha_key(), self._on(device), n)
            .bitwise_right_shift_(11)
            .bitwise_and_(2**53 - 1)
        )

    def _bits32(self, device: torch.device, n: int) -> Tensor:
        """Return integers below 2^32 [clients, n] of Philox."""
        return self._words(device, (n + 3) // 4).permute(1, 2, 0).reshape(len(self.ids), -1)[:, :n]

    def _words(self, device: torch.device, n: int) -> Tensor:
        """Return words [4, clients, n] of Philox4x32-10, computed on the device.

        The key is that of the stream, the counter is (index, client). Products wrap around at 64 bits, which leaves
        both of their 32-bit halves correct.
        """
        if gpu_random.ready(device):
            return gpu_random.philox_words(self.stream.key, self._on(device), n)
        mask = 0xFFFFFFFF
        k0, k1 = (int.from_bytes(self.stream.key[i : i + 4], "little") for i in (0, 4))
        ids = self._on(device)[:, None]
        counter = torch.arange(n, device=device)[None, :]
        c0, c1, c2 = counter.expand(len(ids), -1), ids & mask, (ids >> 32) & mask
        c3 = torch.full_like(c1, int.from_bytes(self.stream.key[8:12], "little"))
        for _ in range(10):
            p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
            c0, c1 = (p1 >> 32) & mask ^ c1 ^ k0, p1 & mask
            c2, c3 = (p0 >> 32) & mask ^ c3 ^ k1, p0 & mask
            k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
        return torch.stack([w.expand(len(ids), n) for w in (c0, c1, c2, c3)])


def picked(keeps: Sequence[Tensor], sizes: Sequence[int]) -> list[Picks]:
    """Return the records of several draws, each from `RowStream.kept`; the host waits for the device once for all."""
    keep = torch.stack(list(keeps))  # [draws, clients, largest size]
    starts = torch.from_numpy(np.cumsum([0, *sizes])[:-1])
    counts = keep.sum(dim=2).tolist()
    _, row, column = keep.nonzero(as_tuple=True)
    index = (sent(starts, keep.device)[row] + column).split([sum(each) for each in counts])
    return list(zip(index, map(tuple, counts), strict=True))


def box_muller(unit: Tensor) -> Tensor:
    """Transform uniforms in (0, 1) [rows, 2 n] to standard normals of the same shape."""
    half = unit.shape[1] // 2
    radius = unit[:, :half].log().mul_(-2).sqrt_()
    angle = unit[:, half:] * (2 * math.pi)
    return torch.cat([angle.cos().mul_(radius), angle.sin_().mul_(radius)], dim=1)


def flat(chosen: Sequence[Ints], sizes: Sequence[int], device: torch.device) -> Picks:
    """Convert indices into each client's records to indices into the records of all clients laid end to end."""
    starts = np.cumsum([0, *sizes])
    parts = [c + start for c, start in zip(chosen, starts[:-1], strict=True)]
    index = np.concatenate([np.empty(0, np.int64), *parts])
    return torch.from_numpy(index).to(device), tuple(len(c) for c in chosen)
