"""What one can ask of a trained model: predictions and figures, the same after a run and after `sordino.load`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sordino.runs.evaluation import Figures, evaluate
from sordino.runs.prediction import predictor


class Trained(Protocol):
    """A run that has ended."""

    @property
    def model(self) -> nn.Module | None:
        """The trained model; None if only the caller of the run knows its architecture."""

    @property
    def folder(self) -> Path:
        """The run folder."""


class Predicts:
    """The methods that a finished run has.

    Records are given raw, as the run was given them: an array, a pandas table, or the path of a table, an .npz file or
    a folder of images. The features, the schema and the names of the classes are those of the run."""

    def report(self: Trained, owner: bool = False, out: str | Path | None = None) -> Path:
        """Write the report of the run as a page for the browser, and return its file.

        Args:
            owner: also show what was not released; then the report is for the owner of the data alone.
            out: the file; by default report.html in the public or, for the owner, in the private part of the run.
        """
        from sordino.report.files import write_report

        return write_report(self.folder, owner, None if out is None else Path(out))

    def predict(self: Trained, x: Any) -> NDArray[Any]:
        """Return one prediction a record: the name or number of the class, or a number on the scale of the data."""
        return predictor(self.folder, self.model).predict(x)

    def predict_proba(self: Trained, x: Any) -> NDArray[np.float64]:
        """Return the probability of every class [n, classes]."""
        return predictor(self.folder, self.model).probabilities(x)

    def predict_table(self: Trained, source: Any, keep: Sequence[str] = ()) -> Any:
        """Return a pandas table of predictions and probabilities, with the columns `keep` of the source in front."""
        return predictor(self.folder, self.model).table(source, keep)

    def evaluate(self: Trained, source: Any, y: Any = None, *, records: str | None = None) -> Figures:
        """Return exact metrics on records that you name, and whose records they are (docs/using.md).

        `records` is "public" if they are public, "mine" if only people who may see the records will see the metrics."""
        return evaluate(predictor(self.folder, self.model), self.folder, source, y, records)
