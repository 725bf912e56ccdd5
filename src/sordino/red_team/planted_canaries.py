"""The score of planted canaries, summed up while a run goes on: does a canary's gradient point where its client went?

It is an observer of the run's views, so that nothing has to be stored. A server that sees rows compares a canary with
the row of the client that may hold it; behind a secure sum with the sum; the public with the step of the model.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from sordino.audits import bounds
from sordino.audits.bounds import Floats, Lower
from sordino.core.view import View
from sordino.privacy import trust
from sordino.runs.job import Job


class CanaryWatch:
    """An observer that scores the planted canaries of a job."""

    def __init__(self, job: Job) -> None:
        if job.planted is None:
            raise ValueError("the job has no planted canaries")
        self.planted, self.model, self.device = job.planted, job.model, job.device
        viewer = trust.viewer(job.viewer)
        self.name = job.viewer if viewer.kind == "server" else "public"
        self._before = job.model.layout.read(job.model.module)
        batch = self.planted.batch()
        self._alone = replace(batch, x=batch.x.to(self.device), y=batch.y.to(self.device), sizes=(1,) * len(batch.y))
        self._owner = self.planted.clients[self.planted.order]
        self._scores = np.zeros(len(batch.y))

    def __call__(self, view: View) -> None:
        """Add what one view says about the canaries."""
        if view.viewer != self.name:
            return
        if view.seen is None:
            moved = (view.state.params - self._before)[None].expand(len(self._owner), -1)
            at = self._before
            self._before = view.state.params.clone()
        else:
            at = view.state.params
            moved = self._rows(view)
        steps = -self.model.gradients.sums(at, self._alone, None, seeds=[0] * len(self._owner))
        self._scores += ((steps * moved).sum(dim=1) / steps.norm(dim=1).clamp(min=1e-12)).double().cpu().numpy()

    def _rows(self, view: View) -> Tensor:
        """Return, for each canary, the message in which it may be [canaries, dim]; a sum of gradients points back."""
        seen = view.seen
        if seen is None:
            raise ValueError("the viewer saw no message")
        name = "update" if "update" in seen.fields else next(iter(seen.fields))
        rows = seen[name].to(view.state.params.dtype) * (1.0 if name == "update" else -1.0)
        if seen.summed or seen.ids is None:
            return rows.sum(dim=0, keepdim=True).expand(len(self._owner), -1)
        at = {int(client): k for k, client in enumerate(seen.ids)}
        index = torch.tensor([at.get(int(c), -1) for c in self._owner], device=rows.device)
        return torch.where((index >= 0)[:, None], rows[index.clamp(min=0)], 0.0)

    @property
    def scores(self) -> Floats:
        """Return one score per canary, in the order in which they were planted."""
        out = np.empty_like(self._scores)
        out[self.planted.order] = self._scores
        return out

    def lower(self, delta: float, confidence: float) -> Lower:
        """Return the bound of one run."""
        return bounds.one_run_scores(self.scores, self.planted.included, delta, confidence)
