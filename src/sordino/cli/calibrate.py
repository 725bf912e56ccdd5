"""`sordino calibrate`: find the noise or the number of steps for a total epsilon, never less private than asked."""

from __future__ import annotations

import json as jsonlib
import math
from dataclasses import replace
from typing import Any

import click
import numpy as np

from sordino.cli.catalogue import KNOBS, Knob, parsed
from sordino.cli.epsilon import digits, priced, table, tell
from sordino.cli.events import MOST_STEPS, EventQuestion, ReleaseBlock, question, with_flags
from sordino.core import check
from sordino.core.errors import BudgetError, SpecError
from sordino.privacy import calibrate as search
from sordino.privacy.accountants import pld
from sordino.privacy.tightest import epsilon as cost

PURE = next(k for k in KNOBS if k.name == "epsilon")


def knob_of(block: ReleaseBlock) -> Knob:
    """Return the knob of a block's mechanism; shuffled reports of any kind have their pure level."""
    return PURE if block.mechanism is None else block.mechanism.knob


def flag_of(block: ReleaseBlock) -> str:
    """Return the name of the flag that sets a block's knob."""
    param = None if block.mechanism is None else block.mechanism.param(knob_of(block).name)
    return "local-epsilon" if param is None else param.flag


def size_of(block: ReleaseBlock) -> float:
    """Return the noise of a block relative to the other blocks; 1 if the block does not set it."""
    knob = knob_of(block)
    if block.mechanism is not None:
        missing = [p.flag for p in block.mechanism.params if p.required and p.name not in {*block.values, knob.name}]
        if missing:
            raise SpecError(f"{block.mechanism.name} needs {', '.join('--' + flag for flag in missing)}.")
    if knob.name not in block.values:
        return 1.0
    block.one_use()  # raises SpecError for invalid values
    return knob.size(block.values[knob.name], block.values)


def sized(asked: EventQuestion, z: float, sizes: list[float]) -> EventQuestion:
    """Return the question with the knob of every block set to `z` times its relative noise."""
    blocks = []
    for block, size in zip(asked.blocks, sizes, strict=True):
        knob = knob_of(block)
        blocks.append(replace(block, values={**block.values, knob.name: safe(knob, knob.of(z * size, block.values))}))
    return replace(asked, blocks=tuple(blocks))


def safe(knob: Knob, value: Any) -> Any:
    """Round a value of a knob to its number of significant figures, towards more privacy."""
    if knob.step or value <= 0 or not math.isfinite(value):
        return value
    places = knob.figures - 1 - math.floor(math.log10(value))
    return float((math.floor if knob.down else math.ceil)(value * 10.0**places) / 10.0**places)


def find_noise(asked: EventQuestion, target: float) -> EventQuestion:
    """Return the question with the least noise whose total epsilon is at most `target`.

    The ratios between the noise of several blocks are kept.
    """
    sizes = [size_of(block) for block in asked.blocks]
    only = asked.blocks[0]
    if len(asked.blocks) == 1 and knob_of(only).name in only.values:
        raise SpecError(f"calibrate looks for {flag_of(only)}: leave it out, or use --find steps.")
    z = search.noise_multiplier(lambda z: sized(asked, z, sizes).event(), target, asked.delta)
    chosen, knob = sized(asked, z, sizes), knob_of(only)
    if len(asked.blocks) == 1 and knob.step:

        def with_value(value: int) -> EventQuestion:
            return replace(asked, blocks=(replace(only, values={**only.values, knob.name: value}),))

        near = chosen.blocks[0].values[knob.name]
        smallest = search.smallest_multiple(lambda n: with_value(n).event(), target, asked.delta, near, knob.step)
        return with_value(smallest)
    return chosen


