"""Read a finished run back from its folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from sordino.contract.claim import Claim
from sordino.core.errors import DataError, RunError
from sordino.core.html import PublicNames
from sordino.core.parts import PUBLIC, locate
from sordino.core.record import RoundRecord
from sordino.privacy.guarantee import Guarantee
from sordino.run_folder.folder import RunFolder
from sordino.runs import html
from sordino.runs.prediction import architecture, stored_form
from sordino.runs.predicts import Predicts
from sordino.runs.prepare import prepare
from sordino.spec import spec


@dataclass(frozen=True)
class Loaded(Predicts, PublicNames):
    """What a finished run left for the public: its model, its guarantee and its history."""

    guarantee: Guarantee
    guarantees: dict[str, Guarantee]  # by viewer
    history: list[RoundRecord]
    metrics: dict[str, float | None]
    weights: dict[str, Tensor] = field(repr=False)  # of the final model, by parameter
    folder: Path
    model: nn.Module | None = None  # None: the run was given its own model; pass it to `load`
    claim: Claim | None = None  # what a paper claims for the method, if that does not hold

    @property
    def accuracy(self) -> float | None:
        """Return the accuracy after the last round, where it was evaluated."""
        return self.history[-1].accuracy if self.history else None

    @property
    def confusion(self) -> list[list[float]] | None:
        """Return the number of evaluated records by class (rows) and predicted class, after the last round."""
        return self.history[-1].confusion if self.history else None

    def _repr_html_(self) -> str:
        """Return the run for a notebook."""
        return html.of_run(self)


def load(run: str | Path, model: nn.Module | None = None) -> Loaded:
    """Return the model, the guarantee and the history of a finished run.

    Args:
        run: The run folder, or the public part of one that was exported.
        model: For a run that `sordino.train` was given its own model: a module of the same architecture, into which the
            trained weights are loaded. A model that Sordino ships is made by itself; its data are not needed.

    Returns:
        A `Loaded` run, with `predict`, `predict_proba`, `predict_table` and `evaluate`. Only the public part of the
        folder is read (`evaluate` also asks the ledger of the run whether it knows the records).
    """
    path = Path(run)
    if not path.is_dir():
        raise RunError(f"there is no run folder {path}.")
    folder = RunFolder(path)
    if not locate(path, PUBLIC, "result.json").is_file():
        raise RunError(f"{path} holds no finished run: result.json is missing. `sordino resume {path}` finishes it.")
    result = folder.read_json("result.json", PUBLIC)
    try:
        guarantees = {viewer: Guarantee.from_json(entry) for viewer, entry in result["guarantees"].items()}
        guarantee, metrics = Guarantee.from_json(result["guarantee"]), dict(result["metrics"])
        claim = None if result.get("claim") is None else Claim.from_json(result["claim"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RunError(f"{locate(path, PUBLIC, 'result.json')} is damaged: {error!r}.") from error
    weights = _weights(locate(path, PUBLIC, "model.safetensors"))
    made = _named_model(path) if model is None else model
    if made is not None:
        _put(weights, made, path)
    return Loaded(guarantee, guarantees, folder.records(), metrics, weights, path, made, claim)


def _weights(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} is missing or damaged: {error}") from error


def _named_model(path: Path) -> nn.Module | None:
    """Return the model that a run file names; None if the caller passed the model, or the dataset is not available."""
    keys: dict[str, Any] = spec.read(locate(path, PUBLIC, "spec.toml"))
    if "dataset" not in keys or "model" not in keys:
        return None
    wanted, form = spec.from_dict(keys), stored_form(path)
    if form is not None:
        return architecture(wanted, form)
    try:  # an earlier version wrote the folder
        return prepare(wanted, sketch=True).module
    except DataError:
        return None


def _put(weights: dict[str, Tensor], model: nn.Module, path: Path) -> None:
    """Load the trained weights into the model; raise RunError with the first parameter that does not fit."""
    state_dict = model.state_dict()
    strange = [name for name in weights if name not in state_dict or state_dict[name].shape != weights[name].shape]
    strange += [name for name in state_dict if name not in weights]
    if strange:
        raise RunError(f"{path} holds a different model: {strange[0]} differs. Pass the architecture that was trained.")
    with torch.no_grad():
        model.load_state_dict(weights)
