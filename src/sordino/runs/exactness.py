"""The bound that exact noise relies on: how far floating point can move the sums of clipped gradients in a run."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from sordino.contract.exact_noise import largest_batch
from sordino.contract.method import Method, Plan
from sordino.contract.plan import Exact
from sordino.core.types import Model
from sordino.gradients.float_error import float_error
from sordino.privacy.release import GRADIENTS
from sordino.spec.spec import Spec

MOST = 0.005  # of the clip bound: a larger error would take over 1 % more noise, so the caveat stays instead


def of_run(spec: Spec, method: Method, plan: Plan, model: Model, sample: Tensor) -> Exact | None:
    """Return what exact noise needs to know in secure mode; None if the noise is drawn as floating point numbers.

    The result is public: `sample` [1, ...] has the shape of a record but contains no data of any record.
    """
    if spec.mode != "secure" or not method.private:
        return None
    ready = replace(plan, noise_multiplier=1.0)
    bounds = [r.bound for t in range(plan.rounds) for r in method.releases(ready, t) if r.terms == GRADIENTS]
    drawn = getattr(method, "batch_sampling", "poisson") == "poisson"
    batch = largest_batch(plan, drawn)
    if not bounds:
        return Exact(None, batch, "")
    if plan.unit == "user":
        return Exact(None, batch, "how many records a user's gradient is the mean of is not known in advance")
    clip = min(b for b in bounds if b is not None)
    found = float_error(
        model.module,
        model.layout,
        sample,
        batch,
        clip=clip,
        path=model.gradients.path,
        width=spec.views,
        compiled=spec.compile,
    )
    if found.factor is not None and found.factor > MOST:
        text = f"float32 may move a sum of {batch} records by {found.factor:.2g} of the clip, which is much to cover"
        return Exact(None, batch, text)
    return Exact(found.factor, batch, found.reason)
