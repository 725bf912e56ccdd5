"""ROC curves of membership attacks, with logarithmic axes, and what a guarantee allows at most."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sordino.core.rounding import up
from sordino.report.axes import legend, save
from sordino.report.figures import COLOURS, STYLE

Floats = NDArray[np.float64]


def draw(
    path: Path,
    curves: Mapping[str, tuple[Floats, Floats]],
    title: str,
    epsilon: float = math.inf,
    delta: float = 0.0,
    floor: float = 1e-4,
) -> None:
    """Draw true against false positive rates on logarithmic axes, as in Carlini et al. (2022), arXiv:2112.03570.

    Args:
        path: the picture, a .png file.
        curves: by name, false positive rates and true positive rates, both ascending.
        title: what was attacked by whom.
        epsilon: the guarantee against the attacker; infinite: no bound is drawn.
        delta: the delta of the guarantee.
        floor: the least rate that is shown.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rates = np.logspace(math.log10(floor), 0, 200)
    with pyplot.rc_context(STYLE):
        figure, axis = pyplot.subplots(figsize=(5.0, 4.8), layout="constrained")
        axis.plot(rates, rates, color="0.6", linewidth=1, label="guessing")
        for colour, (name, (false, true)) in zip(COLOURS, curves.items(), strict=False):
            shown = np.maximum(false, floor), np.maximum(true, floor)
            axis.plot(*shown, color=colour, linewidth=1.8, label=name)
        if math.isfinite(epsilon):
            most = np.minimum(1.0, math.exp(min(epsilon, 700.0)) * rates + delta)
            label = f"at most, by epsilon = {up(epsilon)}, delta = {delta:g}"
            axis.plot(rates, most, color="black", linestyle="--", linewidth=1, label=label)
        axis.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1.1))
        axis.set_title(title, fontsize=10)
        axis.set(xlabel="false positive rate", ylabel="true positive rate")
        axis.set_aspect("equal", adjustable="box")
        legend(figure, [axis])
        save(pyplot, figure, path)
