"""Start, resume and finish a run; `train` is the whole of it for Python."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.core.errors import RunError, SpecError
from sordino.core.record import RoundRecord
from sordino.core.types import SampleLoss
from sordino.data.clients import ArrayClients
from sordino.privacy import price
from sordino.privacy.guarantee import Guarantee
from sordino.runs import build, faults, loop, spec
from sordino.runs.build import Job
from sordino.runs.folder import RunFolder, pack_model
from sordino.runs.ledger import Ledger

Watch = Callable[[Job, RoundRecord], None]  # called after every round


@dataclass(frozen=True)
class Result:
    """What a run leaves: the model, the guarantee against its viewer, and one record a round."""

    model: nn.Module
    guarantee: Guarantee
    guarantees: dict[str, Guarantee]  # by viewer
    history: list[RoundRecord]
    folder: Path
    notes: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float | None:
        return self.history[-1].accuracy if self.history else None


def train(
    model: nn.Module | Callable[[], nn.Module],
    clients: Any,
    *,
    loss: str | SampleLoss | None = None,
    test: tuple[Any, Any] | None = None,
    resume: str | Path | None = None,
    watch: Watch | None = None,
    **keys: Any,
) -> Result:
    """Train one model over many clients' data with a total (epsilon, delta).

    model    an nn.Module, or a function that makes one
    clients  a list of (x, y) pairs, one a client: tensors, numpy arrays, pandas objects; or map-style Datasets
    loss     "cross_entropy", "squared_error" or a function (predictions, targets) -> one loss a record
    test     an (x, y) pair to evaluate on after every round; taken as public
    resume   the folder of an interrupted run of the same model and clients
    **keys   any key of a run file: method, epsilon, delta, rounds, client_rate, batch_rate, clip, ...
    """
    if resume is not None:
        if keys:
            raise RunError("a resumed run keeps its keys: pass resume alone, without " + ", ".join(keys) + ".")
        keys = _stored(Path(resume))
    if brought := [k for k in keys if k in spec.NAMED]:
        raise SpecError(
            f"{brought[0]} belongs to `sordino run`; sordino.train takes its model and clients as arguments."
        )
    job = build.build(spec.from_dict(keys), model, clients, loss, test)
    return execute(job, own=True, at=None if resume is None else Path(resume), watch=watch)


def resume_spec(path: Path) -> Job:
    """The job of a stored run; its `execute(..., at=path)` goes on where it stopped."""
    if _plan_file(path).get("own"):
        raise RunError(f"{path} was started from Python with its own model; use sordino.train(..., resume='{path}').")
    return build.from_spec(spec.from_dict(_stored(path)))


def without_privacy(job: Job) -> Job:
    """The same clients, features, model and rounds with neither clip nor noise."""
    name = f"{job.spec.name[:48]}-without-privacy" if job.spec.name else None
    wanted = replace(job.spec, method="fedavg", options=(), viewer=None, baseline=False, name=name)
    plan = replace(job.plan, noise_multiplier=None)
    return replace(job, spec=wanted, method=wanted.method_object(), plan=plan, viewer="server")


def execute(
    job: Job,
    own: bool,
    at: Path | None = None,
    watch: Watch | None = None,
    began: Callable[[Path], None] | None = None,
) -> Result:
    """Run a job to its end, in a fresh folder or in the one it was interrupted in (`began` is told which)."""
    folder = RunFolder(at) if at is not None else RunFolder.create(job.spec.out, job.spec.name)
    folder.lock()
    ledger = None
    if began is not None:
        began(folder.path)
    try:
        if at is None:
            _write_head(folder, job, own)
        else:
            _check_same(folder, job)
        research = job.spec.mode == "research"
        ledger = Ledger(folder.path / "ledger.sqlite", job.plan.rounds, job.plan.participations, research)
        found = folder.load_state() if at is not None else None
        if found is not None and ledger.charged < found[1]:
            raise RunError(
                f"{folder.path}: the ledger has {ledger.charged} charges for {found[1]} rounds; it was lost."
            )
        notes = job.notes
        if found is None:
            state, done = loop.begin(job), 0
            folder.save_state(state, 0)  # a resumed run goes on from these weights, not from newly drawn ones
        else:
            state, done, warning = found
            state = replace(
                state,
                params=state.params.to(job.engine.device),
                extra={k: v if k == "clip" else v.to(job.engine.device) for k, v in state.extra.items()},
            )
            notes += (warning,) if warning else ()
        history = folder.records(until=done)
        for record in loop.run(job, folder, ledger, state, done):
            history.append(record)
            if watch is not None:
                watch(job, record)
        return _finish(job, folder, ledger, history, notes)
    finally:
        if ledger is not None:
            ledger.close()
        folder.close()


def _finish(job: Job, folder: RunFolder, ledger: Ledger, history: list[RoundRecord], notes: tuple[str, ...]) -> Result:
    found = folder.load_state()
    state = found[0] if found is not None else loop.begin(job)
    module = loop.trained(job, loop.model_vector(state).to(job.engine.device))
    guarantees = {v: job.guarantee(v, ledger.charged, ledger.most) for v in price.VIEWERS}
    faults.point("finishing")
    folder.write("model.safetensors", pack_model(module))
    result = Result(module.cpu(), guarantees[job.viewer], guarantees, history, folder.path, notes)
    folder.write_json(
        "result.json",
        {
            "guarantee": result.guarantee.to_json(),
            "guarantees": {v: g.to_json() for v, g in guarantees.items()},
            "rounds": len(history),
            "accuracy": result.accuracy,
            "notes": list(notes),
        },
    )
    return result


# --- the head of a run folder


def _write_head(folder: RunFolder, job: Job, own: bool) -> None:
    kept = {k: v for k, v in job.spec.to_dict().items() if not (own and k in spec.NAMED)}
    lines = [f"{k} = {spec.to_toml(v)}" for k, v in kept.items()]
    folder.write("spec.toml", ("\n".join(lines) + "\n").encode())
    folder.write_json("plan.json", {"own": own, "fingerprint": _fingerprint(job)} | describe(job))


def describe(job: Job) -> dict[str, Any]:
    """What was derived from the spec, for people and programs."""
    plan, promise = job.plan, job.promise()
    return {
        "method": job.spec.method,
        "noise_multiplier": plan.noise_multiplier,
        "promise": promise.to_json(),
        "mode": job.spec.mode,
        "clients": plan.population,
        "expected_cohort": plan.expected_cohort,
        "local_steps": plan.local.count(plan.smallest_client),
        "parameters": job.model.layout.dim,
        "gradient_path": job.model.gradients.path,
        "gradient_reason": job.model.gradients.reason,
        "device": str(job.engine.device),
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
        },
    }


def _fingerprint(job: Job) -> str:
    """Of everything a resumed run must share with the one it continues."""
    first = job.clients.fetch([0], torch.device("cpu"))
    held = job.clients if isinstance(job.clients, ArrayClients) else first  # all records that are in memory
    parts = [
        json.dumps(job.spec.to_dict() | {"name": None, "out": None}, sort_keys=True),
        str([(s.name, s.shape) for s in job.model.layout.slots]),
        str((job.plan.population, job.plan.mean_client, tuple(first.x.shape))),
        _digest(held.x, held.y),
        _digest(*(p for p in job.model.module.parameters() if not p.requires_grad), *job.model.module.buffers()),
    ]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def _digest(*tensors: Tensor) -> str:
    total = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _plan_file(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise RunError(f"there is no run folder {path}.")
    data = RunFolder(path).read_json("plan.json")
    if not isinstance(data, dict):
        raise RunError(f"{path / 'plan.json'} is damaged.")
    return data


def _stored(path: Path) -> dict[str, Any]:
    _plan_file(path)
    return spec.read(path / "spec.toml")


def _check_same(folder: RunFolder, job: Job) -> None:
    if _plan_file(folder.path).get("fingerprint") != _fingerprint(job):
        raise RunError(
            f"{folder.path} was started with another model, other data or another spec; a resumed run must be the same."
        )
