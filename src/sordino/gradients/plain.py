"""Sums without clipping: one ordinary backward pass per client, with the client's own weights.

Without clipping no per-sample gradients are needed, and PyTorch's kernels for a single set of weights beat products of
patches: for few clients with a big model this is the fastest way. Dropout layers draw from the client's own generator,
the same numbers as on the book-keeping path.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sordino.core import heartbeat
from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.gradients.bookkeeping import Twin
from sordino.gradients.clone import patch, private
from sordino.gradients.code import Code, check_losses
from sordino.gradients.draw import Generators
from sordino.gradients.graphed import Graphed, Job, Pass
from sordino.gradients.layers import RANDOM
from sordino.gradients.memory import channels_last
from sordino.gradients.persample import seeded
from sordino.gradients.split import Split
from sordino.gradients.tape import Tape

CLOSE = 1e-3  # relative difference up to which a batch of two counts as two independent samples
NARROW = (  # layers run in bfloat16 end to end; a model with any other layer uses torch.autocast
    nn.Conv2d, nn.Linear, nn.GroupNorm, nn.ReLU, nn.Tanh, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten,
    nn.Identity,
)  # fmt: skip


@dataclass(frozen=True)
class Fit:
    """Whether and how a model runs on an ordinary batch."""

    usable: bool
    last: bool = False  # whether images may be channels-last
    numbers: int = 0  # numbers saved for the backward pass per sample; 0 if not counted


UNFIT = Fit(False)


@dataclass(frozen=True)
class PassSettings:
    """How a pass is run.

    Passes with equal settings and shapes share a recording.
    """

    last: bool = False  # images are channels-last
    shared_generator: bool = False  # the model draws from torch's default generator, which is seeded for each client
    random: bool = False  # the model draws random numbers
    bfloat16: bool = False  # forward and backward in bfloat16 where torch allows; sums have the weights' type
    compiled: bool = False  # on a GPU, compile frequent shapes


class Plain:
    """Sums of gradients without clipping, by ordinary backward passes."""

    def __init__(self, code: Code, layout: Layout) -> None:
        module = code.module
        self._code, self._module, self._loss, self._layout = code, module, code.loss, layout
        self._local = threading.local()
        self._graphed = Graphed()
        self._kept: set[nn.Module] = set()  # keeps alive what recordings read, in case the thread that made them ends
        leaves = [part for part in module.modules() if not any(True for _ in part.children())]
        self._narrow = all(type(part) in NARROW for part in leaves) and not any(True for _ in module.buffers())

    def _twin(self, device: torch.device) -> Twin:
        """Return this thread's copy of the model, with dropout layers that draw from a tape."""
        twins: dict[torch.device, Twin] = self._local.__dict__.setdefault("twins", {})
        if device not in twins:
            twin = private(self._module, device)
            kinds = {path: RANDOM.get(type(part)) for path, part in twin.named_modules()}
            layers = patch(twin, {path: (kind, {}) for path, kind in kinds.items() if kind})
            twins[device] = Twin(twin, layers, self._code.guard(twin))
        return twins[device]

    def sums(
        self,
        weights: Tensor,
        batch: Batch,
        seeds: Sequence[int] | None,
        limit: int,
        share: Tensor | None,
        how: PassSettings,
    ) -> Tensor:
        """Return each client's sum of gradients [clients, dim].

        Args:
            weights: [dim], shared by all clients, or [clients, dim].
            batch: the records of all clients.
            seeds: one seed per client, needed if the model draws random numbers.
            limit: the largest number of records processed at once.
            share: [records], the weight of each record's loss.
            how: how passes are run.
        """
        split, draw = Split(batch.sizes), Generators(seeds)
        out = weights.new_zeros(split.clients, self._layout.dim)
        x = channels_last(batch.x) if how.last else batch.x
        recorded: list[Job] = []
        for k, rows in split.slices():
            client_weights = weights[k] if weights.dim() == 2 else weights
            with seeded(seeds[k] if how.shared_generator and seeds is not None else None, x.device):
                for _, records, _ in Split((rows.stop - rows.start,)).chunks(limit):
                    part = slice(rows.start + records.start, rows.start + records.stop)
                    heartbeat.beat(part.stop - part.start)
                    if x.is_cuda and not how.random and share is None:
                        recorded.append((client_weights, x[part], batch.y[part], out[k]))
                    else:
                        some = None if share is None else share[part]
                        self._add(client_weights, x[part], batch.y[part], out[k], draw.after(k), some, how)
        if recorded:
            self._kept.add(self._twin(x.device).module)
            self._graphed.add(self._pass(how), how, recorded, limit, how.compiled)
        return out

    def _pass(self, how: PassSettings) -> Pass:
        return lambda weights, x, y, out: self._add(weights, x, y, out, Generators(None), None, how)

    def _add(
        self,
        weights: Tensor,
        x: Tensor,
        y: Tensor,
        out: Tensor,
        draw: Generators,
        share: Tensor | None,
        how: PassSettings,
    ) -> None:
        """Add the sum of the records' gradients, weighted by share, to out [dim]."""
        with self._twin(x.device).guard:
            self._backward(weights if self._code.known else weights.clone(), x, y, out, draw, share, how)

    def _backward(
        self,
        weights: Tensor,
        x: Tensor,
        y: Tensor,
        out: Tensor,
        draw: Generators,
        share: Tensor | None,
        how: PassSettings,
    ) -> None:
        narrow = how.bfloat16 and self._narrow
        if narrow:
            weights, x = weights.bfloat16(), x.bfloat16()
        values, sums = self._layout.views(weights), self._layout.views(out)
        leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
        tape = Tape(self._layout, weights, Split((x.shape[0],)), None, draw, out.unsqueeze(0))
        with torch.enable_grad(), torch.autocast(x.device.type, torch.bfloat16, enabled=how.bfloat16 and not narrow):
            losses = self.forward(tape, leaves, x, y)
            total = losses.sum() if share is None else (losses * share).sum()
        if total.requires_grad:
            grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
            pairs = [(a, g) for a, g in zip(sums.values(), grads, strict=True) if g is not None]
            terms = [g for _, g in pairs]
            if narrow:
                flat = torch.cat([g.reshape(-1) for g in terms]).to(out.dtype)
                terms = [part.view_as(g) for part, g in zip(flat.split([g.numel() for g in terms]), terms, strict=True)]
            torch._foreach_add_([a for a, _ in pairs], terms)

    def forward(self, tape: Tape, leaves: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Return one loss per sample [records]."""
        twin = self._twin(x.device)
        for layer in twin.layers:
            layer.open(tape)
        try:
            outputs = functional_call(twin.module, leaves, (x,))
            losses = self._loss(outputs.float() if outputs.dtype == torch.bfloat16 else outputs, y)
        finally:
            for layer in twin.layers:
                layer.open(None)
        return check_losses(losses, x.shape[0])

    def fit(self, weights: Tensor, batch: Batch, known: bool) -> Fit:
        """Return whether and how the model runs on an ordinary batch, judged from two records.

        Args:
            weights: [dim].
            batch: at least one record.
            known: book-keeping is used, so that samples are known to be independent; otherwise this is tested by
                comparing a batch of two with two batches of one.
        """
        if known and any(isinstance(part, nn.RNNBase) and part.dropout for part in self._module.modules()):
            return UNFIT  # the book-keeping path unrolls it, with different random numbers
        x, y = batch.x[:2], batch.y[:2]
        if x.shape[0] == 1:  # make a second record from the same numbers in another order
            x, y = torch.cat((x, x.flip(tuple(range(1, x.dim()))))), torch.cat((y, y))
        with seeded(0, x.device):  # restores the global generator, in case the model draws from it
            twin = private(self._module, x.device).eval()
            with self._code.guard(twin):
                return self._fit(twin, self._layout.views(weights.clone()), x, y, known)

    def _fit(self, twin: nn.Module, values: dict[str, Tensor], x: Tensor, y: Tensor, known: bool) -> Fit:
        def run(x: Tensor, y: Tensor) -> Tensor:
            return check_losses(self._loss(functional_call(twin, values, (x,)), y), x.shape[0])

        with torch.no_grad():
            last = x.dim() == 4 and x.is_floating_point() and _works(lambda: run(channels_last(x), y))
            if known:
                return Fit(True, last)
            try:
                together, single = run(x, y), torch.cat([run(x[i : i + 1], y[i : i + 1]) for i in range(2)])
            except Exception:  # it takes single samples only; errors with one sample were raised before
                return UNFIT
        if not torch.allclose(together, single, rtol=CLOSE, atol=CLOSE, equal_nan=True):
            return UNFIT
        leaves = {name: value.detach().requires_grad_() for name, value in values.items()}

        def saved_numbers(records: int) -> int:
            numbers = 0

            def count(value: Tensor) -> Tensor:
                nonlocal numbers
                numbers += value.numel()
                return value

            with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(count, lambda value: value):
                self._loss(functional_call(twin, leaves, (x[:records],)), y[:records])
            return numbers

        return Fit(True, last, max(1, saved_numbers(2) - saved_numbers(1)))


def _works(call: Callable[[], object]) -> bool:
    try:
        call()
    except RuntimeError:  # most likely a view that needs contiguous memory
        return False
    return True
