"""All that can be known of a configuration before it runs, for the rules of advice/checks.py to look at."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.advice import planner
from sordino.contract import pricing
from sordino.contract.method import Method, Plan
from sordino.core.errors import DataError, RunError, SordinoError
from sordino.core.parts import PRIVATE, PUBLIC, locate
from sordino.core.types import SampleLoss
from sordino.data.clients import ArrayClients, adopt, checked, units
from sordino.data.load import Dataset
from sordino.ledger import home
from sordino.privacy import price
from sordino.privacy.events import Cost
from sordino.privacy.samplers import FixedSizeSampler, Poisson
from sordino.runs import build, spec
from sordino.runs.folder import RunFolder
from sordino.runs.job import Job
from sordino.runs.mode import settled
from sordino.runs.prepare import PrivateLabelError, prepare
from sordino.runs.spec import Spec

FITTED = 1e-5  # means nearer to 0 than this, and deviations within ten times this of 1, do not come about by chance


@dataclass(frozen=True)
class Case:
    """What is None could not be looked at."""

    spec: Spec
    job: Job | None = None  # as it would run, noise calibrated
    module: nn.Module | None = None  # as it was brought, before fix_model
    sample: Tensor | None = None  # a few records, as the model gets them
    data: Dataset | None = None
    clients: int | None = None
    records: int | None = None  # of all clients
    users: int | None = None  # of all clients, where they are what is protected
    ledger: Path = field(default_factory=home.registry)
    problem: SordinoError | None = None  # why there is no job
    flat: bool = False  # whether it is the folder of a run that an earlier version made, without a public part

    @property
    def method(self) -> Method:
        method: Method = self.spec.method_object()
        return method

    @property
    def viewer(self) -> str:
        return self.spec.viewer or self.method.viewer

    @property
    def public_data(self) -> bool:
        return self.data is not None and self.data.public

    def plan(self) -> Plan:
        """That of the job; where there is none, an outline that has the same relation."""
        if self.job is not None and self.job.plan.noise_multiplier is not None:
            return self.job.plan
        fixed = self.spec.client_sampling == "fixed" and self.spec.client_rate < 1
        return Plan(
            rounds=self.spec.rounds,
            population=self.clients or 2,
            sampler=FixedSizeSampler(1) if fixed else Poisson(self.spec.client_rate),
            noise_multiplier=1.0,
            algorithm=self.spec.algorithm_object(),
            unit=self.spec.unit,
            clients_per_user=self.spec.clients_per_user,
        )

    def cost(self, viewer: str | None = None) -> Cost:
        """Of one participation."""
        return price.cost_to(viewer or self.viewer, pricing.planned(self.method, self.plan()))

    def units(self) -> int | None:
        """How many are protected."""
        unit = self.cost().unit
        return self.clients if unit == "client" else self.users if unit == "user" else self.records

    def nsr(self) -> float | None:
        """Noise-to-signal ratio of the whole run: see advice/planner.py."""
        if self.job is None or not self.method.private:
            return None
        plan = self.job.plan
        where = "records" if self.method.noisy_steps else "sum"
        steps = plan.rounds * (plan.local.count(plan.smallest_client) if where == "records" else 1)
        batch = plan.local.expected_batch(max(1.0, plan.mean_client))
        noise, dim = pricing.step_noise(self.method, plan), self.job.model.layout.dim
        step = planner.step_nsr(where, noise, dim, max(1.0, plan.expected_cohort), batch)
        return step / math.sqrt(steps)


def of_spec(wanted: Spec) -> Case:
    """A named dataset and model. Features are made of a few records only; the others stand in by number."""
    try:
        found = prepare(wanted, sketch=True)
    except PrivateLabelError as error:  # all else can still be looked at
        found = prepare(replace(wanted, partition="iid"), sketch=True)
        job, problem = None, error  # type: tuple[Job | None, SordinoError | None]
    else:
        job, problem = _tried(lambda: build.from_prepared(found, "cpu"))
    return _case(found.spec, found.module, found.clients, found.sample, found.data, job, problem)


def of_parts(
    wanted: Spec,
    module: nn.Module,
    clients: Any,
    loss: str | SampleLoss | None = None,
    test: tuple[Any, Any] | None = None,
) -> Case:
    """One's own module and clients, as `sordino.train` takes them."""
    held = adopt(clients)
    first = held.fetch([0], torch.device("cpu"))
    data = None
    if isinstance(held, ArrayClients):
        pair = (first.x[:0], first.y[:0]) if test is None else checked("the test data", *test)
        data = Dataset("the clients' data", held.x, held.y, *pair, client_train=np.zeros(len(held.y), dtype=np.int64))
    sample = first.x[:3] if len(first.x) > 1 else first.x.expand(2, *first.x.shape[1:])
    wanted = settled(wanted, public=False)
    job, problem = _tried(lambda: build.build(replace(wanted, device="cpu"), module, held, loss, test))
    return _case(wanted, module, held, sample, data, job, problem)


def _tried(make: Callable[[], Job]) -> tuple[Job | None, SordinoError | None]:
    """The job, or why there is none."""
    try:
        return make(), None
    except SordinoError as error:
        return None, error


def _case(
    wanted: Spec,
    module: nn.Module,
    held: Any,
    sample: Tensor,
    data: Dataset | None,
    job: Job | None,
    problem: SordinoError | None,
) -> Case:
    path = Path(wanted.ledger) if wanted.ledger else home.registry()
    records, users = units(held, "record"), units(held, "user") if wanted.unit == "user" else None
    return Case(wanted, job, module, sample, data, held.count, records, users, path, problem)


def of_run(folder: Path) -> Case:
    """A run folder: its spec, and its data where they are still found."""
    if not folder.is_dir():
        raise RunError(f"there is no run folder {folder}.")
    kept = RunFolder(folder)
    plan, ledger = kept.read_json("plan.json", PUBLIC), kept.read_json("ledger.json")
    wanted = spec.from_dict(spec.read(locate(folder, PRIVATE, "spec.toml")))
    try:
        path = home.registry() if ledger["path"] is None else folder / ledger["path"]
        bare = Case(wanted, clients=int(plan["clients"]), ledger=path, flat=kept.flat)
        own = bool((plan if kept.flat else kept.read_json("job.json")).get("own"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{folder} is damaged: {error!r} in plan.json or ledger.json.") from error
    if own:  # its model and clients came from Python
        return bare
    try:
        return replace(of_spec(wanted), ledger=path, flat=kept.flat)
    except DataError:  # moved, or looked for from another folder
        return bare


# --- what data show


def looks_fitted(x: Tensor) -> bool:
    """Whether most features (or all numbers together) have mean 0 and deviation 1, or range 0 to 1, to many digits."""
    if not x.is_floating_point() or len(x) < 20:
        return False
    rows = x.double().flatten(1)
    rows = rows[:, rows.std(0, correction=0) > 1e-12]
    if rows.shape[1] == 0:
        return False
    either = torch.stack([(rows.std(0, correction=c) - 1).abs() for c in (0, 1)]).amin(0)
    standard = (rows.mean(0).abs() < FITTED) & (either < 10 * FITTED)
    whole = abs(float(rows.mean())) < FITTED and abs(float(rows.std(correction=0)) - 1) < 10 * FITTED
    ranged = (rows.amin(0).abs() < FITTED) & ((rows.amax(0) - 1).abs() < FITTED)
    by_range = float(ranged.double().mean()) >= 0.5 and len(rows[:1000].unique()) > 256  # fewer: pictures, flags
    return whole or by_range or float(standard.double().mean()) >= 0.5
