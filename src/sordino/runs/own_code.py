"""The caller's own task, metric and optimiser: checked, and put where a run uses them.

An optimiser of one's own sees the gradients of all clients, and may keep what it has seen. That is sound only where
gradients are noisy already: whatever is made of released values is post-processing. Where a client's whole update is
clipped after its steps, it could carry one client's data into another's update, so it is refused there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sordino.contract.method import Method, Plan
from sordino.core.errors import SpecError
from sordino.core.state import Snapshot
from sordino.core.types import Batch, Model
from sordino.measures.measure import chosen
from sordino.measures.settings import Evaluation
from sordino.spec.spec import Spec
from sordino.tasks.own_metric import OwnMetric

TRIED = 3  # number of records that a metric is tried on


@dataclass(frozen=True)
class Own:
    """What the caller brings beside the model, the clients and the loss."""

    task: str | None = None
    metric: OwnMetric | None = None
    optimizer: Callable[[Any], Any] | None = None  # made with the public settings of local training: core/optimizers.py

    def measured(
        self,
        wanted: Evaluation,
        spec: Spec,
        task: str,
        model: Model,
        record: Batch,
        pair: tuple[Tensor, Tensor] | None,
    ) -> Evaluation:
        """Return the evaluation with what is measured on held-out records, after the caller's own metric was tried.

        It is tried before anything is charged: on made-up predictions and, if there are any, public targets.

        Args:
            wanted: the evaluation that the spec asks for.
            spec: the spec of the run.
            task: its task.
            model: its model.
            record: one record, of which only the shapes are used.
            pair: the public test records, if there are any.
        """
        with Snapshot(model.module), torch.no_grad():
            outputs = torch.zeros_like(model.module(record.x), device="cpu")
        measure = chosen(spec.metric, self.metric, task, int(outputs.shape[-1]), wanted.held_out)
        if self.metric is None:
            return replace(wanted, measure=measure)
        if wanted.held_out:
            measure.rows(outputs, torch.zeros_like(record.y, device="cpu"))
        elif pair is None:
            raise SpecError("metric: there are no records to measure it on. Give test, or validation = 0.1.")
        else:
            targets = pair[1][:TRIED]
            self.metric.value(outputs[:1].expand(len(targets), *outputs.shape[1:]), targets)
        return replace(wanted, measure=measure)

    def stepping(self, spec: Spec, method: Method, plan: Plan) -> Plan:
        """Return the plan with the caller's own optimiser; refuse one where it would not be sound."""
        if (spec.optimizer == "own") != (self.optimizer is not None):
            raise SpecError(
                "optimizer = own stands for an object: pass it, as in sordino.train(..., optimizer=MyClass)."
            )
        if self.optimizer is None:
            return plan
        if method.private and not method.noisy_steps:
            raise SpecError(
                f"an optimizer of your own is for methods whose local steps are noisy, such as dp-sgd: {spec.method} "
                "clips what a client sends as a whole, and an optimizer that keeps anything would carry one client's "
                "data into another's update. Use sgd, momentum, adam or rmsprop; or fedopt, at the server."
            )
        return replace(plan, local=replace(plan.local, own_optimizer=self.optimizer))


NOTHING = Own()


def of(task: str | None, metric: Any, optimizer: Any) -> tuple[Own, dict[str, Any]]:
    """Return the caller's own code, and the keys of the spec for a metric or an optimiser that is named."""
    keys: dict[str, Any] = {}
    if metric is not None and not callable(metric):
        keys["metric"] = metric
    if optimizer is not None:
        keys["optimizer"] = "own" if callable(optimizer) else optimizer
    own = OwnMetric.of(metric) if callable(metric) else None
    return Own(task, own, optimizer if callable(optimizer) else None), keys
