"""Export of the model of a run to a file for other programs, with its privacy card beside it.

The file holds the model as it was trained, with every layer that scales features. It takes what the model takes: rows
of numbers as the schema encodes them, or images after their features. The card says which.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from sordino.core.errors import RunError
from sordino.core.record import plain
from sordino.data.records import DTYPES, RecordFormat
from sordino.run_folder import card
from sordino.run_folder.export import may_leave
from sordino.runs.load import load
from sordino.runs.prediction import predictor

TOLERANCE = 1e-5  # the most by which outputs may differ from those of the model


def export_model(
    run: Path, kind: str, target: Path, anyway: bool = False, model: nn.Module | None = None
) -> list[Path]:
    """Write the model of a run to a file, and its privacy card as markdown and JSON beside it.

    Args:
        run: the run folder.
        kind: a key of KINDS.
        target: the file; it must not exist.
        anyway: export a run on private data even if it has no finite guarantee.
        model: for a run of the caller's own model, a module of its architecture.

    Returns:
        The paths of the three files.
    """
    paths = [target, *(target.with_name(f"{target.name}.card.{end}") for end in ("md", "json"))]
    for path in paths:
        if path.exists():
            raise RunError(f"{path} exists already. Choose another name, or remove it first.")
    may_leave(run, anyway)
    maker = predictor(run, load(run, model).model)
    content = card.card(run, target.name, kind)
    module = maker.module.cpu().eval()
    with torch.no_grad():
        data = KINDS[kind](module, example(maker.form), content["privacy"]["sentence"])
    files = [data, card.markdown(content).encode(), (json.dumps(plain(content), indent=2) + "\n").encode()]
    _write(dict(zip(paths, files, strict=True)))
    return paths


def _write(files: dict[Path, bytes]) -> None:
    """Write either all files or none."""
    written = {path.with_name(path.name + ".tmp"): path for path in files}
    try:
        for beside, path in written.items():
            beside.write_bytes(files[path])
        for beside, path in written.items():
            beside.rename(path)
    except OSError as error:
        for path in (*written, *files):
            path.unlink(missing_ok=True)
        raise RunError(f"cannot write {next(iter(files))}: {error.strerror or error}.") from error


def example(form: RecordFormat) -> Tensor:
    """Return three made-up records as the model takes them."""
    draw = torch.Generator().manual_seed(0)
    if form.dtype == "int64":
        return torch.randint(0, max(2, form.outputs or 2), (3, *form.inputs), generator=draw, dtype=DTYPES["int64"])
    return torch.randn((3, *form.inputs), generator=draw)


def _safetensors(module: nn.Module, x: Tensor, sentence: str) -> bytes:
    tensors = {name: value.detach().clone().contiguous() for name, value in module.state_dict().items()}
    return save(tensors, {"format": "pt", "guarantee": sentence})


def _torchscript(module: nn.Module, x: Tensor, sentence: str) -> bytes:
    """Trace the model; PyTorch reads TorchScript still, but advises `torch.export` since version 2.9."""
    file = io.BytesIO()
    with _quiet():
        script = torch.jit.trace(module, x)
        torch.jit.save(script, file)
        file.seek(0)
        again = torch.jit.load(file)
        _agree("torchscript", module, again, x)
    return file.getvalue()


def _torch_export(module: nn.Module, x: Tensor, sentence: str) -> bytes:
    file = io.BytesIO()
    with _quiet():
        program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("records")},))
        torch.export.save(program, file, extra_files={"guarantee": sentence})
        file.seek(0)
        _agree("torch-export", module, torch.export.load(file).module(), x)
    return file.getvalue()


def _onnx(module: nn.Module, x: Tensor, sentence: str) -> bytes:
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise RunError(f'--model onnx needs {package}, which is not installed; try: pip install "sordino[export]".')
    with _quiet():
        batch = {0: torch.export.Dim("records")}
        program: Any = torch.onnx.export(
            module, (x,), dynamo=True, dynamic_shapes=(batch,), input_names=["records"], output_names=["outputs"],
            verbose=False,
        )  # fmt: skip
        made = program.model_proto
        entry = made.metadata_props.add()
        entry.key, entry.value = "guarantee", sentence
        reference: Any = importlib.import_module("onnx.reference").ReferenceEvaluator(made)
        _agree("onnx", module, lambda rows: torch.from_numpy(reference.run(None, {"records": rows.numpy()})[0]), x)
    data: bytes = made.SerializeToString()
    return data


KINDS: dict[str, Callable[[nn.Module, Tensor, str], bytes]] = {
    "onnx": _onnx,
    "torch-export": _torch_export,
    "torchscript": _torchscript,
    "safetensors": _safetensors,
}


def _agree(kind: str, module: nn.Module, other: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Raise RunError unless the exported model has the outputs of the model, also for another number of records."""
    for rows in (x, x[:1], torch.cat([x, x + 1])):
        wanted, outputs = module(rows), other(rows)
        if outputs.shape != wanted.shape or not torch.allclose(outputs, wanted, rtol=TOLERANCE, atol=TOLERANCE):
            raise RunError(f"the model cannot be written as {kind}: its outputs would differ. Use safetensors.")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' own warnings and messages from the user; what they write is checked afterwards."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
