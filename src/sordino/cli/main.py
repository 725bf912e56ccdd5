"""The `sordino` command. Subcommands are imported when they are called, so that --help is fast."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from typing import Any

import click

COMMANDS = {  # name -> (module, one line for --help)
    "run": ("sordino.cli.run", "Train privately: on the embedded dataset, or as a TOML file says."),
    "resume": ("sordino.cli.run", "Go on with an interrupted run."),
    "compare": ("sordino.cli.compare", "Compare methods at one honest budget: every method, epsilon and seed a run."),
    "reproduce": ("sordino.cli.reproduce", "Run a figure or table of a paper: as printed, sound, honest epsilon."),
    "explain": ("sordino.cli.explain", "Say what a run's method decided on the way, and why."),
    "export": ("sordino.cli.export", "Copy the public part of a run, alone, to a folder or an archive."),
    "plan": ("sordino.cli.plan", "Say before training what would work: unit, trust model, noise, rounds, accuracy."),
    "check": ("sordino.cli.check", "Is a configuration private at all? What is broken, weak or worth knowing."),
    "datasets": (
        "sordino.cli.datasets",
        "List the benchmark datasets: what they are, where they lie, how to get them.",
    ),
    "partition": ("sordino.cli.partition", "See how records are dealt to clients."),
    "methods": ("sordino.cli.methods", "List methods and algorithms, their options, and what goes with what."),
    "epsilon": ("sordino.cli.epsilon", "Price a mechanism, sampled, repeated or in a schedule: its total epsilon."),
    "calibrate": ("sordino.cli.calibrate", "Find the noise, or the number of steps, for a total epsilon."),
    "mechanisms": ("sordino.cli.mechanisms", "List the mechanisms: their geometry, parameters and what is known."),
    "ledger": (
        "sordino.cli.ledger",
        "Budgets over all runs on the same people's data; what was spent; the registry and its key.",
    ),
    "init": ("sordino.cli.init", "Write a commented run file with every key."),
    "completion": ("sordino.cli.completion", "Print the line that switches shell completion on."),
}


class Lazy(click.Group):
    """A group that imports a subcommand when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(f"{error.message} There are: {', '.join(COMMANDS)}.", ctx) from error


@click.command(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="sordino")
def cli() -> None:
    """Differentially private federated learning with an honest, total epsilon."""


def _short(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:77]}... ({len(name)} characters)"


def main() -> None:
    """Run the command line.

    Errors of Sordino are printed to stderr as one line, with exit code 2, so a typing mistake shows no traceback.
    """
    from sordino.core import plugin
    from sordino.core.errors import SordinoError

    warnings.formatwarning = lambda message, *_, **__: f"sordino: {message}\n"
    try:
        cli.main(standalone_mode=False)
    except SordinoError as error:
        click.echo(f"sordino: {type(error).__name__}: {error}", err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("\nsordino: stopped. A run that had begun goes on with `sordino resume RUN`.", err=True)
        sys.exit(130)
    except BrokenPipeError:  # `sordino ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if place := plugin.place(error):
            told = f"a plug-in fails ({place}): {type(error).__name__}: {error}"
        elif isinstance(error, OSError) and error.filename is not None:
            told = f"{error.strerror}: {_short(str(error.filename))}"
        else:
            raise
        click.echo(f"sordino: {told}", err=True)
        sys.exit(2)
