"""Component-wise adaptive noise, sound: each component has its own clip and noise scale, based on earlier releases.

The idea is that of Xue et al., "Differentially Private Federated Learning with an Adaptive Noise Mechanism" (Algorithms
2 and 3), whose own scales come from private data (adaptive_noise_paper.py).

Protects a record from the server: every local step is a Gaussian release (for a client's whole update as one release,
see adaptive_noise_client.py). Sound: the scales s are a function of released means alone. Given these, a record's
gradient g is clipped to |g / s| <= 1, the sum of g / s gets noise of standard deviation z, and the result is multiplied
by s again, which is post-processing. So each step is the Gaussian mechanism with sensitivity 1 and multiplier z,
whatever the data, and is accounted as such.

Scales: v^2 is the running mean of the squared released mean update, minus the variance of its noise, bounded below by a
floor; u = v / |v|_2; s_m^2 = C^2 u_m sum_j u_j. Among all allocations with sum_m Delta_m^2 / s_m^2 = 1 this one has the
smallest total noise, C^2 |u|_1^2, which is at most the C^2 M of plain DP-SGD with clip C, and equal to it while nothing
is known (u constant). Differs from the paper: gradients (or updates) are truncated to an ellipsoid rather than weights
to a box, noise is allocated by s_m^2 ~ u_m rather than u_m^2, and the history is that of the released models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from sordino.contract import clipped_steps
from sordino.contract.method import Own, Plan, Release, Site
from sordino.core import check
from sordino.core.message import Message
from sordino.core.types import Batch, State
from sordino.core.vector import Layout
from sordino.methods import _scales
from sordino.methods._scales import History, Scales
from sordino.methods.dp_sgd import DpSgd
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.gaussian import Gaussian

__all__ = ["AdaptiveNoise"]


@dataclass(frozen=True)
class AdaptiveNoise(DpSgd):
    """DP-SGD with a clip and noise scale for each component; see the module docstring."""

    clip: float = 1.0  # C: bound on the L2 norm of one record's gradient while all scales are equal
    memory: float = 0.9  # fraction of the history that is kept from round to round
    floor: float = 0.3  # minimum size of a component, relative to the root mean square of all
    warm: int = 3  # number of first rounds in which all components have the same scale

    units: ClassVar[tuple[str, ...]] = ("record",)
    algorithms: ClassVar[tuple[str, ...]] = _scales.ALGORITHMS

    def __post_init__(self) -> None:
        super().__post_init__()
        check.fraction(memory=self.memory)
        check.probability(floor=self.floor)
        check.count(warm=self.warm)

    @property
    def scales(self) -> Scales:
        """Return the rule for the scales."""
        return Scales(self.clip, self.memory, self.floor, self.warm)

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare the noisy gradient sums, divided by the scales."""
        # gradients are divided by the scales, so that the bound is 1
        return clipped_steps.releases(plan, Gaussian(plan.z), 1.0, self.batch_sampling, terms=None)

    def variables(self, state: State, layout: Layout, plan: Plan) -> History:
        return self.scales.start(state)

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Send updates from gradients that were clipped and noised on the current scales."""
        s, model = self.scales.of(state), site.model

        def clipped(weights: Tensor, batch: Batch, seeds: list[int], groups: clipped_steps.Groups) -> Bounded:
            sums = model.gradients.sums(weights, batch, 1.0, seeds=seeds, groups=groups, scale=s)
            return Bounded(sums / s, 1.0)

        rows, mine = clipped_steps.steps(
            state, site, clipped, lambda sums: s * site.out["gradient"](sums), self.batch_sampling
        )
        return Message({"update": rows}, clipped_steps.weights(site, rows)), site.kept(mine)

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        """Apply the mean update and add it to the history."""
        answers = plan.expected_answers(state.round)
        mean = seen.total("update")["update"][0] / answers
        history = self.scales.after(state, mean, super().noise(state, plan) or 0.0, answers)
        after = plan.algorithm.update(state, mean, plan.server(answers / plan.population))
        return replace(after, method=history)

    def noise(self, state: State, plan: Plan) -> float | None:
        """Return the root mean square of the noise deviation over the components."""
        return (super().noise(state, plan) or 0.0) * self.scales.spread(state)

    def decided(self, state: State, plan: Plan) -> dict[str, Any]:
        return _scales.decided(state)

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        return _scales.explain(rounds)
