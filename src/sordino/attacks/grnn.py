"""GRNN: a generator network whose weights are fitted until its records have a client's gradient.

Ren, Deng and Xie (2022), "GRNN: generative regression neural network - a data leakage attack for federated learning",
arXiv:2105.00529, Section 3: the input is fixed noise; one branch makes pictures, another makes soft labels; the loss is
the squared distance of the gradients, their Wasserstein distance and the total variation (Eq. 6 to 9), minimised over
the weights of the network by RMSprop. Here the network has two upsampling steps and group norms, Adam replaces RMSprop,
and distances are relative to the length of the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from sordino.attacks import _gradient_matching as matching
from sordino.attacks._generators import generator
from sordino.attacks._record_form import form_of
from sordino.attacks.base import RECONSTRUCTION, ROWS, Knowledge, Victim, require
from sordino.core import check
from sordino.core.types import Batch
from sordino.core.view import View

__all__ = ["GenerativeRegression"]


@dataclass(frozen=True)
class GenerativeRegression:
    """Reconstruct a client's records as the output of a network fitted to its gradient."""

    iterations: int = 1000
    step: float = 2e-3  # learning rate of Adam
    noise: int = 128  # length of the fixed input
    total_variation: float = 1e-3  # weight of the mean difference of neighbouring pixels
    wasserstein: float = 1.0  # weight of the distance of the sorted gradients
    field: str = "update"  # field of the message that holds the change of the weights
    shape: tuple[int, ...] = ()  # of a record; default: that of the known records
    low: float | None = None  # least input; default: that of the known records
    high: float | None = None  # largest input; default: that of the known records

    name: ClassVar[str] = "grnn"
    kind: ClassVar[str] = RECONSTRUCTION
    sees: ClassVar[tuple[str, ...]] = ("server", "wire")
    reads: ClassVar[str] = ROWS
    needs: ClassVar[tuple[str, ...]] = ("local", "classes")

    def __post_init__(self) -> None:
        check.count(iterations=self.iterations, noise=self.noise)
        check.positive(step=self.step)
        check.non_negative(total_variation=self.total_variation, wasserstein=self.wasserstein)

    def reconstruct(self, views: Sequence[View], knowledge: Knowledge, victim: Victim) -> Batch:
        """Return the records that the fitted network makes, with their most likely labels."""
        require(self, views, knowledge)
        leak = matching.leak(self.name, views, knowledge, victim, self.field)
        device = leak.params.device
        form = form_of(self.name, knowledge, self.shape, self.low, self.high, device)
        draw = torch.Generator().manual_seed(knowledge.seed)
        pictures = generator(self.noise, form.shape, draw).to(device)
        labels = generator(self.noise, (knowledge.classes or 1,), draw).to(device)  # the fake-label branch
        seed = torch.randn(victim.records, self.noise, generator=draw).to(device)
        adam = torch.optim.Adam([*pictures.parameters(), *labels.parameters()], lr=self.step)
        falls = torch.optim.lr_scheduler.MultiStepLR(adam, matching.milestones(self.iterations), gamma=0.3)
        length, ordered = leak.gradient.norm().clamp_min(1e-30), leak.gradient.sort().values
        for _ in range(self.iterations):
            x = form.scaled(pictures(seed))
            made = matching.simulated(knowledge.model, leak, x, matching.soft(labels(seed)))
            apart = (made.sort().values - ordered).abs().sum() / leak.gradient.abs().sum().clamp_min(1e-30)
            value = (made - leak.gradient).square().sum() / length**2 + self.wasserstein * apart
            value = value + self.total_variation * matching.total_variation(x)
            adam.zero_grad()
            value.backward()
            adam.step()
            falls.step()
        with torch.no_grad():
            return Batch(form.scaled(pictures(seed)), labels(seed).argmax(dim=1), (victim.records,))
