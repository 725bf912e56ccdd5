"""Low-loss paths between client models, optimised by the server on public data.  Feng et al. (2025), "Harmonizing
Differential Privacy Mechanisms for Federated Learning", Section 3.2, step 4; the curves are those of Garipov et al.
(2018), "Loss Surfaces, Mode Connectivity, and Fast Ensembling of DNNs", arXiv:1802.10026, Section 3.2:

    polygon   phi(t) = 2 (t theta + (1/2 - t) w1),  t <= 1/2;   2 ((t - 1/2) w2 + (1 - t) theta),  t >= 1/2
    bezier    phi(t) = (1 - t)^2 w1 + 2 t (1 - t) theta + t^2 w2
    tuned     phi(t) = theta: no path, a baseline that shows what a path adds to training on the server's data

theta starts at the average of the pair and follows stochastic gradients of E_t loss(phi(t)), t uniform. The optimised
intermediate model of a pair is phi(1/2): theta itself, or the middle of the Bezier curve. The new model is the mean of
these intermediate models. Models are paired on a ring (first with second, ..., last with first), so that without any
optimisation the mean of the intermediate models is the mean of the models: pairwise averages alone change nothing.

This is post-processing of releases and public records, and costs no privacy. The paper says neither on whose data nor
how a path is found. Our choices: neighbours in the cohort are averaged first if there are more of them than pairs, and
a step moves theta by at most the learning rate (the norm of the gradient is clipped to 1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.contract import local_sgd
from sordino.contract.method import Public
from sordino.core.rng import Stream
from sordino.core.types import Batch, Rows, State, Vector
from sordino.privacy.clip import clip_rows

CURVES = ("polygon", "bezier", "tuned")
RECORDS = 64  # public records per step
SHOWN = 500  # public records on which the loss along a path is evaluated
POINTS = 11  # points of a path at which the loss is evaluated


@dataclass(frozen=True)
class FoundPath:
    """The result of optimising the paths of one round."""

    shift: Vector  # [dim]: from the mean of the models to the mean of the optimised intermediate models
    along: Tensor  # [POINTS]: loss along the path of the first pair, on public records
    straight: Tensor  # [POINTS]: loss along the straight line between the same two models


def weights(curve: str, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the coefficients (a, c, b) of phi(t) = a w1 + c theta + b w2 at these t."""
    if curve == "bezier":
        return (1 - t) ** 2, 2 * t * (1 - t), t**2
    if curve == "tuned":
        return torch.zeros_like(t), torch.ones_like(t), torch.zeros_like(t)
    return (1 - 2 * t).clamp_min(0), 1 - (1 - 2 * t).abs(), (2 * t - 1).clamp_min(0)


def point(curve: str, first: Tensor, theta: Tensor, second: Tensor, t: Tensor) -> Tensor:
    """Return phi(t); t is a number, or of shape [pairs, 1] for rows of models."""
    a, c, b = weights(curve, t)
    return a * first + c * theta + b * second


def optimise(
    curve: str, models: Rows, public: Public, steps: int, rate: float, most: int, rng: Stream
) -> FoundPath | None:
    """Optimise paths between neighbouring models.

    Args:
        curve: one of CURVES.
        models: the client models [clients, dim].
        public: the server's public records and the model to evaluate on them.
        steps: the number of SGD steps per path.
        rate: the learning rate of these steps.
        most: the largest number of paths; more models than this are averaged in groups of neighbours first.
        rng: the random stream for t and the batches.

    Returns:
        The result, or None if there are fewer than two models.
    """
    if len(models) < 2:
        return None
    if len(models) > most:
        parts = torch.tensor_split(models, max(2, most))
        models = torch.stack([part.mean(dim=0) for part in parts])
    first, second = (models[:1], models[1:]) if len(models) == 2 else (models, models.roll(-1, 0))
    start = (first + second) / 2
    theta = start.clone()
    for number in range(steps):
        at = rng.at("step", number)
        t = torch.from_numpy(at.at("t").uniform(len(theta))).to(theta)[:, None]
        g = _gradients(point(curve, first, theta, second, t), public, at)
        theta = theta - rate * clip_rows(weights(curve, t)[1] * g, 1.0).value
    half = torch.tensor(0.5, dtype=theta.dtype, device=theta.device)
    shift = (weights(curve, half)[1] * (theta - start)).mean(dim=0)
    along = _losses([point(curve, first[0], theta[0], second[0], t) for t in _points(theta)], public)
    straight = _losses([(1 - t) * first[0] + t * second[0] for t in _points(theta)], public)
    return FoundPath(shift, along, straight)


def _points(like: Tensor) -> Tensor:
    return torch.linspace(0, 1, POINTS, dtype=like.dtype, device=like.device)


def _gradients(models: Rows, public: Public, rng: Stream) -> Rows:
    """Return the mean gradient of each model [pairs, dim] on the same few public records."""
    count, data = min(RECORDS, len(public.batch.y)), public.batch
    picked = torch.from_numpy(rng.at("records").fixed(len(data.y), count)).to(data.y.device)
    pairs = len(models)
    x, y = (v[picked].repeat((pairs,) + (1,) * (v.ndim - 1)) for v in (data.x, data.y))
    seeds = rng.at("model").rows(range(pairs)).integers()
    return public.model.gradients.sums(models, Batch(x, y, (count,) * pairs), None, seeds=seeds) / count


def _losses(models: list[Vector], public: Public) -> Tensor:
    """Return the mean loss of each model on public records."""
    data = public.batch
    few = Batch(data.x[:SHOWN], data.y[:SHOWN], (min(SHOWN, len(data.y)),))
    return torch.stack([local_sgd.record_losses(State(m), few, public.model).double().mean() for m in models])
