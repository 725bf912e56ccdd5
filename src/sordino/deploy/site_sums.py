"""The part of a site in secure sums: one masking client for every phase of a round that it takes part in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sordino.contract.plan import Plan
from sordino.core.message import Message
from sordino.deploy import roster as rosters
from sordino.deploy.folder import Roster
from sordino.deploy.refusal import Refusal
from sordino.deploy.site_job import SiteJob
from sordino.federations import sums
from sordino.federations.flower import BYTES
from sordino.masking.client import MaskingClient
from sordino.masking.errors import MaskingError, RegisterError
from sordino.masking.identity import Identity
from sordino.masking.once import Once
from sordino.masking.session import Session

STEPS = ("keys", "shares", "masked", "unmask")
RELEASE = "release "  # phases of releases outside the rounds begin so
KEPT = 4  # sums that a site remembers at a time; the secrets of older ones are gone


@dataclass(frozen=True)
class SumRequest:
    """One step of a secure sum that a server asks for."""

    step: str
    round: int
    phase: str
    data: bytes  # of the protocol
    state: Mapping[str, Tensor]
    plan: Plan
    release: tuple[str, int, list[float]] | None = None  # a release outside the rounds: its name, number and shift
    key: str | None = None  # in research mode: the stream of such a release

    @property
    def place(self) -> str:
        """The place of the answer in the job."""
        return f"round {self.round + 1}, {self.phase}" if self.release is None else f"{self.phase} {self.round}"

    @staticmethod
    def read(header: Mapping[str, Any], tensors: Mapping[str, Tensor], job: SiteJob) -> SumRequest:
        """Return the request in a letter; raise Refusal if it is none, or none for this job and this site."""
        step, round, phase = header.get("step"), header.get("round"), header.get("phase")
        data = tensors.get(BYTES)
        if step not in STEPS or not isinstance(round, int) or isinstance(round, bool) or not isinstance(phase, str):
            raise Refusal("the request is no step of a secure sum.")
        if data is None or data.dtype != torch.uint8 or data.ndim != 1:
            raise Refusal("the request is no step of a secure sum.")
        state = {name: value for name, value in tensors.items() if name != BYTES}
        if state and step != "masked":
            raise Refusal("a state was sent with a step that needs none.")
        if not phase.startswith(RELEASE):
            if job.job.plan.channel.shows_rows:
                raise Refusal("this job has no secure sum.")
            job.check_request(round, phase, list(job.member.clients))
            return SumRequest(step, round, phase, bytes(data.numpy()), state, job.job.plan)
        what, shift, key = phase.removeprefix(RELEASE), header.get("shift", []), header.get("key")
        if (
            not isinstance(shift, list)
            or not all(isinstance(v, float) for v in shift)
            or not isinstance(key, str | None)
        ):
            raise Refusal("the letter does not say which release it asks for.")
        plan = job.release_plan(what, round, shift)
        if plan.channel.shows_rows:
            raise Refusal("this release has no secure sum.")
        return SumRequest(step, round, phase, bytes(data.numpy()), state, plan, (what, round, shift), key)


class SiteSums:
    """The secure sums of one job at one site.

    Args:
        name: the name of the site.
        roster: the sites of the federation, from the owner's own file.
        identity: the private key of the site.
        job: the id of the job.
        folder: the folder of the job, private to the site.
    """

    def __init__(self, name: str, roster: Roster, identity: Identity, job: str, folder: Path) -> None:
        self._number, self._roster, self._identity, self._job = rosters.number(roster, name), roster, identity, job
        self._once = Once(folder / "sums.sqlite")
        self._clients: dict[tuple[int, str], MaskingClient] = {}

    def keys(self, round: int, phase: str, plan: Plan) -> bytes:
        """Begin a sum: return fresh public keys, signed."""
        if (round, phase) not in self._clients:
            while len(self._clients) >= KEPT:
                del self._clients[next(iter(self._clients))]
            session = Session(self._roster.name, self._job, round, phase)
            self._clients[round, phase] = MaskingClient(
                self._number, self._identity, rosters.keys(self._roster), session, sums.policy_of(plan), self._once
            )
        return self._refusing(lambda client: client.keys(), round, phase)

    def shares(self, round: int, phase: str, peers: bytes) -> bytes:
        """Check the cohort, and return shares of this site's secrets for every member."""
        return self._refusing(lambda client: client.shares(peers), round, phase)

    def masked(self, round: int, phase: str, dealt: bytes, message: Message, plan: Plan) -> bytes:
        """Return the row of this site under masks."""
        arrays, bits = sums.encoded(message, plan)
        return self._refusing(lambda client: client.masked(dealt, arrays, bits), round, phase)

    def unmask(self, round: int, phase: str, survivors: bytes) -> bytes:
        """Return one share for every member, if enough of them are left."""
        return self._refusing(lambda client: client.unmask(survivors), round, phase)

    def begun(self, round: int, phase: str) -> None:
        """Raise Refusal unless this site has sent shares for a sum, so that it can mask a row."""
        if (round, phase) not in self._clients:
            raise Refusal("this site does not take part in this sum: it was not asked for keys, or was started anew.")

    def _refusing(self, step: Callable[[MaskingClient], bytes], round: int, phase: str) -> bytes:
        self.begun(round, phase)
        try:
            return step(self._clients[round, phase])
        except RegisterError:
            raise  # a matter of this site's disk, of which the server is told nothing
        except MaskingError as error:
            raise Refusal(str(error)) from error
