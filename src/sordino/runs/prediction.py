"""Predictions of a trained model on further records, read and scaled exactly as those of its run.

Whatever scales the features is a part of the stored model; nothing is fitted or scaled by hand here. Predictions are
computed from the published model alone, so they cost nothing of anyone's budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.core.errors import DataError, RunError
from sordino.core.parts import PUBLIC, locate
from sordino.data import records
from sordino.data.records import GivenRecords, RecordFormat
from sordino.features.catalogue import features_of
from sordino.run_folder.folder import INPUTS, RunFolder
from sordino.runs import defaults, statistics
from sordino.spec import spec
from sordino.spec.spec import Spec
from sordino.tasks.validate import fix

BATCH = 2000  # records at once


@dataclass(frozen=True)
class Predictor:
    """A trained model with all that turns raw records into its inputs, and its outputs into predictions."""

    module: nn.Module
    form: RecordFormat
    features: str | None = None  # fixed features by name: see `features.catalogue`

    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs of the model for raw records [n, ...], on the CPU."""
        weight = next(self.module.parameters(), None)
        device = torch.device("cpu") if weight is None else weight.device
        training, parts = self.module.training, []
        self.module.eval()
        try:
            with torch.inference_mode():
                for i in range(0, len(x), BATCH):
                    out = self.module(self.model_input(x[i : i + BATCH]).to(device))
                    parts.append(getattr(out, "logits", out).cpu())
        finally:
            self.module.train(training)
        out = torch.cat(parts)
        if not bool(torch.isfinite(out).all()):
            raise RunError("the model's outputs are not finite: its training has diverged. Lower learning_rate.")
        return out

    def model_input(self, x: Tensor) -> Tensor:
        """Return raw records as the model takes them."""
        make = features_of(self.features)
        return self.form.scaled(x) if make is None else make(x)

    def predict(self, x: Any) -> NDArray[Any]:
        """Return one prediction a record: the name of the class, its number if it has no name, or a number."""
        return self.decided(self.outputs(self.read(x).x))

    def probabilities(self, x: Any) -> NDArray[np.float64]:
        """Return the probability of every class [n, classes]."""
        if self.form.task == "regression":
            raise DataError("a regression predicts numbers, not classes: use predict.")
        return self.outputs(self.read(x).x).double().softmax(-1).numpy()

    def read(self, source: Any, labelled: bool = False) -> GivenRecords:
        """Read records from a path, a pandas table or an array."""
        return records.read(source, self.form, labelled)

    def decided(self, out: Tensor) -> NDArray[Any]:
        """Return the predictions that these outputs mean, on the scale of the data."""
        if self.form.task == "regression":
            values = out.double().reshape(len(out)) if out[0].numel() == 1 else out.double()
            return values.numpy() if (target := self.form.target) is None else target.value(values.numpy())
        numbers = out.argmax(-1).numpy()
        return np.array(self.form.class_names, dtype=object)[numbers] if self.form.class_names else numbers

    def table(self, source: Any, keep: Sequence[str] = ()) -> Any:
        """Return a pandas table of predictions, one row a record in the order given.

        Args:
            source: the path of a table, an .npz file or a folder of images; a pandas table; or an array.
            keep: columns of the source to put in front, such as an id.
        """
        import pandas as pd

        given = self.read(source)
        columns: dict[str, Any] = {"file": list(given.names)} if given.names else {}
        for name in keep:
            if given.cells is None or name not in given.cells.columns:
                raise DataError(f"{given.what} has no column {name!r} to keep.")
            columns[name] = given.cells[name].to_numpy()
        out = self.outputs(given.x)
        decided = self.decided(out)
        if decided.ndim > 1:  # a sequence, or several values
            columns |= {f"prediction_{i}": column for i, column in enumerate(decided.reshape(len(decided), -1).T)}
            return pd.DataFrame(columns)
        columns["prediction"] = decided.astype(np.float32) if decided.dtype == np.float64 else decided
        if self.form.task != "regression":
            names = self.form.class_names or tuple(map(str, range(out.shape[-1])))
            chances = out.double().softmax(-1).numpy().round(7)
            columns |= {f"probability_{name}": chances[:, i] for i, name in enumerate(names)}
        return pd.DataFrame(columns)


def predictor(run: Path, module: nn.Module | None) -> Predictor:
    """Return the predictor of a run, given its trained model.

    Raises:
        RunError: if there is no model, or the run folder does not hold the form of its records.
    """
    if module is None:
        raise RunError(f"{run} was trained with the caller's own model: pass one of its architecture to sordino.load.")
    form = stored_form(run)
    if form is None:
        raise RunError(f"{run} was written by an earlier version of Sordino, without {INPUTS}. Train again.")
    keys: dict[str, Any] = spec.read(locate(run, PUBLIC, "spec.toml"))
    return Predictor(module, form, keys.get("features"))


def stored_form(run: Path) -> RecordFormat | None:
    """Return the form of the records of a run; None if an earlier version wrote the folder."""
    path = locate(run, PUBLIC, INPUTS)
    if not path.is_file():
        return None
    try:
        return RecordFormat.from_json(RunFolder(run).read_json(INPUTS, PUBLIC))
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is damaged: {error!r}.") from error


def architecture(wanted: Spec, form: RecordFormat) -> nn.Module | None:
    """Return an untrained model as a run builds it; None if the caller of the run passed the model.

    The data of the run are not read: its folder says how large the input and the output are."""
    if wanted.model is None or form.outputs is None:
        return None
    module = defaults.module(wanted, form.inputs, form.outputs, form.task == "regression" and form.target is not None)
    if wanted.fix_model:
        module = fix(module)[0]
    return statistics.standardised(module, torch.zeros(1, *form.inputs)) if wanted.standardise else module
