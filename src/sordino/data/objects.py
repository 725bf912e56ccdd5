"""Whatever Python object holds the data of the clients, as clients: the door of `sordino.train` and `sordino.check`.

    a table     a pandas or polars DataFrame, a Hugging Face Dataset, a list of dict records: with label_column, and
                client_column if there are several clients; or a list (or dict by name) with one table per client
    pairs       a list (or dict by name) with one (x, y) pair per client; x may be a scipy.sparse matrix
    torch       a map-style Dataset or a DataLoader: one client; or a list with one per client

Tables are read as files are (tables.py), so that a schema, users and windows of time series work and a ledger knows the
same rows again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from sordino.core.errors import DataError
from sordino.data import canonical, frames, torch_data
from sordino.data import schema as schemas
from sordino.data.clients import ArrayClients, LazyClients, adopt, pair_of
from sordino.data.dataset import Dataset
from sordino.data.tables import Columns, of_cells

CLIENT = "(client)"  # column added to the tables of a list: the number of the client
ONE_CLIENT = "all records are in one client: for several, name client_column or pass a list with one table per client"


@dataclass(frozen=True)
class Brought:
    """The data that a caller brought."""

    clients: ArrayClients | LazyClients
    test: tuple[Any, Any] | None = None  # public records
    users: list[NDArray[Any]] | None = None  # for each client, the user of every record
    names: Sequence[Any] = ()  # names of the clients, where they have any
    raw: canonical.Raw | None = None  # rows of a table, by which a ledger knows them
    notes: tuple[str, ...] = ()
    public: tuple[str, ...] | None = None  # what is taken as public, in words; None: the test records alone
    table: Dataset | None = None  # the encoded table, if the caller brought tables


def bring(clients: Any, columns: Columns | None = None, test: Any = None) -> Brought:
    """Return the clients and test records that a caller brought, after checking them.

    Args:
        clients: Data of the clients; see above.
        columns: Roles of the columns of a table.
        test: Public records: an (x, y) pair, a Dataset, or a table if the clients have tables.
    """
    if not isinstance(clients, ArrayClients | LazyClients):
        items, names = _items(clients)
        if items and all(frames.is_table(item) for item in items):
            return _of_tables(items, names, columns or Columns(), test)
        clients = items
    else:
        items, names = [], None
    if columns is not None:
        raise DataError(
            "label_column, client_column, user_column, split_column, schema, classes, window and decimal are for "
            "tables (DataFrames, Hugging Face Datasets, dict records); these clients are none."
        )
    notes = (torch_data.LOADER_NOTE,) if any(isinstance(item, DataLoader) for item in items) else ()
    return Brought(adopt(clients), _pair(test), names=names or (), notes=notes)


def _items(clients: Any) -> tuple[list[Any], list[Any] | None]:
    """Return one object per client, and the names of the clients if they have any."""
    frames.refuse_unread(clients)
    if frames.is_table(clients):
        return [clients], None
    if isinstance(clients, Mapping):
        return list(clients.values()), list(clients)
    arrays = isinstance(clients, tuple) and all(hasattr(c, "shape") and not frames.is_table(c) for c in clients)
    if arrays and len(clients) == 2:
        raise DataError("clients is one (x, y) pair: write [(x, y)] for one client, or a list of pairs.")
    if not isinstance(clients, list | tuple | str) and torch_data.is_dataset(clients):
        return [clients], None
    if not isinstance(clients, Iterable):
        raise DataError(f"clients must be a list of (x, y) pairs, one per client, not {type(clients).__name__}.")
    return list(clients), None


def _pair(test: Any) -> tuple[Any, Any] | None:
    return None if test is None else pair_of("the test data", test)


def _of_tables(items: list[Any], names: list[Any] | None, columns: Columns, test: Any) -> Brought:
    """Return the clients of one table per client, or of one table with a column for the client."""
    import pandas as pd

    several = len(items) > 1 or names is not None
    if several and columns.client is not None:
        raise DataError("there is one table per client already: drop client_column, or pass one table.")
    tables = [frames.cells(f"client {i}" if several else "the table", item) for i, item in enumerate(items)]
    for i, cells in enumerate(tables):
        if set(cells.columns) != set(tables[0].columns):
            raise DataError(f"client {i}: its columns differ from those of client 0.")
    joined = tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True)
    if several:
        joined[CLIENT] = np.repeat(np.arange(len(tables)), [len(t) for t in tables])
        columns = replace(columns, client=CLIENT)
    written = {} if columns.schema is None else schemas.entries(Path(columns.schema))
    label = frames.declared_label(items[0], columns.label)
    more = ("the test table", frames.cells("the test table", test)) if frames.is_table(test) else None
    what = "the clients' tables" if several else "the table"
    data = of_cells(what, joined, columns, written, more, label)
    if several and data.raw is not None:
        data = replace(data, raw=replace(data.raw, clients=canonical.ids(names or np.arange(len(tables)))))
    pair = (data.x_test, data.y_test) if len(data.y_test) else _pair(test)
    if pair is not None and not data.test_from:
        data = replace(data, test_from=f"the {len(pair[1]):,} test records")
    return _of_dataset(data, pair, names)


def _of_dataset(data: Dataset, test: tuple[Any, Any] | None, names: list[Any] | None) -> Brought:
    client = np.zeros(len(data.y_train), np.int64) if data.client_train is None else data.client_train
    parts = [np.flatnonzero(client == number) for number in np.unique(client)]
    held = ArrayClients.split(data.x_train, data.y_train, parts)
    users = None if data.user_train is None else [data.user_train[part] for part in parts]
    notes = data.notes if data.client_train is not None else (*data.notes, ONE_CLIENT)
    public = (*data.assumed, *((data.test_from,) if data.test_from else ()))
    return Brought(held, test, users, names or (), data.private_rows(), notes, public, data)
