"""Conversion of flags to an event, for `sordino epsilon` and `sordino calibrate`.

A block is one mechanism with one sampler and a number of steps. A question is one or more blocks in order, for one
unit, neighbouring relation and viewer. Flags stay text until the mechanism is known, since they are its parameters.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import click

from sordino.cli import catalogue
from sordino.cli.catalogue import MechanismEntry, Values, parsed
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.privacy import shuffle, trust
from sordino.privacy.algebra import grouped, replaced
from sordino.privacy.events import Composed, Event, FixedSize, Pure, Repeated, Sampled, Visible
from sordino.privacy.guarantee import RELATIONS, UNITS

CLIENTS = ("client", "user", "report")  # units that are sampled as a whole
MOST_STEPS = 10**9
RESPONSES = ("randomized-response", "generalized-rr")  # their reports hide among more clones: see privacy/shuffle.py
SAMPLERS: dict[str, tuple[type, str]] = {
    "rate": (float, "Poisson sampling: a unit takes part in a step with this probability, secretly."),
    "fixed_size": (int, "Number of units per step, drawn without replacement from --population; relation replace."),
    "population": (int, "How many units there are to draw from."),
    "client_rate": (float, "Clients are drawn for whole rounds of --local-steps with this probability."),
    "local_steps": (int, "Steps per client and round (default 1)."),
    "steps": (int, "Number of repetitions: steps or rounds (default 1)."),
    "shuffle": (int, "Number of reports, each of --local-epsilon, that pass through a shuffler."),
}
OVERALL = {  # flags of the question as a whole
    "delta": "Total delta, between 0 and 1.",
    "unit": f"The unit that is protected: {', '.join(UNITS)} (default record).",
    "relation": "add-remove or replace (default add-remove; replace for reports and fixed sizes).",
    "viewer": "Protected from whom: server, public, client or server+N (default server; public if clients are drawn).",
    "group": "Number of units to protect together (default 1).",
}


def with_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags of a question to a command, the parameters of the mechanisms last."""
    for name, p in reversed(catalogue.all_params().items()):
        text = f"{catalogue.meaning(name)} ({', '.join(catalogue.owners(name))})"
        if p.kind is bool:
            command = click.option(f"--{p.flag}/--no-{p.flag}", name, default=None, help=text)(command)
        else:
            command = click.option(f"--{p.flag}", name, metavar="VALUE", help=text)(command)
    block = 'One block of a schedule: "noise=1 rate=0.01 steps=500"; repeat for the next. Flags are its defaults.'
    command = click.option("--block", "blocks", multiple=True, metavar="TEXT", help=block)(command)
    for name, text in reversed(({n: t for n, (_, t) in SAMPLERS.items()} | OVERALL).items()):
        key = "total_delta" if name == "delta" else name
        command = click.option("--" + name.replace("_", "-"), key, metavar="VALUE", help=text)(command)
    return click.option("--mechanism", metavar="NAME", help="See `sordino mechanisms`.")(command)


