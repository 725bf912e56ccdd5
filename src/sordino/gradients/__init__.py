"""Per-client sums of per-sample clipped gradients."""

from sordino.gradients.engine import Gradients

__all__ = ["Gradients"]
