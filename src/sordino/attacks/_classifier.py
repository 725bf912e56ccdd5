"""Small classifiers of an attacker, which tell features of members from those of others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

HIDDEN = 32
STEPS, RATE, DECAY = 100, 0.05, 1e-4  # of Adam, on all examples at once


@dataclass(frozen=True)
class Classifier:
    """A network with one hidden layer over standardised features."""

    mean: Tensor  # [features]
    scale: Tensor  # [features]
    weights: tuple[Tensor, Tensor, Tensor, Tensor]

    def __call__(self, features: Tensor) -> Tensor:
        """Return the log-odds that each row of features [records, features] is that of a member."""
        return _forward(((features - self.mean) / self.scale).clamp(-10, 10), *self.weights)


def fit(features: Tensor, members: Tensor, seed: int, steps: int = STEPS) -> Classifier:
    """Train a classifier; either class counts half, however many examples it has.

    Args:
        features: [examples, features].
        members: [examples], whether each example is that of a member.
        seed: of the initial weights.
        steps: steps of Adam.
    """
    features = features.detach()
    mean, scale = features.mean(dim=0), features.std(dim=0).clamp_min(1e-6)
    rows = ((features - mean) / scale).clamp(-10, 10)
    draw, width = torch.Generator().manual_seed(seed), features.shape[1]
    first = torch.randn(width, HIDDEN, generator=draw) / width**0.5
    last = torch.randn(HIDDEN, generator=draw) / HIDDEN**0.5
    initial = (first, torch.zeros(HIDDEN), last, torch.zeros(()))
    weights = [w.to(rows).requires_grad_() for w in initial]
    truth = members.to(rows)
    share = truth.mean().clamp(1e-6, 1 - 1e-6)
    weight = torch.where(truth > 0, 0.5 / share, 0.5 / (1 - share))
    optimizer = torch.optim.Adam(weights, lr=RATE, weight_decay=DECAY)
    with torch.enable_grad():
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            F.binary_cross_entropy_with_logits(_forward(rows, *weights), truth, weight=weight).backward()
            optimizer.step()
    a, b, c, d = (w.detach() for w in weights)
    return Classifier(mean, scale, (a, b, c, d))


def _forward(rows: Tensor, first: Tensor, shift: Tensor, last: Tensor, bias: Tensor) -> Tensor:
    return torch.tanh(rows @ first + shift) @ last + bias
