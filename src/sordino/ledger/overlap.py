"""Overlap of the units of a job with earlier jobs, and so the earlier charges of each unit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sordino.ledger import macs
from sordino.ledger.account import ids
from sordino.ledger.chain import Entry
from sordino.ledger.macs import Mask
from sordino.ledger.units import Forms, StoredUnits, Units, UnitStore


def known(units: Units, parts: Sequence[StoredUnits], store: UnitStore, same_unit: bool) -> Mask | None:
    """Return which of the units are in an earlier job with these parts, or None if the two cannot be compared.

    Units of the same kind are compared one by one. If the kinds differ, or no ids match, one common row is enough to
    count everyone as being in both jobs.
    """
    by = {p.part: p for p in parts if p.key == units.key}
    everyone, nobody = np.ones(units.count, np.bool_), np.zeros(units.count, np.bool_)
    rows = _matches(units, "rows", by.get("rows"), store)
    same_data = _matches(units, "whole", by.get("whole"), store)
    if same_data is not None and same_data.any():
        return everyone
    if units.unit == "record":
        if rows is None:
            return None
        return rows if same_unit else everyone if rows.any() else nobody
    named = _matches(units, "ids", by.get("ids"), store) if same_unit else None
    if named is not None and named.any():
        return named
    if rows is not None and rows.any():
        return everyone
    return named


def _matches(units: Units, name: str, part: StoredUnits | None, store: UnitStore) -> Mask | None:
    """Return which lines of one part match in any kind that both have, or None if they cannot be compared."""
    forms: Forms = units.part(name)
    if part is None or not forms:
        return None
    if (name, part.id) not in units.cache:
        lines = np.ones(len(next(iter(forms.values()))), np.bool_)
        if part.digest != units.digest(name):
            both = [kind for kind in forms if kind in store.kinds(part)]
            if not both:
                return None
            masks = [macs.among(forms[kind], store.form(part, kind)) for kind in both]
            lines = np.logical_or.reduce(masks)
        units.cache[name, part.id] = lines
    return units.cache[name, part.id]


@dataclass(frozen=True)
class Overlap:
    """The earlier charges to at least one of the units of a job."""

    data: str  # name of the job's data
    count: int  # number of units
    entries: tuple[Entry, ...]
    masks: tuple[Mask, ...]  # for each entry, the units that were charged

    def histories(self, owners: Iterable[int] | None = None) -> list[list[Entry]]:
        """Return the distinct charge histories of the units: each is the list of all charges to some unit.

        With `owners`, only the histories of these clients count where a charge names its clients.
        """
        split = np.zeros(self.count, np.int64)
        for mask in {id(m): m for m in self.masks}.values():
            if not mask.all():
                split = np.unique(split * 2 + mask, return_inverse=True)[1]
        wanted = None if owners is None else list(owners)
        histories: dict[tuple[int, ...], list[Entry]] = {}
        for unit in np.unique(split, return_index=True)[1]:
            paid = [e for e, mask in zip(self.entries, self.masks, strict=True) if mask[unit]]
            for each in _by_owner(paid, wanted, self.data):
                histories[tuple(e.id for e in each)] = each
        return list(histories.values())

    def shared(self) -> dict[str, tuple[int, list[Entry]]]:
        """Return, by name of the earlier data, how many units are known from there and by which charges."""
        out: dict[str, tuple[int, list[Entry]]] = {}
        for data in dict.fromkeys(e.data for e in self.entries):
            both = [(e, m) for e, m in zip(self.entries, self.masks, strict=True) if e.data == data]
            out[data] = int(np.logical_or.reduce([m for _, m in both]).sum()), [e for e, _ in both]
        return out


def _by_owner(entries: list[Entry], owners: list[int] | None, data: str) -> list[list[Entry]]:
    """Split charges by owner where a charge names its owners; in other data the owners have other numbers."""
    named = {i: set(ids(e.owners).tolist()) for i, e in enumerate(entries) if e.owners is not None and e.data == data}
    everyone = frozenset(i for i in range(len(entries)) if i not in named)
    who = set().union(*named.values()) if owners is None else {int(o) for o in owners}
    groups = {everyone | frozenset(i for i, s in named.items() if o in s) for o in who} if named else set()
    if owners is None or not groups:
        groups.add(everyone)
    return [[entries[i] for i in sorted(group)] for group in sorted(groups, key=sorted)]
