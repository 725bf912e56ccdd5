"""Kinds of clients in one run, by privacy profile, compute and type of data, all declared and therefore public.  Feng
et al. (2025), "Harmonizing Differential Privacy Mechanisms for Federated Learning", Section 3.3: the Harmonizer weighs
mechanisms by client-specific requirements.

A field is one word for all clients ("medical") or a mixture of words and shares ("medical:0.3,iot:0.7"). Words are
assigned in the order of the client numbers: here the first 30 % of the clients are medical. Shares are rounded to whole
clients by largest remainders. All fields follow the same order, so that equal cuts describe the same clients, and a
word may occur twice: profile = "medical:0.3,iot:0.7" with resources = "high:0.3,limited:0.4,high:0.3" makes three
kinds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import Ints


@dataclass(frozen=True)
class Kind:
    """The declared privacy profile, compute and type of data of a group of clients."""

    profile: str
    resources: str
    data: str

    def __str__(self) -> str:
        return f"profile {self.profile}, compute {self.resources}, data {self.data}"


@dataclass(frozen=True)
class Dealt:
    """The kinds that occur, in the order of the clients, and the kind of each client."""

    kinds: tuple[Kind, ...]
    of: Ints  # [clients]: index into kinds

    def counts(self) -> list[int]:
        """Return the number of clients of each kind."""
        return [int(n) for n in np.bincount(self.of, minlength=len(self.kinds))]


def parse(name: str, text: str, known: Sequence[str]) -> tuple[tuple[str, float], ...]:
    """Parse one word, or word:share pairs whose shares sum to 1, into (word, share) pairs.

    Args:
        name: the name of the field, for error messages.
        text: the value of the field.
        known: the words that are allowed.
    """
    if ":" not in text:
        check.one_of(tuple(known), **{name: text})
        return ((text, 1.0),)
    pairs = []
    for part in text.split(","):
        word, _, share = part.partition(":")
        check.one_of(tuple(known), **{name: word.strip()})
        try:
            pairs.append((word.strip(), float(share)))
        except ValueError as error:
            raise SpecError(f"{name} {text!r}: {share.strip()!r} is not a share between 0 and 1.") from error
        check.probability(**{f"a share in {name} {text!r}": pairs[-1][1]})
    total = math.fsum(share for _, share in pairs)
    if abs(total - 1) > 1e-9:
        raise SpecError(f"the shares in {name} {text!r} sum to {total:g}, not to 1.")
    return tuple(pairs)


def mixed(*fields: str) -> bool:
    """Return whether any of these fields differs between clients."""
    return any(len({part.partition(":")[0].strip() for part in text.split(",")}) > 1 for text in fields)


@lru_cache(maxsize=16)
def deal(profile: str, resources: str, data: str, clients: int) -> Dealt:
    """Return the kind of every client, from fields that `parse` has checked."""
    fields = [_runs(text, clients) for text in (profile, resources, data)]
    edges = sorted({0}.union(*(ends for _, ends in fields)))
    index: dict[Kind, int] = {}
    of = [np.zeros(0, dtype=np.int64)]
    for low, high in pairwise(edges):
        kind = Kind(*(next(w for w, end in zip(words, ends, strict=True) if end > low) for words, ends in fields))
        of.append(np.full(high - low, index.setdefault(kind, len(index)), dtype=np.int64))
    return Dealt(tuple(index), np.concatenate(of))


def _runs(text: str, clients: int) -> tuple[list[str], list[int]]:
    """Return the words of a field, and for each the index after its last client."""
    if ":" not in text:
        return [text], [clients]
    pairs = [part.split(":") for part in text.split(",")]
    exact = np.array([float(share) for _, share in pairs]) * clients
    counts = np.floor(exact + 1e-9).astype(np.int64)
    dear = np.argsort(counts - exact, kind="stable")[: clients - int(counts.sum())]
    counts[dear] += 1
    return [word.strip() for word, _ in pairs], np.cumsum(counts).tolist()
