"""A job at a site: the plan that the site computed itself, its own records, and the answers to the server's requests.

Training is the simulator's, with the clients of this site alone: the same `train`, the same outlets, the same streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.contract.plan import Plan
from sordino.core.errors import RunError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.core.saved import Saved, written
from sordino.core.types import State
from sordino.data.clients import ArrayClients
from sordino.deploy.agreement import Agreement
from sordino.deploy.refusal import Refusal
from sordino.deploy.site_data import SiteData
from sordino.federations.base import Work
from sordino.federations.letters import STATE
from sordino.federations.simulator import ClientPart, Simulator
from sordino.measures import beside, held_out
from sordino.measures.feature_moments import planned
from sordino.measures.figure import Figure
from sordino.runs import build, loop, returned, statistics
from sordino.runs.job import Job
from sordino.runs.prepare import device_of

LARGEST = 1e15  # magnitude of a number in a state; no training comes near it
ROWS, MOMENTS, FIGURE = "rows", "moments", "figure"  # releases outside the rounds


class SiteJob:
    """A job that a site takes part in.

    Args:
        agreement: what server and sites agreed on.
        name: the name of this site.
        data: the site's data.
        folder: the folder of the job, private to the site.
        done: the number of rounds after which clients' state was saved last.
        key: the stream of the site's noise in secure mode.
    """

    def __init__(
        self, agreement: Agreement, name: str, data: SiteData, folder: Path, done: int, key: Stream | None
    ) -> None:
        self.agreement, self.member = agreement, agreement.member(name)
        device = agreement.asked.device
        self.job = agreement.job(device=device)
        self._device = device_of(device)
        research = Stream.research(self.job.spec.seed or 0)
        self.rng = research if self.job.mode == "research" else key or Stream.operating_system()
        real, _ = data.records(agreement.asked, agreement.schema)
        self._simulator = self._own_clients(real, research)
        try:
            self._begin(folder, done)
        except BaseException:
            self._simulator.close()
            raise

    def _begin(self, folder: Path, done: int) -> None:
        job = self.job
        self._fresh = loop.begin(job)
        self._simulator.open(Work(returned.checked(job), job.model, job.plan))
        self._keeps = loop.remembers(job, self._fresh)
        if self._keeps:
            self._simulator.resume(folder / "clients.sqlite", done)

    def _own_clients(self, real: ArrayClients, public: Stream) -> Simulator:
        """Return a simulator of this site's clients, with the records that a round may use."""
        job, sizes = self.job, np.zeros(len(self.agreement.sizes), dtype=np.int64)
        sizes[list(self.member.clients)] = real.all_sizes()
        if tuple(real.all_sizes().tolist()) != self.member.sizes:
            raise RunError("the records of this site are no longer as many as the agreement says.")
        placed = ArrayClients(real.x, real.y, sizes.tolist(), real.users, real.tags)
        held, kept_out, left = held_out.split(job.spec, job.method, placed, job.evaluation)
        if kept_out is None and len(left) == len(sizes):  # nothing was held out, so nobody was left out either
            held, left = real, np.asarray(self.member.clients)
        mine = np.isin(left, self.member.clients)
        part = ClientPart(held if mine.all() else held.subset(np.flatnonzero(mine).tolist()), left[mine])
        parts = {} if kept_out is None else {held_out.HELD_OUT: kept_out.part()}
        if self._device.type != "cpu":
            part = ClientPart(part.data.to(self._device), part.ids)  # type: ignore[attr-defined]
        memory = job.spec.memory_gb
        return Simulator(self._device, part, self.rng, memory, public, job.federation.facts, parts)

    def check_request(self, round: int, phase: str, clients: list[int]) -> None:
        """Raise Refusal unless a request names a round, a phase and clients of this site."""
        plan = self.job.plan
        if not 0 <= round < plan.rounds:
            raise Refusal(f"the job has {plan.rounds} rounds; round {round + 1} was asked for.")
        if phase not in self.job.method.phases:
            raise Refusal("the request names a phase that the method does not have.")
        if not clients or len(set(clients)) != len(clients) or not set(clients) <= set(self.member.clients):
            raise Refusal("the request names clients that are not at this site.")

    def state(self, tensors: Mapping[str, Tensor], round: int) -> State:
        """Return the public state that the server sent; raise Refusal if it does not fit the job."""
        sent = _checked(tensors, written(self._fresh))
        if self.job.statistics:
            self._set_inputs(sent)
        fresh = self._fresh
        try:
            state = Saved(sent, round).restored(fresh, self._device)
        except RunError as error:
            raise Refusal("the state does not fit the model and the method of the job.") from error
        if not _alike(state, fresh, self.job.plan.population):
            raise Refusal("the state does not fit the model and the method of the job.")
        return state

    def _set_inputs(self, sent: Mapping[str, Tensor]) -> None:
        """Set the constants of the first layer to those that were released before the rounds."""
        layer = statistics.first_layer(self.job.model.module)
        named = {f"inputs.{name}": buffer for name, buffer in layer.named_buffers()}
        if any(name not in sent or sent[name].shape != buffer.shape for name, buffer in named.items()):
            raise Refusal("the state lacks the statistics by which rows are scaled.")
        if all(torch.equal(sent[name].to(buffer), buffer) for name, buffer in named.items()):
            return
        statistics.release(self.job, Saved(dict(sent), 0))
        self.job = build.again(self.job)
        self._fresh = loop.begin(self.job)
        self._simulator.open(Work(returned.checked(self.job), self.job.model, self.job.plan))

    def answer(self, phase: str, state: State, clients: list[int]) -> Message:
        """Return what leaves the clients of this site in a phase, not yet sealed."""
        (message,) = self._simulator.answers(phase, state, clients)
        return message

    def save(self, done: int) -> None:
        """Write what clients keep to disk."""
        if self._keeps:
            self._simulator.save(done)

    def once(
        self, what: str, number: int, shift: list[float], tensors: Mapping[str, Tensor], key: str | None
    ) -> Message:
        """Return what the clients of this site release outside the rounds.

        Args:
            what: the release: rows, moments or figure.
            number: which one, from 0; a figure is that of a round.
            shift: for the second release of rows: the means that the first one gave.
            tensors: the state, for a figure.
            key: in research mode, the stream of the noise.
        """
        job, part = self.job, ""
        if what == FIGURE:
            state, part = self._evaluated(tensors, number), held_out.HELD_OUT
        else:
            state = State(job.model.layout.read(job.model.module).cpu())
        method = self._release(what, number, shift)
        rng = self.rng.at("once", what, number)
        if job.mode == "research" and key is not None:
            rng = Stream(bytes.fromhex(key), secure=False)
        work = beside.work(method, self.job.model, job.plan)
        if part and part not in self._simulator.parts:
            raise Refusal("this site holds no records out.")
        return self._simulator.once(work, state, part, rng)

    def _evaluated(self, tensors: Mapping[str, Tensor], done: int) -> State:
        """Return the state that is evaluated on held-out records: weights, after so many rounds."""
        sent = _checked(tensors, {})
        if sent["params"].shape != self._fresh.params.shape or sent["params"].dtype != self._fresh.params.dtype:
            raise Refusal("the weights do not fit the model of the job.")
        if self.job.statistics:
            self._set_inputs(sent)
        return State(sent["params"].to(self._device), done)

    def release_plan(self, what: str, number: int, shift: list[float]) -> Plan:
        """Return the plan of a release outside the rounds; raise Refusal if the job has no such release."""
        return beside.work(self._release(what, number, shift), self.job.model, self.job.plan).plan

    def _release(self, what: str, number: int, shift: list[float]) -> Any:
        """Return the small method of a release outside the rounds; raise Refusal if the plan has none."""
        job = self.job
        features = job.federation.facts.x[0]
        if what == ROWS and job.rows is not None and number in range(1 + job.rows.scaled):
            wanted = features[0] if number else 0
            if len(shift) != wanted or not all(abs(v) <= LARGEST for v in shift):
                raise Refusal("the request does not hold the means of the first release.")
            return job.rows.releases(features[0], tuple(shift))
        if what == MOMENTS and job.spec.standardise and number == 0:
            return planned(job.spec, job.method, features[0])
        if what == FIGURE and job.evaluation.held_out and _due(job, number):
            unit, noise = job.plan.unit or job.method.units[0], job.evaluation.noise if job.method.private else None
            return Figure(unit, noise, job.evaluation.measure, central=job.method.viewer == "public")
        raise Refusal(f"the job has no release {what} {number}.")

    def close(self) -> None:
        """Close the files of the clients' state."""
        self._simulator.close()


