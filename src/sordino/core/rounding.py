"""Formatting of numbers for people."""

from __future__ import annotations

import math


def small_up(delta: float, digits: int = 3) -> str:
    """Format a small probability with so many significant digits, rounded up and never down."""
    if not 1e-300 < delta < math.inf:
        return f"{delta:g}"
    unit = 10.0 ** (math.floor(math.log10(delta)) - digits + 1)
    return f"{math.ceil(delta / unit - 1e-9) * unit:.{digits}g}"


def up(epsilon: float, digits: int = 3) -> str:
    """Format an epsilon for people, rounded up and never down.

    An epsilon that exceeds a round number by no more than a floating-point error is shown as that number. An epsilon of
    at least 10^6, which promises nothing, has three digits.
    """
    if math.isinf(epsilon):
        return "infinite"
    if epsilon >= 1e6:
        unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
        return f"{math.ceil(epsilon / unit - 1e-9) * unit:.2e}".replace("e+0", "e").replace("e+", "e")
    scale = 10**digits
    text = f"{math.ceil(epsilon * scale - 1e-6) / scale:.{digits}f}"
    return text.rstrip("0").rstrip(".")


def down(value: float, digits: int = 3) -> str:
    """Return a lower bound for people, rounded down."""
    if value >= 1e12:  # far beyond any audit; more digits than floating point has
        return f"{math.floor(value / 10.0 ** (power := math.floor(math.log10(value))))}e{power}"
    return f"{math.floor(value * 10**digits + 1e-9) / 10**digits:.{digits}f}".rstrip("0").rstrip(".")
