"""The Harmonizer of UDP-FL: the scores of all mechanisms, what it chose, and what it saw.

Feng et al. (2025), "Harmonizing Differential Privacy Mechanisms for Federated Learning", Section 3.3. The sound method
scores public numbers and what was released; the method as printed lets every client choose by its private gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sordino.report.chart import Axis, Chart, ChartSeries
from sordino.report.document import Block, DataTable, Paragraph
from sordino.report.run.decided import Decision, clients, column, places
from sordino.report.run.fields import Fields, RunSources, is_number
from sordino.report.run.lines import ROUNDS, finite, real, series, stretches, trend
from sordino.report.run.words import capital, figures, joined, number_of, percent

SOURCE = "private/records.jsonl: decided"
TERMS = (("score", "score"), ("privacy", "privacy"), ("utility", "utility"), ("efficiency", "efficiency"))
KNOWN = {
    "noise_multiplier", "scale", "sensitivity", "norm", "order", "renyi", "renyi_total", "rho", "rho_total", "std",
    "heard", "silent", "spent", "even_multiplier",
}  # fmt: skip
KINDS, CHANGES, CLIENTS = 8, 50, 200


def before_the_run(run: RunSources) -> list[Block]:
    """Return the choice that was made from public numbers alone, which everybody may see."""
    kinds, out = run.plan.part("chosen").parts("kinds")[:KINDS], []
    for k, kind in enumerate(kinds):
        whose = _kind_name(kind) if len(kinds) > 1 else ""
        out += _choice(kind.part("choice"), f"before-{k}", whose, "public/plan.json: chosen")
    return out


def blocks(run: RunSources, found: Sequence[Decision]) -> tuple[list[Block], set[str]]:
    """Return the pages of the Harmonizer, and the fields that they show; ([], set()) if it did not take part."""
    printed = [d for d in found if isinstance(d.fields.get("mechanisms"), dict)]
    harmonised = any("mechanism" in d.fields or isinstance(d.fields.get("kinds"), list) for d in found)
    if not printed and not harmonised and not any("path_loss" in d.fields for d in found):
        return [], set()
    out: list[Block] = []
    if not run.plan.has("chosen"):
        out += _choices(found)
    out += [*_changes(found), *_again(found), *_seen(found), *_managed(found), *_printed(printed), *_path(found)]
    if points := finite(_share(found)):
        text = trend("The share of the run's privacy loss that was spent, as a Renyi divergence,", points, share=True)
        out.append(Paragraph(text))
    return out, KNOWN


# --- scores


def _choices(found: Sequence[Decision]) -> list[Block]:
    """Return the scores of all choices of the first round that has any."""
    for decision in found:
        fields = decision.read()
        source = f"{SOURCE}.choice (round {decision.round:,})"
        if fields.part("choice"):
            return _choice(fields.part("choice"), "harmonizer", "", source)
        kinds = [k for k in fields.parts("kinds")[:KINDS] if k.part("choice")]
        if kinds:
            source = f"{SOURCE}.kinds.choice (round {decision.round:,})"
            return [
                b
                for n, k in enumerate(kinds)
                for b in _choice(k.part("choice"), f"harmonizer-{n}", _kind_name(k), source)
            ]
    return []


def _kind_name(kind: Fields) -> str:
    """Return which clients a choice is for; "" if it is for all of them."""
    count = kind.count("clients")
    if count is None or not kind.text("profile"):
        return ""
    return (
        f"{number_of(count, 'client')} with profile {kind.text('profile')}, compute {kind.text('resources')}, data "
        f"{kind.text('data')}"
    )[:200]


def _choice(choice: Fields, id: str, whose: str, source: str) -> list[Block]:
    """Return the candidates of one choice as a table and bars."""
    candidates = [c for c in choice.parts("candidates")[:20] if c.text("mechanism")]
    scored = [(c, s) for c in candidates if (s := c.number("score")) is not None]
    if not scored:
        return []
    best, top = max(scored, key=lambda pair: pair[1])
    lead = f"The Harmonizer chose {best.text('mechanism')[:60]} noise (score {top:.3f})"
    rest = [f"{c.text('mechanism')[:60]} {s:.3f}" for c, s in sorted(scored, key=lambda p: -p[1]) if c is not best]
    lead += f" before {joined(rest)}" if rest else ""
    lead += f", for {whose}." if whose else "."
    short = f"{capital(best.text('mechanism')[:60])} has the highest score, {top:.3f}."
    weights = choice.row("weights", 0.0)
    if len(weights) == 3:
        lead += " Its weights are " + joined(
            [f"{w:g} for {term}" for w, term in zip(weights, ("privacy", "utility", "efficiency"), strict=True)]
        )
        lead += f" (profile {choice.text('profile')[:60]})." if choice.text("profile") else "."
    epsilon, dim = choice.number("epsilon", 0.0), choice.count("dim")
    if epsilon is not None and dim is not None:
        lead += f" All candidates are calibrated to epsilon = {epsilon:g} in {dim:,} dimensions."
    rows: list[tuple[str, ...]] = []
    keys: list[tuple[float | str, ...]] = []
    for c in candidates:
        values = [c.number(name) for name in ("scale", "ratio", "privacy", "utility", "efficiency", "prior", "score")]
        note = c.text("note")[:200]
        rows.append((c.text("mechanism")[:60], *("-" if v is None else figures(v, 4) for v in values), note))
        keys.append((c.text("mechanism")[:60], *(math.nan if v is None else v for v in values), note))
    head: tuple[str, ...] = (
        "mechanism", "noise scale over the bound", "noise over one clipped gradient", "privacy", "utility",
        "efficiency", "the paper's rating", "score", "why it was out",
    )  # fmt: skip
    if not any(row[-1] for row in rows):
        head, rows, keys = head[:-1], [r[:-1] for r in rows], [k[:-1] for k in keys]
    names = tuple(c.text("mechanism")[:60] for c, _ in scored)
    bars = tuple(
        ChartSeries(label, tuple((float(k), v) for k, (c, _) in enumerate(scored) if (v := c.number(key)) is not None))
        for key, label in TERMS
    )
    title = "Scores of the Harmonizer" + (f": {whose}" if whose else "")
    chart = Chart(
        f"choices-{id}", "bars", title, Axis("mechanism", "category", names), Axis("score and its terms", low=0.0),
        tuple(b for b in bars if b.points), summary=short, source=source,
    )  # fmt: skip
    return [Paragraph(lead), chart, DataTable(title, head, tuple(rows), tuple(keys), source=source)]


def _changes(found: Sequence[Decision]) -> list[Block]:
    """Return in which rounds the mechanism changed."""
    before, rows = "", []
    for decision in found:
        fields = decision.read()
        kinds = fields.parts("kinds")
        now = fields.text("mechanism") or ", ".join(k.text("mechanism") for k in kinds[:KINDS])
        if now and before and now != before:
            rows.append((f"{decision.round:,}", before[:200], now[:200]))
        before = now or before
    if not before or not rows:
        return []
    text = f"The noise changed {number_of(len(rows), 'time')} during the run, by what was released before."
    return [
        Paragraph(text),
        DataTable("Changes of the noise", ("round", "before", "from then on"), tuple(rows[:CHANGES]), source=SOURCE),
    ]


def _again(found: Sequence[Decision]) -> list[Block]:
    """Return the scores of every later choice, which follows what was released until then."""
    rows, keys = [], []
    for decision in found:
        fields = decision.read()
        for kind in fields.parts("kinds")[:KINDS] or [fields]:
            choice = kind.part("next")
            scores = {c.text("mechanism")[:60]: c.number("score") for c in choice.parts("candidates")[:20]}
            ranked = sorted(((s, n) for n, s in scores.items() if n and s is not None), key=lambda p: -p[0])
            if ranked:
                chosen, text = ranked[0][1], ", ".join(f"{n} {s:.3f}" for s, n in ranked)
                rows.append((f"{decision.round:,}", _kind_name(kind) or "all", choice.text("data")[:60], text, chosen))
                keys.append((float(decision.round), *rows[-1][1:]))
    if not rows:
        return []
    head = ("after round", "clients", "data look", "scores", "chose")
    title = "Later choices of the Harmonizer"
    return [DataTable(title, head, tuple(rows[:CHANGES]), tuple(keys[:CHANGES]), source=f"{SOURCE}.next")]


def _seen(found: Sequence[Decision]) -> list[Block]:
    """Return the statistics of the released update that the Harmonizer looked at."""
    signal, kurtosis = column(found, "seen", "signal"), column(found, "seen", "kurtosis")
    if not finite(signal):
        return []
    lines = (series("signal over noise, in variance", signal), series("kurtosis", kurtosis, axis="right"))
    shown = tuple(line for line in lines if finite(line.points))
    right = Axis("kurtosis") if len(shown) > 1 else None
    return [
        Chart(
            "choices-seen", "lines", "What the Harmonizer saw of the released update", ROUNDS, Axis("signal / noise"),
            shown, right=right, summary=trend("The signal over the noise in the released update", signal),
            source=f"{SOURCE}.seen",
        )
    ]  # fmt: skip


def _managed(found: Sequence[Decision]) -> list[Block]:
    """Return noise multipliers and budgets that are left, where the method manages them client by client."""
    out: list[Block] = []
    texts = (
        ("multiplier", "noise multiplier", "The noise multiplier, on average over the clients of a round,", False),
        ("left", "share of the budget that is left", "What is left of a client's budget, on average,", True),
    )
    for key, label, said, share in texts:
        curves = places(found, key)
        if len(curves) != 3 or not finite(curves[1]):
            continue
        even = column(found, "even_multiplier") if key == "multiplier" else ()
        out.append(_banded(f"choices-{key}", label, said, share, curves, even))
    return out


def _banded(
    id: str,
    label: str,
    said: str,
    share: bool,
    curves: Sequence[Sequence[tuple[float, float]]],
    even: Sequence[tuple[float, float]],
) -> Chart:
    """Return a chart of a mean with a band from the smallest to the largest."""
    low, middle, high = curves
    parts = stretches(len(middle), 500)
    points = tuple(middle[a] for a, _ in parts)
    band = tuple((low[a][1], high[a][1]) for a, _ in parts)
    lines = [ChartSeries("mean; the band goes from the least to the most", points, band=band)]
    if finite(even):
        lines.append(series("if every round cost the same", even, role="reference"))
    return Chart(
        id, "lines", f"{capital(label)}, by round", ROUNDS, Axis(label, low=0.0, percent=share), tuple(lines),
        summary=trend(said, middle, share), source=f"{SOURCE}.{id.removeprefix('choices-')}",
    )  # fmt: skip


def _share(found: Sequence[Decision]) -> tuple[tuple[float, float], ...]:
    """Return the share of the run's Renyi divergence that was spent, by round."""
    out = []
    for decision in found:
        spent, total = real(decision.fields.get("renyi")), real(decision.fields.get("renyi_total"))
        if total > 0 and 0 <= spent <= total * (1 + 1e-9):
            out.append((float(decision.round), min(1.0, spent / total)))
    return tuple(out)


