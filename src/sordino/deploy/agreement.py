"""What a server and its sites agree on before a run: the spec, the form of the records, who takes part.

The agreement is public, and everything that is computed follows from it: each site builds the job from the agreement by
itself, so that the noise, the clip and the steps that it uses are its own results and never the server's word. The id
of a job is the hash of its agreement: a server that changes anything asks for another job.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from sordino.core import plugin
from sordino.core.errors import RunError, SpecError
from sordino.core.version import VERSION
from sordino.data.clients import ArrayClients
from sordino.data.dataset import Dataset
from sordino.data.find import obtain
from sordino.deploy.description import Description, Pair
from sordino.privacy import personal
from sordino.run_folder.boundary import OWN
from sordino.runs import build
from sordino.runs.job import Job, Owner
from sordino.runs.prepare import prepare
from sordino.spec import spec as specs
from sordino.spec.spec import Spec

LOCAL = ("out", "name", "ledger", "data_dir", "dataset", "test", "schema", "data_name", "device", "memory_gb")
SIMULATED = ("dropout", "late", "slow", "joining")  # stragglers of a simulation; a federation has its own
APART = {
    "server_data": "the server of a federation holds no records of clients",
    "tuning": "a search holds records of all clients together; search before, by simulation",
    "without_private": "the sites themselves hold what they hold",
    "baseline": "it would train without privacy on the sites' records",
    "audit": "canaries are planted by simulations",
    "record_views": "views of the server are kept by simulations",
    "initial_weights": "a site cannot tell what a file of the server was made from",
    "initial_weights_from": "it belongs to initial_weights",
    "public_share": "which records are public is each site's to say; name public records by test",
}  # keys that make no sense where clients hold their own data, and why


@dataclass(frozen=True)
class Member:
    """A site that takes part, and its clients."""

    name: str
    clients: tuple[int, ...]  # numbers in the federation
    sizes: tuple[int, ...]  # public numbers of records
    users: tuple[int, ...] | None = None  # public numbers of users, where these are protected


@dataclass(frozen=True)
class Agreement:
    """Everything public that a job follows from."""

    federation: str  # name of the federation
    run: str  # random: two runs of one spec are two jobs
    keys: Mapping[str, Any]  # of the run file
    schema: str | None  # text of the schema file
    records: Description
    members: tuple[Member, ...]
    test: bool  # whether the server has public test records
    version: str = VERSION

    @cached_property
    def id(self) -> str:
        """The id of the job."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as letters carry them."""
        members = [
            [m.name, list(m.clients), list(m.sizes), None if m.users is None else list(m.users)] for m in self.members
        ]
        return {
            "federation": self.federation,
            "run": self.run,
            "keys": dict(self.keys),
            "schema": self.schema,
            "records": self.records.to_json(),
            "members": members,
            "test": self.test,
            "version": self.version,
        }

    @staticmethod
    def from_json(data: Any) -> Agreement:
        """Return the agreement in a letter; raise RunError if there is none."""
        try:
            members = tuple(
                Member(str(n), tuple(map(int, c)), tuple(map(int, s)), None if u is None else tuple(map(int, u)))
                for n, c, s, u in data["members"]
            )
            made = Agreement(
                federation=str(data["federation"]),
                run=str(data["run"]),
                keys=dict(data["keys"]),
                schema=None if data["schema"] is None else str(data["schema"]),
                records=Description.from_json(data["records"]),
                members=members,
                test=bool(data["test"]),
                version=str(data["version"]),
            )
            numbers = [i for m in members for i in m.clients]
            names = [m.name for m in members]
            fits = all(len(m.clients) == len(m.sizes) == len(m.users or m.sizes) for m in members)
            positive = all(n > 0 for m in members for n in (*m.sizes, *(m.users or ())))
            if not members or not fits or not positive or numbers != list(range(len(numbers))):
                raise ValueError
            if len(set(names)) != len(names):
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError("a letter arrived without an agreement on a job.") from error
        return made

    @property
    def sizes(self) -> tuple[int, ...]:
        """The public number of records of every client."""
        return tuple(n for m in self.members for n in m.sizes)

    @property
    def users(self) -> tuple[int, ...] | None:
        """The public number of users of every client, where users are protected."""
        known = [m.users for m in self.members]
        return None if any(u is None for u in known) else tuple(n for u in known if u is not None for n in u)

    def member(self, name: str) -> Member:
        """Return the entry of a site."""
        for member in self.members:
            if member.name == name:
                return member
        raise RunError(f"the agreement does not name the site {name}.")

    @cached_property
    def asked(self) -> Spec:
        """The spec as it is in the run file, after the checks that a federation adds."""
        return checked(self.keys)

    def spec(self) -> Spec:
        """Return the spec of the job: that of the run file, with the clients that there are.

        The server writes a checkpoint after every round: sites repeat the answers of their last round only.
        """
        here: dict[str, Any] = {"federation": "flower", "partition": "natural", "blocks": None}
        return replace(self.asked, clients=len(self.sizes), checkpoint_seconds=0.0, **here)

    def job(self, test: Pair | None = None, device: str = "cpu", **keys: Any) -> Job:
        """Return the job, on data that stand in for the clients'.

        Args:
            test: the public test records; without them, whether there are any is all that counts.
            device: where to compute.
            keys: keys of the spec that are a matter of this machine, such as the folder for the run.
        """
        benchmark = shipped(self.asked.dataset) if self.records.benchmark else None
        data = self.records.stand_in(self.sizes, self.users, test or self.test, benchmark)
        wanted = replace(self.spec(), **keys)
        job = build.from_prepared(prepare(wanted, stand_in=data), device)
        if job.public_data:
            return job
        one = ArrayClients(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64), [1])
        return replace(job, owner=Owner(one, remote=self.asked.data_name or f"federation {self.federation}"))


