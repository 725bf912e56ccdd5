"""Many clients on a GPU: pad all clients to the same size, then record the whole step or, on request, compile it.

Ragged batches would need a loop over clients; padded batches need only batched products of fixed shapes, and a step is
a pure function of tensors. A small step is recorded and replayed, since launching its kernels takes longer than running
them; a replay gives the same numbers bit for bit. A big step is traced as a whole (forward, backward, norms and sums)
and fused by torch.compile, which takes most of a minute, or several for a deep network, and pays off in long runs. If
either fails, or if compiling changes the numbers, the function runs unmodified. Clients too big for this are processed
one by one, and so is a client that is alone; they are padded only to limit the number of shapes, and recorded as well.

A recording keeps the memory of its activations. `most` bounds that of a single step, and nothing more is recorded once
all recordings keep a certain share of the device.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from sordino.core import heartbeat
from sordino.core.devices import sent
from sordino.core.rng import Ints
from sordino.core.types import Batch
from sordino.gradients.bookkeeping import BookKeeping
from sordino.gradients.clipping import Clip
from sordino.gradients.graphed import Replay
from sordino.gradients.terms import zero

ROUND = 8  # sizes are rounded up to a multiple, which limits the number of shapes
PARTS = 4  # number of parts into which clients are divided by size
CROWD = 64  # smallest number of clients that is divided
TILE = 16  # records of a client in a tile: see `Padded._tiled`
COPIED = (
    0.25  # weights copied for a tile, relative to the layer inputs and outputs of its records, up to which tiles pay
)
KEPT = 500_000_000  # largest number of weights copied at once
WASTE = 2.0  # padded records per real record, beyond which padding does not pay
SHAPES = 16  # largest number of shapes recorded or compiled
PATIENCE = 20  # times a shape occurs before it is compiled: Poisson-sampled cohorts vary in size
SMALL = 16  # a step is recorded if this many of its size would fit into memory
EACH = 1 / 8  # share of the device's memory that the step of a single client may need
ALL = 1 / 4  # share of the device's memory that recordings may keep before nothing more is recorded
BYTES = 8  # memory of a step over the number of inputs and outputs of its layers: activations and held gradients
TRIES = 3  # times a shape occurs before it is recorded
TOLERANCE = 1e-3  # relative difference beyond which a compiled step is rejected

Step = Callable[..., Tensor]  # weights, x, y, share[, clip[, scale]] -> [clients, dim]
Maker = Callable[[Step, tuple[Tensor, ...]], Step]


def padding(starts: Tensor, sizes: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return (index, alive), both [clients * size]: the record at each place, and whether it is a real one.

    A client is padded with its own first record, so that a value that is not finite affects only its own client, even
    at weight zero. Clients without records are padded with record 0.
    """
    place = torch.arange(size, device=sizes.device)
    alive = place < sizes.unsqueeze(1)
    first = torch.where(sizes > 0, starts, 0).unsqueeze(1)
    return torch.where(alive, place + first, first).reshape(-1), alive.reshape(-1)


