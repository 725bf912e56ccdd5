"""Per-client sums of clipped gradients, from one forward and one backward pass over the flat batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordino.core import heartbeat
from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.gradients.alone import alone
from sordino.gradients.clipping import Clip
from sordino.gradients.clone import Plan, patch, private
from sordino.gradients.code import Code, check_losses
from sordino.gradients.draw import Generators
from sordino.gradients.layers.base import TapedLayer
from sordino.gradients.scale import pick
from sordino.gradients.split import Split
from sordino.gradients.tape import Tape
from sordino.gradients.watch import DecisionWatch


@dataclass(frozen=True)
class Twin:
    """A private copy of the model whose layers are patched to write to a tape."""

    module: nn.Module
    layers: list[TapedLayer]
    guard: AbstractContextManager[object]  # context to run the module in: see `code`


class BookKeeping:
    """The book-keeping algorithm of Bu et al. (2022), arXiv:2210.00038, for many clients at once.

    See `tape` and `terms`.
    """

    def __init__(self, code: Code, layout: Layout, plan: Plan) -> None:
        self._code, self._layout, self._plan = code, layout, plan
        self.half = False  # compute clipped gradients in bfloat16: see `half`
        self.images = False  # then also keep images in bfloat16 between layers
        self._local = threading.local()

    def twin(self, device: torch.device) -> Twin:
        """Return this thread's patched copy of the model on the device."""
        twins: dict[torch.device, Twin] = self._local.__dict__.setdefault("twins", {})
        if device not in twins:
            module = private(self._code.module, device)
            layers = patch(module, self._plan)
            twins[device] = Twin(module, layers, self._code.guard(module))
        return twins[device]

    def forward(self, tape: Tape, x: Tensor, y: Tensor) -> Tensor:
        """Return one loss per sample [records] and record the layers on the tape."""
        return self._forward(tape, x, lambda twin: self._predict(twin, x), lambda made: self._code.losses(made, y))

    def together(self, tape: Tape, x: Tensor, y: Tensor, asked: DecisionWatch | None = None) -> Tensor:
        """Return the same losses, but give the whole batch also to user code that is not on the closed list.

        Used only to probe the model (see `probe`). `asked` watches the model, not the loss.
        """

        def predict(twin: nn.Module) -> Tensor:
            if asked is None:
                return twin(x)  # type: ignore[no-any-return]
            asked.mark(x)
            made: Tensor = twin(x)
            asked.stop()  # the loss may read values: target checks do
            return made

        return self._forward(tape, x, predict, lambda made: self._code.loss(made, y))

    def _predict(self, twin: nn.Module, x: Tensor) -> Tensor:
        return twin(x) if self._code.known_module else alone(twin, "the model", x)

    def _forward(
        self, tape: Tape, x: Tensor, predict: Callable[[nn.Module], Tensor], loss: Callable[[Tensor], Tensor]
    ) -> Tensor:
        twin = self.twin(x.device)
        for layer in twin.layers:
            layer.open(tape)
        try:
            # of what is between layers; what autocast keeps would outlive a recording
            with torch.autocast(x.device.type, torch.bfloat16, enabled=tape.images, cache_enabled=False):
                predictions = predict(twin.module)
            losses = loss(predictions.float() if tape.images else predictions)
        finally:
            for layer in twin.layers:
                layer.open(None)
        return check_losses(losses, x.shape[0])

    def again(self, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of one sample, with all mutable state as it is at the start of every call."""
        out = weights.new_zeros(1, self._layout.dim)
        tape = Tape(self._layout, weights, Split((1,)), None, Generators((0,)), out)
        with self.twin(x.device).guard, torch.no_grad():
            return self.forward(tape, x.unsqueeze(0), y.unsqueeze(0))[0]

    def sums(
        self,
        weights: Tensor,
        batch: Batch,
        clip: Clip | None,
        seeds: Sequence[int] | None,
        limit: int,
        width: int = 1,
        share: Tensor | None = None,
        scale: Tensor | None = None,
        norm: int = 2,
    ) -> Tensor:
        """Return each client's sum of clipped gradients [clients, dim].

        Args:
            weights: [dim], shared by all clients, or [clients, dim].
            batch: the records of all clients.
            clip: the bound, or one bound per layer; None sums without clipping.
            seeds: one seed per client, needed if the model draws random numbers.
            limit: the largest number of records processed at once.
            width: number of consecutive records that are clipped together.
            share: [records], the weight of each record's loss.
            scale: [dim] or [clients, dim], by which gradients are divided before their norm is taken.
            norm: the norm that is clipped, 1 or 2.
        """
        split, stacked, draw = Split(batch.sizes), weights.dim() == 2, Generators(seeds)
        out = weights.new_zeros(split.clients, self._layout.dim)
        for clients, records, sizes in split.chunks(limit, width):
            heartbeat.beat(sum(sizes))
            chunk_weights = weights[clients] if stacked else weights
            tape = Tape(
                self._layout,
                chunk_weights,
                Split(sizes),
                clip,
                draw.after(clients.start),
                out[clients],
                width=width,
                scale=pick(scale, clients),
                norm=norm,
                half=self.half and clip is not None,
                images=self.images,
            )
            self._run(tape, batch.x[records], batch.y[records], None if share is None else share[records])
        return out

    def _run(self, tape: Tape, x: Tensor, y: Tensor, share: Tensor | None) -> None:
        with self.twin(x.device).guard, torch.enable_grad():
            losses = self.forward(tape, x, y)
            total = losses.sum() if share is None else (losses * share).sum()
            if total.requires_grad:
                torch.autograd.grad(total, tape.anchor, allow_unused=True)
        del losses, total
        with torch.no_grad():
            tape.close()

    def pure(
        self,
        weights: Tensor,
        x: Tensor,
        y: Tensor,
        share: Tensor,
        clip: Tensor | None = None,
        scale: Tensor | None = None,
        width: int = 1,
        clients: int = 1,
    ) -> Tensor:
        """Compute `sums` as a pure function of tensors, for clients padded to the same size.

        Weights are [clients, dim], or [dim] if all `clients` share them. `share` [records] is 0 for padding records.
        """
        clients = weights.shape[0] if weights.dim() == 2 else clients
        split = Split((x.shape[0] // clients,) * clients, fused=clients > 1)
        out = weights.new_zeros(clients, self._layout.dim)
        half = self.half and clip is not None
        draw, images = Generators(None), self.images
        tape = Tape(
            self._layout, weights, split, clip, draw, out, True, width=width, scale=scale, half=half, images=images
        )
        self._run(tape, x, y, share)
        return out