@dataclass(frozen=True)
class ReleaseBlock:
    """One mechanism with one sampler and a number of steps."""

    mechanism: MechanismEntry | None  # None: any pure randomizer, shuffled
    values: Values  # the parameters of the mechanism that were given
    rate: float | None = None
    fixed_size: int | None = None
    population: int | None = None
    client_rate: float | None = None
    local_steps: int = 1
    steps: int = 1
    shuffle: int | None = None

    @property
    def local(self) -> bool:
        """Whether one use is a local report, whose cost is already that of replacing its value."""
        return self.mechanism is None or self.mechanism.local

    @property
    def randomizer(self) -> str:
        """The kind of randomizer for amplification by shuffling: "response" (randomized response) or "any"."""
        return "response" if self.mechanism is not None and self.mechanism.name in RESPONSES else "any"

    def one_use(self) -> Event:
        """Return the event of one use of the mechanism."""
        if self.mechanism is not None:
            return self.mechanism.event(self.values)
        if "epsilon" not in self.values:
            raise SpecError("shuffled reports need --local-epsilon, or a --mechanism.")
        return Pure(self.values["epsilon"])

    def draws_clients(self, unit: str) -> bool:
        """Return whether clients are sampled, not only records inside them."""
        chosen = self.rate is not None or self.fixed_size is not None
        return self.client_rate is not None or (chosen and (self.local or unit in CLIENTS))

    def event(self, unit: str, relation: str, looks: trust.Viewer) -> Event:
        """Return the event of all steps against a viewer, who may or may not see which clients take part."""
        leaf, hidden = self.one_use(), not looks.sees_draw
        if self.shuffle is not None:
            level = leaf if self.local else replaced(leaf)
            return Repeated(shuffle.shuffled(level, self.shuffle, self.randomizer), self.steps)
        chosen = replace(self, client_rate=None).draws_clients(unit)
        amplified = hidden or not chosen
        late = relation == "replace" and self.client_rate is not None and hidden and unit in CLIENTS
        early = "add/remove" if late and not self.local else relation  # the sampling of clients accounts for it
        step = self._step(leaf, early, amplified, looks if chosen else trust.Viewer("public"))
        a_round = step if self.local_steps == 1 else Repeated(step, self.local_steps)
        if self.client_rate is not None and hidden:
            if self.local or unit not in CLIENTS:
                a_round = Visible(a_round, self.client_rate)
            else:
                a_round = Sampled(a_round, self.client_rate, relation)
        return a_round if self.steps == 1 else Repeated(a_round, self.steps)

    def _step(self, leaf: Event, relation: str, amplified: bool, looks: trust.Viewer) -> Event:
        here = leaf if self.local or relation == "add/remove" else replaced(leaf)
        if self.fixed_size is not None and self.population is not None:
            drawn = looks.drawn_from(self.population)
            return FixedSize(here, min(self.fixed_size, drawn), drawn) if amplified else here
        if self.rate is None or not amplified:
            return here
        return Visible(leaf, self.rate) if self.local else Sampled(leaf, self.rate, relation)

    def priced_at(self, spare: float) -> ReleaseBlock:
        """Return the block with `spare` as the delta of each use, if the mechanism needs one and none was given."""
        if self.mechanism is None or self.mechanism.param("delta") is None or "delta" in self.values:
            return self
        return replace(self, values={**self.values, "delta": spare})

    def words(self) -> dict[str, str]:
        """Return a description for people: the mechanism, its sampling and the number of steps."""
        given = [f"{_flag(k)} {v:g}" if isinstance(v, float) else f"{_flag(k)} {v}" for k, v in self.values.items()]
        name = self.mechanism.name if self.mechanism is not None else "any pure randomizer"
        out = {"mechanism": name + (f" ({', '.join(given)})" if given else "")}
        if self.rate is not None:
            out["sampling"] = f"Poisson, rate {self.rate:g}"
        if self.fixed_size is not None:
            out["sampling"] = f"{self.fixed_size} of {self.population} without replacement"
        if self.client_rate is not None:
            out["clients"] = (
                f"clients drawn with probability {self.client_rate:g} for a round of {self.local_steps} steps"
            )
        elif self.local_steps > 1:
            out["round"] = f"{self.local_steps} steps"
        if self.shuffle is not None:
            out["shuffler"] = f"{self.shuffle} reports"
        return out | {"rounds" if out.keys() & {"clients", "round", "shuffler"} else "steps": f"{self.steps}"}


