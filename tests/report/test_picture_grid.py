"""Grids of pictures: every row is there, colours are kept, and a row that is too short is refused."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib import pyplot

from sordino.core.errors import RunError
from sordino.report.picture_grid import MOST, GridRow, picture_grid


def test_a_grid_shows_all_rows_in_their_colours(tmp_path):
    red, green = (np.zeros((3, 3, 8, 8), dtype=np.float32) for _ in range(2))
    red[:, 0], green[:, 1] = 1, 1
    rows = [GridRow("none", green, [30.0] * 3, [0.9] * 3), GridRow("dp-sgd, epsilon 8", 7 * red - 3, [5.0] * 3)]
    picture_grid(tmp_path / "grid.png", red, rows, ("a", "b", "c"))
    drawn = pyplot.imread(tmp_path / "grid.png")[..., :3]
    reds = (drawn == (1, 0, 0)).all(axis=2).sum()
    greens = (drawn == (0, 1, 0)).all(axis=2).sum()
    assert greens > 10_000
    assert reds == pytest.approx(2 * greens, rel=0.05)  # two rows of three; values outside [0, 1] are clipped


def test_wide_grids_are_cut_and_short_rows_refused(tmp_path):
    many = np.random.default_rng(0).random((MOST + 5, 1, 4, 4), dtype=np.float32)
    picture_grid(tmp_path / "wide.png", many, [GridRow("none", many[:MOST])])
    assert (tmp_path / "wide.png").stat().st_size > 1000
    with pytest.raises(RunError, match="the row dp-sgd has 3 pictures for 12 originals"):
        picture_grid(tmp_path / "short.png", many, [GridRow("dp-sgd", many[:3])])
