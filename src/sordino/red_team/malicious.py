"""Malicious clients: a federation in which some clients poison their records, or send whatever they like.

    label-flip   their labels are changed to the next class before training: Tolpegin et al. (2020), arXiv:2007.08432
    sign-flip    they send the negative of their update: Li et al. (2019), arXiv:1811.03761, Section 5
    scaled       they send `boost` times their update: Bagdasaryan et al. (2020), arXiv:1807.00459, Section 4.2
    gaussian     they send Gaussian rows: Blanchard et al. (2017), arXiv:1703.02757, Section 5
    backdoor     a share of their records carries a trigger and the target label; with `boost`, their update is scaled
                 up (model replacement, Bagdasaryan et al., Equation 3)

An outlet bounds what an honest client sends. A malicious client does not use outlets: it trains without clipping and
noise, and may send any row of the right shape, so a clip that only the clients apply holds nobody back
(`merge = norm-bound` does). A client of which only the data are poisoned runs the honest code (`honest_code = true`),
and the clip and the noise act on it as on anybody. The guarantee of the honest clients is the same in both cases: what
others send is not computed from their records.

This is for experiments: the malicious clients run in the simulator, in research mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.contract.robust import FIELD
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.message import Message, together
from sordino.core.rng import Ints, Stream
from sordino.core.types import Batch, State
from sordino.federations.base import Work, require_answers, require_cohort
from sordino.federations.facts import Facts
from sordino.federations.simulator import ClientPart, Simulator, answer
from sordino.federations.store import Store
from sordino.methods.none import NoPrivacy
from sordino.runs.job import Job

LABEL_FLIP, SIGN_FLIP, SCALED, GAUSSIAN, BACKDOOR = POISONS = (
    "label-flip",
    "sign-flip",
    "scaled",
    "gaussian",
    "backdoor",
)
IN_DATA = (LABEL_FLIP, BACKDOOR)  # poisons that change records


@dataclass(frozen=True)
class Trigger:
    """A mark on a record: some of its numbers, in the order of the flattened record, are set to one value."""

    at: tuple[int, ...]
    value: float = 1.0

    def stamped(self, x: Tensor) -> Tensor:
        """Return the records with the mark on them."""
        flat = x.flatten(1).clone()
        flat[:, list(self.at)] = torch.tensor(self.value, dtype=x.dtype, device=x.device)
        return flat.reshape(x.shape)


@dataclass(frozen=True)
class Poison:
    """What some of the clients do in the place of honest training."""

    kind: str  # one of POISONS
    clients: tuple[int, ...]  # the malicious clients
    boost: float = 1.0  # factor of the updates that they send
    deviation: float = 1.0  # gaussian: standard deviation of every number
    trigger: Trigger = field(default_factory=lambda: Trigger((0,)))  # backdoor: the mark
    target: int = 0  # backdoor: the label of marked records
    share: float = 0.5  # backdoor: share of each malicious client's records that are marked
    honest_code: bool = False  # whether only the records are poisoned, and updates pass the outlets

    def __post_init__(self) -> None:
        check.one_of(POISONS, kind=self.kind)
        check.positive(boost=self.boost, deviation=self.deviation)
        check.probability(share=self.share)
        if self.honest_code and (self.kind not in IN_DATA or self.boost != 1):
            raise SpecError(f"honest code sends no {self.kind} update: poison the records by label-flip or backdoor.")


@dataclass(frozen=True)
class PoisonedRecords:
    """The clients' records, with those of the malicious clients changed."""

    data: ClientPart
    poison: Poison
    classes: int

    @property
    def count(self) -> int:
        return self.data.data.count

    def sizes(self) -> tuple[int, ...]:
        return self.data.data.sizes()

    def mean_size(self) -> float:
        return self.data.data.mean_size()

    def subset(self, places: Sequence[int]) -> PoisonedRecords:
        raise SpecError("malicious clients run in one block: use the simulator with blocks = 1.")

    def fetch(self, ids: Sequence[int], device: torch.device) -> Batch:
        """Return the records of these clients, poisoned where the client is malicious."""
        batch, poison = self.data.fetch(ids, device), self.poison
        sizes = torch.tensor(batch.sizes, device=device)
        bad = torch.tensor([i in poison.clients for i in ids], device=device).repeat_interleave(sizes)
        if poison.kind == LABEL_FLIP:
            return replace(batch, y=torch.where(bad, (batch.y + 1) % self.classes, batch.y))
        starts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        place = torch.arange(len(batch.y), device=device) - starts
        marked = bad & (place < torch.ceil(poison.share * sizes).repeat_interleave(sizes))
        wide = marked.reshape(-1, *(1,) * (batch.x.ndim - 1))
        x = torch.where(wide, poison.trigger.stamped(batch.x), batch.x)
        return replace(batch, x=x, y=torch.where(marked, torch.full_like(batch.y, poison.target), batch.y))