@dataclass(frozen=True)
class EventQuestion:
    """One or more blocks in order, with the unit, neighbouring relation and viewer of the guarantee."""

    blocks: tuple[ReleaseBlock, ...]
    delta: float
    unit: str
    relation: str
    viewer: str
    group: int = 1

    def event(self, viewer: str | None = None) -> Event:
        """Return the event of all blocks, against the viewer of the question or another one."""
        looks = trust.viewer(viewer or self.viewer)
        spare = self.delta / (2 * sum(block.steps * block.local_steps for block in self.blocks))
        events = [block.priced_at(spare).event(self.unit, self.relation, looks) for block in self.blocks]
        total = events[0] if len(events) == 1 else Composed(tuple(events))
        return grouped(total, self.group)

    @property
    def draws_clients(self) -> bool:
        """Whether any block samples clients."""
        return any(block.draws_clients(self.unit) for block in self.blocks)

    @property
    def steps(self) -> int:
        """The number of steps (or rounds) of all blocks."""
        return sum(block.steps for block in self.blocks)

    @property
    def length(self) -> str:
        """The number of steps in words, such as "1000 steps"; "rounds" if any block has rounds."""
        rounds = any(b.client_rate is not None or b.local_steps > 1 or b.shuffle is not None for b in self.blocks)
        return f"{self.steps} {'round' if rounds else 'step'}{'s' * (self.steps != 1)}"

    @property
    def sensitivity(self) -> int | None:
        """The number of clip bounds by which the sum may change; None for reports, whose level accounts for it."""
        if all(block.local for block in self.blocks):
            return None
        return self.group * (2 if self.relation == "replace" else 1)

    def notes(self) -> list[str]:
        """Return remarks on the sensitivity and on what the viewer sees of the sampling."""
        out = []
        many = f"{self.group} {self.unit}s" if self.group > 1 else f"one {self.unit}"
        if self.sensitivity is None:
            out.append("Sensitivity: the level of a report already covers replacing its value; nothing was doubled.")
        elif self.relation == "replace":
            out.append(f"Sensitivity: {self.sensitivity} clip bounds, as replacing {many} both removes and adds.")
        else:
            out.append(f"Sensitivity: {self.sensitivity} clip bound{'s' * (self.group > 1)}, for {many} more or less.")
        if self.draws_clients and trust.viewer(self.viewer).sees_draw:
            out.append(
                "The server sees who takes part: the draw of clients hides nothing, so every round counts in full."
            )
        if any(b.local and b.rate is not None for b in self.blocks) and not trust.viewer(self.viewer).sees_draw:
            out.append("Whether a client reports is assumed to be visible: only the chance of it helps.")
        return out


def question(flags: dict[str, Any]) -> EventQuestion:
    """Return the question that the flags of a command ask, as click collected them."""
    given = {k: v for k, v in flags.items() if v is not None}
    texts = given.pop("blocks", ())
    overall = {name: given.pop("total_delta" if name == "delta" else name, None) for name in OVERALL}
    if overall["delta"] is None:
        raise SpecError("give --delta, for example 1e-5.")
    delta = parsed("delta", overall["delta"], float)
    check.below_one(delta=delta)
    unit = overall["unit"] or "record"
    check.one_of(tuple(UNITS), unit=unit)
    group = parsed("group", overall["group"] or "1", int)
    check.count(group=group)
    blocks = tuple(_block(given | _read(text), set(_read(text)), unit) for text in texts or ("",))
    relation = _relation(overall["relation"], blocks)
    viewer = overall["viewer"] or ("public" if any(b.draws_clients(unit) for b in blocks) else "server")
    trust.viewer(viewer)
    return EventQuestion(blocks, delta, unit, relation, viewer, group)


def _relation(text: str | None, blocks: tuple[ReleaseBlock, ...]) -> str:
    wanted = None if text is None else text.replace("-", "/")
    if wanted is not None and wanted not in RELATIONS:
        raise SpecError(f"relation must be add-remove or replace, not {text!r}.")
    for block in blocks:
        if block.fixed_size is not None or block.shuffle is not None or block.local:
            what = "a fixed size" if block.fixed_size is not None else "a report"
            if wanted == "add/remove":
                raise SpecError(f"{what} is priced for replaced units only: use --relation replace.")
            return "replace"
    return wanted or "add/remove"


