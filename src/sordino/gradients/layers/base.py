"""A layer of the user's model that the book can be kept for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn

from sordino.gradients.tape import Tape, Unsupported, Weight


class TapedLayer(ABC):
    """Stands in for one module of a private copy of the model: same arguments, same result, book kept.

    `slots` maps a parameter's own name to its name in the layout; frozen parameters are not in it.
    """

    names: ClassVar[str] = "weight|bias"  # parameters it knows, as a regular expression
    absolute: ClassVar[bool] = True  # whether its terms have L1 norms

    def __init__(self, module: nn.Module, slots: dict[str, str]) -> None:
        self.module, self.slots = module, slots
        self.frozen = {
            name: value.detach() for name, value in module.named_parameters(recurse=False) if name not in slots
        }
        self._tape: Tape | None = None

    @property
    def places(self) -> tuple[int, int]:
        """The dimension of the records in the first tensor that goes in and comes out, and in those after it."""
        return 0, 0

    @classmethod
    def refuses(cls, module: nn.Module) -> str | None:
        """Why this very module cannot be handled; None if it can."""
        return None

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward."""

    @property
    def tape(self) -> Tape:
        if self._tape is None:
            raise Unsupported("a layer is called outside of the model's forward")
        return self._tape

    def open(self, tape: Tape | None) -> None:
        """Begin (or, with None, end) a call."""
        self._tape = tape

    def weight(self, name: str) -> Weight | None:
        return self.tape.weight(self.slots.get(name), self.frozen.get(name))

    def needed(self, name: str) -> Weight:
        weight = self.weight(name)
        if weight is None:
            raise Unsupported(f"{type(self.module).__name__} has no parameter {name}")
        return weight


def tokens(x: Tensor, tail: int = 1) -> Tensor:
    """[records, ..., *tail] -> [records, t, *tail]."""
    return x.reshape(x.shape[0], -1, *x.shape[x.dim() - tail :])
