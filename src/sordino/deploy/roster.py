"""The keys of a federation's sites, and the signatures under their answers.

Every party holds the roster (federation.toml) itself: one that came from the server would let the server play every
site. A reply is signed by its site for one request, so that nobody else can answer, and no answer serves twice.
"""

from __future__ import annotations

from sordino.core.errors import RunError, SpecError
from sordino.deploy.folder import Roster
from sordino.masking.identity import SIGNATURE, Identity, KeyRoster
from sordino.masking.session import Session, joined

REPLY = "reply"  # purpose of the signature of a reply


def keys(roster: Roster) -> KeyRoster:
    """Return the public keys, by the number of the site in the roster."""
    return KeyRoster({i: site.key for i, site in enumerate(roster.sites)})


def number(roster: Roster, name: str) -> int:
    """Return the number of a site in the roster."""
    for i, site in enumerate(roster.sites):
        if site.name == name:
            return i
    raise SpecError(f"the roster names no site {name}; it has {', '.join(site.name for site in roster.sites)}.")


def opened(roster: Roster, name: str, request: bytes, reply: bytes) -> bytes:
    """Return the letter in a reply of a site; raise RunError unless the site signed it, for this request."""
    signature, body = reply[:SIGNATURE], reply[SIGNATURE:]
    who = number(roster, name)
    if not keys(roster).signed(who, REPLY, _session(roster), joined(request, body), signature):
        raise RunError(f"an answer in the name of {name} was not signed by it.")
    return body


def signed(roster: Roster, identity: Identity, request: bytes, body: bytes) -> bytes:
    """Return a reply to a request: the letter with the signature of the site in front."""
    return identity.sign(REPLY, _session(roster), joined(request, body)) + body


def _session(roster: Roster) -> Session:
    return Session(roster.name, "any", 0, REPLY)
