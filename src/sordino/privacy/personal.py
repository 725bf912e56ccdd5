"""Personal budgets: each client has its own (epsilon, delta), which limits how often it may take part.

The plan and its noise are those of the run; a client with a smaller budget takes part less often. The assignment of
budgets to clients is public. Participations are counted as seen by the viewer (no amplification by the draw of
clients), so the number of participations alone determines what a client has spent: Jorgensen, Yu, Cormode (2015),
"Conservative or liberal? Personalized DP", Definition 5.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.privacy.calibrate import steps_within
from sordino.privacy.events import Event, Repeated

if TYPE_CHECKING:
    from sordino.core.rng import Stream

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Budgets:
    """The distinct budgets, and the one that each client has."""

    kinds: tuple[tuple[float, float], ...]  # (epsilon, delta)
    of: Ints  # [clients]: index into kinds

    @property
    def clients(self) -> int:
        """Return the number of clients."""
        return len(self.of)


def read(text: str, clients: int, delta: float, rng: Stream) -> Budgets:
    """Read budgets from a CSV file, from a distribution such as "0.5:0.4,2:0.6", or from a list such as "0.5,2,1".

    Args:
        text: path of a CSV file with the columns client, epsilon and optionally delta; or epsilon:share pairs; or one
            epsilon per client, in the order of clients.
        clients: the number of clients.
        delta: the delta of clients for which none is given.
        rng: the (public) randomness that assigns the budgets of a distribution to clients.
    """
    if _is_distribution(text):
        return deal(text, clients, delta, rng)
    if is_list(text):
        return table(dict(enumerate(map(float, text.split(",")))), clients, delta)
    return table(_rows(Path(text)), clients, delta, text)


def is_public(text: str) -> bool:
    """Return whether budgets are written out in the text itself, and not in a file."""
    return _is_distribution(text) or is_list(text)


def is_list(text: str) -> bool:
    """Return whether the text is a list of epsilons, one per client, as in "0.5,2,1"."""
    try:
        return "," in text and not os.path.exists(text) and bool([float(part) for part in text.split(",")])  # noqa: PTH110
    except ValueError:
        return False


def table(budgets: Mapping[Any, Any], clients: int, delta: float, name: str = "budgets") -> Budgets:
    """Return the budgets in a dictionary with one entry per client: {client: epsilon} or {client: (epsilon, delta)}."""
    pairs: list[tuple[float, float] | None] = [None] * clients
    for client, value in budgets.items():
        if isinstance(client, bool) or not isinstance(client, int) or not 0 <= client < clients:
            raise SpecError(f"{name}: there is no client {client!r}; clients are numbered 0 to {clients - 1}.")
        pair = value if isinstance(value, tuple | list) else (value, delta)
        if len(pair) != 2:
            raise SpecError(f"{name}: client {client} needs (epsilon, delta), not {value!r}.")
        pairs[client] = _checked(f"{name}: client {client}", *pair)
    if missing := [i for i, p in enumerate(pairs) if p is None]:
        raise SpecError(
            f"{name}: {len(missing)} clients have no budget, client {missing[0]} first. Give every client one."
        )
    entries = [p for p in pairs if p is not None]
    kinds = tuple(sorted(set(entries)))
    index = {kind: i for i, kind in enumerate(kinds)}
    return Budgets(kinds, np.array([index[p] for p in entries], dtype=np.int64))


def deal(text: str, clients: int, delta: float, rng: Stream) -> Budgets:
    """Assign the budgets of a distribution to clients in a random order.

    Args:
        text: epsilon:share pairs; each budget goes to its share of the clients (by largest remainders).
        clients: the number of clients.
        delta: the delta of all clients.
        rng: the (public) randomness of the order.
    """
    shares: dict[float, float] = {}
    for part in text.split(","):
        left, _, right = part.partition(":")
        epsilon, share = _number(f"budgets {text!r}", left), _number(f"budgets {text!r}", right)
        _checked(f"budgets {text!r}", epsilon, delta)
        check.probability(**{f"a share in budgets {text!r}": share})
        if epsilon in shares:
            raise SpecError(f"budgets {text!r} name epsilon {epsilon:g} twice.")
        shares[epsilon] = share
    if abs(math.fsum(shares.values()) - 1) > 1e-9:
        raise SpecError(f"the shares in budgets {text!r} sum to {math.fsum(shares.values()):g}, not to 1.")
    kinds = sorted(shares)
    exact = np.array([shares[k] * clients for k in kinds])
    counts = np.floor(exact + 1e-9).astype(np.int64)
    dear = np.argsort(counts - exact, kind="stable")[: clients - int(counts.sum())]
    counts[dear] += 1
    of = np.empty(clients, dtype=np.int64)
    of[rng.permutation(clients)] = np.repeat(np.arange(len(kinds)), counts)
    return Budgets(tuple((k, float(delta)) for k in kinds), of)


def participations(event: Event, budgets: Budgets, at_most: int = 1_000_000) -> Ints:
    """Return how often each client may take part.

    It is the largest count (up to `at_most`) whose composed epsilon(delta_k) is within epsilon_k.
    """
    check.count(at_most=at_most)
    counts = [steps_within(partial(Repeated, event), epsilon, delta, at_most) for epsilon, delta in budgets.kinds]
    return np.array(counts, dtype=np.int64)[budgets.of]


def _is_distribution(text: str) -> bool:
    return ":" in text and not os.path.exists(text)  # noqa: PTH110 (it accepts text too long for a file name)


def _rows(path: Path) -> dict[int, tuple[Any, Any] | float]:
    try:
        lines = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines(), restval=""))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError(
            f"budgets: cannot read {path}: {error}. Give a CSV file (client, epsilon, delta), or epsilon:share pairs, "
            "such as 0.5:0.4,2:0.6."
        ) from error
    names = set(lines[0]) if lines else set()
    if not {"client", "epsilon"} <= names or not names <= {"client", "epsilon", "delta"}:
        raise SpecError(
            f"budgets: {path} needs the columns client, epsilon and optionally delta, not {sorted(map(str, names))}."
        )
    out: dict[int, tuple[Any, Any] | float] = {}
    for number, line in enumerate(lines, start=2):
        where = f"{path}, line {number}"
        client = line["client"].strip()
        if not client.isascii() or not client.isdecimal():
            raise SpecError(f"{where}: client must be a whole number, not {client!r}.")
        if int(client) in out:
            raise SpecError(f"{where}: client {client} has a budget already.")
        epsilon, delta = _number(where, line["epsilon"]), (line.get("delta") or "").strip()
        out[int(client)] = (epsilon, _number(where, delta)) if delta else epsilon
    return out


def _number(where: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise SpecError(f"{where}: {text.strip()!r} is not a number.") from error


def _checked(where: str, epsilon: object, delta: object) -> tuple[float, float]:
    check.positive(**{f"{where}: epsilon": epsilon})
    check.below_one(**{f"{where}: delta": delta})
    return float(epsilon), float(delta)  # type: ignore[arg-type]
