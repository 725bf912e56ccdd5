"""Relations between the norms of a vector."""

from __future__ import annotations

import math
from functools import lru_cache


@lru_cache(maxsize=1024)
def dense_l1(dim: int) -> float:
    """Return the mean L1 norm of a vector with uniform direction and L2 norm 1, close to sqrt(2 dim / pi).

    It is dim Gamma(dim / 2) / (sqrt(pi) Gamma((dim + 1) / 2)), and so 1 for dim = 1.
    """
    return dim * math.exp(math.lgamma(dim / 2) - math.lgamma((dim + 1) / 2)) / math.sqrt(math.pi)
