"""`sordino attack`: what a curious server, client or outsider really learns of a run."""

from __future__ import annotations

import inspect
import json as jsonlib
import math
import sys
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from sordino.attacks.base import KINDS
from sordino.cli.steps import steps
from sordino.core import plugin
from sordino.core.errors import SpecError
from sordino.core.record import plain as finite
from sordino.red_team import attack as attacking
from sordino.red_team import words
from sordino.red_team.attack import AttackReport
from sordino.red_team.attack_files import FOLDER
from sordino.spec.values import parse

OWNERS = (
    "What follows depends on private records and is covered by no epsilon: it is for the owner of the data alone. Do "
    "not pass it on."
)
VIOLATED = 3  # exit code if an attack found more than the guarantee allows
WIDTH = 160  # of a table that is not printed to a terminal


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="RUN", required=False, type=click.Path(path_type=Path))
@click.option("--attack", "attacks", default="list", metavar="A,B,...", help="Attacks to make; list: show all of them.")
@click.option(
    "--view",
    default=None,
    metavar="VIEWER",
    help="Whose views are attacked: public, client, wire:K, server, server+N (default: the usual one of each attack).",
)
@click.option(
    "--records",
    type=int,
    default=None,
    help="Members that are asked for, and as many other records (default: 1000, at most half of the test records).",
)
@click.option(
    "--shadows",
    type=int,
    default=None,
    help="Number of shadow models (default: 64, for attacks that need them); if given, for all membership attacks.",
)
@click.option(
    "--victims",
    type=int,
    default=attacking.VICTIMS,
    show_default=True,
    help="Number of clients whose records are reconstructed.",
)
@click.option("--attribute", default=None, metavar="COLUMN", help="Column that attribute inference must guess.")
@click.option("--active", is_flag=True, help="Let the server send a model of its choice in one more round.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the sample and of the attackers.")
@click.option(
    "--baseline/--no-baseline",
    default=True,
    help="Also attack the same run without privacy, which is trained for this and deleted afterwards.",
)
@click.option("--set", "settings", multiple=True, metavar="ATTACK.OPTION=VALUE", help="An option of one attack.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def attack(folder: Path | None, attacks: str, settings: tuple[str, ...], seed: int, as_json: bool, **keys: Any) -> None:
    """Attack a finished RUN: what a curious server, client or outsider really learns.

    \b
    sordino attack --attack list
    sordino attack runs/20270101-120000 --attack loss-threshold,lira
    sordino attack runs/20270101-120000 --attack inverting-gradients --view server --set inverting-gradients.restarts=4

    Views of the server are there if the run was made with --record-views. Everything that is found goes to
    RUN/private/attacks. The exit code is 3 if an attack finds more than the guarantee allows."""
    if attacks == "list":
        _list(as_json)
        return
    if folder is None:
        raise click.UsageError("name the run folder to attack.")
    chosen = attacking.made(attacks, options(settings, attacks))
    with steps(quiet=as_json) as step:
        report = attacking.attack(folder, chosen, seed=seed, step=step, **keys)
    if as_json:
        click.echo(jsonlib.dumps(finite(report.to_json()), indent=2, allow_nan=False))
    else:
        _show(report)
    if report.violated:
        sys.exit(VIOLATED)


def options(settings: tuple[str, ...], attacks: str) -> dict[str, dict[str, Any]]:
    """Return the options of each attack that --set gives, with the types of its fields."""
    named = {name.strip().replace("_", "-") for name in attacks.split(",")}
    out: dict[str, dict[str, Any]] = {}
    for text in settings:
        left, equals, value = text.partition("=")
        name, dot, key = left.strip().partition(".")
        name = name.replace("_", "-")
        if not equals or not dot or not key:
            raise SpecError(f"--set takes ATTACK.OPTION=VALUE, such as lira.online=false, not {text!r}.")
        field = attacking.option(name, key.strip())
        if name not in named:
            raise SpecError(f"--set {text}: {name} is not among the attacks {attacks}.")
        hint = typing.get_type_hints(attacking.loaded(name))[field.name]
        out.setdefault(name, {})[field.name] = _value(field.name, value.strip(), hint)
    return out


def _value(name: str, text: str, hint: Any) -> Any:
    """Return the value of an option; a list of numbers is separated by commas."""
    value = parse(name, text, hint)
    if isinstance(value, tuple) and typing.get_args(hint)[:1] in ((int,), (float,)):
        kind = typing.get_args(hint)[0]
        return tuple(parse(name, part, kind) for part in value if part)
    return value


# --- what there is


def described(name: str) -> dict[str, Any]:
    """Return the description of an attack as a JSON object."""
    cls = attacking.loaded(name)
    return {
        "attack": name,
        "kind": cls.kind,
        "views": list(cls.sees),
        "reads": cls.reads,
        "needs": list(cls.needs),
        "what": inspect.cleandoc(cls.__doc__ or "").split("\n")[0],
        "options": {f.name: plugin.field_help(cls).get(f.name, "") for f in fields(cls)},
    }


def _list(as_json: bool) -> None:
    """Print all attacks."""
    entries = [described(name) for name in plugin.loadable("attacks")]
    if as_json:
        click.echo(jsonlib.dumps({"attacks": entries}, indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("attack", "kind", "views", "reads", "needs", "what it does"):
        table.add_column(column, overflow="fold")
    for e in sorted(entries, key=lambda e: (KINDS.index(e["kind"]), e["attack"])):
        needs = ", ".join(e["needs"]).replace("_", " ")
        table.add_row(e["attack"], e["kind"], ", ".join(e["views"]), e["reads"], needs or "-", e["what"])
    _console().print(table)
    click.echo("Options of an attack: --set ATTACK.OPTION=VALUE; docs/attacks.md says what each viewer sees.")


# --- progress and the table


def _console() -> Console:
    width = None if sys.stdout.isatty() else WIDTH
    return Console(highlight=False, width=width)


def _show(report: AttackReport) -> None:
    """Print one table, one sentence for each attack and the warnings."""
    if not report.public_data:
        click.echo(OWNERS)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("attack", "view", "metric", "with DP", "without DP", "chance"):
        table.add_column(column, overflow="fold")
    before = None
    for outcome in report.outcomes:
        twin = {f.metric: f.text() for f in outcome.twin}
        for figure in outcome.figures:
            key = (outcome.attack, outcome.view)
            private, plain = figure.text(), twin.get(figure.metric, "-")
            cells = (private, plain) if report.private else ("-", private)
            chance = (
                "-" if figure.chance is None or math.isnan(figure.chance) else words.amount(figure.chance, figure.unit)
            )
            table.add_row(*(key if key != before else ("", "")), figure.metric, *cells, chance)
            before = key
    _console().print(table)
    for text in report.sentences:
        click.echo(text)
    for outcome in report.outcomes:
        if outcome.warning:
            click.echo(outcome.warning, err=True)
    if any(outcome.twin for outcome in report.outcomes):
        click.echo("The run without privacy was trained for this, in the private part, and is deleted.")
    click.echo(f"Figures, scores and pictures: {report.folder / 'private' / FOLDER}")
