"""A sound way to distribute a Gaussian privacy budget over rounds.

The inputs of the rule must be public or already released; then it keeps the guarantee: Gaussian releases chosen one
after the other with mu_1^2 + mu_2^2 + ... <= mu^2 are mu-GDP together (Smith and Thakurta 2022).
"""

from __future__ import annotations

from sordino.core import check
from sordino.core.errors import SpecError


def next_rho(remaining: float, rounds_left: int, ratio: float, slope: float) -> float:
    """Return rho of the next round: min(rem, w rem / n_left), w = 1 / (1 + slope (ratio - 1/2)).

    The larger the (privately released) contribution ratio in [0, 1], the more noise. The sum over all rounds never
    exceeds the budget, so the guarantee does not depend on the quality of the ratio.
    """
    check.non_negative(remaining=remaining, slope=slope)
    check.count(rounds_left=rounds_left)
    if slope > 2:
        raise SpecError(
            f"slope must lie in [0, 2], not {slope!r}: beyond it a small ratio would have a negative share."
        )
    check.non_negative(ratio=ratio)
    if ratio > 1:
        raise SpecError(f"ratio must lie in [0, 1], not {ratio!r}.")
    share = 1 + slope * (ratio - 0.5)  # 1 / w
    return remaining if rounds_left * share <= 1 else remaining / (rounds_left * share)
