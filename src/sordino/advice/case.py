"""Everything that can be known about a configuration before it runs: the input of the rules in advice/checks.py."""

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
from sordino.data.clients import ArrayClients, checked, units
from sordino.data.load import Dataset
from sordino.data.objects import bring
from sordino.ledger import home
from sordino.privacy import price
from sordino.privacy.events import Cost
from sordino.privacy.samplers import FixedSizeSampler, Poisson
from sordino.run_folder.folder import RunFolder
from sordino.runs import build
from sordino.runs.job import Job
from sordino.runs.prepare import PrivateLabelError, columns_of, prepare
from sordino.spec import spec
from sordino.spec.mode import settled
from sordino.spec.spec import Spec

FEW = 10  # values of a flag, a category or a short scale
FITTED = 1e-5  # means this close to 0, or standard deviations within ten times this of 1, are no coincidence
FEW = 16  # features with no more different values are levels, such as the answers of a questionnaire


@dataclass(frozen=True)
class Case:
    """A configuration to check; a field that is None could not be examined."""

    spec: Spec
    job: Job | None = None  # the job as it would run, with calibrated noise
    module: nn.Module | None = None  # the model as given, before fix_model
    sample: Tensor | None = None  # a few records, as inputs of the model
    data: Dataset | None = None
    clients: int | None = None
    records: int | None = None  # total over all clients
    users: int | None = None  # total over all clients, if the unit of privacy is the user
    ledger: Path = field(default_factory=home.registry)
    problem: SordinoError | None = None  # the error that prevented the job from being built
    left_out: tuple[str, ...] = ()  # how many records are left out or changed, for the owner alone
    flat: bool = False  # whether this is a run folder of an earlier version, without a public part

    @property
    def method(self) -> Method:
        """The method object that the spec names."""
        method: Method = self.spec.method_object()
        return method

    @property
    def viewer(self) -> str:
        """The viewer that the budget names; by default that of the method."""
        return self.spec.viewer or self.method.viewer

    @property
    def public_data(self) -> bool:
        """Whether the data are known and public."""
        return self.data is not None and self.data.public

    def plan(self) -> Plan:
        """Return the plan of the job or, without a job, an outline with the same neighbouring relation."""
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
        """Return the privacy cost of one participation, against `viewer` or the viewer of the budget."""
        return price.cost_to(viewer or self.viewer, pricing.planned(self.method, self.plan()))

    def units(self) -> int | None:
        """Return the number of protected clients, users or records, or None if it is unknown."""
        unit = self.cost().unit
        return self.clients if unit == "client" else self.users if unit == "user" else self.records

    def nsr(self) -> float | None:
        """Return the noise-to-signal ratio of the whole run (see advice/planner.py), or None if there is none."""
        if self.job is None or not self.method.private:
            return None
        plan = self.job.plan
        where = "records" if self.method.noisy_steps else "sum"
        steps = plan.rounds * (plan.local.count(plan.smallest_client) if where == "records" else 1)
        batch = plan.local.expected_batch(max(1.0, plan.mean_client))
        noise, dim = pricing.step_noise(self.method, plan), self.job.model.layout.dim
        noise /= math.sqrt(plan.split) if where == "records" else 1.0  # clients share the noise of a secure sum
        step = planner.step_nsr(where, noise, dim, max(1.0, plan.expected_cohort), batch)
        return step / math.sqrt(steps)


def of_spec(wanted: Spec) -> Case:
    """Build the case of a spec that names its dataset and model.

    Features are computed for a few records only; placeholders stand in for the other records.
    """
    try:
        prepared = prepare(wanted, sketch=True)
    except PrivateLabelError as error:  # everything else can still be checked
        prepared = prepare(replace(wanted, partition="iid"), sketch=True)
        job, problem = None, error  # type: tuple[Job | None, SordinoError | None]
    else:
        job, problem = _tried(lambda: build.from_prepared(prepared, "cpu"))
    made = _case(prepared.spec, prepared.module, prepared.clients, prepared.sample, prepared.data, job, problem)
    return replace(made, left_out=prepared.owner_notes)


