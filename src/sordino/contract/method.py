"""What every method is: it declares releases, trains through outlets and merges.

    releases  public plan -> Release, ...        which mechanism, on whose data, with which bound, how often
    train     clients' data -> Message, own      inside the clients; values leave through the outlets of the site
    .......   the channel                        direct | secure sum | shuffler: what the server gets to see
    merge     what arrived -> new state          at the server; a trusted server's noise is in it already

`train` sees whole cohorts; row i must depend on client i and the state alone. Costs, relation, copies and viewers are
derived from the releases (privacy/derive.py), so that what is applied is what is priced. What a client keeps for itself
between rounds (`own`) is stored by the federation and leaves the client through outlets only.

A method decides where values are clipped and where noise is added; what is computed from a gradient and from the mean
message is the plan's algorithm (algorithms/base.py). Write a method in a file of its own: docs/methods.md shows how.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from sordino.contract.plan import Plan, Public
from sordino.contract.site import Own, Site
from sordino.core import plugin
from sordino.core.local_training import Local
from sordino.core.message import Message
from sordino.core.types import State
from sordino.core.vector import Layout
from sordino.privacy.claims import Claim
from sordino.privacy.release import Release

__all__ = ["Claim", "Local", "Message", "Method", "Own", "Plan", "Public", "Release", "Site"]


class Method:
    """Subclass it as a frozen dataclass whose fields are its options; `releases` and `train` are the least to write."""

    viewer: ClassVar[str] = "server"  # against whom an epsilon is meant unless the user says otherwise
    private: ClassVar[bool] = True  # whether its noise is calibrated to the total budget of the run
    units: ClassVar[tuple[str, ...]] = ("record",)  # whose data it can protect, the usual one first
    algorithm: ClassVar[str] = "fedavg"  # unless the user says otherwise
    algorithms: ClassVar[tuple[str, ...]] = ()  # those it goes with; none named: any
    channels: ClassVar[tuple[str, ...]] = ("direct",)  # those it can send through
    phases: ClassVar[tuple[str, ...]] = ("train",)  # of a round, in order
    reads: ClassVar[str] = "sums"  # or "rows": whether `merge` needs single clients' rows
    by_records: ClassVar[bool] = False  # whether a client's row weighs by its records, relative to the mean client
    noisy_steps: ClassVar[bool] = False  # whether every local step is noisy, so that records are what is clipped
    tagged: ClassVar[bool] = False  # whether it must know which records carry private attributes
    own_noise: ClassVar[bool] = False  # whether clients' own budgets mean noise of their own, not fewer rounds

    # --- what is released, and the round

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare what one participation in that round lets out.

        By the public plan alone where `state` is None; that is what is priced. With the state, bounds may follow what
        was released before; mechanisms may too where a `total` covers the run."""
        raise NotImplementedError

    def linear(self, plan: Plan) -> bool:
        """Return whether what clients send is what their outlets gave, up to one public factor for all of them, so
        that the noise of several clients adds up in a sum of their messages. Rows then weigh once each, or, with
        `by_records`, by their records: other weights are refused."""
        return False

    def variables(self, state: State, layout: Layout, plan: Plan) -> Any:
        """Return the method's public variables before the first round: a frozen dataclass, or None."""
        return None

    def keeps(self, state: State, clients: int, plan: Plan) -> dict[str, Tensor]:
        """Return what the method keeps at clients before their first round [clients, ...]; the algorithm's rows are
        kept beside it."""
        return {}

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Return what each client sends, and what it keeps for itself."""
        raise NotImplementedError

    def between(self, phase: str, state: State, seen: Message, plan: Plan) -> State:
        """Return the state in which the next phase of the round begins, by what arrived in this one."""
        return state

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        """Return the state after the round: the mean over what is expected to arrive, handed to the algorithm."""
        answers = plan.expected_answers(state.round)
        mean = seen.total("update")["update"][0] / answers
        return plan.algorithm.update(state, mean, plan.server(answers / plan.population))

    # --- what else it may say

    def require(self, plan: Plan) -> None:
        """Refuse a plan that the method cannot follow, with one clear error."""

    def over(self, state: State, plan: Plan) -> bool:
        """Return whether training ends here, before the rounds do; by what was released alone."""
        return False

    def claim(self, plan: Plan) -> Claim | None:
        """Return what the paper says, where that does not hold; such a method is not private in our sense."""
        return None

    def claimed_noise(self, plan: Plan) -> float:
        """Return the noise multiplier with which a printed method claims the plan's epsilon: where `own_noise` means
        that clients have claims of their own."""
        raise NotImplementedError

    def check_groups(self, highest: int) -> None:
        """Refuse data whose records belong to more groups of private attributes than the method knows of."""

    def uses_public(self) -> bool:
        """Return whether the method looks at data that the server holds (key `server_data`)."""
        return False

    def remarks(self, plan: Plan) -> tuple[str, ...]:
        """Return what whoever runs it with this plan should know."""
        return ()

    def noise(self, state: State, plan: Plan) -> float | None:
        """Return the standard deviation of the noise in one client's message, a coordinate, in the round that begins
        so; None where it is known afterwards only (`decided` may have it) or not at all. The record shows it."""
        return None

    def decided(self, state: State, plan: Plan) -> dict[str, Any] | None:
        """Return what was chosen in the round that led to this state, for the record: plain numbers and text.

        Names that others read: `std`, the mean over clients of the deviation that `noise` tells of, which the record
        shows as its noise where `noise` is None; `clients`, a dict by client, of which `explain --client` keeps one."""
        return None

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        """Say in words, for `sordino explain`, what was `decided`, round by round, and why."""
        return []


def started(method: Method, state: State, layout: Layout, plan: Plan) -> State:
    """Return the state with the public variables of the algorithm and of the method, before the first round."""
    state = replace(state, algorithm=plan.algorithm.variables(state, layout))
    return replace(state, method=method.variables(state, layout, plan))


plugin.derive_from("methods", Method)
