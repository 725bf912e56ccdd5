"""The picture of a membership attack: its curve, guessing, and what the guarantee allows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sordino.report import axes, roc_curve


@pytest.fixture
def lines(monkeypatch, tmp_path):
    """The lines of a picture by label."""
    pytest.importorskip("matplotlib")
    seen = {}

    def save(pyplot, figure, path, dpi=150):
        (axis,) = figure.axes
        seen.update({line.get_label(): line.get_xydata() for line in axis.get_lines()})
        axes.save(pyplot, figure, path, dpi)

    monkeypatch.setattr(roc_curve, "save", save)

    def draw(**keys):
        seen.clear()
        rates = np.array([0.0, 0.1, 1.0])
        roc_curve.draw(tmp_path / "it.png", {"this run": (rates, np.array([0.0, 0.4, 1.0]))}, "it", **keys)
        assert (tmp_path / "it.png").stat().st_size > 1000
        return dict(seen)

    return draw


def test_the_bound_is_what_epsilon_allows(lines):
    drawn = lines(epsilon=1.0, delta=0.01, floor=0.001)
    assert np.allclose(drawn["guessing"][:, 0], drawn["guessing"][:, 1])
    (bound,) = [points for label, points in drawn.items() if label.startswith("at most")]
    assert np.allclose(bound[:, 1], np.minimum(1, math.e * bound[:, 0] + 0.01)) and bound[0, 0] == pytest.approx(0.001)
    assert drawn["this run"][0].tolist() == [0.001, 0.001]  # zero has no logarithm


def test_without_a_guarantee_no_bound_is_drawn(lines):
    assert set(lines()) == {"guessing", "this run"}
