"""Data of the clients, held in memory or made on demand, and checks of the data that users pass in."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.core import check
from sordino.core.devices import sent
from sordino.core.errors import DataError
from sordino.core.types import Batch, Clients
from sordino.data import dense, torch_data


class ArrayClients:
    """The records of all clients in two tensors, one client after the other.

    Within a client the records of a user must be contiguous; `users.bound` puts them in that order.

    Args:
        x: Inputs [records, ...].
        y: Targets [records, ...].
        sizes: Number of records of each client.
        users: User of each record, as a number, if known.
        tags: Group of private attributes of each record; 0 means none.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        sizes: Sequence[int],
        users: NDArray[np.int64] | None = None,
        tags: Tensor | None = None,
    ) -> None:
        self.x, self.y, self.users, self.tags = x, y, users, tags
        self.starts = np.concatenate([[0], np.cumsum(sizes)])
        self._groups = None if users is None else _runs(users, self.starts)

    @staticmethod
    def split(
        x: Tensor,
        y: Tensor,
        parts: Sequence[NDArray[np.int64]],
        users: NDArray[np.int64] | None = None,
        tags: Tensor | None = None,
    ) -> ArrayClients:
        """Give client k the records at parts[k]; `users` and `tags` have one number for every record of x."""
        indices = np.concatenate(parts)
        order = torch.from_numpy(indices)
        who = None if users is None else users[indices]
        rows, targets = _picked(x, order), _picked(y, order)
        return ArrayClients(rows, targets, [len(p) for p in parts], who, None if tags is None else tags[order])

    @property
    def count(self) -> int:
        """Number of clients."""
        return len(self.starts) - 1

    def size(self, client: int) -> int:
        """Return the number of records of one client."""
        return int(self.starts[client + 1] - self.starts[client])

    def all_sizes(self) -> NDArray[np.int64]:
        """Return the number of records of every client."""
        return np.diff(self.starts)

    def sizes(self) -> tuple[int, ...]:
        """Return the client sizes that occur, in ascending order."""
        return tuple(np.unique(self.all_sizes()).tolist())

    def mean_size(self) -> float:
        """Return the mean number of records per client."""
        return float(self.starts[-1]) / self.count

    def user_runs(self) -> list[tuple[int, ...]]:
        """Return, for each client, the lengths of its users' runs of records."""
        return self._known()

    def most_clients_per_user(self) -> int:
        """Return the largest number of clients of one user, measured on the data, for checks only."""
        self._known()
        client = np.repeat(np.arange(self.count), self.all_sizes())
        pairs = np.unique(np.stack([np.asarray(self.users), client]), axis=1)
        return int(np.unique(pairs[0], return_counts=True)[1].max(initial=0))

    def _known(self) -> list[tuple[int, ...]]:
        if self._groups is None:
            raise DataError("these clients' data do not say which user a record belongs to.")
        return self._groups

    def fetch(self, ids: Sequence[int], device: torch.device) -> Batch:
        """Return the records of these clients on the device, one client after the other."""
        where = np.asarray(ids, dtype=np.int64)
        sizes = tuple((self.starts[where + 1] - self.starts[where]).tolist())
        groups = None if self._groups is None else tuple(self._groups[i] for i in ids)
        if len(where) and (np.diff(where) == 1).all():  # contiguous: no copy
            rows = slice(int(self.starts[ids[0]]), int(self.starts[ids[-1] + 1]))
            tags = None if self.tags is None else self.tags[rows].to(device)
            return Batch(self.x[rows].to(device), self.y[rows].to(device), sizes, groups, tags)
        if self.x.is_cuda:
            index = sent(torch.from_numpy(self._places(where)), self.x.device)
            tags = None if self.tags is None else self.tags[index].to(device)
            return Batch(self.x[index].to(device), self.y[index].to(device), sizes, groups, tags)
        spans = [slice(int(self.starts[i]), int(self.starts[i + 1])) for i in ids] or [slice(0, 0)]
        x, y = torch.cat([self.x[s] for s in spans]), torch.cat([self.y[s] for s in spans])
        tags = None if self.tags is None else torch.cat([self.tags[s] for s in spans]).to(device)
        return Batch(x.to(device), y.to(device), sizes, groups, tags)

    def _places(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of the records of these clients, one client after the other."""
        many = self.starts[ids + 1] - self.starts[ids]
        index: NDArray[np.int64] = np.arange(many.sum()) + np.repeat(self.starts[ids] - (np.cumsum(many) - many), many)
        return index

    def subset(self, places: Sequence[int]) -> ArrayClients:
        """Return these clients alone, numbered anew, with a copy of their records."""
        batch = self.fetch(places, self.x.device)
        spans = [slice(int(self.starts[i]), int(self.starts[i + 1])) for i in places]
        users = None if self.users is None else np.concatenate([self.users[:0], *(self.users[s] for s in spans)])
        tags = None if batch.tags is None else batch.tags.clone()
        return ArrayClients(batch.x.clone(), batch.y.clone(), batch.sizes, users, tags)

    def to(self, device: torch.device) -> ArrayClients:
        """Return the same clients with their data on the device."""
        tags = None if self.tags is None else self.tags.to(device)
        x, y = (value if stands_for_all(value) else value.to(device) for value in (self.x, self.y))
        return ArrayClients(x, y, self.all_sizes().tolist(), self.users, tags)


def stands_for_all(value: Tensor) -> bool:
    """Return whether one row stands for all, without any copy: so do made-up records for those held elsewhere."""
    return len(value) > 1 and value.stride(0) == 0


def _picked(value: Tensor, order: Tensor) -> Tensor:
    """Return the rows at these indices; a row that stands for all of them is not copied."""
    if stands_for_all(value):
        return value[:1].expand(len(order), *value.shape[1:])
    return value[order]


def _runs(users: NDArray[np.int64], starts: NDArray[np.int64]) -> list[tuple[int, ...]]:
    """Return, for each client, the lengths of its users' runs of records."""
    if users.shape != (starts[-1],) or users.dtype.kind not in "iu":
        raise DataError(
            f"users must hold one whole number per record: {int(starts[-1])} of them, not {list(users.shape)}."
        )
    out = []
    for client, (a, b) in enumerate(itertools.pairwise(starts.tolist())):
        client_users = users[a:b]
        cuts = np.flatnonzero(client_users[1:] != client_users[:-1]) + 1
        runs = np.diff(np.concatenate([[0], cuts, [len(client_users)]])) if len(client_users) else np.empty(0, np.int64)
        if len(runs) != len(np.unique(client_users)):
            raise DataError(
                f"client {client}: a user's records are not next to each other. Order them with users.bound."
            )
        out.append(tuple(runs.tolist()))
    return out


class LazyClients:
    """Clients whose records are made when they are sampled, so that memory grows with the cohort, not the population.

    Args:
        count: Number of clients.
        records: Number of records of each client.
        make: Function that returns (x, y) of a client, given its number.
        classes: Number of classes, if known; labels are checked against it.
    """

    def __init__(
        self, count: int, records: int, make: Callable[[int], tuple[Any, Any]], classes: int | None = None
    ) -> None:
        check.count(count=count, records=records)
        if not callable(make):
            raise DataError(f"make must be a function of a client's number that returns (x, y), not {make!r}.")
        try:
            inspect.signature(make).bind(0)
        except TypeError as error:
            raise DataError(f"make must be a function of a client's number that returns (x, y): {error}.") from error
        except ValueError:  # some builtins have no signature
            pass
        self.count, self.records, self.make = count, records, make
        self.classes = classes
        self._numbers: Sequence[int] = range(count)  # the numbers that `make` takes

    def sizes(self) -> tuple[int, ...]:
        """Return the only client size."""
        return (self.records,)

    def mean_size(self) -> float:
        """Return the number of records per client."""
        return float(self.records)

    def fetch(self, ids: Sequence[int], device: torch.device) -> Batch:
        """Make the records of these clients, check them and return them on the device."""
        numbers = [self._numbers[int(i)] for i in ids]
        parts = [self._made(i) for i in numbers]
        if not parts:
            x, y = self._made(self._numbers[0])
            parts = [(x[:0], y[:0])]
        for i, (x, y) in zip(numbers, parts, strict=False):
            if self.classes is not None:
                check_labels(y, self.classes, f"client {i}")
            if len(x) != self.records:
                raise DataError(f"client {i} has {len(x)} records where {self.records} were declared.")
        x, y = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
        return Batch(x.to(device), y.to(device), (self.records,) * len(ids))

    def _made(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the records of one client, as its function makes them, after checking them."""
        return checked(f"client {number}", *pair_of(f"client {number}", self.make(number)))

    def subset(self, places: Sequence[int]) -> LazyClients:
        """Return these clients alone, numbered anew."""
        clients = LazyClients(len(places), self.records, self.make, self.classes)
        first, end = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
        contiguous = len(places) == end - first and all(int(b) > int(a) for a, b in itertools.pairwise(places))
        some = self._numbers[first:end] if contiguous else tuple(self._numbers[int(i)] for i in places)
        clients._numbers = some  # a range stays one, which takes no memory
        return clients


def units(clients: Clients, unit: str) -> int:
    """Return the number of protected units: clients, users or single records."""
    if unit in ("client", "report"):
        return clients.count
    if unit == "user" and isinstance(clients, ArrayClients) and clients.users is not None:
        return len(np.unique(clients.users))
    return round(clients.count * clients.mean_size())


def adopt(clients: Any) -> ArrayClients | LazyClients:
    """Convert what a user passes in to clients, after checking it.

    Args:
        clients: A list or dict with one (x, y) pair, map-style Dataset or DataLoader per client, or clients already. x
            and y may be tensors, numpy arrays or pandas objects, x a scipy.sparse matrix. objects.py takes tables.
    """
    if isinstance(clients, ArrayClients | LazyClients):
        return clients
    if isinstance(clients, str | bytes):
        raise DataError(f"clients must be (x, y) pairs, not the text {clients!r}: `sordino run --dataset` reads files.")
    if hasattr(clients, "columns") or (isinstance(clients, Mapping) and set(clients) == {"x", "y"}):
        raise DataError(
            "clients must be a list with one (x, y) pair per client: these are the records of one. Put them in a list."
        )
    if isinstance(clients, tuple) and len(clients) == 2 and all(hasattr(part, "shape") for part in clients):
        raise DataError("clients must be a list with one (x, y) pair per client, not one pair: write [(x, y)] for one.")
    if not isinstance(clients, Iterable):
        raise DataError(f"clients must be a list of (x, y) pairs, one per client, not {type(clients).__name__}.")
    items = list(clients.values()) if isinstance(clients, Mapping) else list(clients)
    if not items:
        raise DataError("there are no clients: pass a list of (x, y) pairs, one per client.")
    pairs = [checked(f"client {i}", *pair_of(f"client {i}", item)) for i, item in enumerate(items)]
    shapes = {(tuple(x.shape[1:]), tuple(y.shape[1:])) for x, y in pairs}
    if len(shapes) > 1:
        raise DataError(f"clients have records of different shapes: {sorted(shapes)}.")
    x, y = torch.cat([p[0] for p in pairs]), torch.cat([p[1] for p in pairs])
    return ArrayClients(x, y, [len(p[0]) for p in pairs])


def pair_of(who: str, item: Any) -> tuple[Any, Any]:
    """Return x and y of an (x, y) pair, of {"x": x, "y": y}, of a map-style Dataset or of a DataLoader.

    `who` names it in error messages.
    """
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    if isinstance(item, Mapping):
        if set(item) == {"x", "y"}:
            return item["x"], item["y"]
        names = ", ".join(map(repr, list(item)[:5]))
        raise DataError(f"{who} must be an (x, y) pair; this dict has the keys {names} and not just 'x' and 'y'.")
    if torch_data.is_dataset(item):
        return torch_data.pair(who, item)
    long = f" of {len(item)}" if isinstance(item, tuple | list) else ""
    raise DataError(f"{who} must be an (x, y) pair or a map-style Dataset, not {type(item).__name__}{long}.")


def checked(who: str, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Return x and y as tensors, after checking that they are numeric, finite, non-empty and equally long.

    `who` names them in error messages.
    """
    xt, yt = _tensor(who, "x", x), _tensor(who, "y", y)
    if xt.ndim == 0 or yt.ndim == 0 or len(xt) != len(yt):
        raise DataError(f"{who}: x has shape {tuple(xt.shape)}, y {tuple(yt.shape)}; they need one row per record.")
    if len(xt) == 0:
        raise DataError(f"{who} has no records. Leave it out.")
    return _finite(who, "x", xt), _finite(who, "y", yt)


def records(who: str, name: str, value: Any) -> Tensor:
    """Return x or y alone as a tensor, after the same checks."""
    tensor = _tensor(who, name, value)
    if tensor.ndim == 0:
        raise DataError(f"{who}: {name} is a single number; it needs one row per record.")
    return _finite(who, name, tensor)


def _finite(who: str, name: str, value: Tensor) -> Tensor:
    """Return the tensor, or raise an error that names the first record with a value that is not finite."""
    if value.is_floating_point() and not torch.isfinite(value).all():
        bad = int((~torch.isfinite(value)).reshape(len(value), -1).any(dim=1).nonzero()[0, 0])
        raise DataError(f"{who}: {name} holds a nan or infinite value in record {bad}. Clean the data first.")
    return value


def _tensor(who: str, name: str, value: Any) -> Tensor:
    if dense.is_sparse(value):
        value = dense.dense(f"{who}: {name}", value)
    if isinstance(value, Tensor):
        tensor = value.detach() if value.layout == torch.strided else value.detach().to_dense()
        if tensor.is_complex():
            raise DataError(f"{who}: {name} must be numeric, not {tensor.dtype}.")
    else:
        try:
            array = value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
        except (ValueError, TypeError) as error:
            raise DataError(f"{who}: {name} must be one array of numbers; its rows differ in shape.") from error
        if array.dtype.kind not in "fiub":
            raise DataError(f"{who}: {name} must be numeric, not {array.dtype}.")
        tensor = torch.from_numpy(np.array(array, order="C"))
    if tensor.is_floating_point():
        return tensor.to(torch.float32)
    return tensor.to(torch.int64) if name == "y" or tensor.dtype != torch.uint8 else tensor


def check_labels(y: Tensor, classes: int, what: str) -> None:
    """Raise an error unless all class labels are whole numbers in [0, classes)."""
    if y.is_floating_point():
        raise DataError(f"{what}: class labels must be whole numbers, not {y.dtype}.")
    if len(y) and (int(y.min()) < 0 or int(y.max()) >= classes):
        bad = int(((y < 0) | (y >= classes)).nonzero()[0, 0])
        raise DataError(
            f"{what}: label {int(y[bad])} in record {bad} is out of range; the model has {classes} outputs "
            f"(labels 0 to {classes - 1})."
        )
