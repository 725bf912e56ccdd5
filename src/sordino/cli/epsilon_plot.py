"""The figure of `sordino epsilon --plot`: the privacy curve delta(epsilon) and the trade-off curve."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path

import numpy as np

from sordino.cli.events import EventQuestion
from sordino.core.errors import RunError, SpecError, UnsupportedEvent
from sordino.privacy import tightest
from sordino.privacy.accountants import pld, rdp
from sordino.privacy.algebra import gdp_mu_squared
from sordino.privacy.events import Event
from sordino.privacy.pairs import Floats
from sordino.report.axes import save

BLUE, ORANGE, GREY = "#1f5f99", "#c4501b", "#777777"
ENDS: Floats = 1 - np.geomspace(1e-6, 0.05, 12)  # fractions of epsilon; bounded losses fall steeply there
SUFFIXES = (".png", ".pdf", ".svg")


def ready(path: Path) -> None:
    """Raise an error if a figure cannot be written to `path`; called before anything is computed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SpecError('--plot needs matplotlib, which is not installed; try: pip install "sordino[plot]".')
    if path.suffix.lower() not in SUFFIXES:
        raise SpecError(f"--plot writes {', '.join(SUFFIXES)} files, not {str(path)!r}.")
    if not path.parent.is_dir():
        raise RunError(f"cannot write {path}: there is no folder {path.parent}.")


def draw(path: Path, asked: EventQuestion, epsilon: float | None, shown: str) -> None:
    """Draw the privacy curve and the trade-off curve of a question.

    Args:
        path: the file to write.
        asked: the question.
        epsilon: its answer; None: infinite, which raises SpecError.
        shown: the answer as text.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    if epsilon is None:
        raise SpecError("there is nothing to draw: epsilon is infinite.")
    event = asked.event()
    with np.errstate(all="ignore"):
        grid, deltas = _curve(event, epsilon)
        alphas = np.concatenate([[0.0], np.geomspace(1e-6, 0.02, 60), np.linspace(0.02, 1, 150)[1:]])
        errors = _trade_off(grid, deltas, alphas)
    with pyplot.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
        floor = 1e-4 * asked.delta
        left.semilogy(grid, np.maximum(deltas, floor / 10), color=BLUE, lw=2)
        left.plot([epsilon], [asked.delta], "o", color=ORANGE, ms=7, zorder=5)
        left.hlines(asked.delta, 0, epsilon, colors=ORANGE, lw=0.8, ls=":")
        left.vlines(epsilon, floor, asked.delta, colors=ORANGE, lw=0.8, ls=":")
        text = f"epsilon = {shown}\ndelta = {asked.delta:g}"
        left.annotate(text, (epsilon, asked.delta), (10, 8), textcoords="offset points", color=ORANGE)
        left.set(xlabel="epsilon", ylabel="delta", title="Total privacy curve")
        over = grid[deltas <= floor]
        left.set_xlim(0, max(1.3 * epsilon, min([grid[-1], *over])))
        left.set_ylim(floor, min(1.0, max(3 * float(deltas.max()), 30 * asked.delta)))
        left.grid(alpha=0.25, lw=0.6)
        right.plot([0, 1], [1, 0], color=GREY, lw=1, ls="--", label="perfect privacy: guessing")
        right.plot(alphas, errors, color=BLUE, lw=2, label="this release: no test gets below")
        right.fill_between(alphas, errors, 1 - alphas, color=BLUE, alpha=0.08, lw=0)
        right.set(xlabel="false alarms (type I error)", ylabel="misses (type II error)", title="Trade-off curve")
        right.set(xlim=(0, 1), ylim=(0, 1))
        right.set_aspect("equal")
        right.grid(alpha=0.25, lw=0.6)
        right.legend(loc="upper right", frameon=False, fontsize=9)
        figure.suptitle(_title(asked), fontsize=11)
        save(pyplot, figure, path)


def _curve(event: Event, epsilon: float) -> tuple[Floats, Floats]:
    """Return a grid of epsilons from 0 to well past the answer, and delta at each of them.

    The grid is even for the privacy curve, and dense near 0 for the trade-off curve.
    """
    top = max(1.6 * epsilon, 1e-6)
    grid = np.unique(
        np.concatenate(
            [np.linspace(0.0, top, 45), np.geomspace(top / 300, top, 30), epsilon * ENDS, epsilon * (2 - ENDS)]
        )
    )
    return grid, np.array([_delta(event, float(e)) for e in grid])


def _delta(event: Event, epsilon: float) -> float:
    """Return an upper bound on delta as `tightest.delta` does, on a coarser grid; the difference is not visible."""
    if gdp_mu_squared(event) is not None:
        return tightest.delta(event, epsilon)
    bounds = [1.0]
    with suppress(UnsupportedEvent):
        bounds.append(pld.delta(event, epsilon, pld.ROUGH))
    with suppress(UnsupportedEvent):
        bounds.append(rdp.delta(event, epsilon))
    return min(bounds)


def _trade_off(grid: Floats, deltas: Floats, alphas: Floats) -> Floats:
    """Return the upper envelope of the lines of all (epsilon, delta): Dong, Roth, Su (2022), Proposition 2.12."""
    left, power = 1 - deltas[:, None], np.exp(np.minimum(grid[:, None], 700.0))
    lines = np.maximum(left - power * alphas, (left - alphas) / power)
    return np.asarray(np.maximum(lines.max(axis=0), 0.0))


def _title(asked: EventQuestion) -> str:
    keys = ("mechanism", "sampling", "clients", "shuffler")
    names = dict.fromkeys(
        ", ".join(f"clients {v}" if k == "clients" else v for k, v in b.words().items() if k in keys)
        for b in asked.blocks
    )
    what = "; ".join(names) if len(names) < 3 else f"a schedule of {len(asked.blocks)} blocks"
    return f"{what}, {asked.length}\nunit {asked.unit}, relation {asked.relation}, against the {asked.viewer}"
