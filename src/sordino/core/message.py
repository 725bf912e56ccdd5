"""The messages that clients send: named fields of any type, with weights and sender ids kept separately."""

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
    """The messages of a cohort, with one row per client in every field.

    The weight of a row is public: it is the factor with which the row enters a sum.
    """

    fields: Mapping[str, Tensor]  # [rows, ...] each
    weight: Tensor | None = None  # [rows]; None: every weight is 1
    ids: Ints | None = None  # [rows]: sender of each row; None: hidden by the channel
    heavy: bool = False  # whether the rows are already multiplied by their weights
    summed: bool = False  # whether the rows are already summed into one
    released: frozenset[str] = frozenset()  # fields that hold one mechanism's unchanged output for every client

    def __getitem__(self, name: str) -> Tensor:
        return self.fields[name]

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))

    @property
    def bits(self) -> int:
        """Return the size of the fields on the wire, in bits; a boolean is one bit.

        Weights and sender ids do not count: weights follow from public facts (numbers of records, the distribution of
        stragglers) that the server has, and the server itself chooses whom to ask.
        """
        return sum(v.numel() * (1 if v.dtype == torch.bool else 8 * v.element_size()) for v in self.fields.values())

    def pick(self, at: Tensor) -> Message:
        """Return the rows at the indices `at`, or those where a boolean `at` is True."""
        where = at.cpu().numpy()
        return replace(
            self,
            fields={name: value[at] for name, value in self.fields.items()},
            weight=None if self.weight is None else self.weight[at],
            ids=None if self.ids is None else self.ids[where],
        )

    def weighted(self, factor: Tensor) -> Message:
        """Multiply the weights by a factor [rows]; rows that already include their weights are multiplied as well."""
        if self.heavy:
            fields = {name: _scaled(name, value, factor) for name, value in self.fields.items()}
            return replace(self, fields=fields, weight=None if self.weight is None else self.weight * factor)
        return replace(self, weight=factor if self.weight is None else self.weight * factor)

    def weighed(self) -> Message:
        """Multiply every row by its weight; idempotent."""
        if self.heavy or self.weight is None:
            return replace(self, heavy=True)
        fields = {name: _scaled(name, value, self.weight) for name, value in self.fields.items()}
        return replace(self, fields=fields, heavy=True)

    def total(self, *names: str, wide: bool = False) -> Message:
        """Return the weighted sum of the rows as one row; idempotent.

        The weight of the result is the sum of all weights.

        Args:
            names: fields to sum; all fields if none are given.
            wide: whether to sum floats in 64 bits.
        """
        if self.summed:
            return self
        selected = self if not names else replace(self, fields={name: self.fields[name] for name in names})
        heavy = selected.weighed()
        fields = {
            name: value.sum(dim=0, keepdim=True, dtype=torch.float64 if wide and value.is_floating_point() else None)
            for name, value in heavy.fields.items()
        }
        some = next(iter(fields.values()))
        weight = some.new_full((1,), len(self), dtype=torch.float32) if self.weight is None else self.weight[:, None]
        return Message(fields, weight if self.weight is None else weight.sum(dim=0), None, heavy=True, summed=True)

    def __add__(self, other: Message) -> Message:
        """Append the rows of another message."""
        return together([self, other])


def together(messages: Sequence[Message]) -> Message:
    """Concatenate the rows of messages that have the same fields."""
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
    return some.new_ones(len(message), dtype=torch.float32)  # regardless of the dtype of the field


def _scaled(name: str, value: Tensor, factor: Tensor) -> Tensor:
    if not value.is_floating_point():
        raise RunError(
            f"the field {name} holds {value.dtype}, which cannot be summed with weights: send it without weights."
        )
    return value * factor.to(value.dtype).reshape(-1, *(1,) * (value.ndim - 1))
