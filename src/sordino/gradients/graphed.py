"""Plain passes on a GPU without the price of starting every kernel: recorded once as a CUDA graph, then replayed.

A backward pass of a small batch is hundreds of kernels of a few microseconds, and starting them from Python takes
longer than running them. For one shape of a batch the pass is recorded with fixed places for weights, records and
gradients; after that a client costs three copies and one replay. Where recording fails the pass runs as it is.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

PATIENCE = 3  # times a shape is met before it is recorded
SHAPES = 8  # recorded at most: each keeps the memory of its pass

Pass = Callable[[Tensor, Tensor, Tensor, Tensor], None]  # weights [dim], x, y, out [dim]: adds the sum of gradients


class Recorded:
    """One pass with its places."""

    def __init__(self, run: Pass, weights: Tensor, x: Tensor, y: Tensor) -> None:
        self._weights, self._x, self._y = weights.clone(), x.clone(), y.clone()
        self._out = torch.zeros_like(self._weights)
        side = torch.cuda.Stream(x.device)
        side.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(side):  # libraries set themselves up outside of the recording
            for _ in range(2):
                run(self._weights, self._x, self._y, self._out)
        torch.cuda.current_stream(x.device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._out.zero_()
            run(self._weights, self._x, self._y, self._out)

    def add(self, weights: Tensor, x: Tensor, y: Tensor, out: Tensor) -> None:
        self._weights.copy_(weights)
        self._x.copy_(x)
        self._y.copy_(y)
        self._graph.replay()
        out.add_(self._out)


class Graphed:
    """Recorded passes by the shape of the batch."""

    def __init__(self) -> None:
        self._passes: dict[tuple[object, ...], Recorded | None] = {}  # None: could not be recorded
        self._met: Counter[tuple[object, ...]] = Counter()
        self._lock = threading.Lock()

    def add(self, run: Pass, kind: object, weights: Tensor, x: Tensor, y: Tensor, out: Tensor) -> None:
        """What `run` does, by a recording where there is one; `kind` is whatever else decides what `run` does."""
        key = (kind, tuple(x.shape), x.dtype, x.stride(), tuple(y.shape), y.dtype, x.device)
        with self._lock:
            self._met[key] += 1
            if key not in self._passes and self._met[key] > PATIENCE and len(self._passes) < SHAPES:
                try:
                    self._passes[key] = Recorded(run, weights, x, y)
                except RuntimeError:  # something in the pass waits for the device, or asks the host
                    torch.cuda.synchronize(x.device)
                    self._passes[key] = None
            found = self._passes.get(key)
            if found is not None:
                found.add(weights, x, y, out)
                return
        run(weights, x, y, out)
