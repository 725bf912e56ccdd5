"""Pictures: drawn, not blank, and nothing infinite on an axis of epsilons."""

import math

import numpy as np
import pytest
from matplotlib import image, pyplot

from sordino.report import figures
from sordino.report.axes import log_ticks
from sordino.report.cells import read
from sordino.report.curves import curve
from sordino.report.summary import lines


def of(fabricated):
    return lines(read(fabricated.folder, {}))


@pytest.fixture
def look():
    """look(kind, fabricated) is the figure, closed afterwards."""
    made = []

    def make(kind, fabricated):
        made.append(getattr(figures.Picture(of(fabricated)), kind)(pyplot))
        return made[-1]

    yield make
    for figure in made:
        if figure is not None:
            pyplot.close(figure)


def test_all_four_are_written_and_not_empty(typical):
    written = figures.draw(typical.folder, of(typical))
    assert [p.name for p in written] == ["accuracy.png", "convergence.png", "noise.png", "claims.png"]
    for path in written:
        pixels = image.imread(path)[..., :3]
        assert min(pixels.shape[:2]) > 400
        colours = (pixels * 255).astype(np.uint32) @ np.array([65536, 256, 1], dtype=np.uint32)
        assert len(np.unique(colours)) > 50  # lines, bars and text
        assert (pixels.min(axis=2) < 0.99).mean() > 0.01


def test_what_has_no_data_is_not_drawn(fabricated):
    fabricated.add("dp-sgd", 2.0, [0.9, 0.8], noise=None)
    assert [p.name for p in figures.draw(fabricated.folder, of(fabricated))] == ["accuracy.png", "convergence.png"]


def test_each_block_has_a_panel_and_the_infinite_ones_a_strip(typical, look):
    record, client, strip = look("scores", typical).axes
    assert record.get_xscale() == client.get_xscale() == "log" and strip.get_xscale() == "linear"
    assert "infinite" in strip.get_title() and "server" in record.get_title() and "public" in client.get_title()
    names = [{h.split(" ")[0] for h in axis.get_legend_handles_labels()[1]} for axis in (record, client, strip)]
    assert names[0] == {"dp-sgd", "adaptive-noise", "geodp-paper", "none"}
    assert names[1] == {"dp-fedavg", "none"} and names[2] == {"nbafl-paper", "fedsdp-paper", "none"}
    assert [t.get_text() for t in strip.get_xticklabels()] == [
        *("0.5 a round", "2 a round", "8 a round"),
        "0.5",
        "2",
        "8",
    ]


def test_error_bars_are_one_deviation_of_a_sample(fabricated, look):
    fabricated.add("dp-sgd", 2.0, [0.8, 0.9, 1.0])
    (axis,) = look("scores", fabricated).axes
    (bars,) = axis.containers
    (segment,) = bars.lines[2][0].get_segments()
    assert np.allclose(segment, [[2, 80], [2, 100]])


def test_one_panel_an_epsilon_with_the_reference_in_each(typical, look):
    panels = look("convergence", typical).axes
    assert [p.get_title() for p in panels] == [f"epsilon asked for: {e}" for e in ("0.5", "2", "8")]
    for panel in panels:
        labels = panel.get_legend_handles_labels()[1]
        assert len(labels) == 7 and "none (no privacy)" in labels
        assert "dp-fedavg (client, public)" in labels  # whose epsilon it is


def test_curves_use_the_rounds_that_every_seed_has(fabricated):
    fabricated.add("dp-sgd", 2.0, [0.8, 0.6])
    path = fabricated.folder / "cells/dp-sgd-eps2-seed1/records.jsonl"
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines()[:7]))
    (line,) = of(fabricated)
    rounds, mean, low, high = curve(line, "accuracy")
    assert rounds.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert np.isclose(mean[2], 0.7 * (1 - math.exp(-1.5)))
    assert np.allclose(high - low, 2 * 0.2 / math.sqrt(2) * (1 - np.exp(-rounds / 2)))


