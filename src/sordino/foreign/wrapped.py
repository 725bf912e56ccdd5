"""Which Flower strategies can be wrapped, and what they get to see: one reply, which is private already."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from flwr.app import Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy

from sordino.core.errors import RunError, SpecError

SOUND = (FedAvg, FedAvgM, FedProx, FedAdagrad, FedAdam, FedYogi)
OWN = ("start", "configure_train")  # methods that decide what is sent to whom


def server_optimiser(strategy: Strategy) -> FedAvg:
    """Return a copy of a strategy whose `aggregate_train` can be given the noisy mean as the only reply.

    Raises:
        SpecError: if the strategy compares or weighs single clients, sends messages of its own, or is no strategy.
    """
    kinds = type(strategy).__mro__
    library = next((k for k in kinds if k.__module__.split(".")[0] == "flwr"), None)
    names = ", ".join(k.__name__ for k in SOUND)
    if library not in SOUND or not isinstance(strategy, FedAvg):
        raise SpecError(
            f"{type(strategy).__name__} cannot be made private by wrapping it: only a server step on the mean of all "
            f"updates is priced, not one that compares or weighs single clients or adds noise itself. Use {names}."
        )
    for kind in kinds[: kinds.index(library)]:
        for name in OWN:
            if name in vars(kind):
                raise SpecError(
                    f"{kind.__name__} has its own {name}, which decides who takes part, but the cohorts that are "
                    f"priced are those that Private draws. Remove {name}."
                )
    wrapped = copy.copy(strategy)
    wrapped.train_metrics_aggr_fn = lambda records, key: MetricRecord()  # there are no metrics of clients
    return wrapped


class Population(Grid):
    """A grid that knows nodes and sends nothing, for the wrapped strategy's `configure_train`.

    Strategies keep the current arrays and add to the config there; the messages that they make are thrown away.
    """

    def __init__(self, strategy: FedAvg, nodes: list[int]) -> None:
        least = max(strategy.min_available_nodes, strategy.min_train_nodes, len(nodes))
        self._nodes = [*nodes, *range(-1, len(nodes) - least - 1, -1)]  # enough, so that nobody waits for more

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes."""
        return list(self._nodes)

    def set_run(self, *args: Any, **kwargs: Any) -> None:
        """Refuse."""
        raise RunError("a strategy inside Private cannot change the run.")

    @property
    def run(self) -> Any:
        """Refuse."""
        raise RunError("a strategy inside Private has no run of its own.")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Refuse, as do all methods that send or receive."""
        raise RunError("a strategy inside Private cannot send messages of its own.")

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Refuse."""
        raise RunError("a strategy inside Private cannot send messages of its own.")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Refuse."""
        raise RunError("a strategy inside Private cannot receive messages of its own.")

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Refuse."""
        raise RunError("a strategy inside Private cannot send messages of its own.")
