"""The data of one site, read as a job asks: the whole of a file of its own, or one client of a shipped benchmark."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from sordino.core import plugin
from sordino.core.errors import DataError
from sordino.core.rng import Stream
from sordino.data.clients import ArrayClients
from sordino.data.tables import SUFFIXES
from sordino.deploy.description import Description
from sordino.deploy.refusal import Refusal
from sordino.runs.prepare import Kept, Prepared, prepare
from sordino.spec.spec import Spec

DIGITS = 2  # significant digits of the size that a site tells behind a secure sum, unless it declares one


@dataclass(frozen=True)
class Told:
    """What a site tells of its data before a job: public facts."""

    records: Description
    sizes: tuple[int, ...]  # public numbers of records of the site's clients
    users: tuple[int, ...] | None


@dataclass
class SiteData:
    """The data of one site.

    Args:
        source: the path of the site's file, or the name of a shipped benchmark.
        client: with a benchmark: which client of the spec's partition the site is, from 0.
        clients: number of clients that the site holds, consecutive ones of a benchmark; a file has one.
        declared: the public number of records that the owner declares for each client; further ones are left out.
        folder: where the schema of a job is written.
    """

    source: str
    folder: Path
    client: int = 0
    clients: int = 1
    declared: int | None = None
    _kept: Kept = field(default_factory=dict)

    @property
    def benchmark(self) -> bool:
        """Whether the records are those of a shipped benchmark, which are public."""
        return self.source in plugin.available("data.sets")

    def told(self, spec: Spec, schema: str | None) -> Told:
        """Return the public facts about the data, as a job would use them."""
        prepared = self._read(spec, schema, sketch=True)
        held = self._mine(prepared, spec)
        users = tuple(len(runs) for runs in held.user_runs()) if held.users is not None else None
        return Told(Description.of(prepared, self.benchmark), tuple(held.all_sizes().tolist()), users)

    def records(self, spec: Spec, schema: str | None) -> tuple[ArrayClients, Prepared]:
        """Return the records of the site's clients with their features, and all that was read."""
        prepared = self._read(spec, schema, sketch=False)
        return self._mine(prepared, spec), prepared

    def _read(self, spec: Spec, schema: str | None, sketch: bool) -> Prepared:
        wanted = replace(spec, federation="simulator", seed=spec.seed, baseline=False)
        if self.benchmark:
            if spec.dataset != self.source:
                raise Refusal(f"the job is about {spec.dataset}; this site holds {self.source}.")
        else:
            wanted = replace(wanted, dataset=str(Path(self.source).absolute()), test=None, data_dir=None)
            if spec.client_column is None:
                wanted = replace(wanted, partition="iid", clients=1)
            if self.source.lower().endswith(SUFFIXES):
                wanted = replace(wanted, schema=self._schema(schema))
        return prepare(wanted, sketch=sketch, keep=self._kept)

    def _schema(self, text: str | None) -> str:
        """Write the schema of the job to a file and return its path; a table needs one."""
        if text is None:
            raise Refusal(
                "the job names no schema. A table at several sites is read by one public schema, which declares "
                "columns, bounds and labels, so that nothing of the data decides them: name it in the spec."
            )
        path = self.folder / "schema.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def _mine(self, prepared: Prepared, spec: Spec) -> ArrayClients:
        """Return the site's own clients, each with its public number of records."""
        everyone = prepared.clients
        if self.benchmark:
            last = self.client + self.clients
            if last > everyone.count:
                raise Refusal(f"the job has {everyone.count} clients; this site is client {last - 1}, counted from 0.")
            everyone = _only(everyone, range(self.client, last))
        elif everyone.count != self.clients:
            raise DataError(f"the data have {everyone.count} clients; the roster says {self.clients}.")
        if self.declared is None and spec.channel != "secure-sum":
            return everyone
        return _cut(everyone, [self._public_size(n, spec) for n in everyone.all_sizes().tolist()])

    def _public_size(self, records: int, spec: Spec) -> int:
        if self.declared is None:
            return rounded_down(records)
        if records < self.declared:
            raise DataError(f"the policy declares {self.declared} records; there are only {records}.")
        return self.declared


def rounded_down(records: int, digits: int = DIGITS) -> int:
    """Return a number of records rounded down to two significant digits."""
    step = int(10 ** max(0, math.floor(math.log10(max(1, records))) + 1 - digits))
    return records // step * step


def _only(clients: ArrayClients, numbers: range) -> ArrayClients:
    """Return some clients without a copy where one record stands for all."""
    parts = [np.arange(clients.starts[i], clients.starts[i + 1]) for i in numbers]
    return ArrayClients.split(clients.x, clients.y, parts, users=clients.users, tags=clients.tags)


def _cut(clients: ArrayClients, sizes: list[int]) -> ArrayClients:
    """Return the clients with so many of their records, chosen by place alone."""
    stream, parts = Stream.research(0).at("declared records"), []
    for k, n in enumerate(sizes):
        first, many = int(clients.starts[k]), clients.size(k)
        parts.append(first + (np.arange(many) if n >= many else stream.fixed(many, n, k)))
    return ArrayClients.split(clients.x, clients.y, parts, users=clients.users, tags=clients.tags)
