"""A federation of real sites, each with its own data, state, keys, ledger and policy.

The server's side: it sends letters and gets letters back. Who carries them (Flower, or a test) is a `Post`. Clients
train with the code that the simulator uses, at their sites (deploy/site.py). A site that does not answer, refuses or
answers with anything but a message of the right form is missing from the round, and the others go on; a round with too
few answers is lost, and nothing of it is released.

Behind a secure sum the server relays four exchanges (masking/server.py) and gets the sum alone; behind a shuffler, the
sites' rows are sealed for the shuffler's process, and the server gets them mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sordino.contract.pricing import declared
from sordino.core.errors import LostRound, RunError
from sordino.core.message import Message, together
from sordino.core.rng import Stream
from sordino.core.types import State
from sordino.federations import letters, mixed, sums
from sordino.federations.base import Work, require_answers, require_cohort
from sordino.federations.facts import Facts
from sordino.federations.simulator import Simulator
from sordino.masking.errors import MaskingError, NoShuffler, TooFew
from sordino.masking.identity import KeyRoster
from sordino.masking.server import MaskingServer
from sordino.masking.session import Session

BYTES = "bytes"  # name of the tensor that holds opaque bytes
LATEST = 1 << 31  # bytes of the largest answer that is taken


@dataclass
class Replies:
    """What came back of an exchange: every site is in exactly one of the three."""

    answered: dict[str, bytes] = field(default_factory=dict)  # letters, by site; their signatures were checked
    failed: dict[str, str] = field(default_factory=dict)  # why, by site
    silent: list[str] = field(default_factory=list)


class Post(Protocol):
    """Whoever carries letters to sites and brings back their answers."""

    def exchange(self, requests: Mapping[str, bytes]) -> Replies:
        """Send a letter to each of these sites, and wait for the answers, for a limited time."""


@dataclass(frozen=True)
class Party:
    """A site that takes part in a run."""

    name: str
    number: int  # in the roster
    clients: tuple[int, ...]


@dataclass
class SiteStatus:
    """What the server knows of a site in a run; the owner of the run is shown it."""

    answered: int = 0
    silent: int = 0
    failed: int = 0
    refused: str | None = None  # the last reason for a refusal
    trouble: str | None = None  # the last reason for which an answer was missing, refusals included
    participations: int = 0  # rounds that the site answered, also where the round was lost afterwards
    last: int = -1  # the last of them: a round that is repeated after a crash, or has several phases, counts once


class Flower:
    """The federation of real sites, as the server sees it.

    Args:
        post: carries letters.
        federation: the name of the federation.
        job: the id of the job.
        members: the sites that take part, in the order of their clients.
        stand_in: a simulator of clients that stand in for the real ones; it shows the form of an answer.
        keys: the public keys of all sites, by their number in the roster.
        mix: gives sealed rows to the shuffler and returns them mixed; None if there is none.
        changed: called whenever the status of sites changed.
    """

    def __init__(
        self,
        post: Post,
        federation: str,
        job: str,
        members: Sequence[Party],
        stand_in: Simulator,
        keys: KeyRoster,
        mix: Callable[[Session, dict[int, bytes]], list[bytes]] | None = None,
        changed: Callable[[], None] | None = None,
    ) -> None:
        self._post, self._federation, self._job, self._members = post, federation, job, tuple(members)
        self._stand_in, self._keys, self._mix = stand_in, keys, mix
        self._changed = changed or (lambda: None)
        self._of = {client: member for member in members for client in member.clients}
        self._templates: dict[tuple[str, ...], Message] = {}  # by phase and names of releases
        self._inputs: Any = None
        self.status = {member.name: SiteStatus() for member in members}

    @property
    def work(self) -> Work:
        """Return the work that the federation was opened with."""
        return self._stand_in.work

    @property
    def facts(self) -> Facts:
        """Return the public facts about the clients' data."""
        return self._stand_in.facts

    def open(self, work: Work) -> None:
        """Set the work of the run; sites compute it themselves from the agreement."""
        self._stand_in.open(work)
        self._templates.clear()

    def resume(self, path: Path, done: int, seen: bool = False) -> None:
        """Do nothing: sites keep their clients' state themselves."""

    def save(self, done: int) -> None:
        """Do nothing: sites save their clients' state after every answer."""

    def personal(self, state: State) -> dict[int, Tensor]:
        """Return no personal models: they stay at the sites."""
        return {}

    def close(self) -> None:
        """Close the stand-in; sites go on."""
        self._stand_in.close()

    # --- rounds

    def ask(self, phase: str, state: State, cohort: Sequence[int]) -> Message:
        """Return what leaves the clients of a cohort in one phase of a round; see `Federation.ask`."""
        plan, asked = self.work.plan, [int(i) for i in cohort]
        require_cohort(plan, len(asked))
        self._inputs = state.inputs
        template = self._template(phase, state)
        if not asked:
            return template.pick(torch.zeros(0, dtype=torch.int64)) if plan.channel.shows_rows else _zeros(template)
        header = {"job": self._job, "round": state.round, "phase": phase}
        by_site = self._by_site(asked)
        if not plan.channel.shows_rows:
            return self._summed(header, by_site, letters.state_tensors(state), template, plan)
        sent = {
            member.name: letters.packed({"verb": "ask", "clients": clients, **header}, letters.state_tensors(state))
            for member, clients in by_site
        }
        if plan.channel.name == mixed.NAME:
            at = mixed.session(self._federation, header, letters.state_tensors(state))
            rows = self._mixed(sent, at, template, len(asked))
        else:
            rows = self._rows(sent, {m.name: c for m, c in by_site}, template, state.round)
        if not rows:
            self._stop_if_all_refuse()
        require_answers(plan, len(asked), sum(len(message) for message in rows))
        if not rows:
            raise LostRound("no client answered")
        return together(rows)

    def _by_site(self, cohort: Sequence[int]) -> list[tuple[Party, list[int]]]:
        """Return the clients of a cohort by site, in the order of clients."""
        chosen = set(cohort)
        found = [(member, [i for i in member.clients if i in chosen]) for member in self._members]
        return [(member, clients) for member, clients in found if clients]

    def _rows(
        self, sent: Mapping[str, bytes], clients: Mapping[str, list[int]], template: Message, round: int
    ) -> list[Message]:
        """Send letters and return the messages of the sites that answered as they should, in the order of clients."""
        replies = self._exchange(sent)
        rows = {}
        for name, (header, tensors) in replies.items():
            try:
                message = letters.message_of(header, tensors)
                self._check(message, template, clients[name])
            except RunError as error:
                self._miss(name, str(error))
                continue
            rows[name] = message
            self._took_part(name, round)
        self._changed()
        return [rows[name] for name in clients if name in rows]

    def _check(self, message: Message, template: Message, clients: list[int]) -> None:
        """Raise RunError unless a message has the form of the template, for exactly these clients."""
        if (why := letters.alike(message, template, len(clients))) is not None:
            raise RunError(f"the answer has {why}.")
        if template.ids is not None and (message.ids is None or message.ids.tolist() != clients):
            raise RunError("the answer is that of other clients.")
        if message.weight is not None:
            expected = torch.tensor([self._weight(template, i) for i in clients])
            if bool(((message.weight - expected).abs() > 1e-4 * expected.abs().max()).any()):
                raise RunError("the answer has other weights than the public sizes give.")

    def _weight(self, template: Message, client: int) -> float:
        """Return the public weight of a client's row, given that of the first client."""
        plan, first = self.work.plan, float(template.weight[0]) if template.weight is not None else 1.0
        counts = self.facts.sizes(plan.unit == "user" and self.work.method.viewer == "server")
        proportional = abs(first - counts[0] / plan.mean_client) <= 1e-4 * max(1.0, first)
        return first * float(counts[client]) / float(counts[0]) if proportional else first

    def _exchange(self, sent: Mapping[str, bytes]) -> dict[str, tuple[dict[str, Any], dict[str, Tensor]]]:
        """Send letters and return those that came back and are no refusal; note the rest."""
        replies, out = self._post.exchange(sent), {}
        for name in replies.silent:
            self.status[name].silent += 1
            self.status[name].trouble = "no answer in time"
        for name, why in replies.failed.items():
            self._miss(name, why)
        for name, letter in replies.answered.items():
            try:
                header, tensors = letters.unpacked(letter, LATEST)
            except RunError as error:
                self._miss(name, str(error))
                continue
            if "refused" in header or "error" in header:
                self._miss(name, str(header.get("refused") or header.get("error"))[:500], "refused" in header)
                continue
            self.status[name].answered += 1
            out[name] = (header, tensors)
        self._changed()
        return out

    def _miss(self, name: str, why: str, refused: bool = False) -> None:
        status = self.status[name]
        status.failed += 1
        status.trouble = why
        status.refused = why if refused else status.refused

    def _took_part(self, name: str, round: int) -> None:
        """Count the round for a site, unless it is counted already."""
        status = self.status[name]
        if round > status.last:
            status.participations, status.last = status.participations + 1, round

    def _template(self, phase: str, state: State) -> Message:
        """Return the sealed answer of one made-up client, which has the form of every answer.

        The form follows from what a round releases: some methods release more in some rounds than in others.
        """
        method, plan = self.work.method, self.work.plan
        form = (phase, *sorted(r.name for r in declared(method, plan, state.round, state) if r.phase == phase))
        if form not in self._templates:
            (message,) = self._stand_in.answers(phase, state, [0])
            self._templates[form] = plan.channel.seal(message, [0])
        return self._templates[form]

    def _stop_if_all_refuse(self) -> None:
        """Raise RunError if every site has refused and none ever took part: no later round would differ."""
        sites = list(self.status.values())
        if all(status.refused for status in sites) and not any(status.participations for status in sites):
            raise RunError(f"every site refuses the job's rounds: {sites[0].refused} No round was released.")

    # --- the shuffler

    def _mixed(self, sent: Mapping[str, bytes], at: Session, template: Message, drawn: int) -> list[Message]:
        """Send letters, hand the sealed rows that come back to the shuffler, and return what it gives back, mixed."""
        if self._mix is None:
            raise RunError("channel = shuffler needs a shuffler, and this server knows none: see `sordino shuffler`.")
        plan, length = self.work.plan, mixed.expected(template, at)
        numbers, sealed = {member.name: member.number for member in self._members}, {}
        for name, (_, tensors) in self._exchange(sent).items():
            if not _is_bytes(tensors) or tensors[BYTES].numel() != length:
                self._miss(name, "the answer is no sealed row of the expected length.")
                continue
            sealed[numbers[name]] = bytes(tensors[BYTES].numpy())
            self._took_part(name, at.round)
        self._changed()
        require_answers(plan, drawn, len(sealed))
        if len(sealed) < plan.sure:
            raise LostRound("too few of the drawn clients answered")
        try:
            rows = mixed.read_rows(self._mix(at, sealed), template)
        except NoShuffler as error:
            raise RunError(f"{error} Start it and resume the run: sites repeat their answers at no cost.") from error
        except MaskingError as error:
            raise LostRound("the shuffler did not mix the reports") from error
        if len(rows) < plan.sure:
            raise LostRound("too few of the drawn clients answered")
        return rows

    # --- secure sums

    def _summed(
        self,
        header: Mapping[str, Any],
        by_site: list[tuple[Party, list[int]]],
        tensors: Mapping[str, Tensor],
        template: Message,
        plan: Any,
    ) -> Message:
        """Return the sum over the clients of a cohort by four exchanges; the server sees no single row."""
        names = {member.number: member.name for member, _ in by_site}
        clients = {member.number: mine for member, mine in by_site}
        session = Session(self._federation, self._job, int(header["round"]), str(header["phase"]))
        try:
            server = MaskingServer(session, self._keys, sums.policy_of(plan), sums.layout(template, plan))
            peers = server.keys(self._step(header, "keys", dict.fromkeys(names, b""), names))
            dealt = server.shares(self._step(header, "shares", dict.fromkeys(server.members, peers), names))
            uploads = self._step(header, "masked", dealt, names, tensors)
            survivors = server.masked(uploads)
            if "what" not in header:  # otherwise a release outside the rounds
                for number in server.survivors:
                    self._took_part(names[number], session.round)
            total = server.unmask(self._step(header, "unmask", dict.fromkeys(server.survivors, survivors), names))
        except TooFew as error:
            self._stop_if_all_refuse()
            raise LostRound("too many of the drawn clients did not answer") from error
        except MaskingError as error:
            raise LostRound("the secure sum could not be made") from error
        finally:
            self._changed()
        survived = [i for number in server.survivors for i in clients[number]]
        weight = None if template.weight is None else sum(self._weight(template, i) for i in survived)
        return sums.decoded(total, template, plan, weight)

    def _step(
        self,
        header: Mapping[str, Any],
        step: str,
        requests: Mapping[int, bytes],
        names: Mapping[int, str],
        tensors: Mapping[str, Tensor] | None = None,
    ) -> dict[int, bytes]:
        """Send the request of one step of a secure sum to each member, and return the replies."""
        sent = {}
        for number, data in requests.items():
            carried = {BYTES: torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy()), **(tensors or {})}
            sent[names[number]] = letters.packed({"verb": "sum", "step": step, **header}, carried)
        numbers = {name: number for number, name in names.items()}
        replies = self._exchange(sent)
        return {numbers[n]: bytes(t[BYTES].numpy()) for n, (_, t) in replies.items() if _is_bytes(t)}

    # --- outside the rounds

    def once(self, work: Work, state: State, part: str, rng: Stream) -> Message:
        """Return what all clients release once, outside the rounds.

        Sites rebuild the release from the agreement; what they need besides is public. A secret stream stays here: in
        secure mode sites draw their noise by their own keys.
        """
        what, number, shift = described(work, state)
        header: dict[str, Any] = {"job": self._job, "what": what, "number": number, "shift": shift}
        header["key"] = None if rng.secure else rng.key.hex()
        tensors = letters.state_tensors(State(state.params, state.round, inputs=self._inputs)) if part else {}
        everyone = [(member, list(member.clients)) for member in self._members]
        first = self._stand_in.once(work, state, part, Stream.research(0))
        template = work.plan.channel.seal(first.pick(torch.zeros(1, dtype=torch.int64)), [0])
        if not work.plan.channel.shows_rows:
            return self._summed(
                {**header, "round": number, "phase": f"release {what}"}, everyone, tensors, template, work.plan
            )
        sent = {m.name: letters.packed({"verb": "once", **header}, tensors) for m, _ in everyone}
        rows = []
        for name, (reply, answer) in self._exchange(sent).items():
            try:
                message = letters.message_of(reply, answer)
                if (why := letters.alike(message, template, len(message))) is not None:
                    raise RunError(f"the answer has {why}.")
                rows.append(message)
            except RunError as error:
                self._miss(name, str(error))
        self._changed()
        if len(rows) < len(everyone):
            raise RunError(
                "a release outside the rounds needs every site, and not all answered. Resume the run when they are "
                "back: what they have answered is kept, and costs nothing more."
            )
        return together(rows)


def described(work: Work, state: State) -> tuple[str, int, list[float]]:
    """Return which release outside the rounds a small method is: its name, its number, and the shift it needs."""
    kind = type(work.method).__name__
    shift = [float(v) for v in getattr(work.method, "shift", ())]
    if kind == "RowMoments":
        return "rows", 1 if shift else 0, shift
    return ("moments", 0, []) if kind == "FeatureMoments" else ("figure", state.round, [])


def _is_bytes(tensors: Mapping[str, Tensor]) -> bool:
    return set(tensors) == {BYTES} and tensors[BYTES].dtype == torch.uint8 and tensors[BYTES].ndim == 1


def _zeros(template: Message) -> Message:
    """Return the sum over no client."""
    fields = {name: torch.zeros_like(value) for name, value in template.fields.items()}
    weight = None if template.weight is None else torch.zeros(1)
    return Message(fields, weight, None, heavy=True, summed=True)
