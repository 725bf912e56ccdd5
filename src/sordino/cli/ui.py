"""`sordino ui`: look at runs in the browser, while they go on and afterwards."""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import click

from sordino.core.errors import RunError
from sordino.report.reading import Audience
from sordino.ui.api import ViewAnswers
from sordino.ui.server import HOST, ViewServer

PORT = 8437  # unless it is taken


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folders", nargs=-1, metavar="[FOLDER ...]", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=None, help=f"Default: {PORT}, or a free one.")
@click.option("--no-browser", is_flag=True, help="Print the address, and start no browser.")
@click.option(
    "--for", "audience", type=click.Choice(["public", "owner"]), default="public", show_default=True,
    help="owner: show the private part of the runs too.",
)  # fmt: skip
def ui(folders: tuple[Path, ...], port: int | None, no_browser: bool, audience: str) -> None:
    """Look at runs in the browser: the list, single runs while they go on, comparisons, the ledger, a calculator.

    FOLDER holds runs (default: runs), or is a run, a comparison or a federation of `sordino deploy`. Nothing in it is
    changed. The view is reached from this machine alone, by whoever has the address with its token. To see it from
    elsewhere, use a tunnel: ssh -L 8437:127.0.0.1:8437 MACHINE, and open the printed address there.

    By default the view shows what is public of each run, so a screen may be shared. --for owner adds what is for the
    owner of the data alone: attacks, participation, the ledger, the answers of sites.
    """
    answers = ViewAnswers(folders or (Path("runs"),), cast(Audience, audience), planned)
    server = opened(answers, port)
    with server:
        click.echo(f"Open {server.address()}")
        click.echo("Ctrl-C ends the view. The address holds the key to it: pass it on to nobody.", err=True)
        if not no_browser:
            threading.Thread(target=webbrowser.open, args=(server.address(server.gate.ticket),), daemon=True).start()
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            click.echo("\nThe view has ended.", err=True)


def opened(answers: ViewAnswers, port: int | None) -> ViewServer:
    """Return a server on a port; by default on PORT, or on a free one if that is taken.

    Raises:
        RunError: if the port that was asked for is taken.
    """
    try:
        return ViewServer(answers, PORT if port is None else port)
    except OSError as error:
        if port is None:
            return ViewServer(answers)
        raise RunError(
            f"port {port} of {HOST} cannot be used ({error.strerror}). Leave out --port to take a free one."
        ) from error


def planned(numbers: Mapping[str, float]) -> Mapping[str, Any]:
    """Return what `sordino plan --json` answers to these numbers."""
    from sordino.advice import planner  # imports torch
    from sordino.cli import plan

    question = planner.PlanQuestion(**cast(Any, dict(numbers)))
    return plan.as_object(question, planner.answers(question))
