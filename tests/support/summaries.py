"""Summaries of comparisons that were made up for a test."""

from __future__ import annotations

from typing import Any

from sordino.report.cells import read
from sordino.report.summary import lines


def lines_of(fabricated: Any, failures: Any = None) -> Any:
    """Return the lines of a made-up comparison, read from its folder."""
    return lines(read(fabricated.folder, failures or {}))
