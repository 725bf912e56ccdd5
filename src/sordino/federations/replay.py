"""What passes the outlets of made-up clients: recorded in one play, handed back in the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.core.errors import RunError
from sordino.core.rng import Ints
from sordino.core.types import Batch
from sordino.privacy.clip import Bounded
from sordino.privacy.release import Release

ALIKE = 1e-3  # of the length of rows: what steps in float32 may change in a product


@dataclass(frozen=True)
class Records:
    """The records of one play, as clients that are all asked at once."""

    batch: Batch

    @property
    def count(self) -> int:
        return len(self.batch.sizes)

    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.batch.sizes)))

    def mean_size(self) -> float:
        return sum(self.batch.sizes) / max(1, self.count)

    def fetch(self, ids: Sequence[int], device: torch.device) -> Batch:
        return self.batch


@dataclass(frozen=True)
class Passage:
    """One client's row on its way through an outlet."""

    release: Release
    value: Tensor  # what went in,
    output: Tensor  # and what came out
    multiplier: Tensor | None


Passages = dict[tuple[str, int], list[Passage]]  # by outlet and client, in the order of use


class PassageRecorder:
    """Keeps what passes the outlets in one phase and, given an earlier play of it, hands back what came out then."""

    def __init__(self, name: str, earlier: Passages | None = None, at_server: bool = True) -> None:
        self.name, self.earlier = name, earlier
        self.at_server = at_server  # whether outlets whose noise a server adds hand back what came out before, too
        self.passages: Passages = {}

    def known(self, release: Release, ids: Ints) -> Tensor | None:
        if self.earlier is None or not len(ids) or (release.where == "server" and not self.at_server):
            return None
        rows = []
        for client in ids.tolist():
            place = (release.name, client)
            number, before = len(self.passages.get(place, ())), self.earlier.get(place, [])
            if number >= len(before):
                raise RunError(often(self.name, release.name))
            rows.append(before[number].output)
        return torch.stack(rows)

    def passed(self, release: Release, x: Bounded, ids: Ints, output: Tensor, multiplier: Tensor | None) -> None:
        for k, client in enumerate(ids.tolist()):
            own = None if multiplier is None else multiplier[k].clone()
            passage = Passage(release, x.value[k].clone(), output[k].clone(), own)
            self.passages.setdefault((release.name, client), []).append(passage)


def often(name: str, outlet: str) -> str:
    return (
        f"{name}: how often the outlet {outlet} is used follows the clients' records, which gives them away. Use it a "
        "number of times that the public plan says."
    )


def length(row: Tensor, release: Release) -> float:
    """Return the norm of a row, the one that the release is bounded in."""
    return float(torch.linalg.vector_norm(row.flatten(), ord=release.norm))


def same(one: Tensor | None, two: Tensor | None) -> bool:
    """Return whether two tensors are the same bit for bit; not-a-number is the same as itself."""
    if one is None or two is None:
        return one is two
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    return bool(((one == two) | ((one != one) & (two != two))).all())


def affine(rows: Tensor, outputs: Tensor) -> bool:
    """Return whether rows are the outputs times one factor plus one shift, of each component, for all clients."""
    if rows.shape != outputs.shape:
        return False
    one, two = rows.double(), outputs.double()
    one, two = one - one.mean(dim=0), two - two.mean(dim=0)
    factor = (one * two).sum(dim=0) / two.square().sum(dim=0).clamp_min(1e-300)
    return float((one - factor * two).norm()) <= ALIKE * float(one.norm())
