"""`sordino deploy`: a trial federation of real processes around Flower, and the folders for real sites."""

from __future__ import annotations

import json as jsonlib
import time
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from sordino.core.errors import RunError
from sordino.deploy import follow, start, status
from sordino.deploy.folder import CONNECTION, Folder, opened

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
@click.option("--follow/--no-follow", "wait", default=True, help="Wait until the job has ended, and show its progress.")
@click.option("--stream", is_flag=True, help="Show Flower's log of the job too, on standard error.")
@click.option("--resume", default=None, metavar="RUN", help="Continue this run folder.")
@click.option("--name", default=None, help="Name of the run folder (default: derived from the time).")
@click.option("--timeout", type=float, default=None, help="Seconds to wait for the answers of one exchange.")
def run(folder: Path, wait: bool, stream: bool, resume: str | None, name: str | None, timeout: float | None) -> None:
    """Start the job on the sites that are up, and follow it."""
    place = opened(folder)
    job, run_folder = follow.begin(place, resume, name, timeout)
    click.echo(f"Flower runs the job as {job}.")
    if not wait:
        click.echo("Next: sordino deploy status --watch")
        return
    try:
        end = follow.follow(place, job, run_folder, _say, stream)
    except KeyboardInterrupt:
        click.echo(
            f"No longer following; the job goes on. To stop it: FLWR_HOME={place.home} flwr stop {job} {CONNECTION}"
        )
        return
    if end != "finished:completed":
        again = f" To continue: sordino deploy run --resume {run_folder.name}" if run_folder.exists() else ""
        if (why := follow.reason(place)) is not None:
            raise RunError(f"the job has failed: {why}{again}")
        click.echo(follow.last_words(place, job), err=True)
        raise RunError(f"the job ended as {end.removeprefix('finished:')}; the end of its log is above.{again}")
    for line in status.result_lines(run_folder):
        click.echo(line)


@deploy.command("status", context_settings=HELP)
@_folder
@click.option("--watch", is_flag=True, help="Look again every two seconds, until interrupted.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show_status(folder: Path, watch: bool, as_json: bool) -> None:
    """Show who is online, the round of the newest job, and what each site answered and spent."""
    place = opened(folder)
    if as_json:
        click.echo(jsonlib.dumps(status.look(place).to_json(), indent=2))
        return
    console = Console()
    if not watch:
        console.print(_table(place))
        return
    with Live(_table(place), console=console, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(2.0)
                live.update(_table(place), refresh=True)
        except KeyboardInterrupt:
            return


@deploy.command(context_settings=HELP)
@_folder
def down(folder: Path) -> None:
    """End the processes that `up` started, with their children, and nothing else."""
    if not start.down(opened(folder), say=_say):
        click.echo("Nothing was running.")


def _table(folder: Folder) -> Table:
    state = status.look(folder)
    parts = ", ".join(f"{name} {what}" for name, what in state.server.items())
    online = "the SuperLink does not answer" if state.online is None else f"{state.online} nodes online"
    job = "no job yet" if state.job is None else f"{state.job.folder.name}: {state.job.sentence()}"
    table = Table(title=f"{state.name}: {parts}; {online}\n{job}", title_justify="left")
    for head in status.HEADS:
        table.add_column(head, justify="right" if head in ("answered", "silent", "failed", "epsilon") else "left")
    for row in state.rows:
        table.add_row(*row)
    return table


def _say(line: str) -> None:
    click.echo(line)
