"""The start of a job on real sites: ask every site what is public about its data, agree, and open the job."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sordino.core.errors import DataError, RunError, SpecError
from sordino.core.version import VERSION
from sordino.data.load import load
from sordino.deploy import roster as rosters
from sordino.deploy.agreement import Agreement, Member, checked, shipped
from sordino.deploy.description import Description, Pair
from sordino.deploy.folder import Roster
from sordino.federations import letters
from sordino.federations.flower import Flower, Party, Post
from sordino.federations.simulator import Simulator
from sordino.masking.session import Session
from sordino.runs.job import Job
from sordino.runs.prepare import columns_of
from sordino.spec.spec import Spec

PAUSE = 2.0  # seconds between two questions to sites that were silent
Say = Callable[[str], None]
Mix = Callable[[Session, dict[int, bytes]], list[bytes]]


@dataclass(frozen=True)
class Asked:
    """What a job is about, as the server's operator gives it."""

    keys: Mapping[str, Any]  # of the run file, without places on this machine
    schema: str | None  # text of the schema file
    test: Pair | None = None  # public test records


def hello(post: Post, roster: Roster, asked: Asked, wait: float, least: int, say: Say) -> dict[str, dict[str, Any]]:
    """Return the public facts that sites tell, by site; ask again until all have answered, or for so many seconds.

    Args:
        post: carries letters.
        roster: the sites.
        asked: the job.
        wait: seconds after which the job begins with those that have answered.
        least: number of sites without which it does not begin.
        say: where progress is written.

    Raises:
        RunError: if a site refuses, or too few answer.
    """
    letter = letters.packed(
        {
            "verb": "hello",
            "version": VERSION,
            "federation": roster.name,
            "keys": dict(asked.keys),
            "schema": asked.schema,
        }
    )
    facts: dict[str, dict[str, Any]] = {}
    end = time.monotonic() + wait
    while True:
        missing = [site.name for site in roster.sites if site.name not in facts]
        replies = post.exchange(dict.fromkeys(missing, letter))
        for name, body in replies.answered.items():
            header, _ = letters.unpacked(body)
            if "refused" in header or "error" in header:
                raise RunError(f"{name} refuses the job: {str(header.get('refused') or header.get('error'))[:500]}")
            facts[name] = header
        if len(facts) == len(roster.sites):
            return facts
        if time.monotonic() > end:
            break
        say(f"waiting for {', '.join(s.name for s in roster.sites if s.name not in facts)}")
        time.sleep(min(PAUSE, max(0.0, end - time.monotonic())))
    if len(facts) < least:
        silent = ", ".join(s.name for s in roster.sites if s.name not in facts)
        raise RunError(
            f"only {len(facts)} of {len(roster.sites)} sites answered; {silent} did not. Start their daemons and "
            "nodes, or begin with fewer sites."
        )
    return facts


def agreed(roster: Roster, asked: Asked, facts: Mapping[str, Mapping[str, Any]]) -> Agreement:
    """Return the agreement of the sites that answered; raise DataError if they hold records of different forms."""
    members, first, form = [], 0, None
    for site in roster.sites:
        if site.name not in facts:
            continue
        told = facts[site.name]
        try:
            sizes = tuple(int(n) for n in told["sizes"])
            users = None if told["users"] is None else tuple(int(n) for n in told["users"])
            described = Description.from_json(told["records"])
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{site.name} did not tell what is public about its data.") from error
        if len(sizes) != site.clients:
            raise DataError(f"{site.name} has {len(sizes)} clients; the roster says {site.clients}.")
        if form is None:
            form = described
        elif (why := form.differs(described)) is not None:
            raise DataError(
                f"the sites hold records of different forms: at {site.name}, {why}. Declare it in the spec."
            )
        members.append(Member(site.name, tuple(range(first, first + len(sizes))), sizes, users))
        first += len(sizes)
    if form is None:
        raise RunError("no site answered.")
    channel = checked(asked.keys).channel
    if channel in ("secure-sum", "shuffler") and any(len(m.clients) > 1 for m in members):
        raise SpecError(f"channel = {channel} on real sites needs one client per site: each hides its own row.")
    keys, test = dict(asked.keys), asked.test is not None
    return Agreement(roster.name, secrets.token_hex(16), keys, asked.schema, form, tuple(members), test)


def open_everywhere(post: Post, agreement: Agreement, wait: float = 0.0) -> None:
    """Open the job at all its sites; raise RunError with every site's reason if one does not agree.

    Sites that agreed have charged the job; a job that one of them refuses is not run, and is charged in vain. Sites
    that do not answer are asked again for so many seconds: opening a job twice is charged once.
    """
    letter = letters.packed({"verb": "open", "agreement": agreement.to_json()})
    end, missing = time.monotonic() + wait, [member.name for member in agreement.members]
    while True:
        replies = post.exchange(dict.fromkeys(missing, letter))
        lost = dict(replies.failed) | dict.fromkeys(replies.silent, "no answer")
        refused = {}
        for name, body in replies.answered.items():
            header, _ = letters.unpacked(body)
            if header.get("job") != agreement.id:
                refused[name] = str(header.get("refused") or header.get("error"))[:500]
        if not lost and not refused:
            return
        if refused or time.monotonic() > end:
            why = lost | refused
            reasons = "; ".join(f"{name}: {text.rstrip('.')}" for name, text in sorted(why.items()))
            raise RunError(f"the job cannot begin. {reasons}.")
        missing = sorted(lost)
        time.sleep(min(PAUSE, max(0.0, end - time.monotonic())))


def federated(
    post: Post,
    roster: Roster,
    agreement: Agreement,
    test: Pair | None,
    mix: Mix | None = None,
    changed: Callable[[], None] | None = None,
    **keys: Any,
) -> Job:
    """Return the job of an agreement, with the real sites in place of the clients that stand in for them."""
    job = agreement.job(test, **keys)
    if not isinstance(job.federation, Simulator):
        raise RuntimeError("the stand-in of a federation is a simulator")
    if job.plan.channel.name == "shuffler" and mix is None:
        raise SpecError(
            "channel = shuffler on real sites needs a shuffler: start one (`sordino shuffler`) and tell the server "
            "where it is (run config key shuffler = HOST:PORT)."
        )
    parties = [Party(m.name, rosters.number(roster, m.name), m.clients) for m in agreement.members]
    real = Flower(
        post, roster.name, agreement.id, parties, job.federation, rosters.keys(roster), mix=mix, changed=changed
    )
    return replace(job, federation=real)


def public_test(spec: Spec, data_dir: str | None, schema: Path | None, test: str | None) -> Pair | None:
    """Return the public test records that the server has: those of a benchmark, or of a file that the spec names."""
    benchmark = shipped(spec.dataset, data_dir)
    if benchmark is not None:
        return (benchmark.x_test, benchmark.y_test) if len(benchmark.y_test) else None
    if test is None:
        return None
    read = load(test, data_dir, columns=columns_of(replace(spec, schema=None if schema is None else str(schema))))
    return read.x_train, read.y_train
