"""The roster of a federation: its name, its sites and their public keys, in a file that every party holds itself.

A roster that came from the server would let the server play every site, so each site gets the file from its operator.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from sordino.core.errors import RunError, SordinoError, SpecError
from sordino.masking.identity import SIGNATURE, Identity
from sordino.masking.identity import Roster as Keys
from sordino.masking.session import Session, joined

REPLY = "reply"  # purpose of the signature of a reply


@dataclass(frozen=True)
class SiteEntry:
    """A site in the roster."""

    name: str
    key: str  # public key, hexadecimal
    clients: int = 1  # number of clients that the site holds


@dataclass(frozen=True)
class Roster:
    """The sites of a federation."""

    federation: str
    sites: tuple[SiteEntry, ...]

    def __post_init__(self) -> None:
        names = [site.name for site in self.sites]
        if not names or len(set(names)) != len(names):
            raise SpecError("a roster names every site of the federation once.")
        self.keys  # noqa: B018 (raises an error for a key that is none)

    @property
    def keys(self) -> Keys:
        """The public keys, by the number of the site in the roster."""
        return Keys({i: site.key for i, site in enumerate(self.sites)})

    def number(self, name: str) -> int:
        """Return the number of a site in the roster."""
        for i, site in enumerate(self.sites):
            if site.name == name:
                return i
        raise SpecError(f"the roster names no site {name}; it has {', '.join(site.name for site in self.sites)}.")

    def opened(self, name: str, request: bytes, reply: bytes) -> bytes:
        """Return the letter in a reply of a site; raise RunError unless the site signed it, for this request."""
        signature, body = reply[:SIGNATURE], reply[SIGNATURE:]
        if not self.keys.signed(self.number(name), REPLY, self._session(), joined(request, body), signature):
            raise RunError(f"an answer in the name of {name} was not signed by it.")
        return body

    def signed(self, identity: Identity, request: bytes, body: bytes) -> bytes:
        """Return a reply to a request: the letter with the signature of the site in front."""
        return identity.sign(REPLY, self._session(), joined(request, body)) + body

    def _session(self) -> Session:
        return Session(self.federation, "any", 0, REPLY)


def read(path: Path) -> Roster:
    """Return the roster in a file, federation.toml."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        sites = tuple(SiteEntry(str(s["name"]), str(s["key"]), int(s.get("clients", 1))) for s in data["site"])
        return Roster(str(data["name"]), sites)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SpecError(f"cannot read the roster {path}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise SpecError(f"{path} is no roster: it needs name, and name and key of every [[site]].") from error
    except SordinoError as error:
        raise SpecError(f"{path}: {error}") from error
