"""The model and the loss as the user wrote them: which of them are known, and how the others are run.

A clipped sum has its sensitivity only if a record's loss is a function of that record: of no other record of the
batch, be it another client's, and of none that came before. For modules and losses of a closed list (`known`) that
holds, and they take whole batches. Anyone else's code is given one record at a time (`alone`), and what it keeps is
put back after every call (`core.state`).
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

NAMED = 3  # things kept that are told


class Code:
    """Made once from a model and a loss, before either has seen a record."""

    def __init__(self, module: nn.Module, loss: SampleLoss) -> None:
        self.known_module, self.known_loss = known_module(module), known_loss(loss)
        self.known = self.known_module and self.known_loss
        self.module, self.loss = module if self.known_module else pristine(module), loss
        self._shared: Snapshot | None = None
        self._one_by_one = self.rules = False  # rules: some operation has a rule of its own for vmap, which sees all
        if not self.known:
            self._shared = Snapshot(loss) if self.known_module else Snapshot(self.module, loss)
            functions = [kind for kind in self._shared.classes if issubclass(kind, torch.autograd.Function)]
            self._one_by_one = self.rules = any("vmap" in vars(kind) for kind in functions)

    @property
    def remark(self) -> str:
        """How the user's code is run, for whoever asks why a path was taken."""
        if self.known:
            return ""
        whose = "the model's and the loss's" if not (self.known_module or self.known_loss) else "the model's"
        text = f"; {'the loss' if self.known_module else f'{whose} own code'} is given one record at a time"
        changed = [] if self._shared is None else sorted(self._shared.changed)[:NAMED]
        return text + (f", and what it keeps is forgotten after every call ({', '.join(changed)})" if changed else "")

    def unfit(self) -> str:
        """Why the book cannot be kept for this code; nothing if it may be."""
        if self.rules and not self.known_module:
            return "the model uses an operation with a vmap rule of its own"
        return "gradients pass through a backward hook" if hooked(self.module) else ""

    def guard(self, twin: nn.Module) -> AbstractContextManager[object]:
        """A context that leaves nothing of what the code keeps; twin is the copy of the model that is run in it."""
        if self._shared is None:
            return nullcontext()
        return Guard(self._shared, None if self.known_module else twin)

    def losses(self, predictions: Tensor, y: Tensor) -> Tensor:
        """One loss a record [records]."""
        if self.known_loss:
            return self.loss(predictions, y)
        if not self._one_by_one:
            try:
                return alone(self.loss, "the loss", predictions, y)
            except RuntimeError:  # it asks for numbers, most likely, as checks of targets do
                self._single(predictions, y, 0)  # an error of its own is raised here
                self._one_by_one = True
        return torch.stack([self._single(predictions, y, i) for i in range(len(y))])

    def _single(self, predictions: Tensor, y: Tensor, i: int) -> Tensor:
        found = single(self.loss(predictions[i : i + 1], y[i : i + 1]), "the loss")
        if self._shared is not None:
            self._shared.restore()
        return found


class Guard:
    """One copy's state and what all copies share, put back on the way in and on the way out."""

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
    if losses.shape != (records,):
        raise ModelError(
            f"the loss must give one number a sample, shape [{records}], not {list(losses.shape)};"
            f" with torch's losses use reduction='none'."
        )
    return losses
