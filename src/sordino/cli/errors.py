"""How errors are shown: one line for people or, with --json, one object {"error": kind, "message": text} for programs.

Both go to standard error: an error may say what only the owner of the data should know (a record that cannot be read,
what is left of a budget), and standard output may be passed on. Every command accepts --json; the exit code is the
same with it."""

from __future__ import annotations

import json
import sys

import click

FLAG = "--json"


def accept_json(command: click.Command) -> None:
    """Give a command, and all commands below it, the option --json if they do not have it."""
    if isinstance(command, click.Group):
        for below in command.commands.values():
            accept_json(below)
    elif not any(FLAG in parameter.opts for parameter in command.params):
        text = "Print an error as one JSON object."
        command.params.append(click.Option([FLAG], is_flag=True, expose_value=False, help=text))


def wanted() -> bool:
    """Return whether the arguments of this process ask for JSON."""
    words = sys.argv[1:]
    return FLAG in words[: words.index("--") if "--" in words else None]


def show(kind: str, message: str, line: str | None = None) -> None:
    """Print an error.

    Args:
        kind: the name of the kind of error.
        message: the message.
        line: the line for people; by default "sordino: KIND: MESSAGE".
    """
    if wanted():
        line = json.dumps({"error": kind, "message": message})
    click.echo(f"sordino: {kind}: {message}" if line is None else line, err=True)


def show_usage(error: click.ClickException) -> None:
    """Print an error in the arguments: an unknown option or command, a missing argument."""
    if wanted():
        show(type(error).__name__, error.format_message())
    else:
        error.show()
