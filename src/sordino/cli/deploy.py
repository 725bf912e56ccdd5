"""`sordino deploy`: a trial federation of real processes around Flower, and the folders for real sites."""

from __future__ import annotations

from pathlib import Path

import click

from sordino.deploy import start
from sordino.deploy.folder import opened

HELP = {"help_option_names": ["-h", "--help"]}
_folder = click.option(
    "--folder",
    default="federation",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of the federation.",
)


@click.group(context_settings=HELP)
def deploy() -> None:
    """Run a job on real sites, with Flower in between: first all on this machine, then each where its data are.

    \b
    sordino deploy init my.toml --sites 3     (writes the folder: keys, certificates, policies, the app)
    sordino deploy up                         (starts server and sites as processes of this machine)
    sordino deploy run                        (starts the job and follows it)
    sordino deploy status                     (who is online, which round, what each site has spent)
    sordino deploy down                       (ends what `up` started)
    """


@deploy.command(context_settings=HELP)
@click.argument("file", metavar="SPEC.toml", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--sites", type=int, default=None, help="Number of sites, one client each (default: clients of the file)."
)
@click.option("--out", default="federation", show_default=True, type=click.Path(path_type=Path), help="Folder to make.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Name or address at which sites reach the server.")
@click.option("--port", default=18000, show_default=True, help="The port that sites reach; ports above are local.")
@click.option("--name", default=None, help="Name of the federation (default: a random one).")
@click.option("--days", default=90, show_default=True, help="Days until the certificates expire.")
def init(file: Path, sites: int | None, out: Path, host: str, port: int, name: str | None, days: int) -> None:
    """Write the folder of a federation: keys, certificates, a policy per site, the app. Nothing is left to edit."""
    from sordino.deploy.create import create

    folder = create(file, out, sites, host, port, name, days)
    roster = folder.roster()
    click.echo(f"Wrote {out}: the federation {roster.name} with {len(roster.sites)} sites, for {host}:{port}.")
    click.echo(f"{out / 'README.md'} says which folder goes to which site. {out / 'ca'} stays with you.")
    where = "" if str(out) == "federation" else f" --folder {out}"
    click.echo(f"Try all of it on this machine: sordino deploy up{where}")


@deploy.command(context_settings=HELP)
@_folder
@click.option(
    "--nodes", type=int, default=None, help="How many sites to start here (default: all; 0: the server alone)."
)
@click.option("--data", default=None, metavar="NAME|PATH", help="Data of the sites (default: dataset of the run file).")
@click.option(
    "--flower-user", default=None, metavar="USER", help="User for Flower's processes (as root; default: nobody)."
)
@click.option("--bind", default=None, metavar="ADDRESS", help="Local address of the gate (default: the host).")
def up(folder: Path, nodes: int | None, data: str | None, flower_user: str | None, bind: str | None) -> None:
    """Start the server and the sites as processes of this machine; what runs already is left alone."""
    start.up(opened(folder), nodes, data, flower_user, bind, say=_say)
    click.echo("Next: sordino deploy run")


@deploy.command(context_settings=HELP)
@_folder
def down(folder: Path) -> None:
    """End the processes that `up` started, with their children, and nothing else."""
    if not start.down(opened(folder), say=_say):
        click.echo("Nothing was running.")


def _say(line: str) -> None:
    click.echo(line)