def rounded(many: int) -> int:
    """Round up by at most an eighth, to limit the number of distinct client counts and group lengths."""
    step = max(1, 1 << max(0, many.bit_length() - 4))
    return -(-many // step) * step


def finely(many: int) -> int:
    """Round up by at most a sixteenth."""
    step = max(1, 1 << max(0, many.bit_length() - 5))
    return -(-many // step) * step


def chunked(order: Ints, counts: Ints, most: int) -> Iterator[Ints]:
    """Yield runs of clients, in this order, that have at most `most` tiles together (a single client may have more)."""
    run = 0
    while run < len(order):
        total = np.cumsum(counts[order[run:]])
        end = run + max(1, int(np.searchsorted(total, most, side="right")))
        yield order[run:end]
        run = end


def small(records: int, limit: int) -> bool:
    """Return whether a step is bound by kernel launches and is therefore recorded."""
    return SMALL * records <= limit


def crowded(sizes: tuple[int, ...]) -> bool:
    """Return whether so many clients of different sizes share their weights that a loop over them takes longer."""
    return len(sizes) >= CROWD and min(sizes) < max(sizes)


class Padded:
    """Recorded and compiled steps, by shape. With `backend` None nothing is compiled."""

    def __init__(self, book: BookKeeping, backend: str | None = "inductor") -> None:
        self._book, self._backend = book, backend
        self._steps: dict[tuple[object, ...], Step] = {}
        self._met: Counter[tuple[object, ...]] = Counter()
        self._sides: dict[torch.device, tuple[Any, Any]] = {}  # stream and memory pool of the recordings
        self._kept: Counter[torch.device] = Counter()  # memory of all recordings in bytes
        self._twins: list[object] = []  # keeps alive what recordings read, in case the thread that made them ends
        self._lock = threading.Lock()

    def pays(self, sizes: tuple[int, ...]) -> bool:
        """Return whether padding clients of these sizes to the largest one is worth its cost."""
        return max(sizes) * len(sizes) <= WASTE * sum(sizes) + ROUND * len(sizes)

    def sums(
        self,
        weights: Tensor,
        batch: Batch,
        clip: Clip | None,
        limit: int,
        width: int = 1,
        share: Tensor | None = None,
        scale: Tensor | None = None,
        compiled: bool = False,
        numbers: int = 0,
    ) -> Tensor:
        """Return each client's sum of clipped gradients; see `BookKeeping.sums` for the arguments.

        At most about `limit` records are processed at a time, in tiles or with clients of similar size together. With
        `compiled`, big steps with frequent shapes are compiled. Weights that all clients share stay so, since PyTorch's
        kernels for them are faster. `numbers` is that of the inputs and outputs of all layers for one record.
        """
        separate = weights.dim() == 2
        many, widest, even = len(batch.sizes), max(batch.sizes), min(batch.sizes) == max(batch.sizes)
        parts = 1 if even or many < CROWD else PARTS
        count = -(-many // max(parts, -(-widest * many // limit)))
        bound = None if clip is None else sent(torch.as_tensor(clip, dtype=weights.dtype), weights.device)
        if even and count == many:
            full = torch.ones(len(batch.y), dtype=weights.dtype, device=weights.device) if share is None else share
            how = self._how(small(len(batch.y), limit), compiled)
            return self._call(how, (width, many), weights, batch.x, batch.y, full, bound, scale)
        if self.tiles(batch.sizes, weights.shape[-1], numbers, width):
            return self._tiled(weights, batch, bound, limit, width, share, scale, compiled)
        sizes, multiple = torch.tensor(batch.sizes), max(1, ROUND // width) * width  # units are never split
        order = sizes.argsort(stable=True)
        starts, device = sizes.cumsum(0) - sizes, weights.device
        out = weights.new_empty(many, weights.shape[-1])
        for who in order.split(count):
            heartbeat.beat(int(sizes[who].sum()))
            size = max(width, -(-int(sizes[who].max()) // multiple) * multiple)
            fill = (0, rounded(len(who)) - len(who))  # added clients without records
            first, each = (sent(F.pad(t[who], fill), device) for t in (starts, sizes))
            places = sent(who, device)
            index, alive = padding(first, each, size)
            padded_weights = F.pad(weights[places], (0, 0, *fill)) if separate else weights
            each_share = alive.to(weights.dtype) if share is None else alive * share[index]
            by = scale
            if scale is not None and scale.dim() == 2:
                by = F.pad(scale[places], (0, 0, *fill), value=1.0)
            how = self._how(small(len(index), limit), compiled)
            x, y = batch.x[index], batch.y[index]
            rows = self._call(how, (width, len(first)), padded_weights, x, y, each_share, bound, by)
            rows = rows[: len(who)]
            out[places] = zero(rows, each[: len(who)] == 0)
        return out

    def tiles(self, sizes: tuple[int, ...], dim: int, numbers: int, width: int) -> bool:
        """Return whether clients are cut into tiles: many clients of several tiles each, whose weights are few."""
        long = sum(sizes) >= 2 * TILE * len(sizes) and TILE % width == 0
        return long and len(sizes) >= CROWD and dim <= COPIED * TILE * numbers

    def _tiled(
        self,
        weights: Tensor,
        batch: Batch,
        bound: Tensor | None,
        limit: int,
        width: int,
        share: Tensor | None,
        scale: Tensor | None,
        compiled: bool,
    ) -> Tensor:
        """Return the sums of clients cut into tiles of `TILE` records, each computed as a client of its own.

        Only a client's last tile is padded, and Poisson batches give the same few shapes again and again. The tiles of
        a chunk are ordered by their number within the client and by the client, those with most tiles first, so that
        tiles are added to clients by slices.
        """
        device, separate, (many, dim) = weights.device, weights.dim() == 2, (len(batch.sizes), weights.shape[-1])
        sizes = np.asarray(batch.sizes, dtype=np.int64)
        starts, counts = np.cumsum(sizes) - sizes, -(-sizes // TILE)
        order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        out = weights.new_zeros(many, dim)
        for who in chunked(order, counts, max(1, min(limit // TILE, KEPT // dim))):
            heartbeat.beat(int(sizes[who].sum()))
            owners = [who[: np.count_nonzero(counts[who] > j)] for j in range(int(counts[who[0]]))]
            owner, number = np.concatenate(owners), np.repeat(np.arange(len(owners)), [len(o) for o in owners])
            fill = (0, finely(len(owner)) - len(owner))  # added tiles without records
            first, each = starts[owner] + number * TILE, np.minimum(sizes[owner] - number * TILE, TILE)
            at, live, rows_of = (sent(torch.from_numpy(np.pad(v, fill)), device) for v in (first, each, owner))
            index, alive = padding(at, live, TILE)
            each_weights = weights[rows_of] if separate else weights
            each_share = alive.to(weights.dtype) if share is None else alive * share[index]
            by = scale[rows_of] if scale is not None and scale.dim() == 2 else scale
            how = self._how(small(len(index), limit), compiled)
            x, y = batch.x[index], batch.y[index]
            rows = self._call(how, (width, len(at)), each_weights, x, y, each_share, bound, by)
            sums, done = rows[: len(who)].clone(), len(who)
            for part in owners[1:]:
                sums[: len(part)] += rows[done : done + len(part)]
                done += len(part)
            out[rows_of[: len(who)]] = sums
        return out

    def most(self, numbers: int, device: torch.device) -> int:
        """Return how many records of a single client to process at a time, by the memory that the step needs.

        Args:
            numbers: inputs and outputs of all layers for one record.
            device: where they are processed.
        """
        memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 1 << 34
        return max(1, int(EACH * memory) // (BYTES * max(1, numbers)))

    def single_client(
        self,
        weights: Tensor,
        batch: Batch,
        clip: Clip | None,
        width: int = 1,
        share: Tensor | None = None,
        scale: Tensor | None = None,
        numbers: int = 0,
    ) -> Tensor:
        """Return the sum of one client [dim] with weights [dim], for which PyTorch has kernels.

        The step is padded in the same way before it is recorded and after, so that both give the same numbers. If the
        clip is on the device, nothing waits for the device. `numbers` is that of `most`.
        """
        bound = None if clip is None else sent(torch.as_tensor(clip, dtype=weights.dtype), weights.device)
        multiple, many = max(1, ROUND // width) * width, len(batch.y)
        heartbeat.beat(many)
        place = torch.arange(rounded(-(-many // multiple)) * multiple, device=weights.device)
        alive = place < many
        index = place * alive  # padded with the first record
        each_share = alive.to(weights.dtype) if share is None else alive * share[index]
        how = TRIES, partial(self._record, need=BYTES * numbers * len(place))
        return self._call(how, (width, 1), weights, batch.x[index], batch.y[index], each_share, bound, scale)[0]

    def _how(self, recorded: bool, compiled: bool) -> tuple[int, Maker] | None:
        """Return after how many calls with a shape a step is made for it, and the function that makes it."""
        return (TRIES, self._record) if recorded else (PATIENCE, self._compile) if compiled else None

    def _call(self, how: tuple[int, Maker] | None, counts: tuple[int, int], *inputs: Tensor | None) -> Tensor:
        """Run a step; `counts` has the number of records that are clipped together, and that of the clients."""
        known = tuple(t for t in inputs if t is not None)
        step = self._step(how, counts, inputs)
        if not isinstance(step, Replay):
            return step(*known)
        with self._lock:  # a recording has a single set of buffers
            return step(*known).clone()

    def _step(self, how: tuple[int, Maker] | None, counts: tuple[int, int], inputs: tuple[Tensor | None, ...]) -> Step:
        shapes = ((t.shape, t.dtype, t.device) if t is not None else None for t in inputs)
        key = (counts, *shapes, self._book.half, self._book.images)
        plain = partial(self._plain, width=counts[0], clients=counts[1])
        if key not in self._steps:
            if how is None:
                return plain
            tries, make = how
            with self._lock:
                self._met[key] += 1
                if self._met[key] <= tries:
                    return plain
                if key not in self._steps:
                    self._steps[key] = make(plain, tuple(t for t in inputs if t is not None))
        return self._steps[key]

    def _plain(self, *inputs: Tensor, width: int = 1, clients: int = 1) -> Tensor:
        weights, x, y, share, *rest = inputs
        clip, scale = (*rest, None, None)[:2]
        return self._book.pure(weights, x, y, share, clip, scale, width, clients)

    def _record(self, plain: Step, inputs: tuple[Tensor, ...], need: int = 0) -> Step:
        """Return the recorded step, or the step itself if there is no room for the bytes it needs."""
        if not inputs[0].is_cuda or len(self._steps) >= SHAPES:
            return plain
        device = inputs[0].device
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        if self._kept[device] + need > ALL * total or 2 * need > free:
            return plain
        if device not in self._sides:
            self._sides[device] = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
        before = torch.cuda.memory_reserved(device)
        try:
            step = Replay(plain, [value.clone() for value in inputs], *self._sides[device])
        except RuntimeError:  # something in the step synchronises with the host
            torch.cuda.synchronize(device)
            return plain
        torch.cuda.empty_cache()  # of what the warm-up left on its stream
        self._kept[device] += torch.cuda.memory_reserved(device) - before
        self._twins.append(self._book.twin(device))
        return step

    def _compile(self, plain: Step, inputs: tuple[Tensor, ...]) -> Step:
        if self._backend is None or len(self._steps) >= SHAPES:
            return plain
        try:
            graph = make_fx(plain)(*inputs)
            step: Step = torch.compile(graph, backend=self._backend, dynamic=False)
            got, expected = step(*inputs), plain(*inputs)
        except Exception as error:  # a missing compiler, an unknown operation: any type of error
            warnings.warn(f"no compiled step ({type(error).__name__}: {error}); running it as it is.", stacklevel=2)
            self._backend = None
            return plain
        finite = torch.nan_to_num(got - expected, nan=0.0)
        return step if finite.norm() <= TOLERANCE * torch.nan_to_num(expected).norm() else plain
