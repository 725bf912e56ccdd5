"""`sordino mechanisms`: list the mechanisms and their parameters."""

from __future__ import annotations

import inspect
import json as jsonlib
import re
import sys
import textwrap
from typing import Any

import click
import numpy as np

from sordino.cli import catalogue
from sordino.cli.catalogue import MechanismEntry, Param
from sordino.cli.epsilon import table
from sordino.privacy.algebra import parts
from sordino.privacy.events import Event

NORMS = {"1": "L1", "2": "L2", "math.inf": "L-infinity", "-infinity": "L-infinity", "self.norm": "L1 or L2"}
WIDTH = 100


def described(one: MechanismEntry) -> dict[str, Any]:
    """Return the description of a mechanism as a JSON object."""
    knob = one.param(one.knob.name)
    return {
        "mechanism": one.name,
        "summary": one.summary,
        "source": (inspect.getdoc(one.module) or "").split("\n\n", 1)[0].replace("\n", " "),
        "geometry": geometry(one),
        "known": known(one.event(one.example())),
        "noise": "exact" if exact(one) else "float",
        "relation": "replace" if one.local else "add/remove",
        "finds": knob.flag if knob is not None else None,
        "parameters": [_param(p) for p in one.params],
        "example": example(one),
    }


def _param(p: Param) -> dict[str, Any]:
    default = None if p.required else p.default
    return {"flag": f"--{p.flag}", "type": p.kind.__name__, "required": p.required, "default": default, "help": p.text}


def geometry(one: MechanismEntry) -> str:
    """Return the norm in which the input of a mechanism is bounded."""
    names = {p.name for p in one.params}
    if one.leaf is not None:
        norms = [n for n, field in (("L1", "l1"), ("L2", "l2"), ("L-infinity", "linf")) if field in names]
        return f"integers, {' and '.join(norms) if one.summed is None else 'L2'}"
    if hasattr(one.cls, "randomize"):
        return "one value a report"
    source = "\n".join(inspect.getsource(sys.modules[c.__module__]) for c in one.cls.__mro__[:-1])
    found = re.search(r"require\(\s*([\w.]+)", source) or re.search(
        r"\bL(1|2|-infinity)\b", inspect.getdoc(one.module) or ""
    )
    return NORMS.get(found[1], "") if found is not None else ""


def exact(one: MechanismEntry) -> bool:
    """Return whether there is no floating point between the random bits and the release: integers and categories."""
    report = hasattr(one.cls, "randomize") and not hasattr(one.cls, "density")
    integers = "int64" in inspect.getsource(one.cls) and "require" in inspect.getsource(one.cls)
    return one.leaf is not None or report or integers or getattr(one.cls, "exact", False)


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


def example(one: MechanismEntry) -> str:
    """Return an example command that prices the mechanism."""
    given = " ".join(f"--{p.flag} {one.example()[p.name]:g}" for p in one.params if p.required and p.name != "delta")
    return " ".join(f"sordino epsilon --mechanism {one.name} {given} --delta 1e-5".split())


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
    rows = [described(one) for one in catalogue.mechanisms().values()]
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
