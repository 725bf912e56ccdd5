"""Load the dataset that a Spec names, deal its records to clients, and make the model.

Features and scales are public constants; the number of classes is declared by the dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.core import plugin
from sordino.core.errors import DataError, SpecError
from sordino.core.rng import Ints, Stream
from sordino.data import partition, users
from sordino.data import tags as tagging
from sordino.data.clients import ArrayClients
from sordino.data.load import Columns, Dataset, Declared, load
from sordino.data.repeats import repeated
from sordino.data.windows import Windows
from sordino.features.catalogue import features_of
from sordino.runs import defaults, left_out
from sordino.runs.planted import Planted, plant
from sordino.spec.mode import settled
from sordino.spec.spec import Spec
from sordino.spec.windows import HORIZON

Kept = dict[tuple[Any, ...], Any]  # data and features that several runs of one process share
MANY = 1000  # records whose features take longer to compute than a trial of the job with a few of them
BY_LABEL = ("dirichlet", "shards")  # partitions that depend on labels


class PrivateLabelError(SpecError):
    """The error for a partition that would deal private records by their labels."""


@dataclass(frozen=True)
class Prepared:
    spec: Spec  # with defaults for what was left open
    data: Dataset
    clients: ArrayClients
    brought: ArrayClients  # all records, before any was left out
    module: nn.Module
    sample: Tensor  # features of a few records, the input of the model
    test: tuple[Tensor, Tensor] | None  # public records
    test_clients: Ints | None  # client of each test record
    owner_notes: tuple[str, ...] = ()  # how many records were left out or changed, for the owner alone
    planted: Planted | None = None  # canaries among the clients' records


def dataset_path(spec: Spec) -> str:
    """Return the name of a shipped dataset, or the absolute path of one's own: the same from wherever it is asked."""
    if spec.dataset in plugin.available("data.sets"):
        return spec.dataset
    return str((Path(spec.data_dir or ".") / spec.dataset).absolute())


def prepare(spec: Spec, sketch: bool = False, keep: Kept | None = None, stand_in: Dataset | None = None) -> Prepared:
    """Return the clients, the model and the test records of a spec.

    Args:
        spec: the spec; it must name a dataset.
        sketch: compute the features of a few records only; the first stands for all. Labels and clients are real.
        keep: a cache of data and features that several runs of one process share.
        stand_in: data in place of those that the spec names. Their first training record stands for all, as in a
            sketch, but test records are real: this is what a server knows whose clients hold their data themselves.
    """
    scale_is_open = spec.normalise is None
    data = _loaded(spec, keep) if stand_in is None else stand_in
    spec = _decided(spec, data)
    if not sketch:
        _refuse_baseline(spec, data)
    if not sketch and stand_in is None:
        _refuse_training_records(data)
    setup = Stream.research(spec.seed or 0)
    parts = _parts(spec, data, setup)
    spec = replace(spec, clients=len(parts))
    owner_notes = data.owner_notes + left_out.by_partition(spec, len(data.y_train), sum(map(len, parts)))
    tags = None if spec.private_data is None else _tags(spec, data)
    if tags is not None and spec.without_private:
        dealt, parts = sum(map(len, parts)), _taken_away(spec, parts, tags)
        owner_notes += left_out.without_private(spec, dealt, sum(map(len, parts)))
    who = _users(spec, data)
    if who is not None:
        sizes, parts = [len(p) for p in parts], list(_bounded(spec, parts, who).values())
        owner_notes += left_out.by_users(spec, sizes, [len(p) for p in parts])
        spec = replace(spec, clients=len(parts))
    if scale_is_open:
        spec = defaults.on_scale(spec, data, _units(spec, parts, who))
    few = data.x_train[:3] if len(data.x_train) > 1 else data.x_train.expand(2, *data.x_train.shape[1:])
    sample = _features(spec, data, few)
    if sketch or stand_in is not None:
        x_train, x_test = _standing_in(spec, data, sample, real_test=not sketch)
    else:
        both = _once(
            keep,
            key_of_features(spec),
            lambda: [_features(spec, data, x) if len(x) else sample[:0] for x in (data.x_train, data.x_test)],
        )
        x_train, x_test = both
    real = ArrayClients.split(x_train, data.y_train, parts, users=who, tags=tags)
    clients, planted = plant(spec, real, outputs_of(data)) if spec.audit else (real, None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setup.at("init").integer())
        module = defaults.module(spec, tuple(sample.shape[1:]), outputs_of(data), data.unit_target)
    fewer = who is not None or spec.without_private or sum(map(len, parts)) < len(x_train)
    brought = ArrayClients(x_train, data.y_train, [len(x_train)]) if fewer else real
    if spec.public_share is not None:  # a ledger identifies the table by all its rows, whatever share is public
        table = torch.cat([x_train, x_test]), torch.cat([data.y_train, data.y_test])
        brought = ArrayClients(*table, [len(table[1])])
    y_test, owners = data.y_test, _test_clients(spec, data, parts, setup)
    if owners is not None and _law(spec) == partition.Partition("natural", len(parts)):  # only clients that take part
        if len(owners) and not (owners >= 0).any():
            raise DataError(f"partition {spec.partition}: no test record belongs to any of these clients. Use more.")
        x_test, y_test, owners = x_test[owners >= 0], y_test[owners >= 0], owners[owners >= 0]
    test = (x_test, y_test) if len(y_test) else None
    return Prepared(spec, data, clients, brought, module, sample, test, owners, owner_notes, planted)