def checked(keys: Mapping[str, Any]) -> Spec:
    """Return the spec of a run file for a federation; raise SpecError for keys that are for simulations."""
    spec = specs.from_dict(dict(keys))
    if spec.federation not in ("simulator", "flower"):
        raise SpecError(f"federation = {spec.federation} runs clients on this machine; drop it to run on real sites.")
    defaults = Spec()
    for name in SIMULATED:
        if getattr(spec, name) != getattr(defaults, name):
            raise SpecError(
                f"{name} simulates clients that fail, which real sites do by themselves: drop it. allowed_dropouts "
                "says how many may be missing."
            )
    for name, why in APART.items():
        if getattr(spec, name) not in (None, getattr(defaults, name)):
            raise SpecError(f"{name} is for simulations: {why}. Drop it.")
    if spec.budgets is not None and not personal.is_public(spec.budgets):
        raise SpecError(
            "budgets names a file of one machine: write one epsilon per site, such as 0.5,2,1, in the order of the "
            "roster, or epsilon:share pairs."
        )
    if spec.private_data is not None and spec.private_data.startswith("file:"):
        raise SpecError("private_data = file:... names a file of one machine: use label: or feature:.")
    if spec.unit == "user" and (spec.validation or spec.evaluate_on == "validation"):
        raise SpecError("validation holds out whole users, of whom the server knows nothing: name public test records.")
    return spec


def shipped(name: str, data_dir: str | None = None) -> Dataset | None:
    """Return a shipped benchmark, or None if the name is not one's."""
    return obtain(plugin.load("data.sets", name), data_dir) if name in plugin.available("data.sets") else None


def public_keys(spec_file: Path) -> dict[str, Any]:
    """Return the keys of a run file that an agreement holds: those that are no places of the server's machine.

    A dataset that is no shipped benchmark is a file of each site's own, for which one fixed name stands: without it,
    the default of the key would name a benchmark that nobody asked for.
    """
    keys = specs.read(spec_file)
    checked(keys)
    public = {k: v for k, v in keys.items() if k not in LOCAL or k == "data_name"}
    dataset = keys.get("dataset", Spec.dataset)
    return public | {"dataset": dataset if dataset in plugin.available("data.sets") else OWN}
