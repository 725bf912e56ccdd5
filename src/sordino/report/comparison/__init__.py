"""The page of a comparison of `sordino compare`, made of its public files alone."""

from sordino.report.comparison.page import document
from sordino.report.comparison.sources import find, is_comparison

__all__ = ["document", "find", "is_comparison"]