class MaliciousClients:
    """A federation whose malicious clients poison their records or their rows; the others are honest."""

    def __init__(self, honest: Simulator, poison: Poison, classes: int, rng: Stream) -> None:
        data = honest.data
        everyone = data if isinstance(data, ClientPart) else ClientPart(data, np.arange(data.count))
        changed = PoisonedRecords(everyone, poison, classes) if poison.kind in IN_DATA else None
        self._honest, self._poison, self._rng, self._records = honest, poison, rng, changed or everyone
        if poison.honest_code and changed is not None:
            honest.data = changed

    @property
    def facts(self) -> Facts:
        """Return the public facts, in which malicious clients are like others."""
        return self._honest.facts

    def open(self, work: Work) -> None:
        """Prepare for a run."""
        self._honest.open(work)

    def resume(self, path: Path, done: int, seen: bool = False) -> None:
        """Continue with the honest clients' state."""
        self._honest.resume(path, done, seen)

    def once(self, work: Work, state: State, part: str, rng: Stream) -> Message:
        """Return what all clients release once; malicious clients are honest here."""
        return self._honest.once(work, state, part, rng)

    def save(self, done: int) -> None:
        """Write the clients' state to disk."""
        self._honest.save(done)

    def personal(self, state: State) -> dict[int, Any]:
        """Return the clients' personal models."""
        return self._honest.personal(state)

    def close(self) -> None:
        """Release files and processes."""
        self._honest.close()

    def ask(self, phase: str, state: State, cohort: Sequence[int]) -> Message:
        """Return the sealed message of a phase, with the rows of the malicious clients in their places."""
        plan = self._honest.work.plan
        require_cohort(plan, len(cohort))
        message = together(self._honest.answers(phase, state, cohort))
        require_answers(plan, len(cohort), len(message))
        if not self._poison.honest_code and phase == self._honest.work.method.phases[-1]:
            message = self._poisoned(message, state)
        return plan.channel.seal(message, cohort)

    def _poisoned(self, message: Message, state: State) -> Message:
        if message.ids is None:
            return message
        if FIELD not in message.fields:
            raise SpecError(
                f"malicious clients change the field {FIELD}, and clients send {', '.join(message.fields)}."
            )
        bad = np.flatnonzero(np.isin(message.ids, self._poison.clients))
        if not len(bad):
            return message
        rows = message[FIELD].clone()
        rows[torch.from_numpy(bad).to(rows.device)] = self._rows(message.ids[bad], rows[bad], state)
        return replace(message, fields={**message.fields, FIELD: rows})

    def _rows(self, ids: Ints, like: Tensor, state: State) -> Tensor:
        """Return what the malicious clients send, of the shape of what they would have sent."""
        poison, rng = self._poison, self._rng.at("round", state.round)
        if poison.kind == GAUSSIAN:
            draw = torch.Generator().manual_seed(rng.at("gaussian").integer() % 2**63)
            return poison.deviation * torch.randn(like.shape, generator=draw, dtype=like.dtype).to(like.device)
        work = self._honest.work
        free = Work(NoPrivacy(), work.model, replace(work.plan, multipliers=()))
        sent = answer(free, Store(), self._records, self._honest.device, "train", state, ids, rng.at("train"))
        sign = -1.0 if poison.kind == SIGN_FLIP else 1.0
        rows: Tensor = sign * poison.boost * sent[FIELD]
        return rows


def poisoned(job: Job, poison: Poison) -> Job:
    """Return the job with malicious clients among its clients.

    Args:
        job: a job in research mode, in the simulator, whose model predicts classes.
        poison: who they are and what they do.
    """
    if not isinstance(job.federation, Simulator) or job.mode != "research":
        raise SpecError("malicious clients are an experiment: use federation = simulator and mode = research.")
    if strange := [i for i in poison.clients if not 0 <= i < job.plan.population]:
        raise SpecError(f"client {strange[0]} is malicious, but there are {job.plan.population}, numbered from 0.")
    with torch.no_grad():
        first = job.federation.data.fetch([0], job.device)
        classes = int(job.model.module(first.x[:1]).shape[-1])
    malicious = MaliciousClients(job.federation, poison, classes, job.rng.at("malicious"))
    return replace(job, federation=malicious)


def success_rate(predicted: Tensor, labels: Tensor, target: int) -> float:
    """Return the share of marked records, among those of other classes, that are taken for the target class.

    Args:
        predicted: the classes that the model predicts for records with the trigger on them.
        labels: their true classes.
        target: the class that the backdoor leads to.
    """
    others = labels != target
    return float((predicted[others] == target).double().mean())