def _read(text: str) -> dict[str, str]:
    """Parse the text of a block, such as "noise=1 rate=0.01", into texts by parameter name."""
    try:
        pieces = shlex.split(text)
    except ValueError as error:
        raise SpecError(f"block {text!r} cannot be read: {error}.") from error
    names = {p.flag: name for name, p in catalogue.all_params().items()}
    names |= {name.replace("_", "-"): name for name in (*SAMPLERS, "mechanism")}
    values: dict[str, str] = {}
    for piece in pieces:
        key, equals, value = piece.partition("=")
        if not equals or not key or not value:
            raise SpecError(f'block {text!r}: {piece!r} is not name=value, as in "noise=1.0 rate=0.01 steps=500".')
        flag = key.removeprefix("--").replace("_", "-")
        if flag not in names:
            near = get_close_matches(flag, names, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise SpecError(f"block {text!r}: no setting of a block is called {key!r}.{hint}")
        if names[flag] in values:
            raise SpecError(f"block {text!r} gives {key} twice.")
        values[names[flag]] = value
    return values


def _block(given: dict[str, Any], block_keys: set[str], unit: str) -> ReleaseBlock:
    """Return the block with these settings; `block_keys` names those that the block itself gives, not a flag."""
    if "rate" in block_keys and "fixed_size" not in block_keys:
        given = {k: v for k, v in given.items() if k not in ("fixed_size", "population")}
    if "fixed_size" in block_keys and "rate" not in block_keys:
        given = {k: v for k, v in given.items() if k != "rate"}
    sampling = {k: parsed(_flag(k), given[k], kind) for k, (kind, _) in SAMPLERS.items() if k in given}
    name = given.get("mechanism")
    if name is None and "shuffle" not in sampling:
        raise SpecError("give --mechanism, for example gaussian; `sordino mechanisms` lists all.")
    chosen = catalogue.mechanism(name) if name is not None else None
    values = {}
    for key, value in given.items():
        if key in SAMPLERS or key == "mechanism":
            continue
        p = chosen.param(key) if chosen is not None else catalogue.all_params()[key] if key == "epsilon" else None
        if p is not None:
            values[key] = parsed(p.flag, value, p.kind)
        elif "mechanism" not in block_keys or key in block_keys:
            raise SpecError(f"{_flag(key)} belongs to {_listed(key)}, not to {name or 'shuffled reports of any kind'}.")
    block = ReleaseBlock(chosen, values, **sampling)
    _check(block, unit)
    return block


def _listed(key: str) -> str:
    names = catalogue.owners(key)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _check(block: ReleaseBlock, unit: str) -> None:
    if block.rate is not None and block.fixed_size is not None:
        raise SpecError("give rate or fixed-size, not both: a step is sampled in one way.")
    if (block.fixed_size is None) != (block.population is None):
        missing, there = ("population", "fixed-size") if block.population is None else ("fixed-size", "population")
        raise SpecError(f"{there} needs {missing} too.")
    for name in ("rate", "client_rate"):
        if getattr(block, name) is not None:
            check.probability(**{_flag(name): getattr(block, name)})
    for name in ("fixed_size", "population", "local_steps", "steps", "shuffle"):
        if (value := getattr(block, name)) is not None:
            check.count(**{_flag(name): value})
    if block.fixed_size is not None and block.population is not None and block.fixed_size > block.population:
        raise SpecError(f"cannot draw {block.fixed_size} of {block.population} without replacement.")
    if block.steps * block.local_steps > MOST_STEPS:
        raise SpecError(f"steps must be at most {MOST_STEPS:g} in all, not {block.steps * block.local_steps:.15g}.")
    if block.client_rate is not None and unit in CLIENTS and (block.rate or block.fixed_size):
        raise SpecError(f"drawing records inside a client hides no {unit}: give only client-rate, or --unit record.")
    drawn = block.rate is not None or block.fixed_size is not None or block.client_rate is not None
    if drawn and block.mechanism is not None and block.mechanism.param("rounds") is not None:  # correlated noise
        raise SpecError(
            f"{block.mechanism.name} prices all its rounds as one release, which a draw for each does not amplify: "
            "leave the sampling out and say --participations."
        )
    if block.shuffle is not None:
        if drawn or block.local_steps > 1:
            raise SpecError("shuffled reports cannot be sampled as well: leave out rate, fixed-size and client-rate.")
        if block.mechanism is None and "epsilon" in block.values:
            check.positive(**{"local-epsilon": block.values["epsilon"]})


def _flag(name: str) -> str:
    p = catalogue.all_params().get(name)
    return p.flag if p is not None else name.replace("_", "-")
