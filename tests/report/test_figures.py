"""Pictures: drawn, not blank, and nothing infinite on an axis of epsilons."""

import math

import numpy as np
import pytest
from matplotlib import image, pyplot
from matplotlib.colors import to_rgb

from sordino.report import figures, overplotting
from sordino.report.axes import log_ticks
from sordino.report.curves import curve
from support.summaries import lines_of as of


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


def named(panel):
    """Curves by method."""
    return {line.get_label().split(" ")[0]: line for line in panel.lines if not line.get_label().startswith("_")}


def test_one_panel_an_epsilon_and_block_with_the_reference_in_each(typical, look):
    panels = look("convergence", typical).axes
    epsilons = [f"epsilon asked for: {e}" for e in ("0.5", "2", "8")]
    assert [p.get_title().split("\n")[-1] for p in panels] == epsilons * 2
    for place, panel in enumerate(panels):
        whom = (
            "record (add/remove),\nagainst the server\n" if place < 3 else "client (add/remove),\nagainst the public\n"
        )
        assert panel.get_title().startswith(whom)
        record = {"dp-sgd", "adaptive-noise", "nbafl-paper", "geodp-paper", "fedsdp-paper", "none"}
        assert named(panel).keys() == (record if place < 3 else {"dp-fedavg", "none"})
        assert panel.get_ylim() == panels[3 * (place // 3)].get_ylim()  # one axis a block
    assert panels[0].get_ylim() != panels[3].get_ylim()
    labels = panels[3].get_legend_handles_labels()[1]
    assert "dp-fedavg (client, public)" in labels and "none (no privacy)" in labels


def test_panels_of_one_block_name_the_epsilon_alone(fabricated, look):
    for epsilon in (0.5, 1.0, 2.0, 8.0):
        fabricated.add("dp-sgd", epsilon, [0.5, 0.6])
    panels = look("convergence", fabricated).axes
    assert [p.get_title() for p in panels] == [f"epsilon asked for: {e}" for e in ("0.5", "1", "2", "8")]
    assert len({p.get_subplotspec().colspan.start for p in panels}) == 2  # two rows of two, not three and one


def test_blocks_of_one_panel_stand_beside_each_other(fabricated, look):
    fabricated.add("dp-sgd", 2.0, [0.9]).add("nbafl", 2.0, [0.1], unit="client").add("x", 2.0, [0.2], viewer="public")
    panels = look("convergence", fabricated).axes
    assert [p.get_subplotspec().colspan.start for p in panels] == [0, 1, 2]
    assert [[*named(p)] for p in panels] == [["dp-sgd"], ["nbafl"], ["x"]]


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
    (unknown,) = (words for words in figure.get_suptitle().split("\n") if words.startswith("not shown"))
    assert "dp-fedavg" in unknown and "dp-sgd" not in unknown  # it recorded none


def test_bars_stay_inside_their_panel(fabricated, look):
    fabricated.add("dp-sgd", 2.0, [0.1, 0.9]).add("dp-sgd", 8.0, [0.5, 0.5])
    (axis,) = look("scores", fabricated).axes
    low, high = axis.get_ylim()
    assert low < 50 - 100 * 0.8 / math.sqrt(2) and 50 + 100 * 0.8 / math.sqrt(2) < high


def pixels_of(figure, curve):
    """How many show a curve's colour in its panel: what lies above it is not counted."""
    figure.canvas.draw()
    drawn = np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)
    box = curve.axes.get_window_extent()
    inside = drawn[int(len(drawn) - box.y1) : int(len(drawn) - box.y0), int(box.x0) : int(box.x1)]
    return int((np.abs(inside - 255 * np.array(to_rgb(curve.get_color()))).max(axis=2) < 30).sum())


@pytest.mark.parametrize("many", [2, 3, 7])
def test_each_of_equal_curves_can_be_seen_and_none_is_broad(fabricated, look, many):
    for i in range(many):
        fabricated.add(f"m{i}", 2.0, [0.8] * 2)
    figure = look("convergence", fabricated.add("other", 2.0, [0.5] * 2))
    (panel,) = figure.axes
    curves = named(panel)
    assert {curve.get_linewidth() for curve in curves.values()} == {1.5}
    assert len(panel.collections) == 2  # one spread for the equal ones, one for the other
    markers = [curves[f"m{i}"].get_markevery()[0] for i in range(many)]
    assert len(set(markers)) == many  # at rounds of their own
    panel.set_axis_off()
    for drawn in panel.lines:  # the equal ones alone
        drawn.set(marker="", visible=drawn.get_label().startswith("m"))
    seen = [pixels_of(figure, curves[f"m{i}"]) for i in range(many)]
    assert min(seen) > 0.4 * max(seen)
    curves["m0"].set_linestyle("-")
    curves[f"m{many - 1}"].set_linestyle("-")  # as if there were no turns
    assert pixels_of(figure, curves["m0"]) < 0.1 * seen[0]


def test_of_equal_curves_the_legend_names_each_and_words_say_that_they_are(fabricated, look):
    for epsilon in (2.0, 8.0):
        for method in ("dp-sgd", "other", "udp-fl"):
            fabricated.add(method, epsilon, [0.6 if method == "other" else 0.8] * 2)
        fabricated.add("near", epsilon, [0.8001] * 2).add("once", epsilon, [0.8 if epsilon == 2 else 0.3] * 2)
    figure = look("convergence", fabricated)
    shown = [text.get_text().split(" ")[0] for text in figure.legends[0].get_texts()]
    assert shown == ["dp-sgd", "other", "udp-fl", "near", "once"]
    assert {handle.get_linestyle() for handle in figure.legends[0].legend_handles} == {"-"}  # not a turn's dashes
    assert figure.get_suptitle().split("\n")[-1] == "equal number for number: dp-sgd = udp-fl"  # and in all panels
    assert "lie on each other" in figure.get_suptitle()


def test_curves_apart_are_drawn_through(fabricated, look):
    fabricated.add("dp-sgd", 2.0, [0.8, 0.8]).add("geodp", 2.0, [0.7, 0.7]).add("none", None, [0.8], accounted=math.inf)
    figure = look("convergence", fabricated)
    lines = named(figure.axes[0])
    assert [lines[m].get_linestyle() for m in ("dp-sgd", "geodp", "none")] == ["-", "-", ":"]
    assert lines["none"].get_zorder() > lines["dp-sgd"].get_zorder()  # dots on a curve show both
    assert "lie on each other" not in figure.get_suptitle()


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
    assert [t.get_text() for t in strip.get_yticklabels()] == ["fedsdp-paper", "nbafl-paper,\na round"]


def test_a_claim_for_one_round_is_marked_on_the_axis_of_totals(fabricated, look):
    fabricated.add("dp-sgd", 2.0, [0.9])
    for scope in ("round", "total"):
        fabricated.add(
            f"{scope}-paper", 2.0, [0.9], accounted=9.0 if scope == "round" else 8.0, claim=fabricated.claim(2.0, scope)
        )
    figure = look("claims", fabricated)
    (plane,) = figure.axes
    assert [(text.get_text(), text.xy) for text in plane.texts] == [("a round", (2.0, 9.0))]
    assert "for one round" in plane.get_xlabel()
    labels = plane.get_legend_handles_labels()[1]
    assert "round-paper (record, server, as printed, for one round)" in labels
    assert "total-paper (record, server, as printed)" in labels


def test_without_such_a_claim_no_round_is_spoken_of(fabricated, look):
    fabricated.add("dp-sgd", 2.0, [0.9]).add("total-paper", 2.0, [0.9], accounted=math.inf, claim=fabricated.claim(2.0))
    strip, plane = look("claims", fabricated).axes
    assert "round" not in plane.get_xlabel() and not plane.texts
    assert [t.get_text() for t in strip.get_yticklabels()] == ["total-paper"]


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


def test_noise_of_zero_does_not_make_all_curves_one():
    zero, small, large = np.zeros(3), np.full(3, 0.01), np.full(3, 1.0)
    rounds = np.arange(1.0, 4.0)
    bands = [figures._logarithms((rounds, v, v, v)) for v in (zero, small, large)]
    assert all(np.isfinite(b).all() for band in bands for b in band)
    assert len(overplotting.groups(bands, overplotting.reach(bands))) == 3
