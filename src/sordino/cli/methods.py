"""`sordino methods`: list methods and algorithms, and which of them go together."""

import inspect
import json as jsonlib
import math
import warnings
from typing import Any, cast

import click
from rich.console import Console
from rich.table import Table

from sordino.contract import pricing
from sordino.contract.method import Method, Plan
from sordino.core import plugin
from sordino.core.errors import SordinoError, SpecError
from sordino.privacy import price
from sordino.privacy.samplers import Poisson
from sordino.runs import returned
from sordino.spec import legal, spec, toml

OTHERS = "The other methods, and the algorithms that each goes with:"


def _summary(kind: str, name: str) -> str:
    """Return the first sentence of the module docstring, which ends at two spaces or at an empty line."""
    text = (inspect.getdoc(inspect.getmodule(plugin.load(kind, name))) or "").split("\n\n")[0].replace("\n", " ")
    return text.split(".  ")[0].rstrip(".") + "."


def _options(kind: str, name: str) -> dict[str, Any]:
    return {f.name: f.default for f in spec.plugin_fields(kind, name)}


def _methods() -> list[dict[str, Any]]:
    """Return one row per method; a third-party method that cannot state its cost is left out with a warning."""
    rows = []
    for name in plugin.loadable("methods"):
        if plugin.ours("methods", name):
            rows.append(_method(name))
            continue
        try:
            rows.append(returned.asked(name, "releases", _method, name))
        except SordinoError as error:
            who = "" if name in str(error) else f"{name}: "
            warnings.warn(f"left out: {who}{error}", stacklevel=2)
    return rows


def _method(name: str) -> dict[str, Any]:
    plan = Plan(rounds=1, population=10, sampler=Poisson(1.0), noise_multiplier=1.0)
    cls = plugin.load("methods", name)
    method = cast(Method, returned.Checked(cls(), name, "server", SpecError))
    costs = pricing.planned(method, plan)
    price.cost_to("server", costs)  # a third-party method may have no cost against the server
    finite = [
        v for v in price.VIEWERS
        if math.isfinite(price.guarantee(costs, v, plan.sampler, 10, 1, 1, 1e-5, "research").epsilon)
    ]  # fmt: skip
    return {
        "method": name,
        "summary": _summary("methods", name),
        "units": list(cls.units) if finite else [],
        "protects_from": finite,
        "printed": cls.claim is not Method.claim,
        "options": _options("methods", name),
    }


def _algorithms() -> list[dict[str, Any]]:
    return [
        {"algorithm": name, "summary": _summary("algorithms", name), "options": _options("algorithms", name)}
        for name in plugin.loadable("algorithms")
    ]


def markdown() -> str:
    """Return the tables of allowed combinations in Markdown, as in the docs."""
    return "\n".join([*_lines(legal.table()), "", OTHERS, "", *_lines(legal.others())]) + "\n"


def _lines(rows: list[dict[str, str]]) -> list[str]:
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return lines + ["| " + " | ".join(row[h] for h in head) + " |" for row in rows]


@click.command()
@click.option(
    "--table", is_flag=True, help="Show which method goes with which algorithm and unit, and why others do not."
)
@click.option("--markdown", "as_markdown", is_flag=True, help="With --table: print Markdown, as in the documentation.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def methods(table: bool, as_markdown: bool, as_json: bool) -> None:
    """List methods (who clips and adds noise) and algorithms (how gradients are used), and which go together."""
    if table:
        _show_table(as_markdown, as_json)
        return
    if as_json:
        click.echo(jsonlib.dumps({"methods": _methods(), "algorithms": _algorithms()}, indent=2))
        return
    for row in _methods():
        against = " and ".join(row["protects_from"])
        shield = f"protects a {' or '.join(row['units'])} from: {against}" if against else "protects no one"
        if row["printed"]:
            shield = "a claim that does not hold in general; a run shows it next to what is accounted"
        click.echo(f"{row['method']}\n  {row['summary']}\n  {shield}")
        _show_options(row)
    click.echo("\nAlgorithms (--algorithm); `sordino methods --table` shows which method goes with which:")
    for row in _algorithms():
        click.echo(f"{row['algorithm']}\n  {row['summary']}")
        _show_options(row)


def _show_options(row: dict[str, Any]) -> None:
    if row["options"]:
        click.echo("  options: " + ", ".join(f"{k} = {toml.to_toml(v)}" for k, v in row["options"].items()))


def _show_table(as_markdown: bool, as_json: bool) -> None:
    if as_json:
        click.echo(jsonlib.dumps({"table": legal.table(), "others": legal.others()}, indent=2))
    elif as_markdown:
        click.echo(markdown(), nl=False)
    else:
        console = Console()
        for rows, above in ((legal.table(), ""), (legal.others(), f"\n{OTHERS}")):
            shown = Table(*rows[0], show_lines=True)
            for row in rows:
                shown.add_row(*row.values())
            if above:
                console.print(above)
            console.print(shown)