def find_steps(asked: EventQuestion, target: float) -> EventQuestion:
    """Return the question with the largest number of steps whose total epsilon is at most `target`.

    If there are several blocks, the whole schedule is repeated.
    """

    def times(n: int) -> EventQuestion:
        return replace(asked, blocks=tuple(replace(b, steps=n * b.steps) for b in asked.blocks))

    each = sum(b.steps * b.local_steps for b in asked.blocks)
    once = cost(times(1).event(), asked.delta, pld.ROUGH)
    if once > target:
        raise BudgetError(
            f"not even one step fits within epsilon={target:g}: it costs {digits(once)}. Use more noise, a smaller "
            "rate, or a larger epsilon."
        )
    return times(search.steps_within(lambda n: times(n).event(), target, asked.delta, MOST_STEPS // each))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--epsilon", "target", metavar="VALUE", help="The total epsilon that must not be exceeded.")
@with_flags
@click.option(
    "--find",
    default="noise",
    metavar="WHAT",
    help="What to find: noise (the mechanism's own parameter; default) or steps.",
)
@click.option("--explain", is_flag=True, help="Show the result of every accountant, or why it has none.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def calibrate(target: str | None, find: str, explain: bool, as_json: bool, **flags: Any) -> None:
    """Find the noise (or the mechanism's own parameter), or the number of steps, for a total epsilon."""
    if target is None:
        raise SpecError("give --epsilon, the total that must not be exceeded.")
    wanted = parsed("epsilon", target, float)
    check.positive(epsilon=wanted)
    check.one_of(("noise", "steps"), find=find)
    asked = question(flags)
    if find == "steps" and len(asked.blocks) == 1 and (flags["steps"] or asked.steps > 1):
        raise SpecError("calibrate looks for the number of steps: leave out --steps.")
    with np.errstate(all="ignore"):
        chosen = find_steps(asked, wanted) if find == "steps" else find_noise(asked, wanted)
    answer = priced(chosen)
    if answer["infinite"] or answer["epsilon"] > wanted:
        best = digits(math.inf if answer["infinite"] else answer["epsilon"])
        raise BudgetError(f"nothing safe was found for epsilon={wanted:g}: the best was {best}.")
    if find == "noise" and answer["epsilon"] < 0.99 * wanted:
        answer["notes"].append(
            "This is the limit of the mechanism: none of its settings comes closer to the target from below."
        )
    settings = _settings(asked, chosen, find)
    if as_json:
        click.echo(
            jsonlib.dumps({"find": find, "target": wanted, **_first(settings), **answer}, indent=2, allow_nan=False)
        )
        return
    table([(name, f"{value:.12g}" if isinstance(value, float) else str(value), note)
           for name, value, note in map(_row, settings)])  # fmt: skip
    click.echo(f"reaches epsilon = {digits(answer['epsilon'])} of the {wanted:g} allowed\n")
    tell(chosen, answer, explain)


def _settings(asked: EventQuestion, chosen: EventQuestion, find: str) -> list[dict[str, Any]]:
    if find == "steps":
        times = chosen.steps // asked.steps
        name = "steps" if len(asked.blocks) == 1 else "times the whole schedule"
        return [{"parameter": name, "value": times, "std": None}]
    out = []
    for i, block in enumerate(chosen.blocks, 1):
        full = {}
        if block.mechanism is not None:
            full = {p.name: p.default for p in block.mechanism.params if not p.required} | dict(block.values)
        std = block.mechanism.std(full) if block.mechanism is not None else None
        out.append({"block": i, "parameter": flag_of(block), "value": block.values[knob_of(block).name], "std": std})
    return out


def _first(settings: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the fields of the only setting, or the list of the settings of all blocks."""
    if len(settings) == 1:
        return {key: value for key, value in settings[0].items() if key != "block"}
    return {"parameters": settings}


def _row(setting: dict[str, Any]) -> tuple[str, Any, str]:
    std = "" if setting["std"] is None else f"noise std {setting['std']:.4g} clip bounds"
    return str(setting["parameter"]), setting["value"], std
