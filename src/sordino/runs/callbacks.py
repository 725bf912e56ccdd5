"""The callbacks that a caller passes to a run: checks before anything is planned, and early ends."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sordino.core.errors import SpecError
from sordino.core.record import RoundRecord

Watch = Callable[[RoundRecord], None]  # called after every round with its public record


class StopTraining(Exception):  # noqa: N818 (it is no error)
    """Raised by a callback to end the run after this round, with its model; the whole plan stays charged."""


@dataclass
class End:
    """Whether a run shall make no further round."""

    asked: bool = False

    def tell(self, watch: Watch | None, record: RoundRecord) -> None:
        """Call a callback, if there is one, and take note if it raises StopTraining."""
        try:
            if watch is not None:
                watch(record)
        except StopTraining:
            self.asked = True


def stopped_note(done: int, planned: int) -> str:
    """Return the note of a run that was stopped before its plan ended."""
    return (
        f"stopped after {done} of {planned} rounds; the whole plan stays charged, and the guarantee is that of the "
        "plan. It covers the choice of this round only if the choice was made by public records"
    )


class Several:
    """A callback that calls others in turn; each hears of every round, even where an earlier one ends the run."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self.watches = tuple(watches)

    def __call__(self, record: RoundRecord) -> None:
        end = End()
        for watch in self.watches:
            end.tell(watch, record)
        if end.asked:
            raise StopTraining

    def finish(self, result: dict[str, Any] | None) -> None:
        """Tell every callback that wants to know it that the run has ended."""
        for watch in self.watches:
            finished(watch, result)


def combined(watch: Any) -> Any:
    """Return one callback for a list of callbacks; anything else is returned unchanged."""
    if not isinstance(watch, list | tuple):
        return watch
    for i, each in enumerate(watch):
        check(**{f"watch[{i}]": each})
    return Several([each for each in watch if each is not None])


def finished(watch: Any, result: dict[str, Any] | None) -> None:
    """Call `finish` of a callback that has it: with the public result of the run, or None if an error ended the run."""
    finish = getattr(watch, "finish", None)
    if callable(finish):
        finish(result)


def check(**functions: Any) -> None:
    """Raise SpecError unless each value is None or can be called with one argument; keywords give the names."""
    for name, function in functions.items():
        if function is None:
            continue
        if not callable(function):
            raise SpecError(f"{name} must be a function of one argument, not a {type(function).__name__}.")
        _takes(function, 1, f"{name} must be a function of one argument, and this one cannot be")


def check_loss(loss: Any) -> None:
    """Raise SpecError if a loss is a function that cannot be called with predictions and targets."""
    if callable(loss):
        _takes(loss, 2, "loss must be a function (predictions, targets) -> one loss a record, and this one cannot be")


def _takes(function: Any, arguments: int, text: str) -> None:
    """Raise SpecError, with this text, unless the function can be called with this number of arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have no signature
        return
    try:
        signature.bind(*[object()] * arguments)
    except TypeError as error:
        raise SpecError(f"{text}: {error}.") from error
