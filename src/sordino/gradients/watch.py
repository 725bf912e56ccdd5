"""Watch a model while it runs: whether it draws random numbers or reads values computed from its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ASKED = "the model's forward asks for a number computed from its data (an if, item, tolist), and may depend on it"


class Draws(TorchDispatchMode):
    """Context that detects whether torch's global random generator is used, and restores its state.

    Both must happen: an operation that could draw runs, and the state of the generator changes. Attention without
    dropout does only the former, and another thread may cause the latter.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device, self._could, self.seen = device, False, False

    def _state(self) -> Tensor:
        return torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else torch.get_rng_state()

    def __enter__(self) -> Self:
        self._before = self._state()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.seen = self._could and not torch.equal(self._before, self._state())
        if self.seen and self._device.type == "cuda":
            torch.cuda.set_rng_state(self._before, self._device)
        elif self.seen:
            torch.set_rng_state(self._before)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._could = self._could or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


class DecisionWatch(TorchDispatchMode):
    """Detects whether a value computed from the model's inputs is read: control flow may depend on it.

    Every tensor computed from a marked tensor is marked by the address of its memory, which is kept alive until the end
    so that no other tensor can take its place.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reason, self.checks = "", 0
        self._kept: list[Tensor] = []
        self._marked: set[int | None] = set()

    def stop(self) -> None:
        """Forget all marked tensors, so that nothing more is reported."""
        self._kept.clear()
        self._marked.clear()

    def mark(self, values: Any) -> None:
        """Mark all tensors among the values as computed from the inputs."""
        made = [value for value in tree_leaves(values) if _memory(value) is not None]
        self._kept += made
        self._marked.update(map(_memory, made))

    def of(self, values: Any) -> bool:
        """Return whether any tensor among the values was computed from the inputs."""
        return not self._marked.isdisjoint(map(_memory, tree_leaves(values)))

    def note(self, reason: str) -> None:
        """Store the reason, unless there is an earlier one."""
        self.reason = self.reason or reason

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.of((args, kwargs)):
            if torch.Tag.data_dependent_output in func.tags and not self.checks:
                self.note(ASKED)
            self.mark(out)
        return out


def _memory(value: Any) -> int | None:
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return None
    return int(value.untyped_storage()._cdata)


class Calls(TorchFunctionMode):
    """Reports to `DecisionWatch` reads that are not operations, and operations that read values only for a check."""

    def __init__(self, asked: DecisionWatch) -> None:
        super().__init__()
        self._asked = asked

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        asked = self._asked
        if func in (Tensor.tolist, Tensor.numpy, Tensor.__array__) and asked.of(args):
            asked.note(ASKED)
        if func in (F.instance_norm, torch.instance_norm) and asked.of((args, kwargs)):
            asked.note("instance_norm is called outside of a layer with a rule")  # see `layers.norm.InstanceNorm`
        check = func is F.one_hot  # on a CPU it checks that its classes are in range
        asked.checks += check
        try:
            return func(*args, **(kwargs or {}))
        finally:
            asked.checks -= check
