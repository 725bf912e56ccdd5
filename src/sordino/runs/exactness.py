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

# Largest float32 error that the noise covers, as a fraction of the clip bound. A larger error would take over 1 % more
# noise; the guarantee then keeps its caveat about floating point.
MOST = 0.005


def of_run(spec: Spec, method: Method, plan: Plan, model: Model, sample: Tensor) -> Exact | None:
    """Return the facts about sums of clipped gradients that exact noise needs; None if the run has no exact noise.

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
        return Exact(None, batch, "the number of records in the mean gradient of a user is not known in advance")
    clip = min(b for b in bounds if b is not None)
    error_bound = float_error(
        model.module,
        model.layout,
        sample,
        batch,
        clip=clip,
        path=model.gradients.path,
        width=spec.views,
        compiled=spec.compile,
        half=spec.precision == "bfloat16",
    )
    if error_bound.factor is not None and error_bound.factor > MOST:
        size = f"{error_bound.factor:.2g} of the clip bound"
        text = f"the float32 error of a sum of {batch} records may reach {size}, above the limit of {MOST:g}"
        return Exact(None, batch, text)
    return Exact(error_bound.factor, batch, error_bound.reason)
