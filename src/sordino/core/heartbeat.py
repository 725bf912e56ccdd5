"""A count of the records whose gradients were computed, for progress inside a long round; off unless a hook is set.

The count tells who was drawn, so only the terminal of the owner of the data may show it, as a share of what the plan
expects of a round."""

from collections.abc import Callable

_hook: Callable[[int], None] | None = None


def set_hook(hook: Callable[[int], None] | None) -> None:
    """Set the function that is called with the number of records of every block that was computed; None removes it."""
    global _hook
    _hook = hook


def beat(records: int) -> None:
    """Call the hook, if one is set, with the number of records of a block."""
    if _hook is not None:
        _hook(records)
