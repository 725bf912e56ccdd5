"""The federated round, readable top to bottom."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from sordino.core.record import RoundRecord
from sordino.core.rng import Ints
from sordino.core.types import State, Vector
from sordino.models.losses import accuracy, cross_entropy
from sordino.privacy import price
from sordino.runs import faults
from sordino.runs.build import Job
from sordino.runs.folder import RunFolder
from sordino.runs.jobs import Account

PUBLIC = "public test data"


def begin(job: Job) -> State:
    state = State(job.model.layout.read(job.model.module))
    if job.spec.averaging:
        state = replace(state, extra={"average": state.params.clone()})
    return job.method.begin(state, job.plan)


def run(job: Job, folder: RunFolder, ledger: Account, state: State, done: int) -> Iterator[RoundRecord]:
    """Draw, pay, train, carry, merge; from `done` rounds on, until the rounds or the budget are used up."""
    with ThreadPoolExecutor(1) as beside:  # epsilon depends on who paid alone: computed while the clients train
        yield from _rounds(job, folder, ledger, state, done, beside)


def _rounds(
    job: Job, folder: RunFolder, ledger: Account, state: State, done: int, beside: ThreadPoolExecutor
) -> Iterator[RoundRecord]:
    saved, kept = time.monotonic(), done
    cost = price.cost_to(job.viewer, job.method.costs(job.plan))  # of one participation
    while done < job.plan.rounds and (ledger.charged < ledger.rounds or ledger.repeats(done) is not None):
        start = time.monotonic()
        rng = job.rng.at("round", done)
        cohort = _draw(job, ledger, done)
        faults.point("drawn")
        if ledger.repeats(done) is None:
            faults.point("paying")
            ledger.spend(done, cohort, cost)  # durably, or stop here
        faults.point("paid")
        epsilon = beside.submit(spent, job, ledger.charged, ledger.most, done + 1 == job.plan.rounds)
        ids = cohort.tolist()
        rows = job.engine.clients(job.method, state, ids, job.clients, job.model, job.plan, rng.at("clients"))
        faults.point("trained")
        seen = job.channel.carry(rows, rng.at("channel"))
        state = _average(job, job.method.merge(state, seen, job.plan, rng.at("merge")), done)
        faults.point("merged")
        done += 1
        record = RoundRecord(
            round=done,
            clients=len(ids),
            epsilon=epsilon.result(),
            bytes_up=rows.numel() * rows.element_size(),
            bytes_down=len(ids) * state.params.numel() * state.params.element_size(),
            seconds=time.monotonic() - start,
            clip=float(state.extra["clip"]) if "clip" in state.extra else None,
            **(evaluate(job, model_vector(state)) if _due(job, done) else {}),
        )
        folder.append(record)
        faults.point("recorded")
        if done == job.plan.rounds or time.monotonic() - saved >= job.spec.checkpoint_seconds:
            _save(folder, ledger, state, done)
            saved, kept = time.monotonic(), done
        yield record
    if done != kept:  # the budget ended the run before its rounds did
        _save(folder, ledger, state, done)


def _save(folder: RunFolder, ledger: Account, state: State, done: int) -> None:
    folder.save_state(state, done)
    faults.point("noting")
    folder.note_ledger(ledger.head())


def _draw(job: Job, ledger: Account, done: int) -> Ints:
    paid = ledger.repeats(done)
    if paid is not None:
        return paid
    return ledger.free(job.plan.sampler.draw(job.plan.population, job.rng.at("round", done).at("sample")))


def _average(job: Job, state: State, done: int) -> State:
    """Mean of the models of the last rounds (Polyak and Juditsky 1992): post-processing, costs nothing."""
    if not job.spec.averaging:
        return state
    first = int((1 - job.spec.averaging) * job.plan.rounds)
    weight = 1 / max(1, done - first + 1)
    average = state.extra["average"] + weight * (state.params - state.extra["average"])
    return replace(state, extra=state.extra | {"average": average})


def model_vector(state: State) -> Vector:
    """The parameters that are shown and kept."""
    return state.extra.get("average", state.params)


def spent(job: Job, rounds: int, participations: int, last: bool) -> dict[str, float]:
    """Epsilon so far, against every viewer; on the way by a coarser (still sound) grid."""
    out = {}
    for viewer in job.viewers:
        now = job.guarantee(viewer, rounds, participations, rough=not last)
        out[viewer] = now.epsilon
        if not last and viewer == job.viewer:  # less has happened than was planned
            out[viewer] = min(now.epsilon, job.promise().epsilon)
    return out


def _due(job: Job, done: int) -> bool:
    return job.test is not None and (done % job.spec.evaluate_every == 0 or done == job.plan.rounds)


def evaluate(job: Job, params: Vector) -> dict[str, Any]:
    """Loss and accuracy on the test data, which is taken as public: nobody is charged for it."""
    if job.test is None:
        return {}
    module = trained(job, params).eval()
    x, y = job.test
    total, right = 0.0, 0.0
    with torch.inference_mode():
        for i in range(0, len(y), 2000):
            out = module(x[i : i + 2000])
            total += float(job.model.loss(out, y[i : i + 2000]).sum())
            if job.model.loss is cross_entropy:
                right += float(accuracy(out, y[i : i + 2000]).sum())
    scores: dict[str, Any] = {"loss": total / len(y), "evaluated_on": PUBLIC}
    return scores | {"accuracy": right / len(y)} if job.model.loss is cross_entropy else scores


def trained(job: Job, params: Vector) -> nn.Module:
    """A copy of the model with these parameters; the template stays as it is."""
    module = copy.deepcopy(job.model.module)
    job.model.layout.write(module, params)
    return module
