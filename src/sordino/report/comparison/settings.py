"""The settings of the runs of a comparison: what is the same for all, and what differs between methods."""

from __future__ import annotations

from sordino.report.comparison.sources import ComparisonRecords
from sordino.report.document import DataTable, FactSheet
from sordino.report.run import words
from sordino.report.run.fields import Fields, RunSources, one_line

VARIED = ("method", "epsilon", "seed")  # what a comparison varies
METHODS = 30  # columns of the table of differences
LONGEST = 120  # letters of a value


def _values(run: RunSources) -> dict[str, str]:
    out = {}
    for key, value in run.records.spec.items():
        if key not in VARIED:
            text = value if isinstance(value, str) else str(value)
            out[one_line(key)[:LONGEST]] = one_line(text)[:LONGEST] or '""'
    return out


def tables(records: ComparisonRecords) -> tuple[FactSheet | None, DataTable | None]:
    """Return the settings that all runs share, and those that differ, by method."""
    by_method: dict[str, dict[str, set[str]]] = {}
    for cell in records.cells:
        if cell.run is not None and cell.run.spec:
            mine = by_method.setdefault(cell.cell.method, {})
            for key, value in _values(cell.run).items():
                mine.setdefault(key, set()).add(value)
    if not by_method:
        return None, None
    keys = list(dict.fromkeys(k for mine in by_method.values() for k in mine))
    same, different = [], []
    for key in keys:
        values = [mine.get(key, {"-"}) for mine in by_method.values()]
        if all(len(v) == 1 for v in values) and len({*map(frozenset, values)}) == 1:
            same.append((key, next(iter(values[0]))))
        else:
            different.append((key, *("; ".join(sorted(v)) for v in values[:METHODS])))
    source = "cells/*/public/spec.toml"
    sheet = FactSheet(tuple(sorted(same)), source) if same else None
    if not different:
        return sheet, None
    header = ("setting", *list(by_method)[:METHODS])
    note = "Several values in one field: the runs of this method differ, for instance with epsilon."
    return sheet, DataTable("Settings that differ", header, tuple(sorted(different)), (), note, source)


def environment(records: ComparisonRecords) -> FactSheet | None:
    """Return on which software the runs were made."""
    found: dict[str, dict[str, None]] = {}

    def note(name: str, fields: Fields, key: str) -> None:
        if fields.has(key):
            data = fields.data[key]
            found.setdefault(name, {})[one_line(str(data))[:LONGEST]] = None

    for run in records.runs:
        note("Sordino", run.seal, "sordino")
        for key in ("python", "torch", "numpy", "machine"):
            note(key.capitalize() if key != "torch" else "PyTorch", run.plan.part("environment"), key)
        note("Device", run.plan, "device")
        note("Evaluated on", run.plan, "evaluated_on")
    rows = tuple((name, words.joined(list(values)[:8])) for name, values in found.items())
    return FactSheet(rows, "cells/*/public: plan.json, seal.json") if rows else None
