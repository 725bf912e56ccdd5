"""`sordino methods`."""

import inspect
import json as jsonlib
import math
from typing import Any

import click

from sordino.core import plugin
from sordino.methods.base import Plan
from sordino.privacy import price
from sordino.privacy.samplers import Poisson
from sordino.runs import spec


def _rows() -> list[dict[str, Any]]:
    rows = []
    for name in plugin.available("methods"):
        cls = plugin.load("methods", name)
        module = inspect.getmodule(cls)
        summary = (inspect.getdoc(module) or "").split("\n", 1)[0]
        plan = Plan(rounds=1, population=10, sampler=Poisson(1.0), noise_multiplier=1.0)
        costs = cls().costs(plan)
        finite = [
            v for v in price.VIEWERS
            if math.isfinite(price.guarantee(costs, v, plan.sampler, 10, 1, 1, 1e-5, "research").epsilon)
        ]  # fmt: skip
        rows.append(
            {
                "method": name,
                "summary": summary,
                "unit": costs[0].unit,
                "protects_from": finite,
                "options": {f.name: f.default for f in spec.method_fields(name)},
            }
        )
    return rows


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def methods(as_json: bool) -> None:
    """List the methods: whom they protect from whom, and their options."""
    rows = _rows()
    if as_json:
        click.echo(jsonlib.dumps(rows, indent=2))
        return
    for row in rows:
        against = " and ".join(row["protects_from"])
        shield = f"protects a {row['unit']} from: {against}" if against else "protects no one (epsilon is infinite)"
        click.echo(f"{row['method']}\n  {row['summary']}\n  {shield}")
        if row["options"]:
            click.echo("  options: " + ", ".join(f"{k} = {spec.to_toml(v)}" for k, v in row["options"].items()))
