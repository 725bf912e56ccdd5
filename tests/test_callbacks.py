"""Trackers write public figures, tried against the real packages, offline."""

from __future__ import annotations

import importlib
import math
import time

import pytest

import sordino
from sordino import callbacks
from sordino.core.errors import SpecError
from sordino.core.record import RoundRecord

RECORDS = [
    RoundRecord(i + 1, {"server": 0.5 * (i + 1), "public": math.inf}, loss=1.0 / (i + 1), metrics={"worst_class": 0.25})
    for i in range(3)
]
RESULT = {"guarantee": {"sentence": "In total over 3 rounds, ..."}}


def played(watch):
    for record in RECORDS:
        watch(record)
    watch.finish(RESULT)
    watch.finish(None)  # as a run does; the log is closed already


def test_figures_are_the_finite_numbers_of_a_public_record():
    assert callbacks.figures(RECORDS[1]) == {"epsilon/server": 1.0, "loss": 0.5, "worst_class": 0.25}


def test_an_early_end_waits_for_the_figure_to_improve():
    watch = sordino.callbacks.early_end("accuracy", patience=2)
    for i, accuracy in enumerate((0.5, None, 0.6, 0.6)):
        watch(RoundRecord(i, {}, accuracy=accuracy))
    with pytest.raises(callbacks.StopTraining):
        watch(RoundRecord(9, {}, accuracy=0.59))
    falling = callbacks.early_end("loss", patience=1)
    for record in RECORDS:
        falling(record)
    with pytest.raises(callbacks.StopTraining):
        falling(RECORDS[0])
    with pytest.raises(SpecError, match="patience must be a whole number from 1"):
        callbacks.early_end(patience=0)


def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboard")
    played(callbacks.tensorboard(str(tmp_path)))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(tmp_path))
    log.Reload()
    assert [(e.step, e.value) for e in log.Scalars("epsilon/server")] == [(1, 0.5), (2, 1.0), (3, 1.5)]
    assert "guarantee/text_summary" in log.Tags()["tensors"]


@pytest.mark.filterwarnings("ignore")  # of the package's own
def test_mlflow_reads_what_was_written(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(SpecError, match=r"mlflow cannot be used: .*MLFLOW_ALLOW_FILE_STORE=true"):  # before any charge
        callbacks.mlflow("mine", tracking_uri=(tmp_path / "old").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    place = (tmp_path / "mlruns").as_uri()
    played(callbacks.mlflow("mine", tracking_uri=place))
    client = MlflowClient(place)
    (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert run.info.status == "FINISHED" and run.data.tags["guarantee"] == RESULT["guarantee"]["sentence"]
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "loss")][:2] == [(1, 1.0), (2, 0.5)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_a_run_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    played(callbacks.wandb("mine", mode="offline", dir=str(tmp_path)))
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    text, waits = file.read_bytes(), iter(range(100))
    while b"In total over 3 rounds" not in text and next(waits, None) is not None:  # its service still writes
        time.sleep(0.1)
        text = file.read_bytes()
    assert b"worst_class" in text and b"epsilon/server" in text and b"In total over 3 rounds" in text


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_one_line(name, monkeypatch):
    def missing(module):
        raise ImportError(module)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(SpecError, match=f"{name} is not installed; try: pip install"):
        getattr(callbacks, name)()
