"""DP-FTRL: noise that is correlated over the rounds, without relying on amplification by sampling.

Kairouz, McMahan, Song, Thakkar, Thakurta, Xu (2021), arXiv:2103.00039, Algorithm 1 (binary tree); Choquette-Choo et al.
(2023), arXiv:2306.08153 (banded matrix).

Protects a client from the public; the server is trusted with the clipped messages and holds the noise. Sound. The
releases are running sums of the rounds' updates, and noise cancels from one to the next, so that a run of many rounds
ends with less noise than with fresh noise in every round. All rounds together are one Gaussian release, whose
sensitivity (privacy/mechanisms/tree.py, banded.py) follows from two facts about a client: the maximum number of rounds
in which it takes part (`max_participations`), and how many rounds lie between. Sampling hides nobody here, and no
amplification is claimed.

With a `separation` b above 1 clients take turns: client i answers only in rounds t = i mod b, whoever is drawn. A
banded matrix requires this (b is at least the number of bands), unless nobody takes part twice.

Resuming a run requires the noise of earlier rounds. It is secret, so it is not part of the state: it is drawn again
from the server's stream of the run, which is the same in every round. In secure mode that key is lost with the process,
and such a run cannot be resumed.

Differs from the papers: plain binary nodes, without Honaker's estimator; the banded matrix is the truncated square
root, not an optimised one; momentum is that of fedavgm on the noisy updates. If every client is in every round, fresh
noise (dp-fedavg) is the better choice: compare the sensitivities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from sordino.contract import local_sgd
from sordino.contract.method import Method, Own, Plan, Release, Site
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.types import State
from sordino.privacy.mechanisms.banded import Banded
from sordino.privacy.mechanisms.tree import Tree, nodes

__all__ = ["DpFtrl"]


@dataclass(frozen=True)
class DpFtrl(Method):
    """Clipped updates with correlated noise at the server; see the module docstring."""

    clip: float = 1.0  # C: bound on the L2 norm of a client's update
    mechanism: str = "tree"  # how noise is correlated over the rounds: tree or banded
    bands: int = 8  # number of bands of the banded matrix; 1: fresh noise in every round
    separation: int = 0  # b: if above 1, each client answers in every b-th round; 0: the bands, or 1 with a tree

    viewer: ClassVar[str] = "public"
    units: ClassVar[tuple[str, ...]] = ("client",)

    def __post_init__(self) -> None:
        check.positive(clip=self.clip)
        check.one_of(("tree", "banded"), mechanism=self.mechanism)
        check.count(bands=self.bands)
        if self.separation != 0:
            check.count(separation=self.separation)

    @property
    def turns(self) -> int:
        """Return the minimum number of rounds from one answer of a client to its next."""
        return self.separation or (self.bands if self.mechanism == "banded" else 1)

    def most(self, plan: Plan) -> int:
        """Return the maximum number of answers of one client."""
        return min(plan.participations, -(-plan.rounds // self.turns))

    def noise_of(self, plan: Plan) -> Tree | Banded:
        """Return the mechanism of the whole run."""
        if self.mechanism == "tree":
            return Tree(plan.z, plan.rounds, self.most(plan), self.turns)
        return Banded(plan.z, plan.rounds, min(self.bands, plan.rounds), self.most(plan))

    def require(self, plan: Plan) -> None:
        """Refuse late answers, and bands wider than the separation of a client's answers."""
        if plan.stragglers.late:
            raise SpecError("dp-ftrl counts the rounds between two answers of a client: use late = 0.")
        if self.mechanism == "banded" and self.most(plan) > 1 and self.turns < min(self.bands, plan.rounds):
            raise SpecError(
                f"{self.bands} bands need a client to wait as many rounds between two answers, but here it may answer "
                f"again after {self.turns}: use separation = {self.bands}, fewer bands, max_participations = 1, "
                "or mechanism = tree."
            )

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare the noisy sum of updates, whose total is the mechanism of the whole run."""
        noise = self.noise_of(plan)
        return (Release("update", noise, "client", self.clip, where="server", total=noise, key="merge/run noise"),)

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Train the clients whose turn it is.

        The others send a zero update and keep their state.
        """
        turn = torch.from_numpy(site.rng.ids % self.turns == state.round % self.turns).to(site.data.x.device)
        if bool(turn.all()):
            update, mine = local_sgd.sgd(state, site)
        else:
            theirs = turn.repeat_interleave(torch.tensor(site.data.sizes, device=turn.device))
            update, mine = local_sgd.sgd(state, replace(site, data=site.data.where(theirs)))
            update, mine = torch.where(turn[:, None], update, 0.0), torch.where(turn[:, None], mine, site.mine)
        return Message({"update": site.out["update"](update)}), site.kept(mine)

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        """Divide the sum, with this round's part of the noise, by the expected number of answers in a turn."""
        answers = plan.expected_answers(state.round) / self.turns
        return plan.algorithm.update(state, seen["update"][0] / answers, plan.server(answers / plan.population))

    def noise(self, state: State, plan: Plan) -> float | None:
        """Return the server's noise of a round as if clients had contributed equal parts; over rounds it cancels."""
        mechanism, t = self.noise_of(plan), state.round
        if isinstance(mechanism, Tree):
            parts = float(len(set(nodes(t + 1)) ^ set(nodes(t))))
        else:
            from scipy.signal import lfilter  # takes a second to import

            parts = float(np.square(lfilter([1.0], mechanism.coefficients(), np.eye(1, t + 1)[0])).sum())
        answers = plan.expected_answers(t) / self.turns
        return plan.z * math.sqrt(parts) * self.clip / math.sqrt(answers)
