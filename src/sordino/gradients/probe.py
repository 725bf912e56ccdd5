"""A look at the model before its first batch: one sample, then two, forward only.

Two sizes tell what a single one cannot. A layer that is handed 1 row for one sample and 2 for two has the samples
in its first dimension; a sequence-first model does not, whatever its length. The look also notices random numbers
drawn from the global generator and code that cannot live with channels-last images.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Draws(TorchDispatchMode):
    """Notices operations that read the global random generator."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            self.seen = True
        return func(*args, **kwargs)