def _standing_in(spec: Spec, data: Dataset, sample: Tensor, real_test: bool) -> tuple[Tensor, Tensor]:
    """Return features of training and test records, of which the first of the sample stands for all."""
    x_train, x_test = (sample[:1].expand(len(x), *sample.shape[1:]) for x in (data.x_train, data.x_test))
    return x_train, _features(spec, data, data.x_test) if real_test and len(data.x_test) else x_test


def _loaded(spec: Spec, keep: Kept | None) -> Dataset:
    """Return the data that a spec names."""
    columns, declared = columns_of(spec), _declared(spec)
    source = (spec.dataset, spec.data_dir, columns, declared)
    made: Dataset = _once(keep, source, lambda: load(spec.dataset, spec.data_dir, columns=columns, declared=declared))
    return made


def takes_long(spec: Spec, keep: Kept) -> bool:
    """Return whether features of many records must be computed; the data are loaded into the cache."""
    spec = _decided(spec, data := _loaded(spec, keep))
    made = features_of(spec.features) is not None
    return made and len(data.x_train) > MANY and key_of_features(spec) not in keep


def key_of_features(spec: Spec) -> tuple[Any, ...]:
    """Return the key of a spec's features in the cache."""
    return (spec.dataset, spec.data_dir, columns_of(spec), _declared(spec), spec.features, _flat(spec))


def _flat(spec: Spec) -> bool:
    """Return whether features are rows of numbers, whatever their shape."""
    return spec.normalise not in (None, "none")


def _units(spec: Spec, parts: Sequence[Ints], who: Ints | None) -> int:
    """Return the number of protected units, which the sentence of the guarantee takes as public."""
    if (spec.unit or spec.method_object().units[0]) == "client":
        return len(parts)
    if who is not None:
        return sum(len(np.unique(who[part])) for part in parts)
    return sum(map(len, parts))


def _users(spec: Spec, data: Dataset) -> Ints | None:
    """Return the user of every training record, where users are protected."""
    if spec.unit != "user":
        return None
    if data.user_train is None:
        raise DataError(
            f"unit = user, but {data.name} does not say whose each record is: name the user_column of a table, or put "
            "user_train into the .npz file."
        )
    return data.user_train