# --- as printed


def _printed(found: Sequence[Decision]) -> list[Block]:
    """Return what every client chose by its own gradients, in the method as printed."""
    if not found:
        return []
    names = list(dict.fromkeys(str(n) for d in found for n, v in d.fields["mechanisms"].items() if is_number(v)))[:10]
    counts = {n: column(found, "mechanisms", n) for n in names}
    last = found[-1]
    each = clients(last)
    now = {n: real(last.fields["mechanisms"].get(n)) for n in names}
    lead = f"Every client chose its noise by its own gradients: in round {last.round:,}, " + joined(
        [f"{number_of(int(v), 'client')} chose {n[:60]}" for n, v in now.items() if v > 0] or ["nobody chose any"]
    )
    lead += ". The choice follows private gradients and is not accounted for."
    out: list[Block] = [Paragraph(lead)]
    if len(found) > 1 and counts:
        lines = tuple(series(n[:60], points) for n, points in counts.items())
        summary = " ".join(
            trend(f"The number of clients with {n[:60]} noise", p, brief=True) for n, p in counts.items()
        )
        out.append(
            Chart(
                "choices-printed", "lines", "Noise that the clients chose, by round", ROUNDS, Axis("clients", low=0.0),
                lines, summary=summary, source=f"{SOURCE}.mechanisms",
            )
        )  # fmt: skip
    if each:
        out.append(_printed_table(each, last))
    return out


