"""What the tests of the algorithms share: our rounds, and the papers' loops written out over plain vectors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from sordino.contract.site import ALGORITHM
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.core.types import State
from sordino.runs import loop
from sordino.runs.job import Job
from support.methods import federation_of, play
from support.problems import Pair, mlp

SIZES = (12, 30, 5)


class Rounds:
    """Our side: the rounds of a job with given cohorts, and what its clients keep."""

    def __init__(self, job: Job) -> None:
        self.job, self.state, self.rng = job, loop.begin(job), Stream.research(3)
        self.federation = federation_of(job, rng=self.rng)
        self.arrived: Message | None = None

    def run(self, cohorts: Sequence[Sequence[int]]) -> State:
        for cohort in cohorts:
            done = play(self.job, cohort, self.state, self.federation, self.rng)
            self.arrived, self.state = done.sent, done.after
        return self.state

    def own(self, ids: Sequence[int]) -> Tensor:
        return self.federation.store.read(ALGORITHM, ids, self.job.plan.algorithm.keeps(self.state, len(ids)))

    def own_models(self, ids: Sequence[int]) -> Tensor:
        return self.job.plan.algorithm.own_models(self.state, self.own(ids)).expand(len(ids), -1)


def everyone(job: Job, rounds: int) -> list[range]:
    return [range(job.federation.facts.population)] * rounds


# --- the papers' side: autograd over one module, one client at a time


Loss = Callable[[Tensor, Tensor], Tensor]


class Naive:
    def __init__(self, clients: Sequence[Pair], module: nn.Module | None = None, loss: Loss | None = None) -> None:
        self.module = copy.deepcopy(module or mlp())
        self.clients, self.of = clients, loss or nn.functional.cross_entropy
        self.weights = vector(self.module)

    def loss(self, w: Tensor, k: int) -> float:
        vector_to_parameters(w, self.module.parameters())
        x, y = self.clients[k]
        with torch.no_grad():
            return float(self.of(self.module(x), y))

    def gradient(self, w: Tensor, k: int) -> Tensor:
        vector_to_parameters(w.clone(), self.module.parameters())
        self.module.zero_grad()
        x, y = self.clients[k]
        self.of(self.module(x), y).backward()
        return torch.cat([p.grad.flatten() for p in self.module.parameters()])

    def descend(self, w: Tensor, k: int, steps: int, lr: float, bend: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """w after some steps along bend(gradient, weights)."""
        for _ in range(steps):
            w = w - lr * bend(self.gradient(w, k), w)
        return w

    def mean(self, vectors: dict[int, Tensor]) -> Tensor:
        """By records."""
        total = sum(len(self.clients[k][1]) for k in vectors)
        return sum(len(self.clients[k][1]) / total * v for k, v in vectors.items())


def plain(gradient: Tensor, weights: Tensor) -> Tensor:
    return gradient


def vector(module: nn.Module) -> Tensor:
    return parameters_to_vector(module.parameters()).detach().clone()


def close(ours: Tensor, theirs: Tensor) -> bool:
    return torch.allclose(ours, theirs, atol=1e-5, rtol=1e-5)


# --- quadratic clients: F_k(w) = sum_j curve_kj (w_j - best_kj)^2, whose best common point is known


def quadratics(curves: Tensor, best: Tensor) -> tuple[list[Pair], nn.Module, Tensor]:
    """Clients [k, d], a linear model that starts at zero, and the minimum of the mean of their losses."""
    d = curves.shape[1]
    clients = []
    for curve, point in zip(curves, best, strict=True):
        x = torch.diag((d * curve).sqrt())
        clients.append((x, x @ point))
    model = nn.Linear(d, 1, bias=False)
    nn.init.zeros_(model.weight)
    return clients, model, (curves * best).sum(0) / curves.sum(0)
