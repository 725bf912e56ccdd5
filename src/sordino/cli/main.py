"""The `sordino` command. Subcommands are imported when they are called, so that --help is fast."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import warnings
from typing import Any

import click

from sordino.cli import errors

COMMANDS = {  # name -> (module, one line for --help)
    "run": ("sordino.cli.run", "Train privately, on the embedded dataset or as described in a TOML file."),
    "resume": ("sordino.cli.run", "Continue an interrupted run."),
    "finish": (
        "sordino.cli.finish",
        "Stop an interrupted run here, and keep its model.",
    ),
    "predict": ("sordino.cli.predict", "Predict further records with the model of a run."),
    "evaluate": ("sordino.cli.evaluate", "Evaluate the model of a run on records that you name."),
    "compare": (
        "sordino.cli.compare",
        "Compare methods at the same total budget: one run per method, epsilon and seed.",
    ),
    "tune": (
        "sordino.cli.tune",
        "Search for good settings by random trials, at one honest total that is shown before.",
    ),
    "reproduce": (
        "sordino.cli.reproduce",
        "Reproduce a figure or table of a paper: as printed, sound, with an honest epsilon.",
    ),
    "attack": ("sordino.cli.attack", "Attack a run: what a curious server, client or outsider really learns."),
    "report": (
        "sordino.cli.report",
        "Write the report of a run or a comparison: its guarantee, for whoever has to judge or sign it.",
    ),
    "watch": ("sordino.cli.watch", "Show runs in the terminal as they go on: rounds, epsilon, score and curves."),
    "plot": ("sordino.cli.plot", "Write the figures of a report as pictures."),
    "ui": (
        "sordino.cli.ui",
        "Look at runs in the browser, while they go on and afterwards; compare, calculate and plan.",
    ),
    "explain": ("sordino.cli.explain", "Explain a run: its guarantee, its claim, and what its method chose and why."),
    "audit": (
        "sordino.cli.audit",
        "Measure how much of the accounted epsilon an auditor can show, of a run or before one.",
    ),
    "export": (
        "sordino.cli.export",
        "Copy the public part of a run, and nothing else; or its model with a privacy card.",
    ),
    "deploy": (
        "sordino.cli.deploy",
        "Run a job on real sites around Flower: make their folders, start, follow and stop a trial.",
    ),
    "site": ("sordino.cli.site", "Hold a site's data, and answer a federation as far as the site's policy allows."),
    "shuffler": ("sordino.cli.shuffler", "Mix the sealed rows of a federation's sites, apart from its server."),
    "plan": (
        "sordino.cli.plan",
        "Estimate before training what would work: unit, trust model, noise, rounds, accuracy.",
    ),
    "check": ("sordino.cli.check", "Look for anything that makes a run less private than it seems."),
    "datasets": (
        "sordino.cli.datasets",
        "List the benchmark datasets: what they are, and where they are or how to get them.",
    ),
    "schema": ("sordino.cli.schema", "Declare the columns of your own table: write a schema, and test it."),
    "partition": ("sordino.cli.partition", "Show how records are distributed over clients."),
    "methods": ("sordino.cli.methods", "List methods and algorithms, their options, and which go together."),
    "epsilon": ("sordino.cli.epsilon", "Compute the total epsilon of a mechanism: sampled, repeated or in a schedule."),
    "calibrate": ("sordino.cli.calibrate", "Find the noise, or the number of steps, for a total epsilon."),
    "mechanisms": (
        "sordino.cli.mechanisms",
        "List the mechanisms: their geometry, their parameters and what is known about them.",
    ),
    "ledger": (
        "sordino.cli.ledger",
        "Manage budgets over all runs on the same people's data; show what was spent; keep the registry and its key.",
    ),
    "init": ("sordino.cli.init", "Write a commented run file with every key."),
    "completion": ("sordino.cli.completion", "Print the line that enables shell completion."),
}


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # errors of writing that name no file


class Lazy(click.Group):
    """A group that imports a subcommand when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        errors.accept_json(command)
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


def _forget_output() -> None:
    """Send what is still in the buffer of standard output nowhere: it cannot be written when Python ends, either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the command line.

    Errors of Sordino are one line on standard error (with --json: one object), with exit code 2, so a typing mistake
    shows no traceback.
    """
    from sordino.core import plugin
    from sordino.core.errors import SordinoError

    warnings.formatwarning = lambda message, *_, **__: f"sordino: {message}\n"
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may hold letters that the terminal cannot write
        sys.stdout.reconfigure(errors="replace")
    try:
        cli.main(standalone_mode=False)
        sys.stdout.flush()  # here, so that a full disk is met where it can be said
    except SordinoError as error:
        errors.show(type(error).__name__, str(error))
        sys.exit(2)
    except click.ClickException as error:
        errors.show_usage(error)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        text = "stopped. If a run had begun, continue it with `sordino resume RUN`."
        errors.show("Interrupted", text, line=f"\nsordino: {text}")
        sys.exit(130)
    except BrokenPipeError:  # `sordino ... | head`
        _forget_output()
        sys.exit(1)
    except Exception as error:
        if place := plugin.place(error):
            text = f"a plug-in failed ({place}): {type(error).__name__}: {error}"
        elif isinstance(error, OSError) and error.filename is not None:
            text = f"{error.strerror}: {_short(str(error.filename))}"
        elif isinstance(error, OSError) and error.errno in FULL:
            text = f"{error.strerror}, where a file or the output of this command goes. Mend that and call it again."
            _forget_output()
        else:
            raise
        errors.show(type(error).__name__, text, line=f"sordino: {text}")
        sys.exit(2)