def _printed_table(each: dict[int, dict[str, object]], last: Decision) -> DataTable:
    rows: list[tuple[str, ...]] = []
    keys: list[tuple[float | str, ...]] = []
    for client, entry in list(each.items())[:CLIENTS]:
        fields = Fields("", entry)
        statistics = [fields.number(name) for name in ("sparsity", "kurtosis", "sensitivity", "scale")]
        scores = fields.part("scores").numbers()
        chosen = fields.text("mechanism")[:60]
        ranked = ", ".join(f"{n[:60]} {v:.3f}" for n, v in sorted(scores.items(), key=lambda p: -p[1])[:6])
        cells = (
            "-" if statistics[0] is None else percent(min(1.0, max(0.0, statistics[0]))),
            *("-" if v is None else figures(v) for v in statistics[1:]),
        )
        rows.append((str(client), chosen, ranked, " and ".join(fields.texts("data"))[:100], *cells))
        keys.append((float(client), chosen, ranked, "", *(math.nan if v is None else v for v in statistics)))
    head = ("client", "chose", "scores", "data look", "sparse", "kurtosis", "largest record", "noise scale")
    title = f"What clients chose, in round {last.round:,}"
    return DataTable(title, head, tuple(rows), tuple(keys), source=f"{SOURCE}.clients")


# --- the path


def _path(found: Sequence[Decision]) -> list[Block]:
    """Return the loss along the server's path between the first two models, in the last round that had one."""
    for decision in reversed(found):
        fields = decision.read()
        along, straight = fields.data.get("path_loss"), fields.data.get("straight_loss")
        if not (isinstance(along, list) and isinstance(straight, list) and 1 < len(along) == len(straight) <= 1000):
            continue
        lines = []
        for name, values, role in (("on the path", along, "data"), ("straight across", straight, "reference")):
            points = tuple((k / (len(values) - 1), real(v)) for k, v in enumerate(values))
            lines.append(series(name, points, role=role))
        if not all(finite(line.points) for line in lines):
            continue
        highest = [max(y for _, y in finite(line.points)) for line in lines]
        summary = (
            f"In round {decision.round:,} the loss between the first two models is at most {figures(highest[0])} on "
            f"the path and {figures(highest[1])} straight across."
        )
        return [
            Chart(
                "choices-path", "lines", "Loss between the first two models",
                Axis("way from the first to the second", percent=True), Axis("loss on the server's data"), tuple(lines),
                summary=summary, source=f"{SOURCE}.path_loss, straight_loss",
            ),
        ]  # fmt: skip
    return []
