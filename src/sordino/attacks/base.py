"""What an attack is: it reads the Views of one viewer, and scores candidates. Nothing else of a run is in its reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from sordino.core.rng import Floats
from sordino.core.types import Batch
from sordino.core.view import View


@dataclass(frozen=True)
class Targets:
    """Records of which an attack says how likely they were trained on, each by one client."""

    batch: Batch  # sizes[k] records belong to the k-th of these clients
    clients: tuple[int, ...]

    @property
    def owners(self) -> list[int]:
        """The client of every record."""
        return [c for c, size in zip(self.clients, self.batch.sizes, strict=True) for _ in range(size)]


class Attack(Protocol):
    name: ClassVar[str]
    sees: ClassVar[str]  # the viewer whose views it reads: server, public

    def score(self, views: Sequence[View], targets: Targets) -> Floats:
        """Return one number a record; higher is more like one that was trained on."""
