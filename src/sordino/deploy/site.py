"""A site: it holds data, a policy, a ledger and keys, and answers letters of a server that it does not trust.

Every letter is a request. What is asked is checked against the policy and against what was answered before, paid in
the site's own ledger, computed, written to disk and only then sent. A refusal says why in words made from the request
and the policy; anything else that goes wrong is told to the site's owner alone, in its log.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.contract import pricing
from sordino.core import faults
from sordino.core.errors import BudgetError, SordinoError
from sordino.core.message import Message
from sordino.core.version import VERSION
from sordino.deploy import roster as rosters
from sordino.deploy import site_account, site_price, site_rows
from sordino.deploy.agreement import Agreement, checked
from sordino.deploy.folder import Roster
from sordino.deploy.policy import Policy
from sordino.deploy.refusal import Refusal
from sordino.deploy.site_account import SiteAccount
from sordino.deploy.site_data import SiteData
from sordino.deploy.site_foreign import NO_APPS, ForeignApps, SiteForeign
from sordino.deploy.site_job import SiteJob
from sordino.deploy.site_sums import SiteSums, SumRequest
from sordino.federations import letters, mixed
from sordino.federations.flower import BYTES
from sordino.foreign.request import VERB
from sordino.masking.identity import Identity
from sordino.privacy import price
from sordino.spec.mode import settled

FAILED = "the site could not answer; its owner can read why in its log"
TOLD = ("verb", "job", "round", "phase", "clients")  # header of a request for training


class FederationSite:
    """One site of a federation.

    Args:
        name: its name in the roster.
        policy: what its owner allows.
        data: its data.
        roster: the sites of the federation, from the owner's own file.
        identity: its private key.
        folder: its private folder: ledger, answers, log.
        foreign: apps with training code of their own that it has copies of, and the config that they get.
    """

    def __init__(
        self,
        name: str,
        policy: Policy,
        data: SiteData,
        roster: Roster,
        identity: Identity,
        folder: Path,
        foreign: ForeignApps = NO_APPS,
    ) -> None:
        self.name, self.policy, self.data, self.roster, self.identity = name, policy, data, roster, identity
        self.folder = folder
        if rosters.keys(roster)[rosters.number(roster, name)] != identity.public:
            raise Refusal(f"the key of this site is not the one that the roster has for {name}.")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._jobs: dict[str, tuple[SiteJob, SiteAccount, SiteSums]] = {}
        self._foreign = SiteForeign(policy, data, folder, foreign, self.log)
        self._lock = threading.Lock()
        self._verbs: dict[str, Callable[[dict[str, Any], dict[str, Tensor], bytes], bytes]] = {
            "hello": self._hello,
            "open": self._open,
            "ask": self._ask,
            "once": self._once,
            "sum": self._sum,
            VERB: self._foreign.answer,
        }

    def answer(self, request: bytes) -> bytes:
        """Return the signed reply to a request; never raises an error, and never tells one that names data."""
        with self._lock:
            began = time.monotonic()
            body = self._body(request)
            self._wait(began)
            return rosters.signed(self.roster, self.identity, request, body)

    def _wait(self, began: float) -> None:
        """Wait until a whole multiple of the policy's time has passed, so that timing tells little of the work."""
        step = self.policy.answer_seconds
        if step:
            time.sleep(-(time.monotonic() - began) % step)

    def _body(self, request: bytes) -> bytes:
        try:
            header, tensors = letters.unpacked(request, self.policy.largest_letter)
            verb = self._verbs.get(str(header.get("verb")))
            if verb is None:
                raise Refusal("the letter asks for nothing that a site does.")
            return verb(header, tensors, request)
        except Refusal as error:
            self.log(f"refused: {error}")
            return letters.packed({"refused": str(error)})
        except BudgetError as error:
            self.log(f"refused: {error}")
            return letters.packed({"refused": error.public or "the budget of this site does not cover it."})
        except (SordinoError, OSError, sqlite3.Error) as error:  # says itself what is wrong, such as a full disk
            self.log(f"failed: {error}")
            return letters.packed({"error": FAILED})
        except Exception as error:
            self.log(f"failed: {error}\n{traceback.format_exc()}")
            return letters.packed({"error": FAILED})

    def log(self, text: str) -> None:
        """Write a line for the owner of the data to the log of the site, or if that fails to standard error."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n"
        try:
            with (self.folder / "log.txt").open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError:
            with contextlib.suppress(OSError):
                sys.stderr.write(line)

    # --- before a job

    def _hello(self, header: dict[str, Any], tensors: dict[str, Tensor], request: bytes) -> bytes:
        """Tell the public facts about the data, for a job that the policy may allow."""
        if header.get("version") != VERSION:
            raise Refusal(f"this site runs Sordino {VERSION}; the server runs another version.")
        if header.get("federation") != self.roster.name:
            raise Refusal("this site belongs to another federation.")
        spec = self._public(lambda: checked(header["keys"]))
        method = spec.method_object()
        mode = settled(spec, self.data.benchmark).mode or "secure"
        viewer, unit = spec.viewer or method.viewer, spec.unit or method.units[0]
        self.policy.check(spec, viewer, unit, mode, len(self.roster.sites))
        told = self.data.told(spec, header.get("schema"))
        facts = {"name": self.name, "records": told.records.to_json(), "sizes": list(told.sizes)}
        return letters.packed(facts | {"users": None if told.users is None else list(told.users)})

    @staticmethod
    def _public(make: Callable[[], Any]) -> Any:
        """Return what is made from public values alone; an error in it may be told."""
        try:
            return make()
        except Refusal:
            raise
        except SordinoError as error:
            raise Refusal(f"the job cannot be planned: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Refusal("the letter does not hold the keys of a run.") from error

    def _open(self, header: dict[str, Any], tensors: dict[str, Tensor], request: bytes) -> bytes:
        """Agree to a job, or refuse it: nothing is computed on the data yet, and the whole job is charged."""
        agreement: Agreement = self._public(lambda: Agreement.from_json(header["agreement"]))
        if agreement.id in self._jobs:
            return letters.packed({"job": agreement.id})
        folder = self.folder / "jobs" / agreement.id[:32]
        self._admit(agreement)
        self._jobs[agreement.id] = self._opened(agreement, folder)
        self.log(f"opened job {agreement.id[:16]}: {agreement.asked.method}, {len(agreement.sizes)} clients")
        return letters.packed({"job": agreement.id})

    def _admit(self, agreement: Agreement) -> None:
        """Raise Refusal unless the agreement is about this federation, this version and what this site told."""
        if agreement.version != VERSION:
            raise Refusal(f"this site runs Sordino {VERSION}; the job was planned by another version.")
        if agreement.federation != self.roster.name:
            raise Refusal("the job belongs to another federation.")
        known = {entry.name: entry for entry in self.roster.sites}
        for member in agreement.members:
            if member.name not in known or len(member.clients) != known[member.name].clients:
                raise Refusal("the job names sites or clients that the roster of this site does not have.")
        mine = self._public(lambda: agreement.member(self.name))
        spec = self._public(lambda: agreement.asked)
        told = self.data.told(spec, agreement.schema)
        if told.records.differs(agreement.records) or (told.sizes, told.users) != (mine.sizes, mine.users):
            raise Refusal("the job does not describe the records of this site as the site did.")

    def _opened(self, agreement: Agreement, folder: Path) -> tuple[SiteJob, SiteAccount, SiteSums]:
        job = self._public(lambda: agreement.job())
        self.policy.check(job.spec, job.viewer, _unit(job), job.mode, job.plan.population)
        site_rows.check(self.roster, self.name, job.plan)
        mine = agreement.member(self.name)
        if job.budgets is not None and len(mine.clients) > 1:
            raise Refusal("budgets of clients need one client per site: rounds are charged to a site as a whole.")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        plan = site_account.planned(agreement.id, job, self.policy, mine.clients)
        whose = site_account.people(job, self.data, self.folder, agreement)
        account = SiteAccount(plan, self.policy, whose, self.folder, folder)
        try:
            sums = SiteSums(self.name, self.roster, self.identity, agreement.id, folder)
            _write_whole(folder / "agreement.json", json.dumps(agreement.to_json()))
            ready = SiteJob(agreement, self.name, self.data, folder, account.answers.last + 1, None)
        except BaseException:
            account.close()
            raise
        return ready, account, sums

    def _job(self, header: dict[str, Any]) -> tuple[SiteJob, SiteAccount, SiteSums]:
        """Return a job that was opened, also before this site was started anew."""
        name = str(header.get("job"))
        if name not in self._jobs:
            folder = self.folder / "jobs" / name[:32]
            if not name.isalnum() or not (folder / "agreement.json").is_file():
                raise Refusal("this site knows no such job: it was not opened here, or with another plan.")
            agreement = Agreement.from_json(json.loads((folder / "agreement.json").read_text(encoding="utf-8")))
            if agreement.id != name:
                raise Refusal("this site knows no such job: it was not opened here, or with another plan.")
            self._jobs[name] = self._opened(agreement, folder)
        return self._jobs[name]

    # --- rounds

    def _ask(self, header: dict[str, Any], tensors: dict[str, Tensor], request: bytes) -> bytes:
        """Train for one phase of a round, and return what the clients of this site let out."""
        job, account, _ = self._job(header)
        if not job.job.plan.channel.shows_rows:
            raise Refusal("answers of this job leave through a secure sum only.")
        return self._trained(header, tensors, request, job, account)

    def _trained(
        self,
        header: dict[str, Any],
        tensors: dict[str, Tensor],
        request: bytes,
        job: SiteJob,
        account: SiteAccount,
    ) -> bytes:
        round, phase, clients = _request(header)
        job.check_request(round, phase, clients)
        place = f"round {round + 1}, {phase}"
        before = account.answers.before(place, request)
        if before is not None:
            return before
        account.in_order(round, phase, job.job.method.phases)
        state = job.state(tensors, round)
        self._pay(job, account, round)
        with self._undone(job):
            message = job.answer(phase, state, clients)
            body = self._row(job, message, header, tensors)
            job.save(round + 1)
            account.answers.keep(place, round, request, body)
        faults.point("kept at a site")
        return body

    @contextlib.contextmanager
    def _undone(self, job: SiteJob) -> Iterator[None]:
        """Forget a job if the work inside fails: it is opened from disk again, with what its clients kept before."""
        try:
            yield
        except BaseException:
            self._forget(job.agreement.id)
            raise

    def _row(self, job: SiteJob, message: Message, header: dict[str, Any], tensors: dict[str, Tensor]) -> bytes:
        """Return what leaves this site: the message, or behind a shuffler opaque bytes."""
        plan = job.job.plan
        sealed = plan.channel.seal(message, header["clients"])
        if plan.channel.name != mixed.NAME:
            return letters.message_letter(sealed, {})
        return _carried(site_rows.for_shuffler(sealed, self.roster, self.name, self.identity, header, tensors))

    def _once(self, header: dict[str, Any], tensors: dict[str, Tensor], request: bytes) -> bytes:
        """Release what the plan has outside the rounds; it was charged with the job."""
        job, account, _ = self._job(header)
        what, number = str(header.get("what")), header.get("number")
        shift, key = header.get("shift", []), header.get("key")
        plain = isinstance(number, int) and isinstance(shift, list) and all(isinstance(v, float) for v in shift)
        if not plain or not isinstance(key, str | None):
            raise Refusal("the letter does not say which release it asks for.")
        place = f"release {what} {number}"
        before = account.answers.before(place, request)
        if before is not None:
            return before
        message = job.once(what, int(number or 0), shift, tensors, key)
        body = letters.message_letter(message, {})
        account.answers.keep(place, account.answers.last, request, body)
        return body

    def _sum(self, header: dict[str, Any], tensors: dict[str, Tensor], request: bytes) -> bytes:
        """Take part in a secure sum: keys, shares, the masked answer, shares that unmask the sum."""
        job, account, sums = self._job(header)
        asked = SumRequest.read(header, tensors, job)
        round, phase, data = asked.round, asked.phase, asked.data
        if asked.step == "keys":
            if asked.release is None:
                account.in_order(round, phase, job.job.method.phases)
            reply = sums.keys(round, phase, asked.plan)
        elif asked.step == "shares":
            reply = sums.shares(round, phase, data)
        elif asked.step == "masked":
            return self._masked(asked, request, job, account, sums)
        else:
            reply = sums.unmask(round, phase, data)
        return _carried(reply)

    def _masked(self, asked: SumRequest, request: bytes, job: SiteJob, account: SiteAccount, sums: SiteSums) -> bytes:
        """Pay for a round, train, and return the row under masks; a row is never masked for two sums."""
        before = account.answers.before(asked.place, request)
        if before is not None:
            return before
        sums.begun(asked.round, asked.phase)
        clients = list(job.member.clients)
        if asked.release is None:
            account.in_order(asked.round, asked.phase, job.job.method.phases)
            state = job.state(asked.state, asked.round)
            self._pay(job, account, asked.round)
        with self._undone(job):
            if asked.release is not None:
                message = job.once(*asked.release, asked.state, asked.key)
            else:
                message = job.answer(asked.phase, state, clients)
                job.save(asked.round + 1)
            sealed = asked.plan.channel.seal(message, clients)
            body = _carried(sums.masked(asked.round, asked.phase, asked.data, sealed, asked.plan))
            account.answers.keep(asked.place, account.answers.last if asked.release else asked.round, request, body)
        return body

    def _pay(self, job: SiteJob, account: SiteAccount, round: int) -> None:
        plan = site_price.own(job.job, job.member.clients).plan
        costs = pricing.costs(job.job.method, plan, round)
        account.pay(round, list(job.member.clients), price.cost_to(job.job.viewer, costs))
        faults.point("paid at a site")

    def _forget(self, name: str) -> None:
        job, account, _ = self._jobs.pop(name)
        job.close()
        account.close()

    def close(self) -> None:
        """Close all files."""
        for name in list(self._jobs):
            self._forget(name)
        self._foreign.close()


def _write_whole(path: Path, text: str) -> None:
    """Write a file, whole or not at all, unless it holds this text already."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)  # noqa: PTH105


def _carried(data: bytes) -> bytes:
    """Return a letter that carries opaque bytes."""
    return letters.packed({}, {BYTES: torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())})


def _unit(job: Any) -> str:
    return str(job.plan.unit or job.method.units[0])


def _request(header: dict[str, Any]) -> tuple[int, str, list[int]]:
    """Return round, phase and clients of a request for training; raise Refusal for anything else."""
    if set(header) != set(TOLD):
        raise Refusal("the request has other entries than round, phase and clients.")
    round, phase, clients = header["round"], header["phase"], header["clients"]
    whole = isinstance(clients, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in clients)
    if not isinstance(round, int) or isinstance(round, bool) or not isinstance(phase, str) or not whole:
        raise Refusal("the request does not name a round, a phase and clients.")
    return round, phase, clients