def _once(keep: Kept | None, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """Return the value of a key from the cache, or make it; without a cache it is always made."""
    if keep is None:
        return make()
    if key not in keep:
        while len(keep) > 3:  # features are large
            del keep[next(iter(keep))]
        keep[key] = make()
    return keep[key]


def with_users(clients: Any, numbers: Any, spec: Spec) -> tuple[ArrayClients, dict[int, int]]:
    """Return clients with the user of each record, where each user's contribution is bounded as the spec says.

    Returns:
        The clients that still have records, and their new number by their old number.
    """
    if not isinstance(clients, ArrayClients):
        raise DataError("users need a list of clients in memory.")
    try:
        lists = [np.asarray(u) for u in numbers]
        who = np.concatenate(lists)
    except (ValueError, TypeError) as error:
        raise DataError("users must be a list with one array of whole numbers per client.") from error
    if [len(u) for u in lists] != clients.all_sizes().tolist():
        raise DataError("users must have one number for each record of each client.")
    parts = _bounded(spec, [np.arange(a, b) for a, b in pairwise(clients.starts)], who)
    held = ArrayClients.split(clients.x, clients.y, list(parts.values()), users=who, tags=clients.tags)
    return held, {old: new for new, old in enumerate(parts)}


def with_tags(clients: Any, tags: Any) -> ArrayClients:
    """Return clients with the group of private attributes of each record."""
    if not isinstance(clients, ArrayClients):
        raise DataError("private_data needs a list of clients in memory.")
    sizes = clients.all_sizes().tolist()
    if not isinstance(tags, list | tuple) or len(tags) != len(sizes):
        raise DataError("private_data must be a list with one array of whole numbers per client.")
    each = [
        tagging.checked(t, n, f"private_data of client {i}") for i, (t, n) in enumerate(zip(tags, sizes, strict=True))
    ]
    return ArrayClients(clients.x, clients.y, sizes, clients.users, torch.cat(each))


def _tags(spec: Spec, data: Dataset) -> Tensor:
    return tagging.read(str(spec.private_data), data.x_train, data.y_train, data.classes)


def _taken_away(spec: Spec, parts: list[Ints], tags: Tensor) -> list[Ints]:
    """Return the parts of the clients, the last `without_private` of them without their private records."""
    if spec.without_private >= len(parts):
        raise SpecError(f"without_private = {spec.without_private} of {len(parts)} clients; use fewer.")
    marked, first = tags.numpy() > 0, len(parts) - spec.without_private
    remaining = [part[~marked[part]] if i >= first else part for i, part in enumerate(parts)]
    if any(len(part) == 0 for part in remaining):
        raise DataError("without_private: some client would be left without any record. Mark fewer records.")
    return remaining


def _bounded(spec: Spec, parts: Sequence[Ints], who: Ints) -> dict[int, Ints]:
    """Return the records of each client with each user's contribution bounded, without clients that have none left."""
    rng = Stream.research(spec.seed or 0).at("users")
    bounded = users.bound(parts, who, spec.records_per_user, spec.clients_per_user, rng)
    return {i: part for i, part in enumerate(bounded) if len(part)}


def columns_of(spec: Spec) -> Columns | None:
    """Return the roles of a table's columns, or None if the spec names none."""
    named = spec.label_column, spec.client_column, spec.user_column, spec.split_column, spec.schema
    cut = None
    if spec.window is not None:
        horizon = HORIZON if spec.horizon is None else spec.horizon
        cut = Windows(str(spec.time_column), spec.window, horizon, spec.stride, spec.time_step)
    columns = Columns(*named, classes=spec.classes, decimal=spec.decimal, windows=cut)
    return None if columns == Columns() else columns


def _declared(spec: Spec) -> Declared:
    """Return what the owner declares public; with unit = user or client, whole users or clients are drawn.

    Otherwise some records of a user or client would be public and others private. Clients that the partition makes up
    cannot be drawn: then records are."""
    unit = spec.unit or spec.method_object().units[0]
    dealt = unit == "client" and not (spec.partition or "natural").startswith("natural")
    by = "record" if dealt or unit not in ("user", "client") else unit
    return Declared(spec.test, spec.public_share, spec.public_data, by)


def _decided(spec: Spec, data: Dataset) -> Spec:
    """Return the spec with defaults for the mode, model, features, partition and learning rate that it leaves open."""
    spec = settled(spec, data.public)
    model = spec.model or ("lstm" if data.task == "next-token" else "linear")
    pictures = data.x_train.dtype == torch.uint8
    grey = pictures and (data.x_train.ndim == 3 or data.x_train.shape[1] == 1)
    features = spec.features or ("scattering" if grey and model == "linear" else "none")
    if features != "none" and not pictures:
        raise DataError(f"features = {features} needs uint8 pictures; {spec.dataset} has {data.x_train.dtype}.")
    rate = spec.learning_rate
    if rate is None and (features, model) == ("scattering", "linear"):
        rate = 8.0  # chosen on a validation split: docs/results/mnist.md
    dealt = spec.partition or ("natural" if data.client_train is not None else "iid")
    return defaults.table(replace(spec, model=model, features=features, learning_rate=rate, partition=dealt), data)


def _refuse_baseline(spec: Spec, data: Dataset) -> None:
    """Refuse to show a private epsilon beside a second model of the same private records without any noise."""
    if spec.baseline and not data.public and spec.method_object().private:
        raise SpecError(
            f"baseline = true trains a second model on {data.name} without any noise, next to the epsilon of "
            f"{spec.method}. On your own data, drop baseline, and train with method = none in a run of its own, whose "
            "sentence says that nothing is protected."
        )


def _refuse_training_records(data: Dataset) -> None:
    """Refuse test records of private data that are its training records: exact figures on them would be published."""
    if data.public or not len(data.y_test):
        return
    both, often = repeated(data)
    if 2 * both >= len(data.y_test) and not often:
        raise DataError(
            f"{both} of {len(data.y_test)} test records are also training records of {data.name}, and test records are "
            "public: every round would show exact figures of private ones. Test on other records, or drop test."
        )


def _law(spec: Spec) -> partition.Partition:
    return partition.parse(str(spec.partition))


def _parts(spec: Spec, data: Dataset, setup: Stream) -> list[Ints]:
    if _law(spec).kind in BY_LABEL and not data.public:
        raise PrivateLabelError(
            f"partition {spec.partition} distributes records by their labels, which are private here: one label would "
            "move other clients' records. Use iid, quantity or natural; or public_data = true, if all records are "
            "public."
        )
    if _law(spec).kind == "iid" and spec.unit == "user" and spec.clients_per_user == 1 and data.user_train is not None:
        return users.deal(data.user_train, spec.clients, setup.at("partition"))  # a user's records stay together
    return list(_law(spec).split(data.y_train.numpy(), data.client_train, spec.clients, setup.at("partition")))


def _features(spec: Spec, data: Dataset, x: Tensor) -> Tensor:
    make = features_of(spec.features)
    if make is None:
        return data.prepare(x)
    device = device_of(spec.device)
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        features = make(x.to(device)).to(x.device)
    return features.flatten(1) if _flat(spec) else features


def device_of(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise SpecError("device = cuda, but torch finds no CUDA device. Use device = auto or cpu.")
    return torch.device(name)


def outputs_of(data: Dataset) -> int:
    """Return the number of outputs that a model of these data has: classes, or values of a target."""
    if data.classes is not None:
        return data.classes
    return 1 if data.y_train.ndim == 1 else int(data.y_train.shape[-1])


def _test_clients(spec: Spec, data: Dataset, parts: list[Ints], setup: Stream) -> Ints | None:
    """Return the client of each test record, from the data or dealt like the training records; -1 means no client."""
    if not len(data.y_test):
        return None
    if _law(spec).kind == "natural" and data.client_train is not None:
        if data.client_test is None:
            return None
        first = np.array([data.client_train[p[0]] for p in parts])
        order = np.argsort(first)
        place = np.minimum(np.searchsorted(first[order], data.client_test), len(first) - 1)
        return np.where(first[order][place] == data.client_test, order[place], -1)
    if data.task != "classification":
        return None
    owner = np.full(len(data.y_test), -1, dtype=np.int64)
    labels = data.y_train.numpy(), data.y_test.numpy()
    if not data.public:  # the number of records per client and label is private; the number per client is not
        labels = np.zeros_like(labels[0]), np.zeros_like(labels[1])
    dealt = partition.like(parts, *labels, setup.at("test partition"))
    for client, index in enumerate(dealt):
        owner[index] = client
    return owner
