"""Adaptive noise: how the noise was spread over the parameters, round by round.

Xue et al. (2022): the sound method computes scales from released means; the method as printed from private weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from sordino.report.chart import Axis, Chart, ChartSeries, Point
from sordino.report.document import Block, Paragraph
from sordino.report.run.decided import Decision, column, places
from sordino.report.run.fields import RunSources
from sordino.report.run.lines import ROUNDS, constant, finite, series, stretches, trend
from sordino.report.run.words import figures, percent

SOURCE = "private/records.jsonl: decided"
SOUND = {"scale_rms"}
PRINTED = {"sigma0", "participations", "delta_algorithm_4", "delta_exact_if_public", "noise", "std", "noise_most"}


def blocks(run: RunSources, found: Sequence[Decision]) -> tuple[list[Block], set[str]]:
    """Return the pages of adaptive noise, and the fields that they show; ([], set()) if the method is another one."""
    if any("scale_quantiles" in d.fields for d in found):
        return _scales(found), SOUND
    if any("delta_algorithm_4" in d.fields for d in found):
        return _printed(found), PRINTED
    return [], set()


def _scales(found: Sequence[Decision]) -> list[Block]:
    quantiles, overall = places(found, "scale_quantiles"), column(found, "scale_rms")
    out: list[Block] = []
    if finite(overall):
        start = next((int(x) for x, y in finite(overall) if y < 1 - 1e-9), None)
        last = finite(overall)[-1][1]
        text = (
            "The larger a parameter's released updates were, the more noise it gets; plain DP-SGD gives all the same."
        )
        text += (
            f" From round {start:,} on the noise is unequal; in the last round it is {percent(min(1.0, last))} of the "
            "plain noise over all parameters, at the same epsilon."
            if start is not None
            else " In this run all parameters got as much as in plain DP-SGD."
        )
        out.append(Paragraph(text))
    if len(quantiles) == 3 and finite(quantiles[1]):
        low, middle, high = quantiles
        lines = [_banded("median parameter; the band holds nine in ten", low, middle, high)]
        if finite(overall):
            lines.append(series("over all parameters (root mean square)", overall))
        edges = (middle[0][0], middle[-1][0])
        lines.append(ChartSeries("plain DP-SGD", ((edges[0], 1.0), (edges[1], 1.0)), role="limit"))
        summary = trend("The noise of the median parameter, as a share of plain noise,", middle, share=True)
        out.append(
            Chart(
                "choices-scales", "lines", "Noise of the parameters beside plain noise, by round", ROUNDS,
                Axis("noise / plain noise", low=0.0, percent=True), tuple(lines), summary=summary,
                source=f"{SOURCE}.scale_quantiles, scale_rms",
            )
        )  # fmt: skip
    return out


def _banded(name: str, low: Sequence[Point], middle: Sequence[Point], high: Sequence[Point]) -> ChartSeries:
    parts = stretches(len(middle), 500)
    band = tuple((low[a][1], high[a][1]) for a, _ in parts)
    return ChartSeries(name, tuple(middle[a] for a, _ in parts), band=band)


def _printed(found: Sequence[Decision]) -> list[Block]:
    claimed, exact = column(found, "delta_algorithm_4"), column(found, "delta_exact_if_public")
    noise, most = column(found, "noise"), column(found, "noise_most")
    out: list[Block] = []
    if finite(noise):
        text = trend("The noise of a weight (standard deviation, mean over weights and clients)", noise)
        if not any(y for _, y in finite(noise)):
            text += " No noise was added at all: the printed scale is zero where the weights do not spread."
        out.append(Paragraph(text))
    both = [p for p in (noise, most) if finite(p)]
    if both and not all(constant(p) for p in both):
        lines = tuple(
            series(name, points)
            for name, points in (("mean over weights", noise), ("the weight with the most noise", most))
            if finite(points)
        )
        out.append(
            Chart(
                "choices-noise", "lines", "Noise of a weight, by round", ROUNDS, Axis("standard deviation", low=0.0),
                lines, summary=trend("The noise of a weight, on average,", noise), source=f"{SOURCE}.noise, noise_most",
            )
        )  # fmt: skip
    if finite(claimed):
        lines = tuple(
            series(name, [(x, y) for x, y in points if y > 0])
            for name, points in (
                ("by the paper's Algorithm 4, a claim", claimed),
                ("exact, if the noise were public", exact),
            )
            if any(y > 0 for _, y in finite(points))
        )
        end = finite(claimed)[-1][1]
        summary = (
            f"By the paper's accountant delta is {figures(end)} after the last round; that is a claim, not a bound."
        )
        if lines:
            out.append(
                Chart(
                    "choices-delta", "lines", "Delta by the paper's accountant, by round", ROUNDS, Axis("delta", "log"),
                    lines, summary=summary, source=f"{SOURCE}.delta_algorithm_4, delta_exact_if_public",
                )
            )  # fmt: skip
    weights = places(found, "weights_quantiles")
    if len(weights) == 5 and finite(weights[2]) and not all(constant(p) for p in weights):
        lines = (
            _banded(
                "median; the band goes from the smallest to the largest quantile", weights[0], weights[2], weights[4]
            ),
        )
        out.append(
            Chart(
                "choices-weights", "lines", "Weights before the noise, by round", ROUNDS, Axis("weight"), lines,
                summary=trend("The median weight", weights[2]), source=f"{SOURCE}.weights_quantiles",
            )
        )  # fmt: skip
    return out
