"""The picture of a search for its owner: the score of every trial against each setting that was searched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sordino.report.axes import save
from sordino.report.figures import COLOURS, STYLE


def draw(path: Path, settings: Sequence[dict[str, Any]], scores: Sequence[float], logarithmic: Sequence[str]) -> None:
    """Draw one panel per searched key.

    Args:
        path: the file to write.
        settings: the settings of each trial.
        scores: the score of each trial.
        logarithmic: the keys with a logarithmic axis.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    keys = list(settings[0])
    best = max(range(len(scores)), key=lambda i: scores[i])
    with pyplot.rc_context(STYLE):
        size = (4 * len(keys), 3.4)
        figure, axes = pyplot.subplots(1, len(keys), figsize=size, sharey=True, squeeze=False, layout="constrained")
        for axis, key in zip(axes[0], keys, strict=True):
            values = [s[key] for s in settings]
            numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
            shown = values if numbers else [str(v) for v in values]
            axis.plot(shown, scores, "o", color=COLOURS[0])
            axis.plot([shown[best]], [scores[best]], "*", color=COLOURS[1], markersize=14, label="winner")
            axis.set_xlabel(key)
            if key in logarithmic:
                axis.set_xscale("log")
        axes[0][0].set_ylabel("score of a trial")
        axes[0][-1].legend()
        save(pyplot, figure, path)