def test_noise_is_on_a_logarithmic_axis_with_plain_numbers(typical, look):
    figure = look("noise", typical)
    figure.draw_without_rendering()
    for axis in figure.axes:
        assert axis.get_yscale() == "log"
        shown = [t.get_text() for t in axis.get_yticklabels() if t.get_text()]
        low, high = axis.get_ylim()
        values = [v for line in axis.lines for v in line.get_ydata()]
        assert low < min(values) and max(values) < high
    shown = [t.get_text() for t in figure.axes[0].get_yticklabels()]
    assert len(shown) >= 3 and all(float(text) for text in shown)  # no 2x10^-2
    assert "dp-fedavg" in figure.get_suptitle() and "dp-sgd" not in figure.get_suptitle()  # it recorded none


def test_bars_stay_inside_their_panel(fabricated, look):
    fabricated.add("dp-sgd", 2.0, [0.1, 0.9]).add("dp-sgd", 8.0, [0.5, 0.5])
    (axis,) = look("scores", fabricated).axes
    low, high = axis.get_ylim()
    assert low < 50 - 100 * 0.8 / math.sqrt(2) and 50 + 100 * 0.8 / math.sqrt(2) < high


def test_equal_curves_can_both_be_seen(fabricated, look):
    for method in ("dp-sgd", "udp-fl", "geodp", "other"):
        fabricated.add(method, 2.0, [0.5 if method == "other" else 0.8] * 2)
    (panel,) = look("convergence", fabricated).axes
    curves = {line.get_label().split(" ")[0]: line for line in panel.lines if not line.get_label().startswith("_")}
    widths = [curves[m].get_linewidth() for m in ("dp-sgd", "udp-fl", "geodp")]
    assert widths == sorted(widths, reverse=True) and min(np.diff(widths[::-1])) > 1  # what is below is broader
    assert curves["other"].get_linewidth() == curves["geodp"].get_linewidth()
    assert len(panel.collections) == 2  # one band for the three, one for the other


def test_a_dozen_methods_have_a_colour_each(fabricated, look):
    for i in range(12):
        fabricated.add(f"m{i}", 2.0, [0.5 + 0.03 * i])
    (panel,) = look("convergence", fabricated).axes
    named = [line for line in panel.lines if not line.get_label().startswith("_")]
    assert len({line.get_color() for line in named}) == len(named) == 12


def test_claims_lie_above_the_diagonal_or_in_the_strip(typical, look):
    strip, plane = look("claims", typical).axes
    assert plane.get_xscale() == plane.get_yscale() == "log"
    assert plane.get_xlim() == plane.get_ylim() == strip.get_xlim()  # the diagonal looks like one
    points = {h: line.get_xydata() for line in plane.lines if (h := line.get_label()).startswith("geodp")}
    assert points and all(y > x for xy in points.values() for x, y in xy)
    assert [t.get_text() for t in strip.get_yticklabels()] == ["fedsdp-paper", "nbafl-paper"]


def test_a_regression_is_drawn_by_its_loss(fabricated, look):
    fabricated.add("dp-sgd", 2.0, [None, None], losses=[0.3, 0.4])
    assert look("scores", fabricated).axes[0].get_ylabel() == "loss"
    assert look("convergence", fabricated).axes[0].lines[0].get_ydata()[-1] == pytest.approx(0.35)


@pytest.mark.parametrize("values", [[2.0], [0.5, 8.0], [0.3, 2400.0], [1e-3, 1e6], [0.0, 1.0], [2e5, 5e7], [1, 1e12]])
def test_ticks_are_few_plain_and_inside(values):
    figure, axis = pyplot.subplots()
    axis.set_xscale("log")
    low, high = log_ticks(axis.xaxis, values)
    ticks = axis.xaxis.get_majorticklocs()
    assert 2 <= len(ticks) <= 7 and low <= min(ticks) and max(ticks) <= high
    figure.canvas.draw()
    assert all(len(label.get_text()) <= 6 for label in axis.get_xticklabels())
    assert all(low < max(v, 1e-6) < high for v in values)
    pyplot.close(figure)


def test_a_regression_is_drawn_by_its_error(fabricated, look):
    fabricated.add("dp-sgd", 2.0, [None, None], errors=[0.3, 0.5])
    assert look("scores", fabricated).axes[0].get_ylabel() == "rmse"
    assert look("convergence", fabricated).axes[0].lines[0].get_ydata()[-1] == pytest.approx(0.4)
    assert figures.draw(fabricated.folder, of(fabricated))[0].name == "rmse.png"
