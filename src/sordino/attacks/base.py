"""The interface of an attack: it reads the Views of one viewer and scores candidates.

An attack has access to nothing else of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from sordino.core.rng import Floats
from sordino.core.types import Batch
from sordino.core.view import View


@dataclass(frozen=True)
class Targets:
    """Records, each of one client, for which an attack scores how likely they were used in training."""

    batch: Batch  # sizes[k] records belong to the k-th of these clients
    clients: tuple[int, ...]

    @property
    def owners(self) -> list[int]:
        """The client of every record."""
        return [c for c, size in zip(self.clients, self.batch.sizes, strict=True) for _ in range(size)]


class Attack(Protocol):
    """An attack that scores records from the views of one viewer."""

    name: ClassVar[str]
    sees: ClassVar[str]  # viewer whose views it reads: server or public

    def score(self, views: Sequence[View], targets: Targets) -> Floats:
        """Return one number per record; higher means more likely to have been used in training."""
