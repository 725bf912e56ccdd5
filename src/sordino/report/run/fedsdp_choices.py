"""FedSDP: how much each group of private attributes contributes, and the noise that follows from it.

Li et al. (2025), arXiv:2503.12958. The sound method learns the shares from noisy sums; the method as printed computes
them at every client from private attributes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sordino.report.chart import Axis, Chart, ChartSeries
from sordino.report.document import Block, Paragraph
from sordino.report.run.decided import Decision, clients, column, places
from sordino.report.run.fields import RunSources
from sordino.report.run.lines import COLUMNS, ROUNDS, finite, real, series, stretches, trend
from sordino.report.run.words import percent

SOURCE = "private/records.jsonl: decided"
KNOWN = {
    "ratio", "ratio_used", "ratio_min", "ratio_max", "learnt_in", "sums", "rho", "left", "noise_multiplier",
    "even_multiplier", "std",
}  # fmt: skip
GROUPS, ROWS = 8, 100


def blocks(run: RunSources, found: Sequence[Decision]) -> tuple[list[Block], set[str]]:
    """Return the pages of FedSDP, and the fields that they show; ([], set()) if the method is another one."""
    if not any("shares" in d.fields and "ratio" in d.fields for d in found):
        return [], set()
    shares, ratio = places(found, "shares"), column(found, "ratio")
    out: list[Block] = []
    if finite(ratio):
        out.append(Paragraph(_lead(found, ratio)))
    out += [*_shares(found, shares, ratio), *_noise(found), *_accuracies(found), *_map(found)]
    return out, KNOWN


def _lead(found: Sequence[Decision], ratio: Sequence[tuple[float, float]]) -> str:
    text = trend("The private groups' share of what is learnt", ratio, share=True)
    learnt = sum(d.fields.get("learnt") is True for d in found)
    if any("learnt" in d.fields for d in found):
        text += f" Shares were learnt anew in {learnt:,} of {len(found):,} rounds, from noisy sums that are charged."
    else:
        text += " Clients computed it exactly from private attributes, and it sets their noise: no epsilon covers that."
    return text


def _shares(
    found: Sequence[Decision], shares: Sequence[tuple[tuple[float, float], ...]], ratio: Sequence[tuple[float, float]]
) -> list[Block]:
    """Return the contribution of every group by round; Shapley values may be negative or above 1."""
    curves = [(k, points) for k, points in enumerate(shares[: GROUPS + 1]) if finite(points)]
    if not curves:
        return []
    names = {k: "records without private attributes" if k == 0 else f"private group {k}" for k, _ in curves}
    lines = [series(names[k], points) for k, points in curves]
    low, high = column(found, "ratio_min"), column(found, "ratio_max")
    if finite(low) and len(low) == len(high) == len(ratio):
        parts = stretches(len(ratio), 500)
        band = tuple((low[a][1], high[a][1]) for a, _ in parts)
        lines.append(
            ChartSeries(
                "R, with the range over clients", tuple(ratio[a] for a, _ in parts), band=band, role="reference"
            )
        )
    summary = " ".join(trend(f"The share of {names[k]}", points, share=True, brief=True) for k, points in curves)
    return [
        Chart(
            "choices-shares", "lines", "Contributions to the step, by round", ROUNDS,
            Axis("share of the step", percent=True), tuple(lines), summary=summary, source=f"{SOURCE}.shares",
        )
    ]  # fmt: skip


def _noise(found: Sequence[Decision]) -> list[Block]:
    out: list[Block] = []
    z, even = column(found, "noise_multiplier"), column(found, "even_multiplier")
    if finite(z):
        lines = [series("noise multiplier, mean over clients", z)]
        if finite(even):
            lines.append(series("if every round cost the same", even, role="reference"))
        out.append(
            Chart(
                "choices-multiplier", "lines", "Noise multiplier, by round", ROUNDS, Axis("noise multiplier", low=0.0),
                tuple(lines), summary=trend("The noise multiplier, on average over clients,", z),
                source=f"{SOURCE}.noise_multiplier, even_multiplier",
            )
        )  # fmt: skip
    left = column(found, "left")
    if finite(left) and all(0 <= y <= 1 for _, y in finite(left)):
        out.append(
            Chart(
                "choices-left", "lines", "Budget that is left, by round", ROUNDS,
                Axis("share of the budget", low=0.0, percent=True), (series("left, mean over clients", left),),
                summary=trend("The budget that is left, on average over clients,", left, share=True),
                source=f"{SOURCE}.left",
            )
        )  # fmt: skip
    return out


def _accuracies(found: Sequence[Decision]) -> list[Block]:
    """Return the accuracies that the printed method computes its shares from."""
    names = ("all", "private", "general", "received")
    curves = {n: column(found, "accuracy", n) for n in names}
    shown = {n: points for n, points in curves.items() if finite(points)}
    if not shown:
        return []
    words = {
        "all": "trained on all records",
        "private": "on private groups alone",
        "general": "on general records alone",
    }
    lines = tuple(series(words.get(n, "as received"), points) for n, points in shown.items())
    summary = " ".join(
        trend(f"Accuracy, {words.get(n, 'as received')},", p, share=True, brief=True) for n, p in shown.items()
    )
    return [
        Chart(
            "choices-accuracies", "lines", "Accuracies behind the shares, mean over clients", ROUNDS,
            Axis("accuracy on the client's records", percent=True), lines, summary=summary, source=f"{SOURCE}.accuracy",
        )
    ]  # fmt: skip


def _map(found: Sequence[Decision]) -> list[Block]:
    """Return the heat map of R (as printed) or of the noise multiplier by client and round."""
    parts = stretches(len(found), COLUMNS)
    sample = [(found[a], clients(found[a])) for a, _ in parts]
    everybody = sorted({c for _, each in sample for c in each})[:ROWS]
    for key, label in (("ratio", "R, the private share"), ("noise_multiplier", "noise multiplier")):
        cells = tuple(tuple(real(each.get(c, {}).get(key)) for _, each in sample) for c in everybody)
        values = [v for row in cells for v in row if math.isfinite(v)]
        if not values or max(values) - min(values) <= 1e-6 * max(map(abs, values)):
            continue
        means = {c: [v for v in row if math.isfinite(v)] for c, row in zip(everybody, cells, strict=True)}
        averages = {c: sum(v) / len(v) for c, v in means.items() if v}
        high, low = max(averages, key=lambda c: averages[c]), min(averages, key=lambda c: averages[c])
        share = key == "ratio" and all(0 <= v <= 1 for v in values)
        shown = percent if share else "{:.3g}".format
        summary = (
            f"On average over the rounds shown it is highest for client {high} ({shown(averages[high])}) and lowest "
            f"for client {low} ({shown(averages[low])})."
            if shown(averages[high]) != shown(averages[low])
            else f"On average over the rounds shown it is {shown(averages[high])} for every client."
        )
        return [
            Chart(
                "choices-clients", "heat", f"{label[0].upper()}{label[1:]}, by client and round",
                Axis("round", "category", tuple(f"{d.round}" for d, _ in sample)),
                Axis("client", "category", tuple(str(c) for c in everybody)), cells=cells, cell_label=label,
                cell_percent=share, summary=summary, source=f"{SOURCE}.clients.{key}",
            )
        ]  # fmt: skip
    return []
