"""Randomness inside a model: every client draws from its own generator, seeded with its own seed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sordino.core.errors import SpecError


class Generators:
    """The generators of one call. No global random state is read or changed."""

    def __init__(self, seeds: Sequence[int] | None, first: int = 0) -> None:
        self._seeds, self._first = seeds, first
        self._generators: dict[int, torch.Generator] = {}

    def after(self, first: int) -> Generators:
        """Return the same generators, with clients counted from `first`."""
        rest = Generators(self._seeds, first)
        rest._generators = self._generators
        return rest

    @property
    def used(self) -> bool:
        """Whether any client has drawn a random number."""
        return bool(self._generators)

    def generator(self, client: int, device: torch.device) -> torch.Generator:
        """Return the client's generator; raise `SpecError` if no seeds were given."""
        if self._seeds is None:
            raise SpecError("the model draws random numbers (dropout); give one seed a client, or call its eval().")
        k = self._first + client
        if k not in self._generators:
            self._generators[k] = torch.Generator(device).manual_seed(self._seeds[k])
        return self._generators[k]
