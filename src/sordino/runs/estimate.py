"""An estimate of time and memory before a run, from a short dry round of made-up clients of public sizes.

No record of anyone is used: sizes of clients are public, and the records are made up. So the estimate may be shown to
anyone. It is rough: real batches vary, a machine gets busy, and a GPU is slow at first."""

from __future__ import annotations

import copy
import math
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from sordino.contract.plan import Plan
from sordino.core.errors import SordinoError
from sordino.core.rng import Stream
from sordino.core.types import Batch, Model
from sordino.federations.base import Work
from sordino.federations.capacity import cores
from sordino.federations.simulator import COPIES, answer
from sordino.federations.store import Store
from sordino.federations.workers import Workers
from sordino.runs import loop, returned
from sordino.runs.job import Job
from sordino.runs.made_up import MadeUp

ENOUGH = 0.2  # seconds after which a trial with more clients says nothing new
LONG, MANY = 60.0, 8  # seconds of training, and cores and clients of a round, from which workers are suggested
RECORDS, TESTED = 2000, 500  # most made-up records of a client, and test records, that are tried


@dataclass(frozen=True)
class RunEstimate:
    """What a run is expected to take."""

    rounds: int
    round: float  # seconds of one round
    evaluation: float  # seconds of all evaluations
    memory: float  # bytes

    @property
    def seconds(self) -> float:
        """The seconds of the whole run."""
        return self.rounds * self.round + self.evaluation

    def sentence(self) -> str:
        """Return the estimate in words."""
        each = f" ({duration(self.round)} a round)" if self.round >= 0.1 else ""
        gigabytes = max(0.1, self.memory / 1e9)
        return f"Estimate: about {duration(self.seconds)}{each} and about {gigabytes:.1f} GB of memory"


def duration(seconds: float) -> str:
    """Return a duration in words, with about two digits."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s" if seconds >= 10 else f"{max(0.1, seconds):.1f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"


def idle_cores(job: Job, expected: RunEstimate) -> str | None:
    """Return what to try if worker processes would shorten a run by much; None otherwise."""
    training, cohort, found = expected.seconds - expected.evaluation, job.plan.expected_cohort, cores()
    if job.spec.federation != "simulator" or job.device.type != "cpu" or job.spec.compile or training < LONG:
        return None
    if found < MANY or cohort < MANY:
        return None
    return f"This machine has {found} cores: with federation = workers each trains clients of its own, which is faster"


class _MadeUpClients:
    """Clients of one size, whose records are made up before they are asked for."""

    def __init__(self, made_up: MadeUp, records: int, clients: int, device: torch.device) -> None:
        users = (1,) * records if made_up.users else None
        batch = made_up.draw((records,) * clients, users, 1)
        tags = None if batch.tags is None else batch.tags.to(device)
        self.batch = replace(batch, x=batch.x.to(device), y=batch.y.to(device), tags=tags)

    def fetch(self, ids: Sequence[int], device: torch.device) -> Batch:
        """Return the records of all of them."""
        return self.batch


def records_of_a_round(job: Job) -> float:
    """Return how many records' gradients the plan expects in a round."""
    plan, facts = job.plan, job.federation.facts
    each = facts.mean / max(1.0, plan.mean_client)  # records per record or, where these are counted, per user
    batch = plan.local.expected_batch(plan.mean_client) * each * plan.local.views
    return plan.expected_cohort * plan.mean_steps * batch * len(job.method.phases)


def estimate(job: Job) -> RunEstimate | None:
    """Return what a job is expected to take; None where a dry round cannot tell (compiled steps, a failed trial)."""
    if job.spec.compile:
        return None
    try:
        one_round = _round(job) + _accounting(job)
        return RunEstimate(job.plan.rounds, one_round, _evaluation(job), _memory(job))
    except (SordinoError, RuntimeError, ValueError, TypeError):  # a third-party method may need more than made-up data
        return None


def _round(job: Job) -> float:
    """Return the seconds of one round, from trials with more and more made-up clients."""
    facts, plan, cohort = job.federation.facts, job.plan, max(1.0, job.plan.expected_cohort)
    real = max(1, round(facts.mean))
    size = min(real, RECORDS)
    method, state = returned.checked(job), loop.begin(job)
    made_up = MadeUp.like(facts, _on(job, torch.device("cpu")), getattr(method, "groups", None))
    work = Work(method, job.model, _of_size(plan, size))
    workers = job.federation if isinstance(job.federation, Workers) else None
    together = cohort if workers is None else max(1.0, cohort / workers.blocks)  # clients that are computed together
    number, seconds, first = 1, math.inf, True
    with _threads(torch.get_num_threads() if workers is None else 1):
        while True:
            clients = _MadeUpClients(made_up, size, number, job.device)
            rng, start = Stream.research(0).at("estimate", number), time.perf_counter()
            answer(work, Store(), clients, job.device, method.phases[0], state, np.arange(number), rng)
            if job.device.type == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - start
            if first:  # the first call of all is slow
                first = False
                continue
            if seconds > ENOUGH or number >= together or number * size > 10 * RECORDS:
                break
            number = min(2 * number, math.ceil(together), plan.population)
    busy = 1.0 if workers is None else min(float(workers.count), cohort)
    return seconds / number * cohort * (real / size) * len(method.phases) / busy


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Compute with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _of_size(plan: Plan, size: int) -> Plan:
    """Return the plan for clients of one size."""
    return replace(plan, sizes=(size,), mean_client=float(size))


def _on(job: Job, device: torch.device) -> Model:
    """Return the model on a device; a copy if it is elsewhere."""
    from sordino.runs.rehearse import on_cpu

    return job.model if job.device == device else on_cpu(job.model)


def _accounting(job: Job) -> float:
    """Return the seconds in which epsilon so far is computed, after each round."""
    start = time.perf_counter()
    loop.spent(job, 1, last=False)
    return time.perf_counter() - start


def _evaluation(job: Job) -> float:
    """Return the seconds of all evaluations on public test records; those on held-out records are counted as none."""
    if job.test is None:
        return 0.0
    x = job.test[0]
    module, some = copy.deepcopy(job.model.module).eval(), x[:TESTED]
    with torch.inference_mode():
        module(some)  # the first call of all is slow
        start = time.perf_counter()
        module(some)
    seconds = (time.perf_counter() - start) * len(x) / max(1, len(some))
    return seconds * max(1, job.plan.rounds // max(1, job.evaluation.every))


def _memory(job: Job) -> float:
    """Return the bytes in use so far (data and model are loaded), and the weights of clients that train together."""
    row = 4 * COPIES * max(1, job.model.layout.dim)
    together = min(job.spec.memory_gb * 2**30, math.ceil(job.plan.expected_cohort) * row)
    if job.device.type == "cuda":
        return torch.cuda.memory_allocated() + together
    if isinstance(job.federation, Workers):
        return _resident() + job.federation.room.taken(job.federation.count)
    unit = 1 if sys.platform == "darwin" else 1024
    return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, _resident() + together)


def _resident() -> float:
    """Return the bytes of this process in memory; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0.0
