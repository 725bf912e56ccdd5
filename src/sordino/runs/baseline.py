"""The run without privacy that `baseline` shows beside a private one: the same clients, features, model and rounds.

A learning rate that suits clipped and noisy gradients need not suit exact ones. So the rate is chosen among a few by
short trials, by the loss on the training records. That reads them exactly, which is why a baseline is for public data.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace

import torch

from sordino.core.errors import SordinoError
from sordino.data.clients import ArrayClients
from sordino.gradients.predict import predict
from sordino.runs import run
from sordino.runs.job import Job

FACTORS = (1.0, 4.0, 0.25, 1 / 16)  # rates that are tried, relative to that of the private run
SHARE = 0.2  # part of the rounds that a trial has
RECORDS, BATCH = 20_000, 2000  # training records whose loss is computed, at most; and how many at once


def without_privacy(job: Job) -> Job:
    """Return the job without clip and noise, at the rate that trials on its public records favour."""
    plain = run.without_privacy(job)
    brought = job.owner.brought
    if not job.public_data or not isinstance(brought, ArrayClients):
        return plain
    rate = plain.plan.local.learning_rate
    losses = {factor * rate: _loss(at_rate(plain, factor * rate), brought) for factor in FACTORS}
    best = min(losses, key=lambda r: losses[r])
    chosen = best if math.isfinite(losses[best]) else rate
    others = tuple(note for note in plain.notes if "learning rate" not in note)
    note = f"the learning rate {chosen:.3g} was chosen by short trials, by the loss on the training records"
    return replace(at_rate(plain, chosen), notes=(*others, note))


def at_rate(job: Job, rate: float) -> Job:
    """Return the job with another learning rate."""
    local = replace(job.plan.local, learning_rate=rate)
    return replace(job, spec=replace(job.spec, learning_rate=rate), plan=replace(job.plan, local=local))


def _loss(job: Job, brought: ArrayClients) -> float:
    """Return the mean loss on training records after a short trial; infinite if the trial diverges."""
    rounds = max(1, math.ceil(SHARE * job.plan.rounds))
    with tempfile.TemporaryDirectory() as out:
        spec = replace(job.spec, rounds=rounds, out=out, ledger=f"{out}/trial.sqlite", name="trial")
        trial = replace(job, spec=spec, plan=replace(job.plan, rounds=rounds))
        trial = replace(trial, evaluation=replace(job.evaluation, every=rounds, times=1))
        try:
            module = run.execute(trial, own_model=False, owner=lambda text: None).model
        except SordinoError:
            return math.inf
    device = next(module.parameters()).device
    x, y = brought.x[:RECORDS], brought.y[:RECORDS]
    with torch.inference_mode():
        pieces = zip(x.split(BATCH), y.split(BATCH), strict=True)
        losses = [job.model.loss(predict(module, a.to(device)), b.to(device)).double().cpu() for a, b in pieces]
    mean = float(torch.cat(losses).mean())
    return mean if math.isfinite(mean) else math.inf
