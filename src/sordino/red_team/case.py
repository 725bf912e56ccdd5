"""Open a finished run for attack: what one viewer saw of it, what this viewer knows besides, and what is true.

The owner of the data, who runs the attacks, has the run folder and the records. The job is made again from the stored
spec, on the same records, and compared with what the folder says about them. An attack gets the views and the
`Knowledge` of a case. The truth stays here: `members` says which of the targets were trained on.

Targets are a seeded sample, half of it records of clients that took part, half of it records that no client trained on:
public test records or, where there are none, held-out ones. A record of the second half is ascribed to a client as
those of the first half are, and both are mixed, so that neither the client nor the order tells anything.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sordino.attacks.base import Bools, Knowledge, Targets
from sordino.core.errors import DataError, RunError, SpecError
from sordino.core.parts import PUBLIC, locate
from sordino.core.state import Snapshot
from sordino.core.types import Batch, Clients, State, Vector
from sordino.core.view import View
from sordino.data.objects import bring
from sordino.federations.simulator import Simulator
from sordino.measures.held_out import HELD_OUT
from sordino.privacy.guarantee import Guarantee
from sordino.run_folder.folder import RunFolder
from sordino.run_folder.views import VIEWS, WIRE, read_views
from sordino.runs import build, head, run
from sordino.runs.fingerprint import fingerprints
from sordino.runs.job import Job
from sordino.runs.prepare import columns_of
from sordino.tasks.outputs import unwrapped
from sordino.tasks.task import CLASSIFICATION

RECORDS = 1000  # members among the targets, and as many others, unless the caller asks for another number
MODEL = "model.safetensors"
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class AttackCase:
    """A run that one viewer attacks."""

    job: Job
    viewer: str
    views: tuple[View, ...]
    knowledge: Knowledge  # without shadow models
    targets: Targets  # members and others, mixed
    members: Bools  # [records]: which of the targets were trained on
    clients: tuple[int, ...]  # that took part and are not the attacker's own

    def records_of(self, client: int) -> Batch:
        """Return the records that a client trained on."""
        return training_data(self.job).fetch([client], self.job.device)


# --- the job of a run folder


def opened(path: Path, model: Any = None, clients: Any = None, loss: Any = None, test: Any = None) -> Job:
    """Return the job of a finished run, on the same records.

    Args:
        path: the run folder.
        model: the model of a run that was started from Python, as it was passed to `sordino.train`.
        clients: its clients, likewise.
        loss: its loss, likewise.
        test: its test records, likewise.
    """
    own = bool(head.job_file(path).get("own"))
    if not (RunFolder(path).public / "result.json").is_file():
        raise RunError(f"{path} is not finished: continue it with `sordino resume {path}`, then attack it.")
    if own and (model is None or clients is None):
        raise RunError(
            f"{path} was started from Python with its own model, which the folder does not hold. Attack it from there: "
            f"sordino.attack('{path}', model=model, clients=clients, test=test)."
        )
    if not own and (model is not None or clients is not None):
        raise SpecError(f"{path} names its model and its data itself: leave out model and clients.")
    wanted = run.stored_spec(path)
    if wanted.federation == "flower":
        raise RunError(f"{path} was trained on real sites, whose records are not here. Each site can attack its own.")
    local = replace(wanted, federation="simulator")  # the records are needed here
    if own:
        data = bring(clients, columns_of(local), test)
        job = build.build(local, model, data.clients, loss, data.test, notes=data.notes, public=data.public)
    else:
        job = build.from_spec(local)
    _check_same(path, job, wanted)
    return _with_released(path, job)


def _check_same(path: Path, job: Job, wanted: Any) -> None:
    """Raise RunError if the records, the model or the settings are not those of the run."""
    ordered, _ = fingerprints(job.owner.brought)
    try:
        head.check_same(RunFolder(path), replace(job, spec=wanted), ordered)
    except RunError as error:
        raise RunError(
            f"{path} was trained on other records, with another model or by an earlier version of Sordino, so that "
            "nobody can say here which records are members."
        ) from error


def _with_released(path: Path, job: Job) -> Job:
    """Return the job with the constants that the run released in its first layer, if it has such a layer."""
    if not job.statistics:
        return job
    module = copy.deepcopy(job.model.module)
    _load(path, module)
    job.model.layout.write(module, job.model.layout.read(job.model.module))
    return build.again(replace(job, model=replace(job.model, module=module)))


def _load(path: Path, module: torch.nn.Module) -> None:
    """Load the published model of a run into a module."""
    file = locate(path, PUBLIC, MODEL)
    try:
        unwrapped(module).load_state_dict(load_file(file))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise RunError(f"{file} is missing or damaged: {str(error).splitlines()[0]}") from error


def training_data(job: Job) -> Clients:
    """Return all clients with the records that they train on."""
    if not isinstance(job.federation, Simulator):
        raise RunError("the records of this run are held elsewhere.")
    data: Any = job.federation.data
    held: Clients = data.data if hasattr(data, "data") else data
    return held


# --- what a viewer saw


def colluding(viewer: str) -> int:
    """Return the number of clients that collude with a server."""
    return int(viewer.partition("+")[2] or 0)


def views_of(path: Path, job: Job, viewer: str) -> tuple[View, ...]:
    """Return what a viewer saw of a run; of a run without recorded views, the public still has the published model."""
    if viewer.partition(":")[0] == "wire" and WIRE.fullmatch(viewer) is None:
        raise SpecError(f"--view wire:K names the client whose link is listened to, such as wire:0, not {viewer!r}.")
    if not (RunFolder(path).private / VIEWS).is_dir():
        if viewer == "public":
            return (published(path, job),)
        raise RunError(
            f"{path} holds no views of the {viewer}. Run it again with --record-views (record_views = true), which "
            "stores what the server and the public see of every round; --view public needs the published model alone."
        )
    views = read_views(path, viewer)
    if not views:
        raise RunError(f"{path}: client {viewer.partition(':')[2]} took part in no round; listen to another.")
    return tuple(on_device(view, job.device) for view in views)


def published(path: Path, job: Job) -> View:
    """Return the view of the last round that the published model alone gives."""
    module = copy.deepcopy(job.model.module)
    _load(path, module)
    params, rounds = job.model.layout.read(module), len(RunFolder(path).records())
    return View("public", rounds, "", State(params.to(job.device), rounds))


def on_device(view: View, device: torch.device) -> View:
    """Return a view with its models and messages on a device."""
    if device.type == "cpu":
        return view
    state = replace(view.state, params=view.state.params.to(device), average=_moved(view.state.average, device))
    if view.seen is None:
        return replace(view, state=state)
    fields: Mapping[str, Tensor] = {name: value.to(device) for name, value in view.seen.fields.items()}
    return replace(view, state=state, seen=replace(view.seen, fields=fields, weight=_moved(view.seen.weight, device)))


def _moved(value: Vector | None, device: torch.device) -> Vector | None:
    return None if value is None else value.to(device)


def took_part(path: Path, population: int) -> Ints:
    """Return the clients whose messages arrived in some round; all clients, if no views were recorded."""
    if not (RunFolder(path).private / VIEWS).is_dir():
        return np.arange(population)
    seen: set[int] = set()
    for view in read_views(path, "server"):
        ids = None if view.seen is None else view.seen.ids
        seen |= {int(i) for i in (view.cohort or ())} if ids is None else {int(i) for i in ids}
    return np.array(sorted(seen), dtype=np.int64)


# --- what is true, and what the viewer knows


def of_run(path: Path, job: Job, viewer: str, records: int | None = None, seed: int = 0) -> AttackCase:
    """Return the case of a viewer who attacks a run.

    Args:
        path: the folder of the run.
        job: its job, from `opened`.
        viewer: public, client (the first one), wire:K, server or server+N (the last N clients).
        records: the number of members among the targets, and of others; None: 1000, at most half of the test records.
        seed: of the sample and of the attacker's own randomness.
    """
    views, data = views_of(path, job, viewer), training_data(job)
    own = _own(viewer, data.count)
    clients = [int(c) for c in took_part(path, data.count) if int(c) not in own]
    if (wire := WIRE.fullmatch(viewer)) is not None:
        clients = [c for c in clients if c == int(wire[1])]
    if not clients:
        raise RunError(f"{path}: no client took part but the attacker's own, so there is nobody to attack.")
    rng = np.random.default_rng([seed, 0x5EC])
    targets, members, auxiliary = _sampled(job, clients, records, rng)
    knowledge = Knowledge(
        job.model,
        classes=classes(job),
        local=job.plan.local,
        client_size=max(1, round(job.plan.mean_client)),
        own=data.fetch(own, job.device) if own else None,
        auxiliary=auxiliary,
        seed=seed,
    )
    return AttackCase(job, viewer, views, knowledge, targets, members, tuple(clients))


def _own(viewer: str, population: int) -> list[int]:
    """Return the clients that belong to the attacker."""
    if viewer == "client":
        return [0]
    return list(range(max(0, population - colluding(viewer)), population))


def _sampled(
    job: Job, clients: list[int], records: int | None, rng: np.random.Generator
) -> tuple[Targets, Bools, Batch | None]:
    """Return the targets, which of them are members, and records that the attacker may know besides."""
    inside = training_data(job).fetch(clients, job.device)
    owners = np.repeat(clients, inside.sizes)
    x, y = untouched(job)
    most = RECORDS if records is None else records
    count = min(most, len(owners), len(y) // 2 if records is None else len(y))
    if count < 1:
        raise DataError(f"there are {len(owners)} members and {len(y)} other records: too few to compare.")
    picked = np.sort(rng.permutation(len(owners))[:count])
    order = rng.permutation(len(y))
    others, rest = order[:count], np.sort(order[count:])
    ascribed = owners[rng.permutation(len(owners))[:count]]  # a client for every other record
    whose = np.concatenate([owners[picked], ascribed])
    mixed = rng.permutation(2 * count)
    mixed = mixed[np.argsort(whose[mixed], kind="stable")]
    ids, sizes = np.unique(whose, return_counts=True)
    device = inside.y.device
    source = [torch.from_numpy(picked).to(device), torch.from_numpy(others).to(device)]
    place = torch.from_numpy(mixed).to(device)
    batch = Batch(
        torch.cat([inside.x[source[0]], x[source[1]]])[place],
        torch.cat([inside.y[source[0]], y[source[1]]])[place],
        tuple(sizes.tolist()),
    )
    left = torch.from_numpy(rest).to(device)
    auxiliary = Batch(x[left], y[left], (len(rest),)) if len(rest) else None
    return Targets(batch, tuple(ids.tolist()), np.arange(2 * count)), mixed < count, auxiliary


def untouched(job: Job) -> tuple[Tensor, Tensor]:
    """Return records that no client trained on: public test records or, without any, held-out ones."""
    if job.test is not None:
        return job.test
    parts = job.federation.parts if isinstance(job.federation, Simulator) else {}
    if HELD_OUT not in parts:
        raise DataError(
            "the run has no record that no client trained on, so that members cannot be compared with others. Run it "
            "with test records (test = FILE), or with validation = 0.1."
        )
    part = parts[HELD_OUT]
    batch = part.fetch(part.ids.tolist(), job.device)
    return batch.x, batch.y


def classes(job: Job) -> int | None:
    """Return the number of labels; None if the task is not to tell classes apart."""
    if job.task != CLASSIFICATION:
        return None
    x = training_data(job).fetch([0], job.device).x[:1]
    with Snapshot(job.model.module), torch.no_grad():
        return int(job.model.module(x).shape[-1])


def guarantee(job: Job, viewer: str) -> Guarantee:
    """Return the guarantee of the whole run against a viewer; whoever listens on a wire sees less than the server."""
    against = "server" if WIRE.fullmatch(viewer) else viewer
    rounds = job.plan.rounds
    return job.guarantee(against, rounds, job.planned(rounds))


def allowed(promise: Guarantee) -> tuple[float, float]:
    """Return the epsilon and delta that hold for one record whose presence is asked for.

    A record belongs to one client (or user). If a guarantee lets that whole client be replaced, it covers the record.
    If it lets the client be added or removed, two such steps lead from the client's data with the record to those
    without: group privacy, Dwork and Roth (2014), Section 2.3. The guarantee of a label says nothing of membership.
    """
    if promise.unit == "label":
        return math.inf, 0.0
    if promise.unit == "record" or promise.relation != "add/remove":
        return promise.epsilon, promise.delta
    factor = math.exp(min(promise.epsilon, 700.0))
    return 2 * promise.epsilon, min(1.0, (1 + factor) * promise.delta)
