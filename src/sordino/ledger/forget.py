"""Erasure of a person's hashes from the units of a ledger; the charges stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from sordino.core.errors import DataError, RunError
from sordino.data import canonical, tables
from sordino.data.canonical import Raw
from sordino.ledger import keys, macs
from sordino.ledger.home import Key
from sordino.ledger.ledger import Ledger
from sordino.ledger.macs import Mask
from sordino.ledger.units import StoredUnits, UnitStore

Lines = Callable[[UnitStore, StoredUnits, Key], Mask | None]  # returns the lines of a part to erase


def by_id(book: Ledger, unit: str, name: str) -> tuple[int, int]:
    """Erase a user or client by id from all sets of hashes.

    Args:
        book: The ledger.
        unit: "user" or "client".
        name: The id, as written in the data.

    Returns:
        The number of erased hashes, and the number of sets that could not be searched because they have another key.
    """
    (text,) = canonical.ids([name])

    def lines(store: UnitStore, part: StoredUnits, key: Key) -> Mask | None:
        kinds = [k for k in store.kinds(part) if k == unit or k.startswith(f"{unit} in ")]
        masks = [macs.among(store.form(part, k), macs.of_ids(k, [text], key)) for k in kinds]
        return np.logical_or.reduce(masks) if masks else None

    return _erased(book, "ids", unit, lines)


def by_rows(
    book: Ledger, path: Path, label: str | None, split: str | None, user: str | None, client: str | None
) -> tuple[int, int]:
    """Erase the rows of a table, each as often as it occurs there.

    Args:
        book: The ledger.
        path: The table.
        label: Its label column, as in the run.
        split: Its split column, as in the run.
        user: Its user column, as in the run.
        client: Its client column, as in the run.

    Returns:
        The number of erased hashes, and the number of sets that could not be searched because they have another key.
    """
    cells = tables.read(path)
    for name in (label, split, user, client):
        if name is not None and name not in cells.columns:
            raise DataError(
                f"{path.name} has no column {name!r}; its columns are {', '.join(map(str, cells.columns))}."
            )
    raw = canonical.of_table(cells, label, split, user, client)

    def lines(store: UnitStore, part: StoredUnits, key: Key) -> Mask | None:
        return _rows(store, part, key, raw)

    return _erased(book, "rows", "rows", lines)


def _rows(store: UnitStore, part: StoredUnits, key: Key, raw: Raw) -> Mask | None:
    """Return the stored lines of these rows, by the first form in which any is found.

    Of equal rows, the last copies are returned.
    """
    kinds = store.kinds(part)
    for form in sorted(raw.forms, key=lambda f: not f.kind.startswith("columns")):
        if form.kind not in kinds:
            continue
        stored = store.form(part, form.kind)
        chosen = macs.last_copies(form, key, stored)
        if len(chosen):
            return macs.among(stored, chosen)
    return None


def _erased(book: Ledger, name: str, what: str, lines: Lines) -> tuple[int, int]:
    store = book.store()
    if store is None:
        raise RunError(f"{book.path} holds no units, so there is nobody to forget.")
    key, gone = keys.require_key(store.path), 0
    with book.chain.writing(), store.writing():
        for part in store.parts():
            if part.part == name and part.key == key.id:
                mask = lines(store, part, key)
                gone += 0 if mask is None else store.erase(part, mask)
        strange = sum(p.part == name and p.key != key.id for p in store.parts())
        if gone:
            book.chain.append(kind="note", what={"forgotten": what})
    return gone, strange
