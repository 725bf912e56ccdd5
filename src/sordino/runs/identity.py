"""Identity of a job's data in a ledger: their name, and keyed hashes of everyone in them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sordino.data import canonical
from sordino.data.canonical import Raw
from sordino.data.clients import ArrayClients
from sordino.ledger import keys, macs
from sordino.ledger.home import Key
from sordino.ledger.labels import BENCHMARK
from sordino.ledger.units import Forms, Units
from sordino.runs.job import Job


@dataclass(frozen=True)
class Whose:
    """The identity of a job's data."""

    name: str  # "" if the owner gave none
    units: Units | None  # who is in the data; None: the name alone identifies them

    @property
    def public_name(self) -> str | None:
        """The name that may appear in a run folder; None if there is none."""
        return self.name or None


def of_job(job: Job, units: Path, fingerprint: str) -> Whose:
    """Return whose data a job uses. A shipped benchmark is identified by its name alone.

    Args:
        job: the job.
        units: the file with the units of its ledger, whose key the hashes use.
        fingerprint: the digest of the data by which earlier versions identified them.
    """
    if job.owner.benchmark is not None:
        return Whose(BENCHMARK + job.owner.benchmark, None)
    if job.owner.remote is not None:  # every site has its own ledger, which knows who is in its data
        return Whose(job.owner.remote, None)
    name, unit = job.spec.data_name or "", job.plan_cost().unit
    key = keys.require_key(units)
    if isinstance(job.owner.brought, ArrayClients):
        raw = job.owner.raw or canonical.of_arrays(job.owner.brought.x)
        return Whose(name, of_raw(raw, unit, name, key, lambda: fingerprint))
    all_rows = {"made when asked for": macs.of_whole("made when asked for", bytes.fromhex(fingerprint), key)}
    return Whose(name, Units(unit, key.id, whole=all_rows, notes=_untold("clients are made on demand", name)))


def of_raw(raw: Raw, unit: str, name: str, key: Key, fingerprint: Callable[[], str] | None = None) -> Units:
    """Return everyone in these rows: by row, and by id if users or clients are the protected unit."""
    rows, all_rows = _rows(raw, key)
    notes = () if rows else _untold("their rows are too alike to tell people apart", name)
    ids: dict[str, macs.Macs] = {}
    names = {"user": raw.users, "client": raw.clients}.get(unit)
    if names is not None:
        texts = [str(n) for n in names]
        wide = canonical.telling(texts)
        for kind in ([unit] if wide else []) + ([f"{unit} in {name}"] if name else []):
            ids[kind] = macs.of_ids(kind, texts, key)
        if unit == "user" and not ids and rows:
            notes = (
                f"the ids of these users, such as {sorted(texts)[0]!r}, identify nobody outside this table: without a "
                "data_name only their rows are compared with earlier runs.",
            )
    return Units(unit, key.id, rows, ids, all_rows, notes, fingerprint)


def _rows(raw: Raw, key: Key) -> tuple[Forms, Forms]:
    """Return the hashes of the rows in every form that tells them apart; if there is none, one hash of all rows."""
    hashes: dict[str, macs.Macs] = {}
    for form in raw.forms:
        if form.tells_apart():
            each, distinct = macs.of_form(form, key)
            if 2 * distinct >= form.rows:
                hashes[form.kind] = each
    if hashes or not raw.forms:
        return hashes, {}
    form = raw.forms[0]
    each = macs.of_form(form, key)[0]
    content = hashlib.blake2b(each[macs.order(each)].tobytes(), digest_size=16).digest()
    return {}, {form.kind: macs.of_whole(form.kind, content, key)}


def _untold(why: str, name: str) -> tuple[str, ...]:
    way = (
        f"all runs under the name {name} are counted together" if name else "give data_name, or only exact copies count"
    )
    return (f"for these data only the name counts in the ledger, since {why}: {way}.",)
