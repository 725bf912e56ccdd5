"""The auxiliary classifier GAN of an honest-but-curious client.

Odena, Olah and Shlens (2017), "Conditional image synthesis with auxiliary classifier GANs", arXiv:1610.09585, Section
3, as Li et al. (2025), arXiv:2503.12958, Section IV use it against FedSDP and others. The discriminator says of a
record whether it is real and to which class it belongs (L_S and L_C). The real records are the client's own, which hold
none of the private classes, so what looks real is judged patch by patch; the class head is the broadcast global model,
which other clients taught these classes. It is not trained further, so L_C moves the generator alone; the broadcasts
are used one after the other.

Li et al. name the attack and describe no network; the generator, the discriminator and the weight of L_C are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch.func import functional_call

from sordino.attacks import _gradient_matching as matching
from sordino.attacks._generators import broadcasts, conditioned, discriminator, generator, wanted
from sordino.attacks._record_form import form_of
from sordino.attacks.base import MODELS, RECONSTRUCTION, Knowledge, Victim, require
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.types import Batch
from sordino.core.view import View

__all__ = ["AuxiliaryClassifierGan"]


@dataclass(frozen=True)
class AuxiliaryClassifierGan:
    """Generate records of private classes that look like the client's own and that the global model assigns to them."""

    steps: int = 200  # of generator and discriminator for each broadcast
    batch: int = 64  # records of a step
    step: float = 5e-4  # learning rate of Adam
    noise: int = 64  # length of the generator's input, without the label
    auxiliary: float = 3.0  # weight of the class head in the generator's loss
    total_variation: float = 0.1  # weight of the mean difference of neighbouring pixels
    low: float | None = None  # least input; default: that of the attacker's records
    high: float | None = None  # largest input; default: that of the attacker's records

    name: ClassVar[str] = "acgan"
    kind: ClassVar[str] = RECONSTRUCTION
    sees: ClassVar[tuple[str, ...]] = ("client",)
    reads: ClassVar[str] = MODELS
    needs: ClassVar[tuple[str, ...]] = ("classes", "own")

    def __post_init__(self) -> None:
        check.count(steps=self.steps, batch=self.batch, noise=self.noise)
        check.positive(step=self.step)
        check.non_negative(auxiliary=self.auxiliary, total_variation=self.total_variation)

    def reconstruct(self, views: Sequence[View], knowledge: Knowledge, victim: Victim) -> Batch:
        """Return generated records of the victim's labels."""
        require(self, views, knowledge)
        models, own = broadcasts(views), knowledge.own
        if own is None or not len(own.x):
            raise SpecError("acgan needs records of the attacker's own to tell real ones from generated ones.")
        device, classes = models[0].device, knowledge.classes or 1
        form = form_of(self.name, knowledge, (), self.low, self.high, device)
        draw = torch.Generator().manual_seed(knowledge.seed)
        maker = generator(self.noise + classes, form.shape, draw).to(device)
        judge = discriminator(form.shape, draw).to(device)
        real, y = own.x.to(device), wanted(victim, knowledge).to(device)
        made, judged = (torch.optim.Adam(net.parameters(), lr=self.step, betas=(0.5, 0.999)) for net in (maker, judge))
        for params in models:
            weights = knowledge.model.layout.views(params)
            for _ in range(self.steps):
                labels = y[torch.randint(len(y), (self.batch,), generator=draw).to(device)]
                noise = torch.randn(self.batch, self.noise, generator=draw).to(device)
                x = form.scaled(maker(conditioned(noise, labels, classes)))
                true = real[torch.randint(len(real), (self.batch,), generator=draw).to(device)]
                source = F.softplus(-judge(true)).mean() + F.softplus(judge(x.detach())).mean()  # -L_S
                judged.zero_grad()
                source.backward()
                judged.step()
                logits = functional_call(knowledge.model.module, weights, (x,))
                value = F.softplus(-judge(x)).mean() + self.auxiliary * F.cross_entropy(logits, labels)  # L_S - L_C
                value = value + self.total_variation * matching.total_variation(x)
                made.zero_grad()
                value.backward()
                made.step()
        noise = torch.randn(len(y), self.noise, generator=draw).to(device)
        with torch.no_grad():
            return Batch(form.scaled(maker(conditioned(noise, y, classes))), y, (len(y),))
