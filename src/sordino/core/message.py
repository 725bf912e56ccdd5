"""What clients send: named fields of any type, with weights and senders beside them and not among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sordino.core.errors import RunError
from sordino.core.rng import Ints


@dataclass(frozen=True)
class Message:
    """One row a client in every field. The weight of a row is public: it is how much the row counts in a sum."""

    fields: Mapping[str, Tensor]  # [rows, ...] each
    weight: Tensor | None = None  # [rows]; None: every row counts once
    ids: Ints | None = None  # [rows]: who sent a row; None: the channel does not say
    heavy: bool = False  # whether rows are multiplied by their weights already
    summed: bool = False  # whether the rows are added up already, into one
    released: frozenset[str] = frozenset()  # fields that are, as they stand, what one mechanism gave for every client

    def __getitem__(self, name: str) -> Tensor:
        return self.fields[name]

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))

    @property
    def bits(self) -> int:
        """The size of the fields on the wire. A truth value is one bit.

        Weights and senders do not count: weights follow from public facts (records, the law of the stragglers), which
        the server has, and who is asked is its own choice."""
        return sum(v.numel() * (1 if v.dtype == torch.bool else 8 * v.element_size()) for v in self.fields.values())

    def pick(self, at: Tensor) -> Message:
        """Return the rows at these places, or where `at` is True."""
        where = at.cpu().numpy()
        return replace(
            self,
            fields={name: value[at] for name, value in self.fields.items()},
            weight=None if self.weight is None else self.weight[at],
            ids=None if self.ids is None else self.ids[where],
        )

    def weighted(self, factor: Tensor) -> Message:
        """Multiply the weights by a factor [rows]; rows that were multiplied by their weights follow at once."""
        if self.heavy:
            fields = {name: _scaled(name, value, factor) for name, value in self.fields.items()}
            return replace(self, fields=fields, weight=None if self.weight is None else self.weight * factor)
        return replace(self, weight=factor if self.weight is None else self.weight * factor)

    def weighed(self) -> Message:
        """Multiply every row by its weight, once: calling it again changes nothing."""
        if self.heavy or self.weight is None:
            return replace(self, heavy=True)
        fields = {name: _scaled(name, value, self.weight) for name, value in self.fields.items()}
        return replace(self, fields=fields, heavy=True)

    def total(self, *names: str, wide: bool = False) -> Message:
        """Add up the rows, each by its weight, into one row; calling it again changes nothing.

        Of the named fields alone, if any are named. The weight of the result is the sum of all weights. `wide` adds
        floats up in 64 bits."""
        if self.summed:
            return self
        kept = self if not names else replace(self, fields={name: self.fields[name] for name in names})
        heavy = kept.weighed()
        fields = {
            name: value.sum(dim=0, keepdim=True, dtype=torch.float64 if wide and value.is_floating_point() else None)
            for name, value in heavy.fields.items()
        }
        some = next(iter(fields.values()))
        weight = some.new_full((1,), len(self), dtype=torch.float32) if self.weight is None else self.weight[:, None]
        return Message(fields, weight if self.weight is None else weight.sum(dim=0), None, heavy=True, summed=True)

    def __add__(self, other: Message) -> Message:
        """Put the rows of another message behind these."""
        return together([self, other])


def together(messages: Sequence[Message]) -> Message:
    """Return all rows as one message; the messages must have the same fields."""
    first = messages[0]
    if len(messages) == 1:
        return first
    weight, ids = [m.weight for m in messages], [m.ids for m in messages]
    if any(w is not None for w in weight):
        weight = [_ones(m) if m.weight is None else m.weight for m in messages]
    return replace(
        first,
        fields={name: torch.cat([m.fields[name] for m in messages]) for name in first.fields},
        weight=None if weight[0] is None else torch.cat([w for w in weight if w is not None]),
        ids=None if any(i is None for i in ids) else np.concatenate([i for i in ids if i is not None]),
        released=frozenset.intersection(*(m.released for m in messages)),
    )


def _ones(message: Message) -> Tensor:
    some = next(iter(message.fields.values()))
    return some.new_ones(len(message), dtype=torch.float32)  # whatever the type of the field


def _scaled(name: str, value: Tensor, factor: Tensor) -> Tensor:
    if not value.is_floating_point():
        raise RunError(f"the field {name} holds {value.dtype}, which has no weighted sum: send it without weights.")
    return value * factor.to(value.dtype).reshape(-1, *(1,) * (value.ndim - 1))
