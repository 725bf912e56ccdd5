"""`sordino mechanisms`: list the mechanisms and their parameters."""

from __future__ import annotations

import json as jsonlib
import textwrap
from typing import Any

import click
import numpy as np

from sordino.cli import catalogue
from sordino.cli.catalogue import MechanismEntry, Param
from sordino.cli.epsilon import table
from sordino.privacy.algebra import parts
from sordino.privacy.events import Event

WIDTH = 100


def described(entry: MechanismEntry) -> dict[str, Any]:
    """Return the description of a mechanism as a JSON object."""
    knob = entry.param(entry.knob.name)
    return {
        "mechanism": entry.name,
        "summary": entry.summary,
        "source": entry.source,
        "geometry": entry.geometry,
        "known": known(entry.event(entry.example())),
        "noise": "exact" if entry.exact else "float",
        "relation": "replace" if entry.local else "add/remove",
        "finds": knob.flag if knob is not None else None,
        "parameters": [_param(p) for p in entry.params],
        "example": example(entry),
    }


def _param(p: Param) -> dict[str, Any]:
    default = None if p.required else p.default
    return {"flag": f"--{p.flag}", "type": p.kind.__name__, "required": p.required, "default": default, "help": p.text}


def known(event: Event) -> list[str]:
    """Return what is known of an event, which decides the accountants that apply."""
    leaf = next(iter(parts(event)))
    facts = {
        "gdp": leaf.gdp(),
        "pure": leaf.pure(),
        "rho": leaf.rho(),
        "pair": leaf.pair(),
        "renyi": leaf.renyi(np.array([2.0])),
    }
    return [name for name, fact in facts.items() if fact is not None]


def example(entry: MechanismEntry) -> str:
    """Return an example command that prices the mechanism."""
    values = entry.example()
    given = " ".join(f"--{p.flag} {values[p.name]:g}" for p in entry.params if p.required and p.name != "delta")
    return " ".join(f"sordino epsilon --mechanism {entry.name} {given} --delta 1e-5".split())


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def mechanisms(name: str | None, as_json: bool) -> None:
    """List the mechanisms; with NAME, describe one in full."""
    if name is not None:
        row = described(catalogue.mechanism(name))
        if as_json:
            click.echo(jsonlib.dumps(row, indent=2))
        else:
            _tell(row)
        return
    rows = [described(entry) for entry in catalogue.mechanisms().values()]
    if as_json:
        click.echo(jsonlib.dumps(rows, indent=2))
        return
    for row in rows:
        click.echo(f"{row['mechanism']}: {row['summary']}")
        click.echo(f"  {row['geometry']}; known: {', '.join(row['known'])}; {row['noise']} noise")
        _table_of(row)
        click.echo("")
    click.echo("`sordino mechanisms NAME` describes one in full.")


def _table_of(row: dict[str, Any]) -> None:
    table([(f"  {p['flag']}", _default(p), p["help"]) for p in row["parameters"]])


def _tell(row: dict[str, Any]) -> None:
    click.echo(f"{row['mechanism']}: {row['summary']}")
    click.echo(textwrap.fill(row["source"], WIDTH) + "\n")
    made = "exact: no floating point before the release" if row["noise"] == "exact" else "floating point"
    facts = [("geometry", row["geometry"]), ("known", ", ".join(row["known"])), ("noise", made)]
    table([*facts, ("relation", row["relation"]), ("calibrate", f"finds --{row['finds']}")])
    click.echo("\nparameters")
    _table_of(row)
    click.echo(f"\n{row['example']}")


def _default(p: dict[str, Any]) -> str:
    return "required" if p["required"] else "optional" if p["default"] is None else f"default {p['default']}"
