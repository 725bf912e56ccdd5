"""Sites in this process, and a post that carries letters to them: a federation without any network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sordino.core.errors import RunError
from sordino.deploy import gathering
from sordino.deploy import roster as rosters
from sordino.deploy.agreement import Agreement
from sordino.deploy.folder import Roster, SiteEntry
from sordino.deploy.gathering import Asked
from sordino.deploy.policy import Policy
from sordino.deploy.site import FederationSite
from sordino.deploy.site_data import SiteData
from sordino.federations.flower import Replies
from sordino.masking.identity import Identity
from sordino.runs.job import Job

OPEN = Policy(
    epsilon_per_job=math.inf,
    delta_per_job=0.5,
    epsilon_total=math.inf,
    delta_total=0.99,
    methods=("dp-sgd", "dp-fedavg", "nbafl", "none", "distributed"),
    units=("record", "client", "user"),
    viewers=("server", "public", "client", "server+1"),
    min_cohort=1,
    allowed_dropouts=10,
    secure_noise=False,
    answer_seconds=0.0,
)
Spoil = Callable[[str, bytes], bytes | None]  # site, reply -> the reply that arrives, or None


class LocalPost:
    """Carries letters to sites in this process; `spoil` may lose or change replies, `seen` keeps what passed."""

    def __init__(self, roster: Roster, sites: Mapping[str, FederationSite]) -> None:
        self.roster, self.sites = roster, dict(sites)
        self.down: set[str] = set()
        self.spoil: Spoil | None = None
        self.spoil_request: Spoil | None = None
        self.requests: list[tuple[str, bytes]] = []
        self.seen: list[tuple[str, bytes]] = []

    def exchange(self, requests: Mapping[str, bytes]) -> Replies:
        out = Replies()
        for name, request in requests.items():
            if name in self.down:
                out.silent.append(name)
                continue
            if self.spoil_request is not None:
                changed = self.spoil_request(name, request)
                if changed is None:
                    out.silent.append(name)
                    continue
                request = changed
            self.requests.append((name, request))
            reply: bytes | None = self.sites[name].answer(request)
            if self.spoil is not None:
                reply = self.spoil(name, reply)
            if reply is None:
                out.silent.append(name)
                continue
            self.seen.append((name, reply))
            try:
                out.answered[name] = rosters.opened(self.roster, name, request, reply)
            except RunError as error:
                out.failed[name] = str(error)
        return out


def roster_of(sites: int, clients: int = 1) -> tuple[Roster, list[Identity]]:
    identities = [Identity.new() for _ in range(sites)]
    entries = tuple(SiteEntry(f"site-{i + 1}", clients, who.public) for i, who in enumerate(identities))
    return Roster("test-federation", "127.0.0.1", 18000, entries), identities


def local_sites(
    folder: Path, data: list[str] | str, sites: int = 3, policy: Policy = OPEN, clients: int = 1
) -> LocalPost:
    """Return a post to new sites: of a benchmark, or each with its own file."""
    roster, identities = roster_of(sites, clients)
    made = {}
    for i, (entry, who) in enumerate(zip(roster.sites, identities, strict=True)):
        source = data if isinstance(data, str) else data[i]
        home = folder / entry.name
        home.mkdir(parents=True, exist_ok=True)
        holds = SiteData(source, home, client=i * clients, clients=clients, declared=policy.records)
        made[entry.name] = FederationSite(entry.name, policy, holds, roster, who, home)
    return LocalPost(roster, made)


def agree(post: LocalPost, keys: Mapping[str, Any], test: Any = None, schema: str | None = None) -> Agreement:
    asked = Asked(dict(keys), schema, test)
    facts = gathering.hello(post, post.roster, asked, 0.0, len(post.roster.sites), lambda text: None)
    return gathering.agreed(post.roster, asked, facts)


def job_of(post: LocalPost, agreement: Agreement, test: Any = None, **keys: Any) -> Job:
    gathering.open_everywhere(post, agreement)
    return gathering.federated(post, post.roster, agreement, test, **keys)
