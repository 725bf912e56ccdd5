"""`sordino site`: the daemon that holds a site's data and answers what its policy allows."""

from __future__ import annotations

import os
import signal
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sordino.core.errors import RunError, SpecError

if TYPE_CHECKING:
    from sordino.deploy.policy import Policy
    from sordino.deploy.reviewed import ReviewedApp


def _print_digest(context: click.Context, _: click.Parameter, app: Path | None) -> None:
    if app is None or context.resilient_parsing:
        return
    from sordino.deploy.reviewed import digest_of

    click.echo(digest_of(app))
    context.exit()


def _reviewed(apps: tuple[Path, ...], state: Path, rules: Policy) -> tuple[ReviewedApp, ...]:
    """Return private copies of the apps, and say of each whether the policy lists it."""
    from sordino.deploy.reviewed import reviewed

    copies = tuple(reviewed(app, state, rules.foreign_seconds) for app in apps)
    for app, copy in zip(apps, copies, strict=True):
        listed = copy.digest in rules.foreign_apps
        click.echo(f"{app}: {copy.digest}" + ("" if listed else ", which foreign_apps of the policy does not list"))
    return copies


def _config(entries: tuple[str, ...]) -> dict[str, Any]:
    """Return the entries KEY=VALUE, each value as in TOML."""
    out: dict[str, Any] = {}
    for entry in entries:
        try:
            out |= tomllib.loads(entry)
        except tomllib.TOMLDecodeError as error:
            raise SpecError(f"--app-config {entry} is no KEY=VALUE, such as partition-id=0 or name='a'.") from error
    if any(not isinstance(value, bool | int | float | str) for value in out.values()):
        raise SpecError("--app-config takes numbers, texts in quotation marks, true and false.")
    return out


@click.command()
@click.option("--data", required=True, help="The site's own file or folder, or the name of a shipped benchmark.")
@click.option("--policy", type=click.Path(path_type=Path), required=True, help="What the site allows: policy.toml.")
@click.option("--roster", type=click.Path(path_type=Path), help="federation.toml (default: beside the policy).")
@click.option("--identity", type=click.Path(path_type=Path), help="identity.key (default: beside the policy).")
@click.option("--state", type=click.Path(path_type=Path), help="Private folder (default: state beside the policy).")
@click.option("--socket", "socket_path", type=click.Path(path_type=Path), help="Default: socket/site.sock beside it.")
@click.option("--client", type=int, default=0, help="With a benchmark: which client of the partition, from 0.")
@click.option(
    "--app",
    "apps",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Your reviewed copy of a Flower app that foreign_apps of the policy lists: its folder, or a .fab file.",
)
@click.option("--app-config", multiple=True, metavar="KEY=VALUE", help="Tell apps this, beside the path of the data.")
@click.option(
    "--digest",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_print_digest,
    help="Print the digest of a Flower app, for foreign_apps of a policy, and end.",
)
def site(
    data: str,
    policy: Path,
    roster: Path | None,
    identity: Path | None,
    state: Path | None,
    socket_path: Path | None,
    client: int,
    apps: tuple[Path, ...],
    app_config: tuple[str, ...],
) -> None:
    """Hold a site's data, and answer a server's requests as far as the site's policy allows.

    Without a policy nothing is trained. Data, ledger and keys are read by this process alone; what Flower starts talks
    to it through the socket. Run it under a user of its own.
    """
    here = policy.absolute().parent
    private = (state or here / "state").absolute()
    os.environ.setdefault("SORDINO_HOME", str(private))
    from sordino.deploy import policy as policies
    from sordino.deploy.daemon import SiteDaemon
    from sordino.deploy.folder import read_roster
    from sordino.deploy.site import FederationSite
    from sordino.deploy.site_data import SiteData
    from sordino.deploy.site_foreign import ForeignApps
    from sordino.masking.identity import Identity

    rules = policies.read(policy)
    known, key = read_roster(roster or here / "federation.toml"), Identity.read(identity or here / "identity.key")
    entry = next((e for e in known.sites if e.key == key.public), None)
    if entry is None:
        raise RunError("the roster names no site with the key of this one: use the folder that was made for it.")
    private.mkdir(mode=0o700, parents=True, exist_ok=True)
    holds = SiteData(data, private, client=client * entry.clients, clients=entry.clients, declared=rules.records)
    foreign = ForeignApps(_reviewed(apps, private, rules), _config(app_config))
    answers = FederationSite(entry.name, rules, holds, known, key, private, foreign)
    path = socket_path or here / "socket" / "site.sock"
    path.parent.mkdir(parents=True, exist_ok=True)
    daemon = SiteDaemon(path, answers.answer, rules.largest_letter)

    def end(*_: Any) -> None:
        daemon.stop()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    click.echo(f"{entry.name} listens at {path}; its log is {private / 'log.txt'}")
    try:
        daemon.serve()
    finally:
        answers.close()
