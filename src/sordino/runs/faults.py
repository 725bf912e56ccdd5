"""Named points at which a run may die; tests let it die at each of them."""

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
    global _hook
    _hook = hook


def point(name: str) -> None:
    if _hook is not None:
        _hook(name)