def _due(job: Job, done: int) -> bool:
    """Return whether the plan has an evaluation after so many rounds."""
    return 0 < done <= job.plan.rounds and (done % job.evaluation.every == 0 or done == job.plan.rounds)


def _alike(state: State, fresh: State, population: int) -> bool:
    """Return whether two states have tensors of the same shapes and types.

    A list that is empty at first, such as the clients that were heard, may have a row per client later.
    """
    for part in ("method", "algorithm", "inputs"):
        one, two = getattr(state, part), getattr(fresh, part)
        if one is None:
            continue
        for name, value in vars(two).items():
            sent = getattr(one, name)
            if isinstance(value, Tensor) and not (isinstance(sent, Tensor) and _fits(sent, value, population)):
                return False
    average = state.average is None or state.average.shape == fresh.params.shape
    return average and state.params.dtype == fresh.params.dtype


def _fits(sent: Tensor, like: Tensor, population: int) -> bool:
    if sent.dtype != like.dtype:
        return False
    grows = like.ndim > 0 and len(like) == 0
    if grows and sent.ndim == like.ndim:
        return len(sent) <= population and sent.shape[1:] == like.shape[1:]
    return sent.shape == like.shape


def _checked(tensors: Mapping[str, Tensor], fresh: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a state by name; raise Refusal for anything else, or for numbers beyond any training.

    A method may begin with an infinity, such as a loss that none has undercut yet: a value of the fresh state may stay.
    """
    sent = {name.removeprefix(STATE): value for name, value in tensors.items() if name.startswith(STATE)}
    if len(sent) != len(tensors) or "params" not in sent:
        raise Refusal("the request does not hold the state of a round.")
    for name, value in sent.items():
        initial = name in fresh and torch.equal(value, fresh[name].to(value))
        if value.is_floating_point() and not initial and not bool((value.abs() <= LARGEST).all()):
            raise Refusal("the state holds numbers that are not finite, or beyond any training.")
    return sent
