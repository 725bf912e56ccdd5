"""The GAN attack of a curious client: a generator learns what the global model takes for a class.

Hitaj, Ateniese and Perez-Cruz (2017), "Deep models under the GAN: information leakage from collaborative deep
learning", arXiv:1702.07464, Algorithm 1. The broadcasts of the rounds are the discriminator, one after the other: the
generator learns to make records that the current global model assigns to the victim's label, and so follows what the
other clients teach it. This is the passive form: the client trains as agreed and only reads. The paper's adversary is
active: it also sends updates from generated records with a false label, so that the victim must reveal more of its
class to correct the model, and its discriminator has an output for "fake".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.func import functional_call

from sordino.attacks import _gradient_matching as matching
from sordino.attacks._generators import broadcasts, conditioned, generator, wanted
from sordino.attacks._record_form import form_of
from sordino.attacks.base import MODELS, RECONSTRUCTION, Knowledge, Victim, require
from sordino.core import check
from sordino.core.types import Batch
from sordino.core.view import View

__all__ = ["CuriousGan"]


@dataclass(frozen=True)
class CuriousGan:
    """Generate records of the victim's labels with the broadcast models as discriminator."""

    steps: int = 100  # of the generator for each broadcast
    batch: int = 32  # generated records of a step
    step: float = 1e-3  # learning rate of Adam
    noise: int = 64  # length of the generator's input, without the label
    total_variation: float = 0.5  # weight of the mean difference of neighbouring pixels
    shape: tuple[int, ...] = ()  # of a record; default: that of the attacker's records
    low: float | None = None  # least input; default: that of the attacker's records
    high: float | None = None  # largest input; default: that of the attacker's records

    name: ClassVar[str] = "gan"
    kind: ClassVar[str] = RECONSTRUCTION
    sees: ClassVar[tuple[str, ...]] = ("client",)
    reads: ClassVar[str] = MODELS
    needs: ClassVar[tuple[str, ...]] = ("classes", "own")

    def __post_init__(self) -> None:
        check.count(steps=self.steps, batch=self.batch, noise=self.noise)
        check.positive(step=self.step)
        check.non_negative(total_variation=self.total_variation)

    def reconstruct(self, views: Sequence[View], knowledge: Knowledge, victim: Victim) -> Batch:
        """Return generated records of the victim's labels."""
        require(self, views, knowledge)
        models = broadcasts(views)
        device, classes = models[0].device, knowledge.classes or 1
        form = form_of(self.name, knowledge, self.shape, self.low, self.high, device)
        draw = torch.Generator().manual_seed(knowledge.seed)
        net = generator(self.noise + classes, form.shape, draw).to(device)
        y = wanted(victim, knowledge).to(device)
        adam = torch.optim.Adam(net.parameters(), lr=self.step, betas=(0.5, 0.999))
        for params in models:
            weights = knowledge.model.layout.views(params)
            for _ in range(self.steps):
                labels = y[torch.randint(len(y), (self.batch,), generator=draw).to(device)]
                noise = torch.randn(self.batch, self.noise, generator=draw).to(device)
                x = form.scaled(net(conditioned(noise, labels, classes)))
                logits = functional_call(knowledge.model.module, weights, (x,))
                value = torch.nn.functional.cross_entropy(logits, labels)
                value = value + self.total_variation * matching.total_variation(x)
                adam.zero_grad()
                value.backward()
                adam.step()
        noise = torch.randn(len(y), self.noise, generator=draw).to(device)
        with torch.no_grad():
            return Batch(form.scaled(net(conditioned(noise, y, classes))), y, (len(y),))
