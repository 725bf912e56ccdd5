"""Per-client sums of per-sample clipped gradients."""

from sordino.gradients.engine import CohortGradients

__all__ = ["CohortGradients"]
