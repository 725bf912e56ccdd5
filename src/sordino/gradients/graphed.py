"""Plain passes on a GPU without the price of starting every kernel: recorded once as a CUDA graph, then replayed.

A backward pass of a small batch is hundreds of kernels of a few microseconds, and starting them from Python takes
longer than running them. For one shape of a batch the pass is recorded with fixed places for weights, records and
gradients; after that a client costs three copies and one replay. Where recording fails the pass runs as it is.

One client's small batch leaves most of a large GPU idle, so a shape is recorded more than once, in lanes: recordings
with places and a stream of their own, which run beside each other.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

PATIENCE = 3  # times a shape is met before it is recorded
SHAPES = 8  # recorded at most: each keeps the memory of its pass, once for every lane
LANES = 4  # recordings of one shape at most

Job = tuple[Tensor, Tensor, Tensor, Tensor]  # weights [dim], x, y, out [dim]
Pass = Callable[[Tensor, Tensor, Tensor, Tensor], None]  # adds the sum of gradients to out


class Replay:
    """A function of tensors with places for what goes in and what comes out, recorded on the side."""

    def __init__(self, run: Callable[..., Tensor], inputs: Sequence[Tensor], side: Any, pool: Any = None) -> None:
        """`side` is the stream to record on. The libraries' workspaces belong to it: recordings of one stream must not
        be replayed at the same time, and may share a pool of memory."""
        self._places = [value.clone() for value in inputs]
        self.device = inputs[0].device
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):  # libraries set themselves up outside of the recording
            for _ in range(2):
                run(*self._places)
        torch.cuda.current_stream(self.device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, stream=side):
            self._out = run(*self._places)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """On the current stream; the next call writes over what comes out."""
        for place, value in zip(self._places, inputs, strict=True):
            place.copy_(value)
        self._graph.replay()
        return self._out


class Recorded:
    """One pass with its places and its stream."""

    def __init__(self, run: Pass, weights: Tensor, x: Tensor, y: Tensor) -> None:
        def fresh(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
            out = torch.zeros_like(weights)
            run(weights, x, y, out)
            return out

        self._stream = torch.cuda.Stream(x.device)
        self._replay = Replay(fresh, (weights, x, y), self._stream)

    def add(self, weights: Tensor, x: Tensor, y: Tensor, out: Tensor) -> None:
        """On the own stream, after all that was asked for before; `join` before anything else reads `out`."""
        self._stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(self._stream):
            out.add_(self._replay(weights, x, y))

    def join(self) -> None:
        torch.cuda.current_stream(self._replay.device).wait_stream(self._stream)


class Graphed:
    """Recorded passes by the shape of the batch and the lane."""

    def __init__(self) -> None:
        self._passes: dict[tuple[object, ...], list[Recorded]] = {}  # lanes; none: could not be recorded
        self._met: Counter[tuple[object, ...]] = Counter()
        self._lock = threading.Lock()

    def add(self, run: Pass, kind: object, jobs: Sequence[Job], limit: int = 0) -> None:
        """What `run` does with every job, by recordings where there are any; `kind` is whatever else decides what
        `run` does. At most `limit` records are under way at once, or one job."""
        with self._lock:
            used: dict[int, Recorded] = {}
            before: tuple[int, Recorded | None] = (0, None)
            for turn, (weights, x, y, out) in enumerate(jobs):
                found = self._recording(run, kind, (weights, x, y), turn, limit // max(1, x.shape[0]))
                if before[1] is not None and before[0] == out.data_ptr():  # parts of one client, one after the other
                    before[1].join()
                if found is None:
                    run(weights, x, y, out)
                else:
                    found.add(weights, x, y, out)
                    used[id(found)] = found
                before = (out.data_ptr(), found)
            for each in used.values():
                each.join()

    def _recording(
        self, run: Pass, kind: object, parts: tuple[Tensor, Tensor, Tensor], turn: int, fit: int
    ) -> Recorded | None:
        weights, x, y = parts
        key = (kind, tuple(x.shape), x.dtype, x.stride(), tuple(y.shape), y.dtype, x.device)
        self._met[key] += 1
        if key not in self._passes:
            if self._met[key] <= PATIENCE or len(self._passes) >= SHAPES:
                return None
            self._passes[key] = []
            try:
                for _ in range(max(1, min(LANES, fit))):
                    self._passes[key].append(Recorded(run, weights, x, y))
            except RuntimeError:  # something in the pass waits for the device, or asks the host
                torch.cuda.synchronize(x.device)
        lanes = self._passes[key]
        return lanes[turn % len(lanes)] if lanes else None
