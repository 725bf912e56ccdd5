"""The contents of plan.json: what was derived from a spec, for people and programs. The file is public."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from sordino.privacy.algebra import steps
from sordino.privacy.events import Composed
from sordino.privacy.tightest import epsilon
from sordino.runs import loop
from sordino.runs.job import Job


def describe(job: Job) -> dict[str, Any]:
    """Return what was derived from the spec of a job, as written to plan.json."""
    plan, promise = job.plan, job.promise
    return {
        "method": job.spec.method,
        "algorithm": job.spec.algorithm,
        "noise_multiplier": plan.noise_multiplier,
        "promise": promise.to_json(),
        "claim": None if (claim := job.method.claim(plan)) is None else claim.to_json(),
        "chosen": job.method.chosen_before(plan),
        "channel": plan.channel.name,
        "mode": job.spec.mode,
        "public_data": job.public_data,
        "clients": plan.population,
        "expected_cohort": plan.expected_cohort,
        "local_steps": plan.local.count(plan.smallest_client),
        "parameters": job.model.layout.dim,
        "gradient_path": job.model.gradients.path,
        "gradient_reason": _reason(job),
        "evaluated_on": job.held_out.kind if job.held_out else loop.PUBLIC if job.test is not None else None,
        "evaluation": _cost_of_evaluation(job),
        "public": list(job.public),
        "initial_weights": None if job.initial is None else asdict(job.initial),
        "budgets": _own_budgets(job),
        "device": str(job.device),
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
        },
    }


def _reason(job: Job) -> str:
    """Return why the gradients are computed the way they are.

    If the model or the loss is the user's own code, return a fixed text instead of what a look at a record showed.
    """
    if getattr(job.model.gradients, "own_code", False):
        return "the model or the loss is one's own code, which is given one record at a time"
    return job.model.gradients.reason


def _cost_of_evaluation(job: Job) -> dict[str, Any] | None:
    """Return what evaluations and statistics alone would cost, or None if there are none; the promise includes it.

    If `apart` is true, the evaluations use records that no round touches, so the promise is the larger of the two
    costs.
    """
    released = (*job.once, *job.apart)
    if not released or not job.method.private:
        return None
    return {
        "releases": steps(Composed(released)),
        "epsilon": epsilon(Composed(released), job.spec.delta),
        "delta": job.spec.delta,
        "deviation": job.evaluation.deviation if job.evaluation.held_out else None,
        "apart": job.evaluation.apart,
        "text": job.evaluation.text,
    }


def _own_budgets(job: Job) -> list[dict[str, float]] | None:
    """Return the distinct personal budgets, or None if there are none.

    Each comes with the number of clients that have it, and with how often these may take part or how much noise they
    add.
    """
    if job.budgets is None:
        return None
    of, caps, multipliers = job.budgets.of, job.caps, np.array(job.plan.multipliers)
    entries = []
    for i, (e, d) in enumerate(job.budgets.kinds):
        kind = {"epsilon": e, "delta": d, "clients": int((of == i).sum())}
        if caps is not None:
            kind["participations"] = int(caps[of == i].max(initial=0))
        elif kind["clients"]:
            kind["noise_multiplier"] = float(multipliers[of == i][0])
        entries.append(kind)
    return entries
