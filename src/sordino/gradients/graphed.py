"""Backward passes recorded as CUDA graphs.

A backward pass of a small batch consists of hundreds of kernels of a few microseconds each, and launching them from
Python takes longer than running them. For each shape of a batch the pass is recorded with fixed buffers for weights,
records and gradients; after that a client costs three copies and one replay. If recording fails, the pass runs without
it.

The small batch of one client leaves most of a large GPU idle, so clients are distributed over lanes: concurrent streams
with their own buffers and their own recording of each shape.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

PATIENCE = 3  # times a shape occurs before it is recorded
OFTEN = 200  # times a shape occurs before it is compiled, if requested: this takes most of a minute
SHAPES = 64  # largest number of recorded shapes
COMPILED = 2  # largest number of compiled shapes
LANES = 4  # largest number of concurrent lanes

Job = tuple[Tensor, Tensor, Tensor, Tensor]  # weights [dim], x, y, out [dim]
Pass = Callable[[Tensor, Tensor, Tensor, Tensor], None]  # weights, x, y, out: adds the sum of gradients to out


class Replay:
    """A function of tensors, recorded as a CUDA graph with fixed input and output buffers."""

    def __init__(self, run: Callable[..., Tensor], places: Sequence[Tensor], side: Any, pool: Any) -> None:
        """Record `run` with the input buffers `places` on the stream `side`.

        The workspaces of libraries belong to the stream, and the memory pool is reused: recordings on the same stream
        and pool must not be replayed at the same time.
        """
        self._places, device = places, places[0].device
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):  # warm-up: libraries initialise outside the recording
            for _ in range(2):
                run(*places)
        torch.cuda.current_stream(device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, stream=side):
            self._out = run(*places)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Replay the function on the current stream and return its output, which the next call overwrites."""
        for place, value in zip(self._places, inputs, strict=True):
            place.copy_(value)
        self._graph.replay()
        return self._out


class Lane:
    """A stream with buffers for weights and gradients, and the recordings made on it."""

    def __init__(self, weights: Tensor) -> None:
        self._weights, self._out = weights.clone(), torch.zeros_like(weights)
        self._stream, self._pool = torch.cuda.Stream(weights.device), torch.cuda.graph_pool_handle()
        self._passes: dict[object, Replay] = {}

    def record(self, key: object, run: Pass, x: Tensor, y: Tensor) -> None:
        """Record the pass under `key`, for records of the shapes of x and y."""

        def fresh(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
            self._out.zero_()
            run(weights, x, y, self._out)
            return self._out

        self._passes[key] = Replay(fresh, (self._weights, x.clone(), y.clone()), self._stream, self._pool)

    def add(self, key: object, weights: Tensor, x: Tensor, y: Tensor, out: Tensor) -> None:
        """Replay a pass on the lane's stream, after all work submitted before; call `join` before reading `out`."""
        self._stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(self._stream):
            out.add_(self._passes[key](weights, x, y))

    def join(self) -> None:
        """Make the current stream wait for all work of this lane."""
        torch.cuda.current_stream(self._weights.device).wait_stream(self._stream)


class Graphed:
    """Recorded passes, by shape of the batch and by lane."""

    def __init__(self) -> None:
        self._lanes: dict[torch.device, list[Lane]] = {}
        self._known: dict[tuple[object, ...], int] = {}  # number of lanes; 0 if it could not be recorded
        self._compiled: dict[tuple[object, ...], Pass] = {}
        self._met: Counter[tuple[object, ...]] = Counter()
        self._lock = threading.Lock()

    def add(self, run: Pass, kind: object, jobs: Sequence[Job], limit: int = 0, compiled: bool = False) -> None:
        """Apply `run` to every job, by recordings if there are any.

        Args:
            run: the pass.
            kind: everything besides the shapes that determines what `run` does.
            jobs: weights, records and output of each pass.
            limit: the largest number of records in flight at once, unless a single job has more.
            compiled: whether to compile frequent shapes.
        """
        with self._lock:
            used: dict[int, Lane] = {}
            before: tuple[int, Lane | None] = (0, None)
            for turn, (weights, x, y, out) in enumerate(jobs):
                key = (kind, tuple(x.shape), x.dtype, x.stride(), tuple(y.shape), y.dtype, x.device)
                lane = self._lane(key, run, (weights, x, y), turn, limit // max(1, x.shape[0]), compiled)
                if before[1] is not None and before[0] == out.data_ptr():  # parts of one client run in sequence
                    before[1].join()
                if lane is None:
                    run(weights, x, y, out)
                else:
                    lane.add(key, weights, x, y, out)
                    used[id(lane)] = lane
                before = (out.data_ptr(), lane)
            for each in used.values():
                each.join()

    def _lane(
        self,
        key: tuple[object, ...],
        run: Pass,
        parts: tuple[Tensor, Tensor, Tensor],
        turn: int,
        fit: int,
        compiled: bool,
    ) -> Lane | None:
        self._met[key] += 1
        if compiled and self._met[key] == OFTEN and len(self._compiled) < COMPILED:
            self._compiled[key] = compile_pass(run, *parts)
            self._record(key, self._compiled[key], parts, fit)
        if key not in self._known:
            if self._met[key] <= PATIENCE or len(self._known) >= SHAPES:
                return None
            self._record(key, run, parts, fit)
        lanes = self._known[key]
        return self._lanes[parts[1].device][turn % lanes] if lanes else None

    def _record(self, key: tuple[object, ...], run: Pass, parts: tuple[Tensor, Tensor, Tensor], fit: int) -> None:
        weights, x, y = parts
        self._known[key], lanes = 0, self._lanes.setdefault(x.device, [])
        try:
            for number in range(max(1, min(LANES, fit))):
                if number == len(lanes):
                    lanes.append(Lane(weights))
                lanes[number].record(key, run, x, y)
                self._known[key] += 1
        except RuntimeError:  # something in the pass synchronises with the host
            torch.cuda.synchronize(x.device)


def compile_pass(run: Pass, weights: Tensor, x: Tensor, y: Tensor) -> Pass:
    """Return the pass compiled by torch.compile, or the pass itself, with a warning, if that fails."""

    def fresh(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        out = torch.zeros_like(weights)
        run(weights, x, y, out)
        return out

    try:
        # force channels-last, which the compiler does not choose for small batches (benchmarks/gpu_steps.py)
        step = torch.compile(make_fx(fresh)(weights, x, y), dynamic=False, options={"force_layout_optimization": True})
        step(weights, x, y)
    except Exception as error:  # a missing compiler, an unknown operation: any type of error
        warnings.warn(f"no compiled pass ({type(error).__name__}: {error}); running it as it is.", stacklevel=2)
        return run

    def added(weights: Tensor, x: Tensor, y: Tensor, out: Tensor) -> None:
        out.add_(step(weights, x, y))

    return added
