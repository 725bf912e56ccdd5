"""Base class of the stand-ins for layers of the user's model that have a book-keeping rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn

from sordino.gradients.tape import Tape, Unsupported, Weight


class TapedLayer(ABC):
    """Stand-in for one module of a private copy: same arguments and results, but its gradients go to the tape.

    `slots` maps the name of a parameter in the module to its name in the layout; it does not contain frozen parameters.
    """

    names: ClassVar[str] = "weight|bias"  # regular expression for the parameters it handles
    absolute: ClassVar[bool] = True  # whether its terms can compute L1 norms

    def __init__(self, module: nn.Module, slots: dict[str, str]) -> None:
        self.module, self.slots = module, slots
        self.frozen = {
            name: value.detach() for name, value in module.named_parameters(recurse=False) if name not in slots
        }
        self._tape: Tape | None = None

    @property
    def places(self) -> tuple[int, int]:
        """Dimension of the records in the first tensor of the inputs and outputs, and in all later tensors."""
        return 0, 0

    @classmethod
    def refuses(cls, module: nn.Module) -> str | None:
        """Return why this module cannot be handled; None if it can."""
        return None

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward."""

    @property
    def tape(self) -> Tape:
        """The tape of the current call; raises `Unsupported` outside a call."""
        if self._tape is None:
            raise Unsupported("a layer is called outside of the model's forward")
        return self._tape

    def open(self, tape: Tape | None) -> None:
        """Begin a call with this tape or, with None, end it."""
        self._tape = tape

    def weight(self, name: str) -> Weight | None:
        """Return the parameter, trainable or frozen; None if the module does not have it."""
        return self.tape.weight(self.slots.get(name), self.frozen.get(name))

    def needed(self, name: str) -> Weight:
        """Return the parameter; raise `Unsupported` if the module does not have it."""
        weight = self.weight(name)
        if weight is None:
            raise Unsupported(f"{type(self.module).__name__} has no parameter {name}")
        return weight


def tokens(x: Tensor, tail: int = 1) -> Tensor:
    """Flatten all dimensions between the first and the last `tail`: [records, ..., *tail] -> [records, t, *tail]."""
    return x.reshape(x.shape[0], -1, *x.shape[x.dim() - tail :])
