"""Component-wise adaptive noise for clients, sound: each component of an update has its own clip and noise scale.

The scales are based on earlier releases. The idea is that of Xue et al., "Differentially Private Federated Learning
with an Adaptive Noise Mechanism" (Algorithms 2 and 3), here at client level (for records, see adaptive_noise.py).

Protects a client from the server: its whole update is one Gaussian release. Sound: the scales s are a function of
released means alone; given these, an update u is clipped to |u / s| <= 1, gets noise of standard deviation z, and is
multiplied by s again, which is post-processing. For the scales, see _scales.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from sordino.contract import local_sgd
from sordino.contract.method import Method, Own, Plan, Release, Site
from sordino.core import check
from sordino.core.message import Message
from sordino.core.types import State
from sordino.core.vector import Layout
from sordino.methods import _scales
from sordino.methods._scales import History, Scales
from sordino.privacy.mechanisms.gaussian import Gaussian

__all__ = ["AdaptiveNoiseClient"]


@dataclass(frozen=True)
class AdaptiveNoiseClient(Method):
    """Noisy client updates with a clip and noise scale for each component; see the module docstring."""

    clip: float = 1.0  # C: bound on the L2 norm of a client's update while all scales are equal
    memory: float = 0.9  # fraction of the history that is kept from round to round
    floor: float = 0.3  # minimum size of a component, relative to the root mean square of all
    warm: int = 3  # number of first rounds in which all components have the same scale

    units: ClassVar[tuple[str, ...]] = ("client",)
    algorithms: ClassVar[tuple[str, ...]] = _scales.ALGORITHMS

    def __post_init__(self) -> None:
        check.positive(clip=self.clip)
        check.fraction(memory=self.memory)
        check.probability(floor=self.floor)
        check.count(warm=self.warm)

    @property
    def scales(self) -> Scales:
        """Return the rule for the scales."""
        return Scales(self.clip, self.memory, self.floor, self.warm)

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare the noisy update, divided by the scales."""
        # updates are divided by the scales, so that the bound is 1
        return (Release("update", Gaussian(plan.z), "client", 1.0, terms=1, key="release"),)

    def variables(self, state: State, layout: Layout, plan: Plan) -> History:
        return self.scales.start(state)

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Send updates that were clipped and noised on the current scales."""
        s = self.scales.of(state)
        update, mine = local_sgd.sgd(state, site)
        return Message({"update": s * site.out["update"](update / s)}), site.kept(mine)

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        """Apply the mean update and add it to the history."""
        answers = plan.expected_answers(state.round)
        mean = seen.total("update")["update"][0] / answers
        history = self.scales.after(state, mean, plan.z * self.clip, answers)
        after = plan.algorithm.update(state, mean, plan.server(answers / plan.population))
        return replace(after, method=history)

    def noise(self, state: State, plan: Plan) -> float | None:
        """Return the root mean square of the noise deviation over the components."""
        return plan.z * self.clip * self.scales.spread(state)

    def decided(self, state: State, plan: Plan) -> dict[str, Any]:
        return _scales.decided(state)

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        return _scales.explain(rounds)
