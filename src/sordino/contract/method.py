"""The base class of all methods: a method declares releases, trains through outlets and merges.

    releases  public plan -> Release, ...        which mechanism, on whose data, with which bound, how often
    train     clients' data -> Message, own      inside the clients; values leave through the outlets of the site
    .......   the channel                        direct | secure sum | shuffler: what the server gets to see
    merge     what arrived -> new state          at the server; a trusted server's noise is already in it

`train` processes whole cohorts; row i must depend only on client i and on the state. Costs, neighbouring relation,
copies and viewers are derived from the releases (privacy/derive.py), so that what is applied is what is accounted. The
state that a client keeps between rounds (`own`) is stored by the federation and leaves the client only through outlets.

A method decides where values are clipped and where noise is added; the plan's algorithm (algorithms/base.py) decides
how gradients and the mean message are used. Each method belongs in its own file: see docs/methods.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from sordino.contract.claim import Claim
from sordino.contract.plan import Plan, Public
from sordino.contract.site import Own, Site
from sordino.core import plugin
from sordino.core.local_training import Local
from sordino.core.message import Message
from sordino.core.types import State
from sordino.core.vector import Layout
from sordino.privacy.release import Release

__all__ = ["Claim", "Local", "Message", "Method", "Own", "Plan", "Public", "Release", "Site"]


class Method:
    """Base class of methods; subclass it as a frozen dataclass whose fields are the options of the method.

    A subclass must define at least `releases` and `train`.
    """

    viewer: ClassVar[str] = "server"  # default viewer against whom epsilon holds
    private: ClassVar[bool] = True  # whether noise is calibrated to the total budget of the run
    units: ClassVar[tuple[str, ...]] = ("record",)  # units that it can protect, the default first
    algorithm: ClassVar[str] = "fedavg"  # default algorithm
    algorithms: ClassVar[tuple[str, ...]] = ()  # supported algorithms; empty: all
    channels: ClassVar[tuple[str, ...]] = ("direct",)  # supported channels, the default first
    channel_reason: ClassVar[str] = ""  # why it goes with no other channel
    phases: ClassVar[tuple[str, ...]] = ("train",)  # phases of a round, in order
    reads: ClassVar[str] = "sums"  # "sums", or "rows" if `merge` needs the rows of single clients
    by_records: ClassVar[bool] = False  # whether rows are weighted by records, relative to the mean client
    noisy_steps: ClassVar[bool] = False  # whether every local step is noisy, so that records are clipped
    tagged: ClassVar[bool] = False  # whether it needs to know which records have private attributes
    own_noise: ClassVar[bool] = False  # whether personal budgets change a client's noise, not its rounds

    # --- releases and the round

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        """Declare what one participation in a round releases.

        If `state` is None, the releases follow from the public plan alone; these are the ones that are accounted. Given
        the state, bounds may depend on what was released before; mechanisms may do so only if a `total` covers the run.
        """
        raise NotImplementedError

    def linear(self, plan: Plan) -> bool:
        """Return whether clients send the outputs of their outlets, up to one public factor common to all clients.

        If so, the noise of several clients adds up in a sum of their messages. Rows must then have weight one or, with
        `by_records`, weights proportional to their records; other weights are refused.
        """
        return False

    def variables(self, state: State, layout: Layout, plan: Plan) -> Any:
        """Return the method's public variables before the first round: a frozen dataclass, or None."""
        return None

    def keeps(self, state: State, clients: int, plan: Plan) -> dict[str, Tensor]:
        """Return the state that the method keeps at clients before their first round, by name [clients, ...].

        The algorithm's rows are stored separately.
        """
        return {}

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Return what each client sends, and the state that it keeps."""
        raise NotImplementedError

    def between(self, phase: str, state: State, seen: Message, plan: Plan) -> State:
        """Return the state at the start of the next phase of the round, given what arrived in this phase."""
        return state

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        """Return the state after the round.

        By default the sum of updates is divided by the expected number of answers and handed to the algorithm.
        """
        answers = plan.expected_answers(state.round)
        mean = seen.total("update")["update"][0] / answers
        return plan.algorithm.update(state, mean, plan.server(answers / plan.population))

    # --- optional hooks

    def require(self, plan: Plan) -> None:
        """Raise an error if the method cannot follow the plan."""

    def over(self, state: State, plan: Plan) -> bool:
        """Return whether training stops early at this state, judging only by what was released."""
        return False

    def claim(self, plan: Plan) -> Claim | None:
        """Return the privacy claim of the paper if it does not hold, else None.

        A method with such a claim is not private in the sense of this framework.
        """
        return None

    def claimed_noise(self, plan: Plan) -> float:
        """Return the noise multiplier with which a method as printed in its paper claims the plan's epsilon.

        It is needed if `own_noise` means that clients have claims of their own.
        """
        raise NotImplementedError

    def check_groups(self, highest: int) -> None:
        """Raise an error if records belong to more groups of private attributes than the method supports."""

    def modulus_bits(self) -> int | None:
        """Return the bits of the modulus of a secure sum of the integers it sends; None: depends on their type."""
        return None

    def uses_public(self) -> bool:
        """Return whether the method uses data held by the server (key `server_data`)."""
        return False

    def remarks(self, plan: Plan) -> tuple[str, ...]:
        """Return remarks for the user who runs the method with this plan."""
        return ()

    def noise(self, state: State, plan: Plan) -> float | None:
        """Return the per-coordinate standard deviation of the noise in one client's message, for the record.

        It is that of the round that begins with this state. None if it is known only after the round (then `decided`
        may report it) or not at all.
        """
        return None

    def decided(self, state: State, plan: Plan) -> dict[str, Any] | None:
        """Return what was chosen in the round that led to this state, for the record: plain numbers and text.

        Two names have a meaning elsewhere: `std`, the mean over clients of the deviation described in `noise`, is
        recorded as the noise if `noise` returns None; `clients` is a dict by client, from which `explain --client`
        selects one.
        """
        return None

    def chosen_before(self, plan: Plan) -> dict[str, Any] | None:
        """Return what was chosen from the public plan alone, before the first round, for the public plan.json."""
        return None

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        """Return an explanation in words of what was `decided`, round by round, for `sordino explain`."""
        return []


def started(method: Method, state: State, layout: Layout, plan: Plan) -> State:
    """Return the state with the public variables of the algorithm and the method, before the first round."""
    state = replace(state, algorithm=plan.algorithm.variables(state, layout))
    return replace(state, method=method.variables(state, layout, plan))


plugin.derive_from("methods", Method)
