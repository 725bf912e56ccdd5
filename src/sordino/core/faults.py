"""Named points at which a run may crash; tests make it crash at each of them."""

from collections.abc import Callable

POINTS = (
    "planning",
    "planned",
    "beginning",
    "drawn",
    "paying",
    "paid",
    "trained",
    "merged",
    "recorded",
    "stored",
    "saving",
    "saved",
    "noting",
    "finishing",
)

_hook: Callable[[str], None] | None = None


def set_hook(hook: Callable[[str], None] | None) -> None:
    """Set the function that is called with the name of every point reached; None removes it."""
    global _hook
    _hook = hook


def point(name: str) -> None:
    """Call the hook, if one is set, with the name of this point."""
    if _hook is not None:
        _hook(name)
