"""The rehearsal: a test of the method on made-up records before a run, in three plays of two rounds.

It refuses a method from which a value leaves without passing an outlet, or whose outlets are given more than was
declared.

1. The first play records the inputs and outputs of every outlet.
2. The second play has other records, and the outlets return the recorded outputs: messages and weights must be the same
   bit for bit, in the second round too, and so must the number of uses and the noise multipliers. Anything that differs
   depends on the records and has bypassed the outlets, in this round or through the clients' state.
3. In the third play one unit is replaced: it may move the inputs of outlets by at most `swing` bounds, only in the row
   of its client and only in one part of the data. If the cost is that of an added or removed unit, another client has
   one record (or user) less, which may move the first input of an outlet by at most one bound; later uses depend on the
   public sizes of clients.

A method that declares that its noise adds up in sums (`linear`) must send what its outlets returned, up to one factor.

All clients answer in time, the second round is the last one of the plan, and the clients' state is discarded. A
rehearsal cannot detect a branch that made-up records never reach, or code that recognises a rehearsal. Uses, bounds,
multipliers and totals are therefore checked in every real round as well (contract/outlets.py).
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sordino.contract import pricing
from sordino.contract.method import started
from sordino.contract.outlets import received
from sordino.core.errors import RunError, SordinoError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.core.types import Batch, State
from sordino.core.variables import flat
from sordino.federations.base import Work
from sordino.federations.replay import Passage, PassageRecorder, Passages, Records, affine, length, often, same
from sordino.federations.simulator import answer
from sordino.federations.store import Store
from sordino.privacy.release import Release

SLACK = 1e-4  # relative to a bound: tolerance for another order of float32 summation
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Cast:
    """Made-up clients: their records in each of the three plays. Sizes are public, and change if a unit is removed."""

    ids: tuple[int, ...]
    first: Batch
    other: Batch  # all records differ from the first play
    changed: Batch  # as in the first play, except for the clients below
    replaced: frozenset[int] = frozenset()  # clients with one unit replaced
    removed: frozenset[int] = frozenset()  # clients with one unit removed


class Rehearsal:
    """A method, a model on the CPU and a small plan, played with made-up clients: each phase in all three plays."""

    def __init__(self, name: str, work: Work, cast: Cast) -> None:
        self.name, self.work, self.cast = name, work, cast
        self.rng = Stream.research(0).at("rehearsal")
        # client state in each play
        self._stores = {name: Store() for name in ("first", "other", "beside", "changed")}

    def run(self, laws: bool = True) -> None:
        """Play the first and the last round of the plan and raise an error at the first violation.

        If `laws` is False, run only the first play, without checks: every hook of the method is called, and the caller
        inspects the results.
        """
        method, plan, model = self.work.method, self.work.plan, self.work.model
        state = started(method, State(model.layout.read(model.module)), model.layout, plan)
        for number in (0, plan.rounds - 1):
            state = replace(state, round=number)
            if method.over(state, plan):
                break
            self._as_planned(state)
            rng = self.rng.at("round", number)
            for phase in method.phases:
                message, passages = self.play("first", self.cast.first, phase, state)
                after = self.after(phase, message, state, rng)
                if laws:
                    again = self.play("other", self.cast.other, phase, state, passages)
                    self._same(message, passages, *again, number)
                    self._same_state(after, self.after(phase, again[0], state, rng))
                    self._beside(message, phase, state, passages)
                    self._adds_up(message, passages)
                    changed = self.play("changed", self.cast.changed, phase, state, passages)[1]
                    self._moves(passages, changed, number)
                state = after

    def _as_planned(self, state: State) -> None:
        """Refuse noise that depends on the state unless a total covers the run."""
        method, plan = self.work.method, self.work.plan
        if pricing.run_costs(method, plan) is None and pricing.costs(method, plan, state.round, state) != pricing.costs(
            method, plan, state.round
        ):
            raise RunError(
                f"{self.name}: what a round costs depends on the state, which only a `total` for the run allows. Let "
                "bounds depend on what was released, and noise on the plan."
            )

    def after(self, phase: str, message: Message, state: State, rng: Stream) -> State:
        """Return the state after a phase.

        The message is sealed and carried, a trusted server's noise is added, and `between` or `merge` is applied.
        """
        method, plan, number = self.work.method, self.work.plan, state.round
        releases = [r for r in pricing.declared(method, plan, number, state) if r.phase == phase]
        with self._named():
            sealed = plan.channel.seal(message, self.cast.ids)
        arrived = plan.channel.carry(sealed, rng.at("channel", phase))
        seen = received(arrived, releases, number, rng, self.rng, dtype=state.params.dtype)
        if phase != method.phases[-1]:
            return replace(method.between(phase, state, seen, plan), round=number)
        method.noise(state, plan)
        after = method.merge(state, seen, plan.merging(rng))
        method.decided(after, plan)
        return after

    def play(
        self,
        which: str,
        batch: Batch,
        phase: str,
        state: State,
        earlier: Passages | None = None,
        at_server: bool = True,
    ) -> tuple[Message, Passages]:
        """Play one phase and return what was sent and what passed through the outlets.

        Args:
            which: Name of the play, which selects the clients' state.
            batch: Records of the play.
            phase: Phase of the round.
            state: Public state at the start of the phase.
            earlier: Uses of outlets in an earlier play, whose outputs are replayed.
            at_server: Whether to replay also outlets whose noise the server adds.
        """
        recorder, rng = PassageRecorder(self.name, earlier, at_server), self.rng.at("round", state.round).at("clients")
        data, ids, public = Records(batch), np.array(self.cast.ids), copy.deepcopy(state)
        with self._named():
            message = answer(self.work, self._stores[which], data, CPU, phase, state, ids, rng, recorder)
        if not _alike(public, state):
            raise RunError(f"{self.name}: train writes into the state, which is public. Send what clients found.")
        for place, before in (earlier or {}).items():
            if len(recorder.passages.get(place, ())) != len(before):
                raise RunError(often(self.name, place[0]))
        return message, recorder.passages

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Prefix the errors of outlets and channel with the method's name."""
        try:
            yield
        except SordinoError as error:
            raise error if str(error).startswith(self.name) else RunError(f"{self.name}: {error}") from error

    # --- checks

    def _same(self, first: Message, passages: Passages, other: Message, again: Passages, round: int) -> None:
        """Refuse messages that depend on the records although all outlets returned the same outputs as before."""
        later, way = ("in a later round, ", "through what clients keep (site.own), ") if round else ("", "")
        for (outlet, client), before in passages.items():
            after = again[outlet, client]
            if not all(same(p.multiplier, q.multiplier) for p, q in zip(before, after, strict=True)):
                raise RunError(
                    f"{self.name}: the noise multiplier of the outlet {outlet} depends on the clients' records. "
                    "Compute it from the plan and from what was released before."
                )
        if first.fields.keys() != other.fields.keys():
            raise RunError(
                f"{self.name}: {later}which fields a message has depends on the clients' records. Always send the same."
            )
        for field, value in other.fields.items():
            if not same(first[field], value):
                raise RunError(
                    f"{self.name}: {later}the field {field} depends on the clients' records past the outlets: {way}"
                    "with other records and the same outputs of the outlets it changes. Send what site.out[...] "
                    "returns, or what is made of that alone."
                )
        if not same(first.weight, other.weight):
            raise RunError(
                f"{self.name}: {later}the weights of a message depend on the clients' records, and they are public. "
                "Take them from the sizes of clients or from the plan, or release them through an outlet."
            )

    def _same_state(self, first: State, other: State) -> None:
        """Refuse a server that uses more than the messages, which were the same bit for bit."""
        if not _alike(first, other):
            raise RunError(
                f"{self.name}: with other records and the same messages `merge` (or `between`) gives another state: "
                "something reaches it past the messages. Keep nothing on the method or in globals."
            )

    def _beside(self, message: Message, phase: str, state: State, passages: Passages) -> None:
        """Refuse fields derived from rows that a server is trusted with but to which it adds no noise."""
        plan, method = self.work.plan, self.work.method
        noisy = {r.name for r in pricing.declared(method, plan, state.round, state) if r.where == "server"}
        if not noisy & {outlet for outlet, _ in passages}:
            return
        other, _ = self.play("beside", self.cast.other, phase, state, passages, at_server=False)
        for field in message.fields.keys() - noisy:
            if not same(message[field], other[field]):
                raise RunError(
                    f"{self.name}: the field {field} is made of what the server is trusted with, but no noise is "
                    "declared for it. Release it by itself, or leave it out."
                )

    def _adds_up(self, message: Message, passages: Passages) -> None:
        """Refuse fields that are not affine in one outlet's output although noise is accounted as adding up."""
        if not self.work.method.linear(self.work.plan):
            return
        # for unit = client the cost assumes the heaviest weight; for records, weights must undo the division of the sum
        by_client = all(passage.release.unit == "client" for each in passages.values() for passage in each)
        for field, value in (message if by_client or message.weight is None else message.weighed()).fields.items():
            outputs = (
                torch.stack([passages[outlet, client][0].output for client in self.cast.ids])
                for outlet in dict.fromkeys(outlet for outlet, _ in passages)
                if all(len(passages.get((outlet, client), ())) == 1 for client in self.cast.ids)
            )
            if not any(affine(value, output) for output in outputs):
                raise RunError(
                    f"{self.name}: `linear` says that noise adds up in a sum of messages, but the field {field} is not "
                    "what one use of an outlet gave, times one factor for all clients (or shifted). Send that alone."
                )

    def _moves(self, first: Passages, changed: Passages, round: int) -> None:
        """Check how far changing one unit moves the inputs of the outlets."""
        parts: dict[int, dict[str, str]] = {}  # by client: parts of the data that moved, and the outlet
        for (outlet, client), before in first.items():
            for use, (original, altered) in enumerate(zip(before, changed[outlet, client], strict=True)):
                release = original.release
                self._within(release, original, altered)
                if client in self.cast.removed and (use or round):
                    break
                moved = length(altered.value.double() - original.value.double(), release)
                self._moved(release, client, moved)
                if release.part and moved > SLACK * float(release.bound or 0.0):
                    parts.setdefault(client, {})[release.part] = outlet
        for outlets in parts.values():
            if len(outlets) > 1:
                raise RunError(
                    f"{self.name}: one unit moves the outlets {' and '.join(outlets.values())}, whose parts of the "
                    "data were declared to be disjoint. Give every unit to one part."
                )

    def _within(self, release: Release, *passages: Passage) -> None:
        """Check that a row is within the bound if it is one unit's or is clipped for a server's noise."""
        bound = float(release.bound or 0.0)
        for passage in passages if release.unit == "client" or release.where == "server" else ():
            norm = length(passage.value.double(), release)
            if not norm <= bound * (1 + SLACK):
                raise RunError(
                    f"{self.name}: a row of norm {norm:.4g} goes into the outlet {release.name}, which declares the "
                    f"bound {bound:.4g}. Hand the outlet a tensor, which it clips, or clip it to the bound."
                )

    def _moved(self, release: Release, client: int, moved: float) -> None:
        bound, many = float(release.bound or 0.0), 0
        if client in self.cast.replaced:
            many, what = release.swing, f"replacing one {release.unit}"
        elif client in self.cast.removed:
            many, what = 1, f"removing one {release.unit}"
        if moved <= bound * (many + SLACK):
            return
        if not many:
            raise RunError(
                f"{self.name}: a client's row in the outlet {release.name} depends on the records of another client. "
                "Row i of what train computes must depend on client i and the state alone."
            )
        raise RunError(
            f"{self.name}: {what} moves what goes into the outlet {release.name} by {moved:.4g}; declared was {many} x "
            f"the bound {bound:.4g}. Clip the contribution of every {release.unit}, add them up, and let nothing "
            "private but the sum reach the outlet."
        )


def _alike(a: State, b: State) -> bool:
    """Return whether two states are equal bit for bit."""

    def written(state: State) -> dict[str, Tensor]:
        return {"params": state.params} | flat("method", state.method) | flat("algorithm", state.algorithm)

    first, second = written(a), written(b)
    return first.keys() == second.keys() and all(same(first[name], second[name]) for name in first)
