"""What a run is known by: its data in a ledger, and everything that a resumed run must share with it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor

from sordino.core.types import Clients
from sordino.data.clients import ArrayClients
from sordino.runs.job import Job

PLACES = ("name", "out", "ledger", "dataset", "data_dir", "schema", "test")  # where things lie; what they hold counts
FREE = ("workers",)  # how many processes changes nothing


def of_job(job: Job, ordered: str) -> str:
    """Of everything a resumed run must share with the one it continues."""
    facts = job.federation.facts
    size = int(facts.records[0])
    parts = [
        json.dumps(job.spec.to_dict() | dict.fromkeys((*PLACES, *FREE)), sort_keys=True),
        str([(s.name, s.shape) for s in job.model.layout.slots]),
        str((job.plan.population, job.plan.mean_client, (size, *facts.x[0]))),
        ordered,
        _digest(*(p for p in job.model.module.parameters() if not p.requires_grad), *job.model.module.buffers()),
    ]
    if job.test is not None:
        parts.append(_digest(*job.test))
    if job.test_clients is not None:
        parts.append(hashlib.blake2b(job.test_clients.tobytes(), digest_size=16).hexdigest())
    if job.caps is not None:  # the file they came from may have changed
        parts.append(hashlib.blake2b(job.caps.tobytes(), digest_size=16).hexdigest())
    # the same noise at another scale would give it away
    parts.append(str((job.plan.noise_multiplier, job.plan.multipliers, job.evaluation.noise)))
    parts += job.owner.digests
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def digests(clients: Any) -> tuple[str, ...]:
    """Return what a resumed run must share beside the records: whose they are, and which carry private attributes."""
    if not isinstance(clients, ArrayClients):
        return ()
    out = () if clients.users is None else (hashlib.blake2b(clients.users.tobytes(), digest_size=16).hexdigest(),)
    return out if clients.tags is None else (*out, _digest(clients.tags))


def fingerprints(clients: Clients) -> tuple[str, str]:
    """Of the records in the order of the clients; and of the records in any order, however they are dealt.

    The second names the data in a ledger: another seed, another number of clients is still the same data. Of clients
    made when asked for, the first one and the declared sizes stand for all.
    """
    lazy = not isinstance(clients, ArrayClients)
    held: Any = clients.fetch([0], torch.device("cpu")) if lazy else clients
    x, y = (_bytes(t) for t in (held.x, held.y))
    rows = []
    for one, label in zip(x, y, strict=True):
        record = hashlib.blake2b(one, digest_size=16)
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
    """One row of bytes a record."""
    return tensor.detach().cpu().reshape(len(tensor), -1).contiguous().view(torch.uint8).numpy()


def _digest(*tensors: Tensor) -> str:
    total = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
