"""Per-client sums of clipped gradients for any module: vmap over samples, client by client.

torch.func.vmap(grad(functional_call)) needs no rule for any layer, so it also handles tied weights, einsum layers and
modules with their own parameters. If an operation has no batching rule, samples are processed one at a time. Memory is
bounded: the number of samples at once is limited by a fixed number of gradient entries, independently of other clients.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sordino.core import heartbeat
from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.gradients.clipping import Clip
from sordino.gradients.clone import private
from sordino.gradients.code import Code, check_losses
from sordino.gradients.scale import pick
from sordino.gradients.split import Split
from sordino.gradients.whole import clipped

ENTRIES = 32_000_000  # gradient entries held at once
SAMPLES = 64  # largest number of samples at once: activations also take memory

_GLOBAL_GENERATOR = threading.Lock()  # torch's default generator is shared by all threads


class PerSample:
    """Per-sample gradients by vmap, for any module."""

    def __init__(self, code: Code, layout: Layout) -> None:
        self._code, self._layout = code, layout
        self._local = threading.local()
        self._vmap = not code.rules

    def _twin(self, device: torch.device) -> tuple[nn.Module, AbstractContextManager[object]]:
        """Return this thread's copy of the model and the context to run it in."""
        twins: dict[torch.device, Any] = self._local.__dict__.setdefault("twins", {})
        if device not in twins:
            twin = private(self._code.module, device)
            twins[device] = twin, self._code.guard(twin)
        pair: tuple[nn.Module, AbstractContextManager[object]] = twins[device]
        return pair

    def sample_loss(self, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of one sample, a scalar."""
        twin = self._twin(weights.device)[0]
        values = {s.name: weights[s.start : s.stop].reshape(s.shape) for s in self._layout.slots}
        predictions = functional_call(twin, values, (x.unsqueeze(0),))
        return check_losses(self._code.loss(predictions, y.unsqueeze(0)), 1).squeeze(0)

    def again(self, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of one sample, with all mutable state as it is at the start of every call."""
        with self._twin(weights.device)[1], seeded(0, weights.device), torch.no_grad():
            return self.sample_loss(weights.clone(), x, y)

    def _grads(self, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        if self._vmap:
            try:
                many = vmap(grad(self.sample_loss), in_dims=(None, 0, 0), randomness="different")
                with self._twin(weights.device)[1]:
                    grads: Tensor = many(weights if self._code.known else weights.clone(), x, y)
                return grads
            except RuntimeError:
                self._each(weights, x[:1], y[:1])  # raises the model's own error, if it has one
                self._vmap = False
        return self._each(weights, x, y)

    def _each(self, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        rows = []
        for i in range(x.shape[0]):
            leaf = weights.detach().clone().requires_grad_()  # user code may write to it
            with self._twin(weights.device)[1], torch.enable_grad():
                value = self.sample_loss(leaf, x[i], y[i])
                got = torch.autograd.grad(value, leaf, allow_unused=True)[0] if value.requires_grad else None
            rows.append(torch.zeros_like(weights) if got is None else got)
        return torch.stack(rows)

    def sums(
        self,
        weights: Tensor,
        batch: Batch,
        clip: Clip | None,
        seeds: Sequence[int] | None,
        width: int = 1,
        share: Tensor | None = None,
        scale: Tensor | None = None,
        norm: int = 2,
    ) -> Tensor:
        """Return each client's sum of clipped gradients [clients, dim].

        Every `width` consecutive records, weighted by `share` [records], are clipped together. See `BookKeeping.sums`
        for the other arguments.
        """
        split = Split(batch.sizes)
        out = weights.new_zeros(split.clients, self._layout.dim)
        for k, rows in split.slices():
            client_weights = weights[k] if weights.dim() == 2 else weights
            with seeded(None if seeds is None else seeds[k], weights.device):
                client_share = None if share is None else share[rows]
                for units in self._units(client_weights, batch.x[rows], batch.y[rows], client_share, width):
                    if clip is None:
                        out[k] += units.sum(0)
                    else:
                        out[k] += clipped(units, clip, self._layout, pick(scale, k), norm)
        return out

    def _units(self, weights: Tensor, x: Tensor, y: Tensor, share: Tensor | None, width: int) -> Iterator[Tensor]:
        """Yield the summed gradients of every `width` records [units, dim], a few units at a time."""
        step = max(1, min(SAMPLES, ENTRIES // max(1, self._layout.dim)))
        many = max(1, step // width) * width  # whole units; a single unit may exceed a step
        for at in range(0, len(x), many):
            parts = []
            for i in range(at, min(at + many, len(x)), step):
                rows = slice(i, min(i + step, at + many))
                heartbeat.beat(rows.stop - rows.start)
                grads = self._grads(weights, x[rows], y[rows]).detach()
                if share is not None:
                    grads *= share[rows].unsqueeze(1)
                parts.append(grads if width == 1 else grads.view(-1, min(width, len(grads)), grads.shape[1]).sum(1))
            yield parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


class seeded:  # noqa: N801 (reads as a function)
    """Context that seeds torch's default generators for one client and restores them afterwards."""

    def __init__(self, seed: int | None, device: torch.device) -> None:
        self._seed, self._cuda = seed, device.type == "cuda"
        devices = [device] if self._cuda else []
        self._fork = nullcontext() if seed is None else torch.random.fork_rng(devices)

    def __enter__(self) -> None:
        if self._seed is not None:
            _GLOBAL_GENERATOR.acquire()
            self._fork.__enter__()
            seed = torch.manual_seed if self._cuda else torch.default_generator.manual_seed
            seed(self._seed)  # torch.manual_seed without a GPU stores the call stack for a lazy CUDA start

    def __exit__(self, *error: object) -> None:
        if self._seed is not None:
            self._fork.__exit__(None, None, None)
            _GLOBAL_GENERATOR.release()
