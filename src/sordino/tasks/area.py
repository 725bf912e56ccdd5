"""The area under the ROC curve, exactly, by ranks."""

from __future__ import annotations

import torch
from torch import Tensor


def area(scores: Tensor, positive: Tensor) -> float | None:
    """Return the share of pairs of a positive and a negative record in which the positive one has the higher score.

    Equal scores count half (Mann and Whitney 1947, doi:10.1214/aoms/1177730491).

    Args:
        scores: [n]; infinite scores are allowed.
        positive: whether each record is positive [n].

    Returns:
        The area, or None if there are no positive or no negative records.
    """
    above, below = scores[positive].contiguous(), scores[~positive].sort().values
    if not len(above) or not len(below):
        return None
    lower = torch.searchsorted(below, above).sum() + torch.searchsorted(below, above, right=True).sum()
    return int(lower) / (2 * len(above) * len(below))


def mean_area(scores: Tensor, positive: Tensor) -> float | None:
    """Return the mean area over the columns [n, columns] that have positive and negative records; None if none has."""
    areas = [area(scores[:, k], positive[:, k]) for k in range(scores.shape[1])]
    known = [a for a in areas if a is not None]
    return sum(known) / len(known) if known else None
