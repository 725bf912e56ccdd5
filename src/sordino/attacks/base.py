"""The interface of attacks: an attack reads the recorded views of one viewer and what it is told to know, nothing else.

There are three kinds. Each is one file with one class, whose fields are the options of the attack:

    membership      score(views, knowledge, targets)         one number a record: higher means more likely a member
    reconstruction  reconstruct(views, knowledge, victim)    records that look like those that a client trained on
    inference       infer(views, knowledge, question)        one score for each record (or client) and candidate answer

`sees` lists the viewers whose views suffice, the usual one first; `reads` says what of a view the attack uses:

    models   the parameters after (or before) the rounds; every viewer has them
    rows     the message of each single client, with its sender; a server on a direct channel, or one wire
    sums     messages, or at least their sum; any server

An attack never trains on the clients' data and never sees the truth: shadow models come with `Knowledge`, and whoever
runs the attack compares its answers with the truth (red_team/).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sordino.core.errors import SpecError
from sordino.core.local_training import Local
from sordino.core.rng import Floats
from sordino.core.types import Batch, Model, Vector
from sordino.core.view import View

MEMBERSHIP, RECONSTRUCTION, INFERENCE = KINDS = ("membership", "reconstruction", "inference")
MODELS, ROWS, SUMS = "models", "rows", "sums"
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Shadows:
    """Models that the attacker trained as the attacked one was trained, on known halves of a pool of records."""

    pool: Batch  # the records that they were trained on, or not
    params: Tensor  # [models, dim]
    members: Bools  # [models, records of the pool]: which records each model was trained on


@dataclass(frozen=True)
class Knowledge:
    """What an attacker knows besides its views. Anything that is None it does not know."""

    model: Model  # the network and its loss, which every participant has
    classes: int | None = None  # number of labels
    local: Local | None = None  # public settings of the clients' training: steps, batches, learning rate
    client_size: int | None = None  # public number of records of a client
    own: Batch | None = None  # the records of the attacker's own clients (client, server+t)
    auxiliary: Batch | None = None  # records from the same source that no client trained on
    shadows: Shadows | None = None
    seed: int = 0  # of the attacker's own randomness

    def need(self, attack: str, **reasons: str) -> None:
        """Raise SpecError if one of the named parts is not known; the reasons say what it is needed for."""
        for name, reason in reasons.items():
            if getattr(self, name) is None:
                raise SpecError(f"{attack} needs {NAMES.get(name, name)} to {reason}. {HOW.get(name, '')}".strip())


NAMES = {
    "shadows": "shadow models",
    "auxiliary": "records from the same source that no client trained on",
    "own": "the records of the attacker's own clients",
    "local": "the settings of the clients' training",
    "client_size": "the number of records of a client",
    "classes": "the number of labels",
}
HOW = {
    "shadows": "`sordino attack` trains them; in Python, pass Knowledge(shadows=...).",
    "own": "Attack from the view of a client or of server+t.",
}


@dataclass(frozen=True)
class Targets:
    """Records, each of one client, for which an attack scores how likely they were used in training."""

    batch: Batch  # sizes[k] records belong to the k-th of these clients
    clients: tuple[int, ...]
    pool: NDArray[np.int64] | None = None  # [records]: where each record stands in the pool of the shadow models

    @property
    def owners(self) -> list[int]:
        """The client of every record."""
        return [c for c, size in zip(self.clients, self.batch.sizes, strict=True) for _ in range(size)]


@dataclass(frozen=True)
class Victim:
    """Whose records are to be reconstructed, and from which round."""

    client: int | None = None  # None: anybody's, as a model shows them
    round: int = 1  # counted from 1, as in views
    records: int = 1  # how many to reconstruct; what a client has, or a batch, is public
    labels: tuple[int, ...] | None = None  # of these labels, where the attacker may choose


class Attack(Protocol):
    """What every attack declares."""

    name: ClassVar[str]
    kind: ClassVar[str]  # one of KINDS
    sees: ClassVar[tuple[str, ...]]  # viewers whose views suffice, the usual one first
    reads: ClassVar[str]  # models, rows or sums
    needs: ClassVar[tuple[str, ...]]  # parts of Knowledge that it cannot do without


class MembershipAttack(Attack, Protocol):
    """An attack that tells records that were trained on from others."""

    def score(self, views: Sequence[View], knowledge: Knowledge, targets: Targets) -> Floats:
        """Return one number per record; higher means more likely to have been used in training."""


class ReconstructionAttack(Attack, Protocol):
    """An attack that makes records like those that a client trained on."""

    def reconstruct(self, views: Sequence[View], knowledge: Knowledge, victim: Victim) -> Batch:
        """Return `victim.records` reconstructed records."""


def require(attack: Attack, views: Sequence[View], knowledge: Knowledge) -> None:
    """Raise SpecError if the views or the knowledge do not hold what an attack declares; say which would."""
    if not views:
        raise SpecError(f"{attack.name} was given no view. Run with record_views = true to record them.")
    viewer = views[0].viewer
    kind = viewer.partition("+")[0].partition(":")[0]
    if kind not in attack.sees:
        raise SpecError(
            f"{attack.name} reads the views of the {' or the '.join(attack.sees)}, not those of the {viewer}: it needs "
            f"{WHAT[attack.reads]}. Use --view {attack.sees[0]}."
        )
    if attack.reads != MODELS and any(view.seen is None for view in views):
        raise SpecError(f"{attack.name} needs {WHAT[attack.reads]}, which the {viewer} does not see.")
    if attack.reads == ROWS:
        for view in views:
            single_rows(attack.name, view)
    knowledge.need(attack.name, **dict.fromkeys(attack.needs, "attack at all"))


WHAT = {
    MODELS: "the models of the rounds",
    ROWS: "the messages of single clients",
    SUMS: "messages, or their sum",
}


def single_rows(name: str, view: View, field: str | None = None) -> tuple[NDArray[np.int64], Tensor]:
    """Return the senders and rows [clients, dim] of a view; raise SpecError if it holds none.

    Args:
        name: the attack, for the message.
        view: what a server, or whoever listens on a wire, saw.
        field: the field of the message; None: the first one.
    """
    seen = view.seen
    if seen is None or seen.summed or seen.ids is None:
        what = "a sum" if seen is not None and seen.summed else "rows without senders" if seen is not None else "models"
        raise SpecError(
            f"{name} reads single clients' rows and their senders; in round {view.round} the {view.viewer} saw {what} "
            "alone, so there is nothing to read. The server of a run with channel = direct would see them."
        )
    if field is not None and field not in seen.fields:
        raise SpecError(f"{name}: the message has no field {field}: {', '.join(seen.fields)}.")
    return seen.ids, seen.fields[field or next(iter(seen.fields))]


def last_model(views: Sequence[View]) -> Vector:
    """Return the parameters of the last model that a viewer saw."""
    return max(views, key=lambda view: (view.round, view.phase == "")).state.model
