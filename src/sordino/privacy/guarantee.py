"""A total epsilon with all the context that gives it a meaning, and the sentence that states it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from sordino.core import html, svg
from sordino.core.rounding import up

UNITS = {
    "record": "any single record of any client",
    "client": "all data of any single client",
    "user": "all records of any single user",
    "label": "the label of any single record",
    "report": "the report of any single client",
}
RELATIONS = {"add/remove": "added or removed", "replace": "replaced by other data"}
SILENT = "silenced: it takes part with its share of the noise, but not with its data"  # behind a secure sum
VIEWERS = {
    "server": "a curious server that sees every message and who takes part",
    "public": "anyone who sees every released model but not who takes part",
    "client": "any other client, which sees every released model and when it takes part itself, but not who else does",
}


CHANNELS = {  # what a curious server sees through each channel
    "direct": VIEWERS["server"],
    "secure-sum": "a curious server that sees who takes part and the sum of all messages alone (if the sum is not "
    "secure: more)",
    "shuffler": "a curious server that sees who takes part and every message, but not whose it is (if the shuffler "
    "tells it: more)",
}


def who(viewer: str, channel: str = "direct") -> str:
    """Describe a viewer in words."""
    kind, _, colluders = viewer.partition("+")
    other = f"a curious server that sees who takes part and what the channel {channel} shows of their messages"
    text = CHANNELS.get(channel, other) if kind == "server" else VIEWERS.get(kind, viewer)
    return f"{text}, and {colluders} clients that collude with it" if colluders else text


@dataclass(frozen=True)
class Guarantee(html.PublicNames):
    """A privacy guarantee for a whole run."""

    epsilon: float
    delta: float
    unit: str
    relation: str
    viewer: str
    rounds: int
    mode: str  # "research": seeded, for experiments only; "secure"
    reason: str | None = None  # reason, if epsilon is infinite
    channel: str = "direct"  # channel that carries the messages
    public: tuple[str, ...] = ()  # descriptions of what was assumed to be public
    exact: bool = False  # whether noise and the sums that it is added to are free of floating-point effects

    def sentence(self) -> str:
        """Return the guarantee as a sentence."""
        against = f"against {who(self.viewer, self.channel)}"
        if math.isinf(self.epsilon):
            return f"No guarantee (epsilon is infinite) {against}: {self.reason}."
        text = (
            f"In total over {self.rounds} rounds, {(whose := UNITS.get(self.unit, self.unit))} "
            f"{'are' if whose.startswith('all ') else 'is'} protected with "
            f"epsilon = {up(self.epsilon)}, delta = {self.delta:g} (the {self.unit} being "
            f"{change(self)}) {against}."
        )
        if self.mode == "research":
            text += " The noise came from a seed: an experiment, void against anyone who knows the seed."
        elif self.mode == "secure" and self.exact:
            text += (
                " The noise is drawn from the operating system, exactly, on a lattice; not covered are the arithmetic "
                "before the clip, and timing."
            )
        elif self.mode == "secure":
            text += " The noise is drawn from the operating system, in floating point, whose rounding no proof covers."
        return text + (f" Taken as public: {'; '.join(self.public)}." if self.public else "")

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Guarantee:
        """Return the guarantee that `to_json` saved."""
        named = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        epsilon = math.inf if data["infinite"] else float(data["epsilon"])
        return cls(**named | {"epsilon": epsilon, "public": tuple(data.get("public", ()))})

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the sentence as a dictionary; an infinite epsilon becomes None."""
        data = asdict(self)
        data["epsilon"] = None if math.isinf(self.epsilon) else self.epsilon
        data["infinite"] = math.isinf(self.epsilon)
        return data | {"total": True, "sentence": self.sentence()}

    def _repr_html_(self) -> str:
        """Return the guarantee for a notebook."""
        parts = [html.table((), facts(self))]
        if math.isfinite(self.epsilon):
            parts = [html.beside(*parts, power_figure(self)), html.paragraph(power_sentence(self), quiet=True)]
        return html.card(heading(self), html.paragraph(self.sentence()), *parts)


def change(guarantee: Guarantee) -> str:
    """Describe how the data of a unit change; a client whose share of the noise is missing would be seen."""
    if guarantee.relation == "add/remove" and guarantee.unit == "client" and guarantee.channel == "secure-sum":
        return SILENT
    return RELATIONS.get(guarantee.relation, guarantee.relation)


def heading(guarantee: Guarantee) -> str:
    """Return the guarantee in a few words."""
    if math.isinf(guarantee.epsilon):
        return "No guarantee: epsilon is infinite"
    return f"Guarantee: epsilon = {up(guarantee.epsilon)}, delta = {guarantee.delta:g} in total"


def facts(guarantee: Guarantee) -> list[tuple[str, str]]:
    """Return the parts of a guarantee by name, for a table."""
    relation = change(guarantee)
    hidden = "" if guarantee.channel == "direct" else f" behind a {guarantee.channel.replace('-', ' ')}"
    seeded = guarantee.mode == "research"
    return [
        ("epsilon", up(guarantee.epsilon)),
        ("delta", f"{guarantee.delta:g}"),
        ("unit", f"{guarantee.unit}, {relation}"),
        ("viewer", guarantee.viewer + hidden),
        ("rounds", f"{guarantee.rounds}"),
        ("noise", "from a seed: an experiment" if seeded else "from the operating system"),
    ]


def power(guarantee: Guarantee, false_alarms: float) -> float:
    """Return the largest share of present units that a test can recognise at a share of false alarms among absent ones.

    Kairouz, Oh and Viswanath (2015), arXiv:1311.0776, Theorem 2.1: both kinds of error are bounded from below."""
    factor = math.exp(min(guarantee.epsilon, 700.0))
    missed = max(1 - guarantee.delta - factor * false_alarms, (1 - guarantee.delta - false_alarms) / factor, 0.0)
    return 1 - missed


def power_figure(guarantee: Guarantee) -> str:
    """Return a small figure of what the guarantee leaves to a viewer who asks whether one unit is in the data."""
    corner = (1 - guarantee.delta) / (1 + math.exp(min(guarantee.epsilon, 700.0)))  # where the two bounds meet
    points = [(x, power(guarantee, x)) for x in (0.0, corner, 1 - guarantee.delta, 1.0)]
    return svg.square(points, "false alarms", "recognised")


def power_sentence(guarantee: Guarantee) -> str:
    """Return one point of the figure in words; the share is rounded up."""
    share = min(100.0, math.ceil(1000 * power(guarantee, 0.01) - 1e-9) / 10)
    asked = "in the data" if guarantee.relation == "add/remove" else "in the data rather than another one"
    return (
        f"Whoever tests whether a given {guarantee.unit} is {asked}, with 1 % false alarms, recognises at most "
        f"{share:g} % of those that are."
    )
