"""Fingerprints of a run: of its data, for the ledger, and of everything that a resumed run must share with it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor

from sordino.core.types import Clients
from sordino.data.clients import ArrayClients
from sordino.runs.job import Job

PLACES = ("name", "out", "ledger", "dataset", "data_dir", "schema", "test")  # paths and names: the contents count
FREE = ("workers",)  # keys that may change: the number of processes has no effect


def of_job(job: Job, ordered: str) -> str:
    """Return a digest of everything that a resumed run must share with the run it continues.

    `ordered` is the first digest of `fingerprints`.
    """
    facts = job.federation.facts
    places = PLACES if job.initial is None else (*PLACES, "initial_weights")
    size = int(facts.records[0])
    parts = [
        json.dumps(job.spec.to_dict() | dict.fromkeys((*places, *FREE)), sort_keys=True),
        str([(s.name, s.shape) for s in job.model.layout.slots]),
        str((job.plan.population, job.plan.mean_client, (size, *facts.x[0]))),
        ordered,
        _digest(*(p for p in job.model.module.parameters() if not p.requires_grad), *job.model.module.buffers()),
    ]
    if job.test is not None:
        parts.append(_digest(*job.test))
    if job.test_clients is not None:
        parts.append(hashlib.blake2b(job.test_clients.tobytes(), digest_size=16).hexdigest())
    if job.caps is not None:  # the file that the budgets came from may have changed
        parts.append(hashlib.blake2b(job.caps.tobytes(), digest_size=16).hexdigest())
    # the same noise at another scale would reveal the noise
    parts.append(str((job.plan.noise_multiplier, job.plan.multipliers, job.evaluation.noise)))
    parts += job.owner.digests
    if job.initial is not None:
        parts.append(job.initial.sha256)
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def digests(clients: Any) -> tuple[str, ...]:
    """Return digests of what a resumed run must share besides the records: their users and private attributes."""
    if not isinstance(clients, ArrayClients):
        return ()
    out = () if clients.users is None else (hashlib.blake2b(clients.users.tobytes(), digest_size=16).hexdigest(),)
    return out if clients.tags is None else (*out, _digest(clients.tags))


def fingerprints(clients: Clients) -> tuple[str, str]:
    """Return a digest of the records in the order of the clients, and one that does not depend on the order.

    The second identifies the data in a ledger: with another seed or another number of clients they are still the same
    data. If clients are made on demand, the first client and the declared sizes stand for all of them.
    """
    lazy = not isinstance(clients, ArrayClients)
    held: Any = clients.fetch([0], torch.device("cpu")) if lazy else clients
    x, y = (_bytes(t) for t in (held.x, held.y))
    rows = []
    for features, label in zip(x, y, strict=True):
        record = hashlib.blake2b(features, digest_size=16)
        record.update(label)
        rows.append(record.digest())
    shape = (
        f"{tuple(held.x.shape[1:])} {held.x.dtype} {held.y.dtype} {(clients.count, clients.sizes()) if lazy else ''}"
    )
    ordered, any_order = (
        hashlib.blake2b(shape.encode() + b"".join(r), digest_size=16).hexdigest() for r in (rows, sorted(rows))
    )
    return ordered, any_order


def _bytes(tensor: Tensor) -> Any:
    """Return the bytes of a tensor, one row per record."""
    return tensor.detach().cpu().reshape(len(tensor), -1).contiguous().view(torch.uint8).numpy()


def _digest(*tensors: Tensor) -> str:
    total = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
