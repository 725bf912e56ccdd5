"""The Engine protocol: who runs the clients, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from sordino.core.rng import Stream
from sordino.core.types import Clients, Model, Rows, State
from sordino.engines.store import Store
from sordino.methods.base import Method, Plan


class Engine(Protocol):
    device: torch.device
    store: Store  # what clients keep for themselves

    def clients(
        self, method: Method, state: State, cohort: Sequence[int], data: Clients, model: Model, plan: Plan, rng: Stream
    ) -> Rows:
        """What arrives in a round."""
