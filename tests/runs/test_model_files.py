"""Models for other programs: the file has the outputs of the model, and its privacy card tells the same promise."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from safetensors import safe_open

import sordino
from sordino.core.errors import RunError
from sordino.models import _rows
from sordino.run_folder import card
from sordino.runs import model_files
from sordino.runs.model_files import KINDS, export_model
from sordino.runs.prediction import predictor
from support.problems import federation, linear
from support.tables import people, trained


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("run"), standardise=True, data_name="clinic", model="mlp")


def outputs(kind, path, x):
    if kind == "onnx":
        runtime = pytest.importorskip("onnxruntime")
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return session.run(None, {"records": x.numpy()})[0]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch's own, of reading TorchScript
        read = torch.export.load(path).module() if kind == "torch-export" else torch.jit.load(path)
        return read(x).numpy()


@pytest.mark.parametrize("kind", ["torch-export", "torchscript", "onnx"])
def test_an_exported_model_has_the_outputs_of_the_model(kind, done, tmp_path):
    if kind == "onnx":
        pytest.importorskip("onnxscript")
    files = export_model(done.folder, kind, tmp_path / f"model.{kind}")
    assert [p.name for p in files] == [f"model.{kind}{end}" for end in ("", ".card.md", ".card.json")]
    made = predictor(done.folder, done.model)
    x = made.model_input(made.read(people(17, seed=3)).x)  # another number of records than it was traced with
    with torch.no_grad():
        wanted = done.model(x).numpy()
    assert np.abs(outputs(kind, files[0], x) - wanted).max() < 1e-5 < np.ptp(wanted)


@pytest.mark.parametrize("kind", ["torch-export", "torchscript", "onnx"])
def test_rows_of_unit_length_are_exported_for_any_number_of_records(kind, monkeypatch):
    """Beyond a number of records they are computed in parts, which an export must not freeze."""
    monkeypatch.setattr(_rows, "BLOCK", 12)  # four records of three numbers
    rows = _rows.UnitRows(3)
    rows.centre(torch.tensor([0.1, 0.0, -0.2]), 0.1, torch.ones(4))
    model = torch.nn.Sequential(rows, torch.nn.Linear(4, 2)).eval()
    assert model_files.KINDS[kind](model, torch.randn(3, 3), "a sentence")  # compares with one, three and six records


def test_a_card_tells_the_promise_of_the_run_and_nothing_private(done, tmp_path):
    model, page, data = export_model(done.folder, "safetensors", tmp_path / "m.safetensors")
    with safe_open(model, framework="pt") as file:
        assert file.metadata()["guarantee"] == done.guarantee.sentence()
        assert torch.equal(file.get_tensor("0.scale"), done.model[0].scale)
    told, text = json.loads(data.read_text()), page.read_text()
    assert told["privacy"]["epsilon"] == done.guarantee.epsilon and told["privacy"]["unit"] == "record"
    assert told["privacy"]["viewer"] == "server" and told["privacy"]["assumptions"] == list(done.guarantee.public)
    assert told["training"]["data"] == "clinic" and told["model"]["input"]["class_names"] == ["no", "yes"]
    assert done.guarantee.sentence() in text and "| data | clinic |" in text and card.FOR_OWNER in text
    assert f"sordino {sordino.__version__}" in text
    assert str(done.folder) not in text + data.read_text() and "t.csv" not in text + data.read_text()


def test_nothing_is_overwritten_or_exported_without_a_promise(done, tmp_path, monkeypatch):
    (tmp_path / "m.card.md").write_text("mine")
    (tmp_path / "m").with_name("m").write_text("mine")
    with pytest.raises(RunError, match="m exists already"):
        export_model(done.folder, "safetensors", tmp_path / "m")
    (tmp_path / "x.card.json").write_text("mine")
    with pytest.raises(RunError, match=r"x\.card\.json exists already"):
        export_model(done.folder, "safetensors", tmp_path / "x")
    with pytest.raises(RunError, match=r"cannot write .*: No such file or directory"):
        export_model(done.folder, "safetensors", tmp_path / "no" / "where")
    keys = {"method": "none", "rounds": 1, "seed": 0, "out": str(tmp_path), "name": "plain", "device": "cpu"}
    plain = sordino.train(linear(), federation(), **keys)
    with pytest.raises(RunError, match=r"No guarantee .* --anyway"):
        export_model(plain.folder, "safetensors", tmp_path / "y", model=linear())
    _, page, _ = export_model(plain.folder, "safetensors", tmp_path / "y", anyway=True, model=linear())
    assert "epsilon (accounted, in total) | infinite" in page.read_text()
    with pytest.raises(RunError, match="the model cannot be written as torchscript: its outputs would differ"):
        model_files._agree("torchscript", linear(), linear(seed=3), torch.ones(3, 20))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RunError, match="needs onnx, which is not installed"):
        export_model(done.folder, "onnx", tmp_path / "z")
    assert not list(tmp_path.glob("z*")) and set(KINDS) == {"onnx", "torch-export", "torchscript", "safetensors"}


def test_a_claim_stands_on_the_card_beside_what_is_accounted(tmp_path):
    keys = {"method": "nbafl-paper", "rounds": 1, "seed": 0, "out": str(tmp_path), "name": "it", "device": "cpu"}
    done = sordino.train(linear(), federation(), **keys)
    text = card.markdown(card.card(done.folder, "m.onnx", "onnx"))
    assert "Claimed by" in text and "It does not hold" in text
