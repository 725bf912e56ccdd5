"""A grid of originals and reconstructions: the originals on the first row, one row below for each method and epsilon.

As Fig. 4 of Li et al. (2025), arXiv:2503.12958, with what was measured under every picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.core.errors import RunError
from sordino.report.axes import save

Pictures = NDArray[np.float32]  # [n, channels, height, width] in [0, 1]
SIDE, NAME = 1.05, 2.1  # inches: of a picture, and for the names on the left
MOST = 12  # pictures in a row


@dataclass(frozen=True)
class GridRow:
    """One row of reconstructions."""

    name: str  # such as "dp-sgd, epsilon 8"
    pictures: Pictures
    psnr: Sequence[float] | None = None  # of every picture, in dB
    ssim: Sequence[float] | None = None  # of every picture


def picture_grid(
    path: Path, originals: Pictures, rows: Sequence[GridRow], labels: Sequence[str] = (), first: str = "original"
) -> None:
    """Write a grid of pictures to a file.

    Args:
        path: the file to write.
        originals: pictures of the first row, in [0, 1]; at most `MOST` of them are shown.
        rows: the reconstructions of each method and epsilon, in the same order.
        labels: words above the originals.
        first: the name of the first row.
    """
    shown = min(len(originals), MOST)
    for row in rows:
        if len(row.pictures) < shown:
            raise RunError(f"the row {row.name} has {len(row.pictures)} pictures for {shown} originals.")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1 + len(rows), shown, squeeze=False, layout="constrained",
        figsize=(NAME + SIDE * shown, (SIDE + 0.3) * (1 + len(rows))),
    )  # fmt: skip
    for line, row in enumerate([GridRow(first, originals), *rows]):
        for place in range(shown):
            axis = axes[line][place]
            _picture(axis, row.pictures[place])
            axis.set_xlabel(_caption(row, place), fontsize=7, labelpad=2)
        axes[line][0].set_ylabel(_wrapped(row.name), rotation=0, ha="right", va="center", fontsize=8)
    for place, label in enumerate(labels[:shown]):
        axes[0][place].set_title(label, fontsize=8)
    save(pyplot, figure, path)


def _picture(axis: Any, picture: NDArray[np.float32]) -> None:
    held = np.clip(np.nan_to_num(picture), 0, 1)
    if len(held) == 3:
        axis.imshow(held.transpose(1, 2, 0), interpolation="nearest")
    else:
        axis.imshow(held[0], cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axis.set_xticks([])
    axis.set_yticks([])
    for side in axis.spines.values():
        side.set_visible(False)


def _caption(row: GridRow, place: int) -> str:
    words = [] if row.psnr is None else [f"{row.psnr[place]:.1f} dB"]
    return ", ".join(words + ([] if row.ssim is None else [f"SSIM {row.ssim[place]:.2f}"]))


def _wrapped(name: str) -> str:
    """Break a name after its last comma, so that it fits beside the pictures."""
    return ",\n".join(name.rsplit(", ", 1))
