"""A dry evaluation, before anything is charged: loss, metrics and noisy figures on made-up records.

The rehearsal of a method (rehearse.py) plays its rounds. This plays what comes after a round: the code of `evaluate`,
on made-up records of the declared shape, so that a loss or a metric that cannot be computed stops a run before it is
paid for, and not after its first round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from sordino.core.errors import ModelError, SordinoError
from sordino.core.rng import Stream
from sordino.data.clients import ArrayClients
from sordino.federations.simulator import ClientPart, Simulator
from sordino.measures.held_out import HELD_OUT
from sordino.runs import loop
from sordino.runs.job import Job
from sordino.runs.made_up import MadeUp
from sordino.runs.rehearse import on_cpu
from sordino.tasks.task import MULTI_LABEL

RECORDS = 4  # made-up records


def try_evaluation(job: Job) -> None:
    """Raise ModelError if the model cannot be evaluated, as this run will, on made-up records; nothing is released."""
    if job.test is None and job.held_out is None:
        return
    cpu, rng = torch.device("cpu"), Stream.research(0).at("dry evaluation")
    model = job.model if job.device.type == "cpu" else on_cpu(job.model)
    made_up = MadeUp.like(job.federation.facts, model, None)
    records = made_up.draw((RECORDS,), None, 1)
    if job.task == MULTI_LABEL:
        records = replace(records, y=records.y.round().clamp(0, 1))
    trial = replace(job, model=model, device=cpu, rng=rng)
    if job.held_out is not None:
        party = ArrayClients(records.x, records.y, [RECORDS], users=np.arange(RECORDS))
        parts = {HELD_OUT: ClientPart(party, np.zeros(1, dtype=np.int64))}
        trial = replace(trial, federation=Simulator(cpu, party, rng, facts=job.federation.facts, parts=parts))
    else:
        owners = None if job.test_clients is None else np.zeros(RECORDS, dtype=np.int64)
        trial = replace(trial, test=(records.x, records.y), test_clients=owners)
    try:
        loop.evaluate(trial, model.layout.read(model.module))
    except SordinoError:
        raise
    except Exception as error:  # whatever the user's model, loss or metric raises
        line = (str(error) or type(error).__name__).splitlines()[0]
        shape = tuple(records.x.shape)
        raise ModelError(
            f"the model cannot be evaluated: on {RECORDS} made-up records of shape {shape}, with targets of shape "
            f"{tuple(records.y.shape)}, its loss or a metric fails: {line}. Nothing was charged."
        ) from error
