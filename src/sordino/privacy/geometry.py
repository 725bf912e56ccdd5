"""How long a vector is in one norm, given its length in another."""

from __future__ import annotations

import math
from functools import lru_cache


@lru_cache(maxsize=1024)
def dense_l1(dim: int) -> float:
    """The mean L1 norm of a vector whose direction is uniform and whose L2 norm is one, close to sqrt(2 dim / pi):
    dim Gamma(dim / 2) / (sqrt(pi) Gamma((dim + 1) / 2)), so 1 for a single number."""
    return dim * math.exp(math.lgamma(dim / 2) - math.lgamma((dim + 1) / 2)) / math.sqrt(math.pi)
