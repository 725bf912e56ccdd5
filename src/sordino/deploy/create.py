"""`sordino deploy init`: make the folder of a federation, with nothing left to edit by hand."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path

from sordino.core.errors import RunError, SpecError
from sordino.deploy import app, policy_file, readme
from sordino.deploy.certificates import (
    LOOPBACK,
    Authority,
    check_host,
    issue,
    new_authority,
    write_certificate,
    write_identity,
    write_key,
    write_node_key,
    write_secret,
)
from sordino.deploy.flower import settings
from sordino.deploy.folder import ROSTER, Folder, Roster, SiteEntry, check_name
from sordino.spec.spec import Spec

MOST_SITES = 500  # a SuperNode costs about 200 MB; and ports above the first must exist


def create(
    run_file: Path,
    target: Path,
    sites: int | None = None,
    host: str = "127.0.0.1",
    port: int = 18000,
    name: str | None = None,
    days: int = 90,
) -> Folder:
    """Make the folder of a federation: all of it, or nothing.

    Args:
        run_file: the run file; it is checked, and copied into the app.
        target: the folder to make; it must not exist.
        sites: the number of sites, one client each; None takes `clients` of the run file.
        host: name or address at which sites reach the server.
        port: the one port that sites reach.
        name: name of the federation (default: "federation" and a random suffix).
        days: days until the certificates expire.
    """
    if os.path.lexists(target):
        raise RunError(f"{target} exists already; nothing was changed. Name another folder with --out.")
    keys, spec = app.read_spec(run_file, sites)
    count = int(keys["clients"])
    if not 1 <= count <= MOST_SITES:
        raise SpecError(f"a federation has 1 to {MOST_SITES} sites, not {count}.")
    if not 1 <= port <= 65535 - 101 - count:
        raise SpecError(
            f"the port must lie between 1 and {65535 - 101 - count}, not {port}: ports above it are used too."
        )
    if not 1 <= days <= 3650:
        raise SpecError(f"certificates are valid for 1 to 3650 days, not {days}.")
    check_host(host)
    name = check_name(name) if name is not None else f"federation-{secrets.token_hex(4)}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror}.") from error
    try:
        _write(Folder(building), Folder(target.absolute()), keys, spec, (name, host, port), count, days)
        building.chmod(0o755)  # the nodes' user passes through; what is secret inside is closed by itself
        building.rename(target)
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror}.") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return Folder(target.absolute())


def _write(
    folder: Folder,
    final: Folder,
    keys: dict[str, object],
    spec: Spec,
    place: tuple[str, str, int],
    count: int,
    days: int,
) -> None:
    name, host, port = place
    authority = new_authority(name, days)
    folder.ca.mkdir(mode=0o700)
    write_key(folder.ca / "ca.key", authority.key)
    write_certificate(folder.ca / "ca.crt", authority.certificate)
    entries = [_site(folder.site(f"site-{k + 1}"), name, authority, days) for k in range(count)]
    roster = Roster(name, host, port, tuple(entries))
    folder.roster_file.write_text(roster.to_toml(), encoding="utf-8")
    policy = policy_file.template(spec, count)
    for number, entry in enumerate(entries):
        place_of_site = folder.site(entry.name)
        (place_of_site / ROSTER).write_text(roster.to_toml(), encoding="utf-8")
        (place_of_site / "policy.toml").write_text(policy, encoding="utf-8")
        (place_of_site / "policy.toml").chmod(0o600)  # what a site would allow is not for apps to read
        script = place_of_site / "node.sh"
        script.write_text(readme.node_script(roster, number), encoding="utf-8")
        script.chmod(0o755)
    _server(folder, final, roster, authority, days)
    app.write(folder, roster, keys)
    (folder.path / "README.md").write_text(readme.page(roster, keys), encoding="utf-8")


def _site(path: Path, federation: str, authority: Authority, days: int) -> SiteEntry:
    path.mkdir(parents=True)
    path.chmod(0o711)
    write_node_key(path / "node", f"{federation} {path.name}")
    public = write_identity(path / "identity.key")
    key, certificate = issue(authority, path.name, LOOPBACK, days)
    write_key(path / "site.key", key)
    write_certificate(path / "site.crt", certificate)
    write_certificate(path / "ca.crt", authority.certificate)
    return SiteEntry(path.name, 1, public)


def _server(folder: Folder, final: Folder, roster: Roster, authority: Authority, days: int) -> None:
    folder.server.mkdir(mode=0o700)
    key, certificate = issue(authority, roster.host, (roster.host, *LOOPBACK), days)
    write_key(folder.server / "server.key", key)
    write_certificate(folder.server / "server.crt", certificate)
    write_certificate(folder.server / "ca.crt", authority.certificate)
    write_secret(folder.server / "superexec.secret", secrets.token_bytes(32))
    folder.home.mkdir()
    settings(folder.home, roster.inner_port, final.server / "ca.crt")
    folder.nodes.mkdir()
    for site in roster.sites:
        shutil.copyfile(folder.site(site.name) / "node.pub", folder.nodes / f"{site.name}.pub")
