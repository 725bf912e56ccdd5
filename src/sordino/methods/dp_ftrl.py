"""DP-FTRL: noise that is correlated over the rounds, no luck of the draw.  Kairouz, McMahan, Song, Thakkar, Thakurta,
Xu (2021), arXiv:2103.00039, Algorithm 1 (binary tree); Choquette-Choo et al. (2023), arXiv:2306.08153 (banded matrix).

Protects a client from the public; the server is trusted with the clipped messages and holds the noise. Sound. What is
released are running sums of the rounds' updates, and noise cancels from one to the next, so that a run of many rounds
ends with less of it than with fresh noise in every round. All rounds together are one Gaussian release, whose
sensitivity (privacy/mechanisms/tree.py, banded.py) follows from two facts about a client: in how many rounds it takes
part at most (`max_participations`), and how many rounds lie between. Draws hide nobody here and none is counted on.

With a `separation` b above 1 clients take turns: client i answers in rounds t = i mod b only, whoever is drawn. A
banded matrix asks for it (b is at least its bands), unless nobody takes part twice.

Whoever may resume a run must know the noise of earlier rounds. It is secret, so it is not part of the state: it is
drawn again from the server's stream of the run, which is the same in every round. In secure mode that key dies with
the process, and such a run is not resumed.

Differs from the papers: plain binary nodes, without Honaker's estimator; the banded matrix is the truncated square
root, not an optimised one; momentum is fedavgm's on the noisy updates. Where every client is in every round, fresh
noise (dp-fedavg) is the better choice: see the sensitivities."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from scipy.signal import lfilter

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
    clip: float = 1.0  # C: bound on the L2 norm of a client's update
    mechanism: str = "tree"  # how noise is correlated over the rounds: tree, or banded
    bands: int = 8  # of the banded matrix; 1 is fresh noise in every round
    separation: int = 0  # b: above 1 clients take turns, each in every b-th round; 0: the bands, or 1 with a tree

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
        """Rounds from one answer of a client to its next, at least."""
        return self.separation or (self.bands if self.mechanism == "banded" else 1)

    def most(self, plan: Plan) -> int:
        """Answers of one client, at most."""
        return min(plan.participations, -(-plan.rounds // self.turns))

    def noise_of(self, plan: Plan) -> Tree | Banded:
        """The mechanism of the whole run."""
        if self.mechanism == "tree":
            return Tree(plan.z, plan.rounds, self.most(plan), self.turns)
        return Banded(plan.z, plan.rounds, min(self.bands, plan.rounds), self.most(plan))

    def require(self, plan: Plan) -> None:
        if plan.stragglers.late:
            raise SpecError("dp-ftrl counts the rounds between two answers of a client: use late = 0.")
        if self.mechanism == "banded" and self.most(plan) > 1 and self.turns < min(self.bands, plan.rounds):
            raise SpecError(
                f"{self.bands} bands need a client to wait as many rounds between two answers, and here it may answer "
                f"again after {self.turns}: use separation = {self.bands}, fewer bands, max_participations = 1, "
                "or mechanism = tree."
            )

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        noise = self.noise_of(plan)
        return (Release("update", noise, "client", self.clip, where="server", total=noise, key="merge/run noise"),)

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Only those whose turn it is train; the others send and keep what they would without having been asked."""
        turn = torch.from_numpy(site.rng.ids % self.turns == state.round % self.turns).to(site.data.x.device)
        if bool(turn.all()):
            update, mine = local_sgd.sgd(state, site)
        else:
            theirs = turn.repeat_interleave(torch.tensor(site.data.sizes, device=turn.device))
            update, mine = local_sgd.sgd(state, replace(site, data=site.data.where(theirs)))
            update, mine = torch.where(turn[:, None], update, 0.0), torch.where(turn[:, None], mine, site.mine)
        return Message({"update": site.out["update"](update)}), site.kept(mine)

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        """The sum with this round's part of the noise, over the answers that are expected in a turn."""
        answers = plan.expected_answers(state.round) / self.turns
        return plan.algorithm.update(state, seen["update"][0] / answers, plan.server(answers / plan.population))

    def noise(self, state: State, plan: Plan) -> float | None:
        """The server's noise of one round, as if every client had brought its part of it; over rounds, it cancels."""
        found, t = self.noise_of(plan), state.round
        if isinstance(found, Tree):
            parts = float(len(set(nodes(t + 1)) ^ set(nodes(t))))
        else:
            parts = float(np.square(lfilter([1.0], found.coefficients(), np.eye(1, t + 1)[0])).sum())
        answers = plan.expected_answers(t) / self.turns
        return plan.z * math.sqrt(parts) * self.clip / math.sqrt(answers)
