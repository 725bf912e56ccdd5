"""A wrapper that makes a Flower strategy private at client level, with a trusted server and a total epsilon.

The sampler that draws the cohorts is the sampler that is priced, and the mechanism that adds the noise is the one that
is priced. The sum of clipped updates changes by at most the clip when a client is added or removed; it is divided by a
constant. What the wrapped strategy then computes is post-processing.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from sordino.core import check
from sordino.core.errors import RunError, SpecError
from sordino.core.rng import Stream
from sordino.foreign.client import SAYS, require_client
from sordino.foreign.terms import RunTerms
from sordino.foreign.wrapped import Population, server_optimiser
from sordino.ledger import home
from sordino.ledger.account import Account
from sordino.ledger.charges import Charge
from sordino.ledger.ledger import Ledger
from sordino.privacy import price
from sordino.privacy.calibrate import noise_multiplier
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Cost, Event, GaussianEvent, NonPrivate
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.mechanisms.rounded_gaussian import RoundedGaussian
from sordino.privacy.release import Use
from sordino.privacy.samplers import Poisson

SEES = "the server sees every client's update before noise is added, so it must be trusted"
WITHIN = 1 - 5e-7  # of the clip: an update that is computed to be inside is inside, whatever the rounding
LONGEST = 1000  # characters of a client's error that are printed
EVERY = 1.0  # seconds between two looks at who is online


class Private(Strategy):
    """A Flower strategy with client-level differential privacy, for clients that use `private_mod`.

    Args:
        strategy: FedAvg, FedAvgM, FedProx, FedAdagrad, FedAdam or FedYogi of flwr.serverapp.strategy, or a subclass
            that sends no messages of its own. Its sampling, weights and evaluation by clients are not used.
        epsilon: The total epsilon of all rounds.
        delta: The total delta of all rounds.
        clients: The number of clients, which is public: so many nodes must be online when the first round starts.
        clip: Largest L2 norm of a client's update, as in `private_mod`.
        rounds: The number of rounds that are paid for; more are refused.
        client_rate: Probability with which each client is drawn for a round.
        data: Name of the data in the ledger, by which runs on the same clients add up.
        ledger: The ledger file; default: the user's registry.
        unit: "client"; records cannot be protected where the training code is not Sordino's.
        wait: Seconds to wait for the clients to be online.

    Attributes:
        guarantee: The guarantee against whoever sees the released models.
        server_guarantee: That against the server: none, since it is trusted.
    """

    def __init__(
        self,
        strategy: Strategy,
        epsilon: float,
        delta: float,
        clients: int,
        clip: float,
        rounds: int,
        client_rate: float = 1.0,
        data: str = "",
        ledger: str | Path | None = None,
        unit: str = "client",
        wait: float = 60.0,
    ) -> None:
        require_client(unit)
        check.count(clients=clients, rounds=rounds)
        check.positive(epsilon=epsilon, clip=clip)
        check.below_one(delta=delta)
        check.non_negative(wait=wait)
        self._strategy = server_optimiser(strategy)
        self._sampler = Poisson(client_rate)
        if client_rate <= 0:
            raise SpecError("client_rate = 0 draws nobody; give a rate above 0.")
        z = noise_multiplier(lambda z: self._events(z, clients, rounds)[0], epsilon, delta)
        self._mechanism = RoundedGaussian(z, contributions=clients)
        job, rate = secrets.token_hex(16), float(client_rate)
        self.terms = RunTerms(job, clients, rounds, float(clip), z, float(delta), client_rate=rate)
        self.guarantee = self._guarantee("public")
        self.server_guarantee = self._guarantee("server")
        self._data, self._ledger, self._wait = data, home.registry() if ledger is None else Path(ledger), wait
        self._random = Stream.operating_system()
        self._account: Account | None = None
        self._book: Ledger | None = None
        self._population: list[int] = []
        self._cohort: list[int] | None = None  # nodes that were asked in this round; None between rounds
        self._round, self._arrays = 0, ArrayRecord()
        self._reasons: set[str] = set()  # why clients did not answer, each printed once

    # --- the price

    def _costs(self, z: float) -> list[Cost]:
        return [
            Cost("client", "add/remove", "server", NonPrivate(SEES)),
            Cost("client", "add/remove", "public", GaussianEvent(z)),
        ]

    def _events(self, z: float, clients: int, rounds: int) -> tuple[Event, ...]:
        cost = price.cost_to("public", self._costs(z))
        return price.total(cost, "public", self._sampler, clients, rounds, rounds)

    def _guarantee(self, viewer: str) -> Guarantee:
        terms = self.terms
        costs = self._costs(terms.noise_multiplier)
        plain = price.guarantee(
            costs, viewer, self._sampler, terms.clients, terms.rounds, terms.rounds, terms.delta, "secure"
        )
        known = ("the number of clients",) if math.isfinite(plain.epsilon) else ()
        return Guarantee.from_json(plain.to_json() | {"public": known, "exact": True})

    def _pay(self) -> Account:
        """Charge the whole plan to the ledger, once, and return its account."""
        if self._account is None:
            terms = self.terms
            (event,) = self._events(terms.noise_multiplier, terms.clients, terms.rounds)
            plan = Charge(Cost("client", "add/remove", "public", event), self.guarantee.epsilon, terms.delta)
            self._book = Ledger(self._ledger)
            self._account = self._book.open_job(
                terms.job, self._data, plan, terms.rounds, terms.rounds, repeatable=False, purpose="flower"
            )
            print(self.guarantee.sentence())
            print(self.server_guarantee.sentence())
        return self._account

    # --- rounds

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run Flower's loop for at most the rounds that were planned."""
        self._in_plan(num_rounds)
        return super().start(grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)

    def _in_plan(self, round: int) -> None:
        if round > self.terms.rounds:
            raise RunError(
                f"{round} rounds were asked for; {self.terms.rounds} are planned and paid for. Set rounds = {round} "
                "in Private, which adds more noise to every round."
            )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw a cohort, charge the round, and return a message for each client that was drawn."""
        self._in_plan(server_round)
        if server_round != self._round + 1 or self._cohort is not None:
            raise RunError(f"round {server_round} was asked for after round {self._round}: rounds come once, in order.")
        _require_floats(arrays)
        if not self._population:
            self._population = self._frozen(grid)
        account = self._pay()
        drawn = self._sampler.draw(self.terms.clients, self._random.at("cohort", server_round))
        account.spend(server_round - 1, drawn, self._costs(self.terms.noise_multiplier)[1])
        self._round, self._arrays = server_round, arrays
        self._cohort = [self._population[i] for i in drawn.tolist()]
        sent = ConfigRecord(dict(config))
        self._strategy.configure_train(server_round, arrays, sent, Population(self._strategy, self._population))
        for name, value in (self.terms.config() | {"server-round": server_round}).items():
            sent[name] = value
        record = RecordDict({self._strategy.arrayrecord_key: arrays, self._strategy.configrecord_key: sent})
        return [Message(record, dst_node_id=node, message_type="train") for node in self._cohort]

    def _frozen(self, grid: Grid) -> list[int]:
        """Return all nodes, of which there must be as many as were planned for; they stay the population."""
        end = time.monotonic() + self._wait
        while len(nodes := sorted(set(grid.get_node_ids()))) < self.terms.clients and time.monotonic() < end:
            time.sleep(min(EVERY, self._wait))
        if len(nodes) != self.terms.clients:
            raise RunError(
                f"the plan is for {self.terms.clients} clients, but {len(nodes)} nodes are online: start the missing "
                "ones, stop those that do not take part, or set clients in Private. Nothing was charged."
            )
        return nodes

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add noise to the sum of the updates, and let the wrapped strategy make a step with the noisy mean."""
        if self._cohort is None or server_round != self._round:
            raise RunError(f"round {server_round} was not started, or its sum was released already.")
        waiting, self._cohort = set(self._cohort), None
        old = {name: array.numpy() for name, array in self._arrays.items()}
        total = np.zeros(sum(value.size for value in old.values()))
        for reply in replies:
            node = reply.metadata.src_node_id
            self._show(reply)
            if node in waiting and (update := self._update(reply, old)) is not None:
                waiting.remove(node)  # one update of each client
                total += update
        noisy = self._mechanism.apply(
            Bounded(torch.from_numpy(total)[None], self.terms.clip),
            self._random.at("noise", server_round).rows([0]),
            Use(),
        )[0].numpy()
        mean, new, at = noisy / (self._sampler.rate * self.terms.clients), {}, 0
        for name, value in old.items():
            step = mean[at : at + value.size].reshape(value.shape)
            new[name] = Array(np.asarray((value.astype(np.float64) + step).astype(value.dtype)))
            at += value.size
        weight = MetricRecord({self._strategy.weighted_by_key: 1.0})
        content = RecordDict({self._strategy.arrayrecord_key: ArrayRecord(new), "metrics": weight})
        made, _ = self._strategy.aggregate_train(
            server_round, [Message(content, dst_node_id=self._population[0], message_type="train")]
        )
        return made, None

    def _show(self, reply: Message) -> None:
        """Print why a client did not answer, as `private_mod` says it: these texts hold nothing private."""
        reason = str(reply.error.reason)[:LONGEST] if reply.has_error() else ""
        if reason.startswith(SAYS) and reason not in self._reasons:
            self._reasons.add(reason)
            print(f"A client did not answer. {reason}")

    def _update(self, reply: Message, old: dict[str, Any]) -> Any:
        """Return the update in a reply as a vector, or None if it is not what `private_mod` sends."""
        try:
            if reply.has_error():
                return None
            (record,) = reply.content.array_records.values()
            if list(record) != list(old) or len(reply.content) != 1:
                return None
            arrays = {name: array.numpy() for name, array in record.items()}
        except Exception:  # the bytes of a reply may be anything
            return None
        if any(a.dtype != np.float32 or a.shape != old[name].shape for name, a in arrays.items()):
            return None
        flat = np.concatenate([a.reshape(-1) for a in arrays.values()]).astype(np.float64)
        inside = np.isfinite(flat).all() and float(np.linalg.norm(flat)) <= self.terms.clip * WITHIN
        return flat if inside else None

    # --- evaluation by clients is a release that nobody paid for

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask no client to evaluate: metrics of clients are not part of the budget."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return nothing, as above."""
        return None

    def summary(self) -> None:
        """Print what is promised."""
        print(f"{self.guarantee.sentence()} Noise multiplier {self.terms.noise_multiplier:.4g}.")


def _require_floats(arrays: ArrayRecord) -> None:
    for name, array in arrays.items():
        if array.numpy().dtype not in (np.float16, np.float32, np.float64):
            raise SpecError(
                f"the array {name} has type {array.dtype}; noise is added to floating point arrays only. Send the "
                "model without its counters, for instance with GroupNorm instead of BatchNorm."
            )
    if not sum(array.numpy().size for array in arrays.values()):
        raise SpecError("the model has no parameters; give Private's start the initial arrays of a model.")