def of_parts(
    wanted: Spec,
    module: nn.Module,
    clients: Any,
    loss: str | SampleLoss | None = None,
    test: Any = None,
) -> Case:
    """Build the case of the user's own module and clients, given as to `sordino.train`."""
    brought = bring(clients, columns_of(wanted), test)
    held, test = brought.clients, brought.test
    first = held.fetch([0], torch.device("cpu"))
    data = None
    if isinstance(held, ArrayClients):
        pair = (first.x[:0], first.y[:0]) if test is None else checked("the test data", *test)
        data = Dataset("the clients' data", held.x, held.y, *pair, client_train=np.zeros(len(held.y), dtype=np.int64))
    sample = first.x[:3] if len(first.x) > 1 else first.x.expand(2, *first.x.shape[1:])
    wanted = settled(wanted, public=False)
    job, problem = _tried(
        lambda: build.build(
            replace(wanted, device="cpu"), module, held, loss, test, None, brought.notes, None, brought.public
        )
    )
    return _case(wanted, module, held, sample, data, job, problem)


def _tried(make: Callable[[], Job]) -> tuple[Job | None, SordinoError | None]:
    """Return the job, or the error that prevented it from being built."""
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
    """Build the case of a run folder from its spec, with its data if they can still be found."""
    if not folder.is_dir():
        raise RunError(f"there is no run folder {folder}.")
    run_folder = RunFolder(folder)
    plan, ledger = run_folder.read_json("plan.json", PUBLIC), run_folder.read_json("ledger.json")
    wanted = spec.from_dict(spec.read(locate(folder, PRIVATE, "spec.toml")))
    try:
        path = home.registry() if ledger["path"] is None else folder / ledger["path"]
        bare = Case(wanted, clients=int(plan["clients"]), ledger=path, flat=run_folder.flat)
        from_python = bool((plan if run_folder.flat else run_folder.read_json("job.json")).get("own"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{folder} is damaged: {error!r} in plan.json or ledger.json.") from error
    if from_python:  # the model and the clients were passed from Python
        return bare
    try:
        return replace(of_spec(wanted), ledger=path, flat=run_folder.flat)
    except DataError:  # the data were moved, or the path is relative to another folder
        return bare


# --- inspecting data


def looks_fitted(x: Tensor) -> bool:
    """Return whether the records look scaled by their own statistics.

    This is the case if at least half of the features have mean 0 and standard deviation 1, or range 0 to 1, to many
    digits, or if all values together have mean 0 and standard deviation 1. Flags (0 and 1, or -1 and 1), of which a
    one-hot table is full, have such ranges and means by themselves, so they do not count; nor do the ranges of features
    with few different values.
    """
    if not x.is_floating_point() or len(x) < 20:
        return False
    rows = x.double().flatten(1)
    rows = rows[:, rows.std(0, correction=0) > 1e-12]
    if rows.shape[1] == 0:
        return False
    overall = abs(float(rows.mean())) < FITTED and abs(float(rows.std(correction=0)) - 1) < 10 * FITTED
    flags = ((rows == 0) | (rows == 1)).all(0) | (rows.abs() == 1).all(0)
    rows = rows[:, ~flags]
    if rows.shape[1] == 0:
        return False
    either = torch.stack([(rows.std(0, correction=c) - 1).abs() for c in (0, 1)]).amin(0)
    standard = (rows.mean(0).abs() < FITTED) & (either < 10 * FITTED)
    several = (rows[:1000].sort(0).values.diff(dim=0) > 0).sum(0) >= FEW
    ranged = (rows.amin(0).abs() < FITTED) & ((rows.amax(0) - 1).abs() < FITTED) & several
    by_range = float(ranged.double().mean()) >= 0.5 and len(rows[:1000].unique()) > 256  # fewer: images
    return overall or by_range or float(standard.double().mean()) >= 0.5
