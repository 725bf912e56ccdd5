"""Partitions of records into clients: each record goes to exactly one client, and each client gets at least `minimum`.

`parse("dirichlet:0.3")` returns the partition of that name; `like` splits a test set in the same proportions. A
partition simulates how data could be distributed: it may use the labels, which no real federation has in one place.
All partitions return the indices of each client's records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from sordino.core import check
from sordino.core.errors import DataError, SpecError
from sordino.core.rng import Ints, Stream
from sordino.data.dealing import classes_of, enough
from sordino.data.dirichlet import dirichlet, proportions
from sordino.data.matching import like

__all__ = ["KINDS", "Partition", "columns", "dirichlet", "iid", "like", "natural", "parse", "quantity", "shards"]


def iid(records: int, clients: int, rng: Stream, minimum: int = 1) -> list[Ints]:
    """Split records at random into parts whose sizes differ by at most one."""
    enough(records, clients, minimum)
    return [np.sort(part) for part in np.array_split(rng.permutation(records), clients)]


def shards(labels: Any, clients: int, k: int, rng: Stream, minimum: int = 1) -> list[Ints]:
    """Sort records by label, cut them into clients * k equal pieces and give each client k of them.

    McMahan et al. (2017), arXiv:1602.05629, Section 3: 200 pieces of 300 records and two pieces per client, so that
    most clients have two labels.
    """
    check.count(k=k)
    classes = classes_of(labels, "shards")
    enough(len(classes), clients, max(k, minimum))
    order = rng.at("records").permutation(len(classes))
    pieces = np.array_split(order[np.argsort(classes[order], kind="stable")], clients * k)
    if k * min(len(p) for p in pieces) < minimum:
        raise DataError(f"shards: {k} pieces of {len(pieces[-1])} records are fewer than the minimum of {minimum}.")
    deal = rng.at("pieces").permutation(clients * k).reshape(clients, k)
    return [np.sort(np.concatenate([pieces[i] for i in row])) for row in deal]


def quantity(records: int, clients: int, alpha: float, rng: Stream, minimum: int = 1) -> list[Ints]:
    """Split records at random into parts whose sizes follow a symmetric Dirichlet draw.

    Li et al. (2022), arXiv:2102.02079, Section 4.3 (quantity skew). Every client first gets `minimum` records; the
    draw distributes the rest.
    """
    check.positive(alpha=alpha)
    enough(records, clients, minimum)
    free = records - clients * minimum
    ends = np.rint(np.cumsum(proportions(np.full((1, clients), alpha), rng.at("sizes"))[0]) * free).astype(np.int64)
    ends[-1] = free
    cuts = np.arange(1, clients) * minimum + ends[:-1]
    return [np.sort(part) for part in np.split(rng.at("records").permutation(records), cuts)]


def natural(ids: Any, minimum: int = 1) -> list[Ints]:
    """Make one client for each id, in the order of the ids (whole numbers, one per record)."""
    client_ids = np.asarray(ids)
    if client_ids.ndim != 1 or client_ids.dtype.kind not in "iu" or not len(client_ids):
        raise DataError("natural clients need one whole number per record.")
    order = np.argsort(client_ids, kind="stable")
    values, starts = np.unique(client_ids[order], return_index=True)
    parts = np.split(order, starts[1:])
    least = int(np.argmin([len(p) for p in parts]))
    if len(parts[least]) < minimum:
        raise DataError(f"client {values[least]} has {len(parts[least])} records, fewer than the minimum of {minimum}.")
    return parts


def first(parts: list[Ints], count: float | None) -> list[Ints]:
    """Return the first `count` clients, or all if it is None; the records of the others are not used."""
    if count is not None and count > len(parts):
        raise DataError(f"partition natural:{count:g}: the data come with {len(parts)} clients.")
    return parts if count is None else parts[: int(count)]


def columns(features: int, parts: int, rng: Stream | None = None) -> list[Ints]:
    """Split the columns of the same records among parties, in contiguous blocks or, with `rng`, at random."""
    check.count(features=features, parts=parts)
    if parts > features:
        raise DataError(f"cannot give each of {parts} parties a column: there are {features} columns.")
    order = np.arange(features) if rng is None else rng.permutation(features)
    return [np.sort(part) for part in np.array_split(order, parts)]


KINDS = {  # name -> meaning of its number
    "iid": None,
    "dirichlet": "alpha",
    "shards": "labels per client",
    "natural": "how many clients to take, from the first on; without it, all",
    "quantity": "alpha",
}
SHOWN = {"shards": ":K", "natural": "[:K]"}  # usage of the kinds whose number is whole


@dataclass(frozen=True)
class Partition:
    """A kind of partition and its number, as `parse` reads them."""

    kind: str  # one of KINDS
    value: float | None = None  # see KINDS

    def __str__(self) -> str:
        return self.kind if self.value is None else f"{self.kind}:{self.value:g}"

    def split(self, labels: Any, ids: Any, clients: int, rng: Stream, minimum: int = 1) -> list[Ints]:
        """Return the indices of each client's records.

        Args:
            labels: Labels of all records.
            ids: Natural client of every record, or None.
            clients: Number of clients; ignored by natural, which has its own.
            rng: Source of randomness.
            minimum: Smallest number of records of a client.
        """
        if self.kind == "natural":
            if ids is None:
                raise DataError(
                    "partition natural: this dataset has no clients of its own. Use iid, dirichlet or shards."
                )
            return first(natural(ids, minimum), self.value)
        if self.kind == "iid":
            return iid(len(labels), clients, rng, minimum)
        value = self.value or 0.0
        if self.kind == "quantity":
            return quantity(len(labels), clients, value, rng, minimum)
        if self.kind == "shards":
            return shards(labels, clients, int(value), rng, minimum)
        return dirichlet(labels, clients, value, rng, minimum)


def parse(text: str) -> Partition:
    """Parse a partition: "iid", "natural", "natural:7", "dirichlet:0.3", "shards:2" or "quantity:0.5", for example."""
    kind, _, number = str(text).partition(":")
    usage = ", ".join(k if v is None else f"{k}{SHOWN.get(k, ':ALPHA')}" for k, v in KINDS.items())
    if text == "natural":
        return Partition(text)
    if kind not in KINDS:
        near = get_close_matches(kind, KINDS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise SpecError(f"unknown partition {text!r}.{hint} There are: {usage}.")
    what = KINDS[kind]
    if what is None:
        if number or ":" in text:
            raise SpecError(f"partition {kind} takes no number, found {text!r}.")
        return Partition(kind)
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0 or (kind in SHOWN and value != int(value)):
        example = f"{kind}:{'2' if kind in SHOWN else '0.5'}"
        raise SpecError(f"partition {kind} needs a positive number ({what}), such as {example}; found {text!r}.")
    return Partition(kind, value)
