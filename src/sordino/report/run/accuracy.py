"""How good the model is, against the same training without privacy, and on which records that was measured."""

from __future__ import annotations

import math

from sordino.report.chart import Axis, Chart, ChartSeries
from sordino.report.document import Block, DataTable, Paragraph, Section
from sordino.report.run.evaluated import (
    FinalFigures,
    confusion,
    figures_in,
    final,
    interval,
    kind_of,
    noise_deviation,
)
from sordino.report.run.fields import RunSources
from sordino.report.run.metric_words import difference, value_of
from sordino.report.run.words import capital, percent

FIRST = ("accuracy", "rmse", "mae", "perplexity", "auc")  # the figure that a reader sees first


def section(run: RunSources) -> Section | None:
    """Return the figures of the final model beside those of the run without privacy."""
    now, reference = final(run), figures_in(run.baseline)
    if not now.values and not reference:
        return _none(run)
    blocks: list[Block] = [Paragraph(_lead(run, now, reference), "lead"), *_certainty(run, now)]
    if now.values:
        blocks.append(_table(run, now, reference))
        blocks += _chart(run, now, reference)
    if reference and now.values and run.baseline.text("evaluated_on") not in ("", now.where):
        blocks.append(
            Paragraph(
                f"The run without privacy was evaluated on other records ({run.baseline.text('evaluated_on')}) than "
                f"this one ({now.where}): the difference is not the price of privacy alone.",
                "warning",
            )
        )
    if not reference and now.values and run.plan.text("method") != "none":
        why = "" if run.plan.flag("public_data") else " Such a run reads the records exactly, so it is for public data."
        blocks.append(
            Paragraph(
                f"Nothing here says what the same training reaches without privacy: the run was made without a "
                f"baseline.{why}",
                "quiet",
            )
        )
    return Section("accuracy", "How good is the model?", tuple(blocks))


def _none(run: RunSources) -> Section | None:
    """Return a section that says that nothing was measured, if the plan says so."""
    if not run.finished or run.plan.has("evaluated_on") or not run.plan:
        return None
    text = "The model was not evaluated: the run had no public test records and held out none of the clients' own."
    return Section("accuracy", "How good is the model?", (Paragraph(text),))


def _main(values: dict[str, float]) -> str:
    return next((name for name in FIRST if name in values), next(iter(values), ""))


def _lead(run: RunSources, now: FinalFigures, reference: dict[str, float]) -> str:
    name = _main(now.values)
    if not name:
        return "The run has no figure of its model yet; that of the run without privacy is known."
    kind, value = kind_of(run)(name), now.values[name]
    where = now.where.partition(",")[0].replace("test data", "test records") or "records it was tried on"
    about = "about " if "charged" in now.where else ""
    if name == "accuracy":
        text = f"The model gets {about}{value_of(kind, value)} of the {where} right"
    else:
        text = f"The model's {kind.label} on the {where} is {about}{value_of(kind, value)}"
    if name in reference:
        text += f"; trained in the same way without privacy it reaches {value_of(kind, reference[name])}"
        gap = (value - reference[name]) * (1 if kind.better == "high" else -1)
        if kind.share:
            amount = f"{abs(100 * gap):.2f} percentage points"
            text += (
                f". In this run privacy costs {amount}"
                if gap < 0
                else f". In this run privacy costs nothing ({amount} more)"
            )
    when = (
        "" if run.finished else f" This is after round {now.round:,}: the run has no result yet." if now.round else ""
    )
    return f"{text}.{when}"


