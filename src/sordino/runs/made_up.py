"""Synthetic records of a public shape, from a distribution that the model accepts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from sordino.core.errors import SpecError
from sordino.core.state import Snapshot
from sordino.core.types import Batch, Model
from sordino.federations.facts import Facts

TRIED, LABELS = 3, 64  # number of records that a model is tried with, and largest number of labels


@dataclass(frozen=True)
class MadeUp:
    """A distribution of synthetic records of a given shape that the model accepts."""

    x: tuple[tuple[int, ...], torch.dtype]  # shape and dtype of one record
    y: tuple[tuple[int, ...], torch.dtype]  # shape and dtype of its target
    law: str  # distribution of the features: normal, unit (uniform on [0, 1)), whole (uniform integers) or zero
    high: int  # integers are below it
    classes: int  # number of labels
    users: bool  # whether the clients' records belong to users
    groups: int | None  # number of groups of private attributes; None: records have no attributes

    @staticmethod
    def like(facts: Facts, model: Model, groups: object) -> MadeUp:
        """Return the widest distribution whose records the model and its loss accept.

        There are as many labels as the model has outputs, or one if it accepts no others. A user's own model may accept
        only some inputs.

        Args:
            facts: the public facts about the clients' data.
            model: the model.
            groups: the number of groups of private attributes that the method knows; anything but an int means that
                it is taken from `facts`.

        Raises:
            SpecError: if the model or its loss accepts none of the distributions, not even zeros.
        """
        tags = groups if isinstance(groups, int) and facts.tags is not None else facts.tags
        words = [part.num_embeddings for part in model.module.modules() if isinstance(part, nn.Embedding)]
        high = min(words, default=256 if facts.x[1] == torch.uint8 else 2)
        made = MadeUp(facts.x, facts.y, "zero", high, 1, facts.users is not None, tags)
        for law in ("normal", "unit", "zero") if facts.x[1].is_floating_point else ("whole", "zero"):
            for labels in (True, False):
                if (distribution := replace(made, law=law)._tried(model, labels)) is not None:
                    return distribution
        raise SpecError(
            "the model or its loss accepts no made-up records, not even zeros of the right shape, so the method "
            "cannot be rehearsed before the run. Let the model accept zeros."
        )

    def _tried(self, model: Model, labels: bool) -> MadeUp | None:
        """Return this distribution if the model accepts its records, else None.

        With `labels` it has as many classes as the model has outputs, otherwise one.
        """
        try:
            with Snapshot(model.module, model.loss), torch.no_grad():
                out = model.module(self.draw((TRIED,), None, 1).x)
                outputs = int(out.shape[-1]) if out.ndim > 1 and out.shape[-1] > 1 else 2
                distribution = replace(self, classes=outputs if labels else 1)
                y = distribution.draw((max(TRIED, min(outputs, LABELS)),), None, 1).y
                if not y.is_floating_point():  # use every label once
                    classes = torch.arange(len(y)) % distribution.classes
                    y = classes.reshape(-1, *(1,) * (y.ndim - 1)).expand_as(y).to(y)
                losses = model.loss(out[torch.arange(len(y)) % TRIED], y)
        except Exception:
            return None
        return distribution if self.law == "zero" or bool(torch.isfinite(losses).all()) else None

    def draw(self, sizes: tuple[int, ...], users: tuple[int, ...] | None, seed: int, scale: float = 1.0) -> Batch:
        """Return a batch of records.

        Args:
            sizes: the number of records of each client.
            users: the number of records of each user, the same at every client; None: no users.
            seed: the seed of the draw.
            scale: factor by which normal features are multiplied.
        """
        draw, n = torch.Generator().manual_seed(seed), sum(sizes)
        shape, targets = (n, *self.x[0]), (n, *self.y[0])
        if self.law == "normal":
            x = scale * (0.5 + torch.randn(shape, generator=draw))
        elif self.law == "unit":
            x = torch.rand(shape, generator=draw)
        else:
            x = torch.randint(self.high if self.law == "whole" else 1, shape, generator=draw)
        if self.y[1].is_floating_point:
            y = torch.rand(targets, generator=draw)
        else:
            y = torch.randint(self.classes, targets, generator=draw)
        tags = None if self.groups is None else torch.randint(self.groups + 1, (n,), generator=draw)
        return Batch(x.to(self.x[1]), y.to(self.y[1]), sizes, None if users is None else (users,) * len(sizes), tags)

    def opposite(self, batch: Batch, seed: int) -> Batch:
        """Return other records of the same clients, as different from the given ones as the distribution allows."""
        x, y = batch.x, batch.y
        if self.law == "normal":
            x = -3 * x
        elif self.law != "zero":
            x = (1 if self.law == "unit" else self.high - 1) - x
        y = 1 - y if y.is_floating_point() else ((y.long() + 1) % self.classes).to(y.dtype)
        return replace(batch, x=x.to(batch.x.dtype), y=y, tags=self.draw(batch.sizes, None, seed).tags)
