"""Figures of a trained model on records that the caller names, and whose records these are.

The figures are exact: they are covered by no epsilon, and belong to whoever may see the records themselves. Records
that a ledger knows as private are not evaluated unless the caller says that only their owner will see the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sordino.core import check
from sordino.core.errors import DataError, RunError
from sordino.core.parts import PRIVATE, PUBLIC, locate
from sordino.data import canonical
from sordino.data.records import GivenRecords, labels_of
from sordino.ledger import home, macs
from sordino.ledger.units import UnitStore
from sordino.run_folder.folder import RunFolder
from sordino.runs.paying import named_ledger
from sordino.runs.prediction import Predictor
from sordino.spec import spec
from sordino.tasks.metrics import Meter

DECLARED = ("public", "mine")  # what a caller may say of the records


@dataclass(frozen=True)
class Figures:
    """Exact figures of some records, and a sentence that says whose they are."""

    metrics: dict[str, float]
    records: int
    whose: str


@dataclass(frozen=True)
class Known:
    """How many of some records are private records that the user's ledger knows."""

    run: int = 0  # of the run itself
    others: int = 0  # of other runs
    compared: bool = False  # False: the ledger cannot tell single records of the run apart, or is not at hand


def evaluate(model: Predictor, run: Path, source: Any, y: Any = None, declared: str | None = None) -> Figures:
    """Return the metrics of a model on records that the caller names.

    Args:
        model: the trained model.
        run: its run folder.
        source: a path or a pandas table with labels; or an array of records, with `y`.
        y: the labels of an array.
        declared: "public" states that the records are public; "mine" that only people who may see the records will see
            the figures. None: the records are taken as the caller's, unless the ledger knows them as private.

    Raises:
        RunError: if the records are private ones and `declared` does not allow to evaluate on them.
    """
    if declared is not None:
        check.one_of(DECLARED, records=declared)
    given = _labelled(model, source, y)
    known = known_records(run, given, source, () if model.form.code is None else model.form.code.columns)
    whose = _whose(known, len(given.x), declared, _public_data(run))
    out, labels = model.outputs(given.x), given.y
    if labels is None:
        raise DataError(f"{given.what} has no labels.")
    meter = Meter(model.form.task)
    if model.form.task == "regression":
        meter.add(torch.tensor(model.decided(out)), labels)
    else:
        meter.add(out, labels)
    return Figures(meter.result(), len(given.x), whose)


def _labelled(model: Predictor, source: Any, y: Any) -> GivenRecords:
    if y is None:
        return model.read(source, labelled=True)
    given = model.read(source)
    labels = torch.as_tensor(np.asarray(y))
    if len(labels) != len(given.x):
        raise DataError(f"there are {len(labels)} labels for {len(given.x)} records.")
    task = "regression" if labels.is_floating_point() else model.form.task
    return GivenRecords(given.what, given.x, labels_of(given.what, labels, task, model.form), given.names, given.cells)


def _whose(known: Known, count: int, declared: str | None, public_run: bool) -> str:
    """Return the sentence that says whose the records are, or refuse to evaluate on them."""
    private = 0 if public_run else max(known.run, known.others)
    where = "the private data of this run" if known.run >= known.others else "the data of other runs in your ledger"
    refused = 2 * private >= count if declared == "public" else private > 0  # a public record may have a private twin
    if private and refused and declared != "mine":
        raise RunError(
            f"{private} of these {count} records are among {where}: exact figures of them are covered by no epsilon. "
            "If nobody but those who may see the records will see the figures, say --mine (records='mine')."
        )
    if declared == "public":
        return f"{count} records, which you declare public: the figures are exact and may be shown to anyone."
    exact = f"exact figures of {count} records, covered by no epsilon: only for those who may see the records"
    if private:
        return f"{private} of the records are among {where}; {exact}."
    if public_run:
        return f"The run was trained on public data; {exact} unless they are public too (--public)."
    unknown = "These records are not among the data of this run"
    if not known.compared:
        unknown = "These records could not be compared with the data of this run"
    return f"{unknown}; {exact}. If they are public, say --public."


def _public_data(run: Path) -> bool:
    return bool(RunFolder(run).read_json("plan.json", PUBLIC).get("public_data"))


def known_records(run: Path, given: GivenRecords, source: Any = None, columns: Sequence[str] = ()) -> Known:
    """Return how many of the records the ledger of a run knows as private: by hashes of their rows, or by their path.

    `columns` are the input columns of the model, for the rows of a table."""
    folder = RunFolder(run)
    keys: dict[str, Any] = spec.read(locate(run, PRIVATE if folder.private.is_dir() else PUBLIC, "spec.toml"))
    same = isinstance(source, str | Path) and str(Path(source).absolute()) == str(keys.get("dataset"))
    key, store = home.read_key(), _store(folder)
    if key is None or store is None:
        return Known(len(given.x) if same else 0, compared=same)
    job = folder.read_json("ledger.json").get("job") if (folder.private / "ledger.json").is_file() else None
    in_run, elsewhere = np.zeros(len(given.x), np.bool_), np.zeros(len(given.x), np.bool_)
    try:
        parts = {part for part in store.parts() if part.part == "rows" and part.key == key.id}
        this = {part.id for part in store.members().get(str(job), ())}
        for form in _forms(given, keys, columns):
            shared = [part for part in parts if form.kind in store.kinds(part)]
            if not shared:
                continue
            hashes = macs.of_form(form, key)[0]
            for part in shared:
                mask = macs.among(hashes, store.form(part, form.kind))
                (in_run if part.id in this else elsewhere)[mask] = True
    finally:
        store.close()
    compared = same or any(part.id in this for part in parts)
    return Known(len(given.x) if same else int(in_run.sum()), int(elsewhere.sum()), compared)


def _forms(given: GivenRecords, keys: dict[str, Any], columns: Sequence[str]) -> list[canonical.Form]:
    """Return the rows in the forms by which a ledger may know them: with all columns, and with those of the run."""
    if given.cells is None:
        return list(canonical.of_arrays(given.x).forms)
    roles: list[str | None] = [keys.get(f"{role}_column") for role in ("label", "split", "user", "client")]
    present = [c if c in given.cells.columns else None for c in roles]
    fewer = given.cells[[c for c in given.cells.columns if c in columns or c in present]]
    label, split, user, client = present
    tables = [canonical.of_table(cells, label, split, user, client, columns) for cells in (given.cells, fewer)]
    forms = [form for table in tables for form in table.forms]
    return list({form.kind: form for form in forms}.values())


def _store(folder: RunFolder) -> UnitStore | None:
    """Open the units of the ledger that a run was charged to: without its private part, of the user's registry."""
    whole = (folder.private / "ledger.json").is_file()
    path = home.units_beside(named_ledger(folder)[0] if whole else home.registry())
    return UnitStore(path, "read") if path.is_file() else None
