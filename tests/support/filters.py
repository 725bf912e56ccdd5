"""What the filters of managed budgets let through, in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import torch

from sordino.methods.fedsdp.method import noise_for


def exact_price(units: int, steps: int, whole: float) -> Fraction:
    """What so many steps really cost with the float32 multiplier in use, relative to the whole budget; exactly."""
    z = Fraction(float(torch.tensor(noise_for(units, steps, whole), dtype=torch.float32)))
    return steps * Fraction(whole) ** 2 / z**2 if units else Fraction(0)
