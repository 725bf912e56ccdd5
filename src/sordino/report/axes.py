"""Axes and legends that are readable with any number of methods, and saving of pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sordino.core.errors import RunError


def save(pyplot: Any, figure: Any, path: Path, dpi: int = 150) -> None:
    """Write a figure to a file and close it."""
    try:
        figure.savefig(path, dpi=dpi)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}.") from error
    finally:
        pyplot.close(figure)


MOST = 7  # largest number of ticks on an axis


def log_ticks(axis: Any, values: Sequence[float]) -> tuple[float, float]:
    """Set ticks at 1, 2, 5, 10, ... (or fewer over many decades), labelled as plain numbers.

    Returns:
        The limits of the axis, with a margin around the values.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = (max(end, 1e-6) for end in (min(values), max(values)))  # the logarithm of 0 is undefined
    low, high = low / 1.5, high * 1.5
    widen = math.sqrt(max(1.0, 10 * low / high))  # at least one decade
    low, high = low / widen, high * widen
    steps = (1, 2, 5) if high / low < 2000 else (1, 3) if high / low < 1e5 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    if high > 1e4:  # long labels
        steps = (1,)
    ticks = [s * 10.0**k for k in powers for s in steps if low <= s * 10.0**k <= high]
    ticks = ticks[:: -(-len(ticks) // MOST)]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(
        FuncFormatter(lambda v, _: f"{v:g}" if v < 1e4 else f"{v:.0e}".replace("e+0", "e").replace("e+", "e"))
    )
    return low, high


def legend(figure: Any, axes: Sequence[Any]) -> None:
    """Add one legend for all panels below them, as wide as the figure, and enlarge the figure by its height."""
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    width, height = figure.get_size_inches()
    columns = min(len(handles), max(1, int(width / (0.7 + 0.075 * max(map(len, handles))))))  # inches per letter
    figure.set_size_inches(width, height + 0.2 * -(-len(handles) // columns))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, fontsize=9)
