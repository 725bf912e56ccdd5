"""The assignment of records to clients, and the products that depend on it.

All records of all clients lie one after another in a flat batch [records, ...]. Operations on single records
(activations, pooling, attention) do not depend on the clients; `Split` has the few operations that do. If all clients
have the same number of records, these are batched products, else loops over clients; nothing is padded here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import torch
from torch import Tensor

from sordino.gradients.half import products


class Split:
    """A flat batch in which `sizes[k]` consecutive records belong to client k."""

    def __init__(self, sizes: tuple[int, ...], fused: bool = False) -> None:
        self.sizes, self.fused = sizes, fused  # fused: prefer operations that a compiler can fuse
        self.clients, self.records = len(sizes), sum(sizes)
        self.even = sizes[0] if sizes and sizes[0] > 0 and len(set(sizes)) == 1 else 0
        self._owner: Tensor | None = None

    def slices(self) -> Iterator[tuple[int, slice]]:
        """Yield (client, slice of its records) for every client that has records."""
        for k, (size, stop) in enumerate(zip(self.sizes, accumulate(self.sizes), strict=True)):
            if size:
                yield k, slice(stop - size, stop)

    def units(self, width: int) -> Split:
        """Return the split of the same clients, counted in units of `width` consecutive records."""
        return Split(tuple(size // width for size in self.sizes), self.fused) if width > 1 else self

    def chunks(self, limit: int, width: int = 1) -> Iterator[tuple[slice, slice, tuple[int, ...]]]:
        """Yield (clients, records, sizes) of parts with at most `limit` records each.

        Clients are kept whole and share a part if they fit; how a larger client is split depends on its size alone.
        Units of `width` records are never split.
        """
        if width > 1:
            for clients, units, sizes in self.units(width).chunks(max(1, limit // width)):
                records = slice(units.start * width, units.stop * width)
                yield clients, records, tuple(size * width for size in sizes)
            return
        first, start, held = 0, 0, 0
        for k, size in enumerate(self.sizes):
            if held + size > limit and held:
                yield slice(first, k), slice(start, start + held), self.sizes[first:k]
                first, start, held = k, start + held, 0
            if size > limit:
                pieces = -(-size // limit)
                for i in range(pieces):
                    cut = size * (i + 1) // pieces - size * i // pieces
                    yield slice(k, k + 1), slice(start, start + cut), (cut,)
                    start += cut
                first = k + 1
            else:
                first, held = (k, size) if not held else (first, held + size)
        if held:
            yield slice(first, self.clients), slice(start, start + held), self.sizes[first:]

    def owner(self, device: torch.device) -> Tensor:
        """Return the client of every record [records]."""
        if self._owner is None or self._owner.device != device:
            clients = torch.arange(self.clients, device=device)
            if self.even:
                self._owner = clients.repeat_interleave(self.even, output_size=self.records)
            else:
                sizes = torch.tensor(self.sizes, device=device)
                self._owner = clients.repeat_interleave(sizes, output_size=self.records)
        return self._owner

    def spread(self, rows: Tensor) -> Tensor:
        """Repeat each client's row for each of its records: [clients, ...] -> [records, ...]."""
        if self.even:
            tail = rows.shape[1:]
            return rows.unsqueeze(1).expand(-1, self.even, *tail).reshape(self.records, *tail)
        return rows[self.owner(rows.device)]

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Return x weightᵀ + bias, with the weight and bias of each record's client.

        x [records, ..., d], weight [clients, p, d], bias [clients, p] -> [records, ..., p].
        """
        p, d = weight.shape[1:]
        y = x.new_empty(*x.shape[:-1], p) if out is None else out
        if self.even:
            x3, w3, y3 = x.reshape(self.clients, -1, d), weight.transpose(1, 2), y.view(self.clients, -1, p)
            if bias is None:
                torch.bmm(x3, w3, out=y3)
            else:
                torch.baddbmm(bias.unsqueeze(1), x3, w3, out=y3)
            return y
        for k, rows in self.slices():
            x2, y2 = x[rows].reshape(-1, d), y[rows].view(-1, p)
            if bias is None:
                torch.mm(x2, weight[k].t(), out=y2)
            else:
                torch.addmm(bias[k], x2, weight[k].t(), out=y2)
        return y

    def outer(self, g: Tensor, a: Tensor) -> Tensor:
        """Return each client's sum of g aᵀ: [records, t, p], [records, t, d] -> [clients, p, d]."""
        p, d = g.shape[-1], a.shape[-1]
        if self.even:
            return products(g.reshape(self.clients, -1, p).transpose(1, 2), a.reshape(self.clients, -1, d))
        y = a.new_zeros(self.clients, p, d, dtype=torch.promote_types(a.dtype, torch.float32))
        for k, rows in self.slices():
            if a.dtype == torch.bfloat16:
                y[k] = products(g[rows].reshape(1, -1, p).transpose(1, 2), a[rows].reshape(1, -1, d))[0]
            else:
                torch.mm(g[rows].reshape(-1, p).t(), a[rows].reshape(-1, d), out=y[k])
        return y

    def sum(self, values: Tensor, factors: Tensor | None = None) -> Tensor:
        """Return each client's sum, weighted by one factor per record: [records, ...] -> [clients, ...]."""
        tail = values.shape[1:]
        if factors is None:
            factors = values.new_ones(self.records)
        if self.clients == 1:
            return torch.mv(values.reshape(self.records, -1).t(), factors).view(1, *tail)
        if self.even and self.fused:
            each = values * factors.view(-1, *(1,) * len(tail))
            return each.view(self.clients, self.even, *tail).sum(1)
        if self.even:
            y = torch.bmm(factors.view(self.clients, 1, -1), values.reshape(self.clients, self.even, -1))
            return y.view(self.clients, *tail)
        flat = values.reshape(self.records, tail.numel())
        sums = values.new_zeros(self.clients, tail.numel())
        for k, rows in self.slices():
            torch.mv(flat[rows].t(), factors[rows], out=sums[k])
        return sums.view(self.clients, *tail)
