"""The public form of the records that the sites of a federation hold, and data that stand in for them.

A server has no records. It plans a run from public facts alone: the form of a record and how many each client has
(docs/boundary.md). Data that stand in for the clients' own have this form and these sizes, and one made-up record that
stands for all; so a server and all its sites compute the same plan with the code that a simulated run uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.core.errors import RunError
from sordino.core.rng import Ints
from sordino.data.dataset import TASKS, Dataset, Scaled, as_is
from sordino.data.records import DTYPES, RecordFormat, format_of
from sordino.runs.prepare import Prepared, outputs_of

MOST = 1 << 28  # numbers in one record; a larger shape is a mistake or an attack
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Description:
    """The public form of the records; all sites of a federation must describe theirs in the same way."""

    form: Mapping[str, Any]  # fields of a RecordFormat
    target: tuple[int, ...]  # shape of one target
    target_type: str  # a name of DTYPES
    classes: int | None
    bounded: bool
    unit_target: bool
    benchmark: bool  # whether the records are those of a shipped benchmark
    public: bool  # whether the records are public

    @staticmethod
    def of(prepared: Prepared, benchmark: bool) -> Description:
        """Return the description of the records that a site has read."""
        data = prepared.data
        form = format_of(data, prepared.sample, outputs_of(data))
        y = data.y_train
        kind = str(y.dtype).removeprefix("torch.")
        shape = tuple(int(n) for n in y.shape[1:])
        return Description(
            form.to_json(), shape, kind, data.classes, data.bounded, data.unit_target, benchmark, data.public
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as letters carry them."""
        return asdict(self)

    @staticmethod
    def from_json(data: Any) -> Description:
        """Return the description in a letter; raise RunError if there is none."""
        try:
            named = {f.name: data[f.name] for f in fields(Description)}
            form = RecordFormat.from_json(named["form"])
            made = Description(**{**named, "form": form.to_json(), "target": tuple(map(int, named["target"]))})
            sizes = [*form.shape, *form.inputs, *made.target]
            right = form.task in TASKS and form.dtype in DTYPES and made.target_type in DTYPES
            if not right or not all(isinstance(n, int) and 0 < n <= MOST for n in sizes):
                raise ValueError
            if max(np.prod(form.shape, dtype=float), np.prod(made.target, dtype=float)) > MOST:
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError("a letter arrived without a description of records.") from error
        return made

    def differs(self, other: Description) -> str | None:
        """Return in what another description differs, in words; None if it does not."""
        for f in fields(Description):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if f.name == "form":
                for key in mine:
                    if _plain(mine[key]) != _plain(theirs[key]):
                        return f"{key} is {theirs[key]!r}, not {mine[key]!r}"
            elif mine != theirs:
                return f"{f.name} is {theirs!r}, not {mine!r}"
        return None

    def stand_in(
        self, sizes: Sequence[int], users: Sequence[int] | None, test: Pair | bool, real: Dataset | None = None
    ) -> Dataset:
        """Return data of this form in which client k has sizes[k] records, all of them one made-up record.

        Args:
            sizes: the number of records of each client.
            users: the number of users of each client, where records belong to users.
            test: the public test records, or whether there are any: then one stands for all.
            real: the shipped benchmark, if these records are from one.
        """
        form = RecordFormat.from_json(self.form)
        x = torch.zeros(1, *form.shape, dtype=DTYPES[form.dtype])
        y = torch.zeros(1, *self.target, dtype=DTYPES[self.target_type])
        x_test, y_test = test if isinstance(test, tuple) else (x, y) if test else (x[:0], y[:0])
        clients = np.repeat(np.arange(len(sizes)), sizes)
        numbers = sum(sizes)
        people = None if users is None else _people(sizes, users)
        filled: dict[str, Any] = {
            "x_train": x.expand(numbers, *x.shape[1:]),
            "y_train": y.expand(numbers, *y.shape[1:]),
            "x_test": x_test,
            "y_test": y_test,
            "client_train": clients,
            "client_test": None,
            "user_train": people,
            "user_test": None,
        }
        if real is not None:
            return replace(real, **filled)
        scale = None if form.scale is None else Scaled(tuple(form.scale["mean"]), tuple(form.scale["std"]))
        return Dataset(
            name="the sites' records",
            task=form.task,
            bounded=self.bounded,
            unit_target=self.unit_target,
            classes=self.classes,
            names=tuple(form.class_names),
            public=self.public,
            prepare=scale or as_is,
            encoded=form.code,
            **filled,
        )


def _people(sizes: Sequence[int], users: Sequence[int]) -> Ints:
    """Return the user of every record: as many users per client as there are, with about equally many records."""
    out, first = [], 0
    for n, many in zip(sizes, users, strict=True):
        out.append(first + np.arange(n) * many // max(1, n))
        first += many
    return np.concatenate(out).astype(np.int64)


def _plain(value: Any) -> Any:
    """Return a value as it is after a letter carried it: lists for tuples."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
