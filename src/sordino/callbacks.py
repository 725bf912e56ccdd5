"""Callbacks for `sordino.train(..., watch=...)`: each is called after every round with its public record.

early_end    end the run once a public figure stops improving
tensorboard  write the figures for TensorBoard
mlflow       log them to MLflow
wandb        log them to Weights & Biases
StopTraining raise it in a callback of your own to end the run after this round

Callbacks see what is public, and nothing else. A run that is ended early keeps its model; the whole plan stays charged.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

from sordino.core.errors import SpecError
from sordino.core.record import RoundRecord
from sordino.runs.callbacks import StopTraining

__all__ = ["StopTraining", "early_end", "mlflow", "tensorboard", "wandb"]


def figures(record: RoundRecord) -> dict[str, float]:
    """Return the finite numbers of a public record by name, such as epsilon/server, accuracy and rmse."""
    values: dict[str, Any] = {f"epsilon/{viewer}": epsilon for viewer, epsilon in record.epsilon.items()}
    values |= {"loss": record.loss, "accuracy": record.accuracy, "clip": record.clip, "noise": record.noise}
    values |= record.metrics or {}
    return {k: float(v) for k, v in values.items() if isinstance(v, int | float) and math.isfinite(v)}


def early_end(figure: str = "accuracy", patience: int = 5, higher: bool | None = None) -> Callable[[RoundRecord], None]:
    """Return a callback that ends the run once a public figure has not improved for `patience` evaluations.

    Args:
        figure: The name of the figure: accuracy, loss, rmse, ...
        patience: The number of evaluations without improvement after which the run ends.
        higher: Whether higher is better; by default it is, except for loss, rmse, mae and perplexity.
    """
    if not isinstance(patience, int) or patience < 1:
        raise SpecError(f"patience must be a whole number from 1, not {patience!r}.")
    sign = 1.0 if (figure not in ("loss", "rmse", "mae", "perplexity") if higher is None else higher) else -1.0
    best, waited = -math.inf, 0

    def watch(record: RoundRecord) -> None:
        nonlocal best, waited
        value = figures(record).get(figure)
        if value is None:  # not every round is evaluated
            return
        best, waited = (sign * value, 0) if sign * value > best else (best, waited + 1)
        if waited >= patience:
            raise StopTraining

    return watch


class _Tracker:
    """A callback that opens its log with the first round, adds every round, and ends it with the run."""

    def __init__(self, opened: Callable[[], tuple[Callable[..., None], Callable[..., None]]]) -> None:
        self._opened = opened
        self._log: Callable[..., None] | None = None

    def __call__(self, record: RoundRecord) -> None:
        if self._log is None:
            self._log, self._end = self._opened()
        log = self._log
        log(figures(record), record.round)

    def finish(self, result: dict[str, Any] | None) -> None:
        """End the log with the sentence of the guarantee, or without one if an error ended the run."""
        if self._log is not None:
            self._log = None
            self._end(None if result is None else str(result["guarantee"]["sentence"]))


def tensorboard(folder: str = "logs") -> _Tracker:
    """Return a callback that writes scalars for TensorBoard to a folder."""
    module = _package("torch.utils.tensorboard", "tensorboard")

    def opened() -> Any:
        writer = module.SummaryWriter(folder)

        def log(values: dict[str, float], step: int) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        def end(sentence: str | None) -> None:
            if sentence is not None:
                writer.add_text("guarantee", sentence)
            writer.close()

        return log, end

    return _Tracker(opened)


def mlflow(experiment: str = "sordino", run_name: str | None = None, tracking_uri: str | None = None) -> _Tracker:
    """Return a callback that logs to a run of its own in MLflow, at `tracking_uri` or where MLflow is set to."""
    try:  # now, before anything is charged
        client = _package("mlflow", "mlflow").MlflowClient(tracking_uri)
        known = client.get_experiment_by_name(experiment)
    except SpecError:
        raise
    except Exception as error:  # MLflow and what it stores its runs in raise many kinds
        raise SpecError(f"mlflow cannot be used: {' '.join(str(error).split())}") from error

    def opened() -> Any:
        where = client.create_experiment(experiment) if known is None else known.experiment_id
        run = client.create_run(where, run_name=run_name).info.run_id

        def log(values: dict[str, float], step: int) -> None:
            for name, value in values.items():
                client.log_metric(run, name, value, step=step)

        def end(sentence: str | None) -> None:
            if sentence is not None:
                client.set_tag(run, "guarantee", sentence)
            client.set_terminated(run, "FAILED" if sentence is None else "FINISHED")

        return log, end

    return _Tracker(opened)


def wandb(project: str = "sordino", **keys: Any) -> _Tracker:
    """Return a callback that logs to Weights & Biases; `keys` go to wandb.init, such as mode="offline"."""
    module = _package("wandb", "wandb")

    def opened() -> Any:
        run = module.init(project=project, **keys)

        def end(sentence: str | None) -> None:
            if sentence is not None:
                run.summary["guarantee"] = sentence
            run.finish(exit_code=1 if sentence is None else 0)

        return lambda values, step: run.log(values, step=step), end

    return _Tracker(opened)


def _package(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SpecError(f"{package} is not installed; try: pip install {package}.") from error