def _certainty(run: RunSources, now: FinalFigures) -> list[Block]:
    """Return how sure the accuracy is: by its noise, or by the number of test records."""
    value, out = now.values.get("accuracy"), []
    if "charged" in now.where:
        text = f"Evaluated on {now.where}."
        if (std := noise_deviation(run)) is not None and now.values:
            text += (
                f" The noise keeps the held-out records private and is part of the guarantee. In 95 of 100 cases it "
                f"moves the figure by less than {percent(min(1.0, 1.96 * std))[:-2]} percentage points."
            )
        out.append(Paragraph(text))
    elif value is not None and (matrix := confusion(run)[0]):
        count = math.fsum(map(math.fsum, matrix))
        right = math.fsum(row[k] for k, row in enumerate(matrix))
        low, high = interval(right, count)
        if math.isclose(right, value * count, rel_tol=1e-6, abs_tol=1e-3) and math.isfinite(low):
            out.append(
                Paragraph(
                    f"Evaluated on {now.where or 'the test records'}, exactly and without noise: {right:,.0f} of "
                    f"{count:,.0f} records. With so many records, the model's accuracy on others of their kind lies "
                    f"between {percent(low)} and {percent(high)} (95 % confidence; Clopper and Pearson)."
                )
            )
    elif now.where:
        out.append(Paragraph(f"Evaluated on {now.where}."))
    return list(out)


def _title(run: RunSources) -> str:
    return "Figures of the final model" if run.finished else "Figures of the model so far"


def _table(run: RunSources, now: FinalFigures, reference: dict[str, float]) -> DataTable:
    kind, names = kind_of(run), list(dict.fromkeys((*now.values, *reference)))
    rows: list[tuple[str, ...]] = []
    keys: list[tuple[float | str, ...]] = []
    for name in names:
        about, value, other = kind(name), now.values.get(name), reference.get(name)
        cells = [capital(about.label), "-" if value is None else value_of(about, value)]
        key: list[float | str] = [about.label, math.nan if value is None else value]
        if reference:
            gap = None if value is None or other is None else value - other
            cells += ["-" if other is None else value_of(about, other)]
            cells += ["-" if value is None or other is None else difference(about, value, other)]
            key += [math.nan if other is None else other, math.nan if gap is None else gap]
        better = {"high": "higher is better", "low": "lower is better"}.get(about.better, "")
        meaning = "; ".join(filter(None, (about.meaning, better)))
        rows.append((*cells, meaning))
        keys.append((*key, meaning))
    middle = ("this run", "without privacy", "difference") if reference else ("this run",)
    source = now.source + ("; public/baseline.json: accuracy, metrics" if reference else "")
    title = _title(run)
    note = "Differences between shares are in percentage points." if reference else ""
    return DataTable(title, ("metric", *middle, "what it is"), tuple(rows), tuple(keys), note=note, source=source)


def _chart(run: RunSources, now: FinalFigures, reference: dict[str, float]) -> list[Chart]:
    """Return bars of all metrics of which more is better and that lie between 0 and 1."""
    kind = kind_of(run)
    names = [n for n, v in now.values.items() if kind(n).share and kind(n).better == "high" and 0 <= v <= 1]
    if len(names) < 2:
        return []
    labels = tuple(capital(kind(n).label) for n in names)
    bars = [ChartSeries("this run", tuple((float(k), now.values[n]) for k, n in enumerate(names)))]
    beside = tuple((float(k), reference[n]) for k, n in enumerate(names) if n in reference)
    if beside:
        bars.append(ChartSeries("without privacy", beside, role="reference"))
    best, worst = max(names, key=lambda n: now.values[n]), min(names, key=lambda n: now.values[n])
    summary = (
        f"{capital(kind(best).label)} is the highest figure with {value_of(kind(best), now.values[best])}, "
        f"{kind(worst).label} the lowest with {value_of(kind(worst), now.values[worst])}."
    )
    if beside:
        gaps = {n: reference[n] - now.values[n] for n in names if n in reference}
        most = max(gaps, key=lambda n: gaps[n])
        if gaps[most] > 0:
            summary += f" Privacy costs most in {kind(most).label}: {100 * gaps[most]:.2f} percentage points."
    source = now.source + ("; public/baseline.json: accuracy, metrics" if beside else "")
    return [
        Chart(
            "accuracy-metrics", "dots", _title(run) + (" with and without privacy" if beside else ""),
            Axis("metric", "category", labels), Axis("share", percent=True), tuple(bars),
            summary=summary, source=source,
        )
    ]  # fmt: skip
