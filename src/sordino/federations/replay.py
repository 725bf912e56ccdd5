"""Recording and replay of what passes through the outlets of made-up clients."""

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

ALIKE = 1e-3  # relative to the norm of the rows: tolerance for float32 arithmetic


@dataclass(frozen=True)
class Records:
    """The records of one play, as clients that are always asked all at once."""

    batch: Batch

    @property
    def count(self) -> int:
        """Return the number of clients."""
        return len(self.batch.sizes)

    def sizes(self) -> tuple[int, ...]:
        """Return the distinct numbers of records per client, in ascending order."""
        return tuple(sorted(set(self.batch.sizes)))

    def mean_size(self) -> float:
        """Return the mean number of records per client."""
        return sum(self.batch.sizes) / max(1, self.count)

    def fetch(self, ids: Sequence[int], device: torch.device) -> Batch:
        """Return the records of all clients."""
        return self.batch


@dataclass(frozen=True)
class Passage:
    """One client's row passing through an outlet."""

    release: Release
    value: Tensor  # input of the outlet
    output: Tensor  # output of the outlet
    multiplier: Tensor | None


Passages = dict[tuple[str, int], list[Passage]]  # by outlet and client, in the order of use


class PassageRecorder:
    """Witness that records all uses of outlets in one phase and can replay the outputs of an earlier play."""

    def __init__(self, name: str, earlier: Passages | None = None, at_server: bool = True) -> None:
        self.name, self.earlier = name, earlier
        self.at_server = at_server  # whether to replay also outlets whose noise the server adds
        self.passages: Passages = {}

    def known(self, release: Release, ids: Ints) -> Tensor | None:
        """Return the outputs of the same use in the earlier play; None if it is not to be replayed."""
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
        """Record one use of an outlet."""
        for k, client in enumerate(ids.tolist()):
            row_multiplier = None if multiplier is None else multiplier[k].clone()
            passage = Passage(release, x.value[k].clone(), output[k].clone(), row_multiplier)
            self.passages.setdefault((release.name, client), []).append(passage)


def often(name: str, outlet: str) -> str:
    """Return the error message for an outlet whose number of uses depends on the clients' records."""
    return (
        f"{name}: how often the outlet {outlet} is used depends on the clients' records, which gives them away. Use it "
        "as many times as the public plan says."
    )


def length(row: Tensor, release: Release) -> float:
    """Return the norm of a row, in the norm of the release's bound."""
    return float(torch.linalg.vector_norm(row.flatten(), ord=release.norm))


def same(a: Tensor | None, b: Tensor | None) -> bool:
    """Return whether two tensors are equal bit for bit, counting NaN as equal to itself."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


def affine(rows: Tensor, outputs: Tensor) -> bool:
    """Return whether the rows are an affine function of the outputs, the same for all clients.

    Each component may have its own factor and shift.
    """
    if rows.shape != outputs.shape:
        return False
    x, y = rows.double(), outputs.double()
    x, y = x - x.mean(dim=0), y - y.mean(dim=0)
    factor = (x * y).sum(dim=0) / y.square().sum(dim=0).clamp_min(1e-300)
    return float((x - factor * y).norm()) <= ALIKE * float(x.norm())
