"""The folder of a federation: where everything lies, and the public roster that all parties share.

federation/
  README.md           which folder goes to which site, and the commands there
  federation.toml     the public roster: name, host, port, and the public key of every site
  ca/                 the certificate authority; stays with the operator
  server/             certificate, key and Flower settings of the server; later state/, log/ and runs/
  app/                the Flower app: a shim that imports Sordino
  sites/site-1/       keys, roster and policy of one site; goes to that site, and nowhere else
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.core.errors import RunError, SpecError

ROSTER = "federation.toml"
CONNECTION = "federation"  # the name of the SuperLink in Flower's own settings
SOCKET_LIMIT = 100  # bytes of the path of a Unix socket; Linux ends at 107, macOS at 103
_KEY = re.compile(r"[0-9a-f]{64}\Z")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


@dataclass(frozen=True)
class SiteEntry:
    """One line of the roster: a site, how many clients it holds, and the key with which it signs."""

    name: str
    clients: int
    key: str  # Ed25519 public key, 64 hex digits


@dataclass(frozen=True)
class Roster:
    """What every party knows about the federation."""

    name: str
    host: str
    port: int
    sites: tuple[SiteEntry, ...]
    shuffler: str | None = None  # X25519 public key of the shuffler, 64 hex digits
    shuffler_least: int = 0  # the fewest reports that it mixes, as its operator promised

    @property
    def inner_port(self) -> int:
        """The loopback port of the SuperLink, behind the gate."""
        return self.port + 1

    def node_port(self, number: int) -> int:
        """Return the loopback port of the SuperNode of a site, counted from 0."""
        return self.port + 101 + number

    def to_toml(self) -> str:
        """Return the roster as the text of federation.toml."""
        lines = [
            "# The public roster of a federation. Every site has a copy; it holds no secret.",
            f'name = "{self.name}"',
            f'host = "{self.host}"',
            f"port = {self.port}",
        ]
        if self.shuffler is not None:
            lines += [f'shuffler = "{self.shuffler}"', f"shuffler_least = {self.shuffler_least}"]
        for site in self.sites:
            lines += ["", "[[site]]", f'name = "{site.name}"', f"clients = {site.clients}", f'key = "{site.key}"']
        return "\n".join(lines) + "\n"


def read_roster(path: Path) -> Roster:
    """Read a roster; raise RunError if it is missing or damaged."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(
            f"there is no federation in {path.parent}: {path.name} is missing. Make one with "
            "`sordino deploy init SPEC.toml`, or name its folder with --folder."
        ) from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RunError(f"cannot read {path}: {error}") from error
    try:
        return _checked(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"{path} is not a roster: {error}. Restore the file that `sordino deploy init` wrote."
        ) from error


def _checked(content: dict[str, Any]) -> Roster:
    sites = tuple(SiteEntry(str(s["name"]), int(s["clients"]), str(s["key"])) for s in content["site"])
    key, least = content.get("shuffler"), int(content.get("shuffler_least", 0))
    roster = Roster(str(content["name"]), str(content["host"]), int(content["port"]), sites, key, least)
    if key is not None and (not isinstance(key, str) or not _KEY.match(key) or not 2 <= least <= len(sites)):
        raise ValueError("shuffler needs a key of 64 hex digits, and shuffler_least from 2 to the number of sites")
    names = [site.name for site in sites]
    if not names or len({*names}) < len(names) or not all(_NAME.match(n) for n in (roster.name, *names)):
        raise ValueError("names must be distinct, of letters, digits, '.', '_' or '-'")
    if not all(_KEY.match(site.key) and site.clients > 0 for site in sites):
        raise ValueError("every site needs clients and a key of 64 hex digits")
    return roster


@dataclass(frozen=True)
class Folder:
    """The paths of a federation."""

    path: Path

    @property
    def roster_file(self) -> Path:
        return self.path / ROSTER

    @property
    def ca(self) -> Path:
        return self.path / "ca"

    @property
    def server(self) -> Path:
        return self.path / "server"

    @property
    def home(self) -> Path:
        """Flower's settings for commands of the operator (FLWR_HOME)."""
        return self.server / "home"

    @property
    def nodes(self) -> Path:
        """The public halves of the sites' node keys, with which the server enrols them."""
        return self.server / "nodes"

    @property
    def state(self) -> Path:
        """The SuperLink's database and the list of started processes."""
        return self.server / "state"

    @property
    def log(self) -> Path:
        return self.server / "log"

    @property
    def runs(self) -> Path:
        return self.server / "runs"

    @property
    def app(self) -> Path:
        return self.path / "app"

    @property
    def spec(self) -> Path:
        return self.app / "sordino_app" / "spec.toml"

    @property
    def sites(self) -> Path:
        return self.path / "sites"

    def site(self, name: str) -> Path:
        return self.sites / name

    def roster(self) -> Roster:
        return read_roster(self.roster_file)


def opened(path: Path) -> Folder:
    """Return the federation in this folder, by its absolute path; raise RunError if there is none."""
    folder = Folder(path.absolute())
    folder.roster()
    return folder


def check_name(name: str) -> str:
    """Return the name if it can name a federation; raise SpecError otherwise."""
    if not _NAME.match(name) or len(name) > 40:
        raise SpecError(
            f"the name of a federation must be 1 to 40 letters, digits, '.', '_' or '-' and start with a letter or "
            f"digit, not {name!r}."
        )
    return name
