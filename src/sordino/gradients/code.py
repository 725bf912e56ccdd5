"""The user's model and loss: whether they are on the closed list of known code, and how other code is run.

A clipped sum has its stated sensitivity only if a record's loss depends on that record alone: not on any other record
of the batch, including those of other clients, and not on any earlier record. This holds for modules and losses of a
closed list (`known`), which are given whole batches. All other code is given one record at a time (`alone`), and any
state it keeps is restored after every call (`core.state`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from sordino.core.errors import ModelError
from sordino.core.state import Snapshot
from sordino.core.types import SampleLoss
from sordino.gradients.alone import alone, single
from sordino.gradients.clone import pristine
from sordino.gradients.known import hooked, known_loss, known_module

NAMED = 3  # number of changed objects named in a remark


class Code:
    """A model and its loss, wrapped once, before either has seen a record."""

    def __init__(self, module: nn.Module, loss: SampleLoss) -> None:
        self.known_module, self.known_loss = known_module(module), known_loss(loss)
        self.known = self.known_module and self.known_loss
        self.module, self.loss = module if self.known_module else pristine(module), loss
        self._shared: Snapshot | None = None
        self._one_by_one = self.rules = False  # rules: some operation defines its own vmap rule, which sees all records
        if not self.known:
            self._shared = Snapshot(loss) if self.known_module else Snapshot(self.module, loss)
            functions = [kind for kind in self._shared.classes if issubclass(kind, torch.autograd.Function)]
            self._one_by_one = self.rules = any("vmap" in vars(kind) for kind in functions)

    @property
    def remark(self) -> str:
        """Text that says how the user's code is run, appended to the reason for the chosen path."""
        if self.known:
            return ""
        whose = "the model's and the loss's" if not (self.known_module or self.known_loss) else "the model's"
        text = f"; {'the loss' if self.known_module else f'{whose} own code'} is given one record at a time"
        changed = [] if self._shared is None else sorted(self._shared.changed)[:NAMED]
        return text + (f", and what it keeps is forgotten after every call ({', '.join(changed)})" if changed else "")

    def unfit(self) -> str:
        """Return why book-keeping cannot be used for this code; an empty string if it can."""
        if self.rules and not self.known_module:
            return "the model uses an operation with a vmap rule of its own"
        return "gradients pass through a backward hook" if hooked(self.module) else ""

    def guard(self, twin: nn.Module) -> AbstractContextManager[object]:
        """Return a context that undoes all changes of state; `twin` is the copy of the model that is run in it."""
        if self._shared is None:
            return nullcontext()
        return Guard(self._shared, None if self.known_module else twin)

    def losses(self, predictions: Tensor, y: Tensor) -> Tensor:
        """Return one loss per record [records]."""
        if self.known_loss:
            return self.loss(predictions, y)
        if not self._one_by_one:
            try:
                return alone(self.loss, "the loss", predictions, y)
            except RuntimeError:  # most likely it reads values, as target checks do
                self._single(predictions, y, 0)  # raises the loss's own error, if it has one
                self._one_by_one = True
        return torch.stack([self._single(predictions, y, i) for i in range(len(y))])

    def _single(self, predictions: Tensor, y: Tensor, i: int) -> Tensor:
        loss = single(self.loss(predictions[i : i + 1], y[i : i + 1]), "the loss")
        if self._shared is not None:
            self._shared.restore()
        return loss


class Guard:
    """Context that restores the state of one copy, and the state all copies share, on entry and on exit."""

    def __init__(self, shared: Snapshot, twin: nn.Module | None) -> None:
        with shared:
            self._shared, self._own = shared, None if twin is None else Snapshot(twin, beside=shared)

    def __enter__(self) -> None:
        self._shared.__enter__()
        if self._own is not None:
            self._own.begin()

    def __exit__(self, *error: object) -> None:
        try:
            if self._own is not None:
                self._own.restore()
                self._shared.changed |= self._own.changed
        finally:
            self._shared.__exit__(*error)


def check_losses(losses: Tensor, records: int) -> Tensor:
    """Return the losses; raise `ModelError` unless there is one per record [records]."""
    if losses.shape != (records,):
        raise ModelError(
            f"the loss must give one number a sample, shape [{records}], not {list(losses.shape)};"
            f" with torch's losses use reduction='none'."
        )
    return losses
