"""A run folder: everything a run leaves behind, written so that a crash loses no more than a round.

spec.toml               what was asked
plan.json               what was derived: noise multiplier, guarantees, gradient path, environment
ledger.json             which job of which ledger it is, and the last entry of the ledger that it saw
records.jsonl           one line a round
checkpoint.safetensors  the state after a round (and the one before it, checkpoint.previous.safetensors)
clients.sqlite          what clients keep for themselves, where they keep anything
model.safetensors       the final model
result.json             the guarantee and the accuracies
error.json              why the run stopped, where it did
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sordino.core.errors import RunError
from sordino.core.record import RoundRecord
from sordino.core.types import State
from sordino.runs import faults

CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        self._records: IO[str] | None = None

    @staticmethod
    def create(out: str, name: str | None) -> RunFolder:
        root = Path(out)
        chosen = name or time.strftime("%Y%m%d-%H%M%S")
        try:
            root.mkdir(parents=True, exist_ok=True)
            for number in range(1000):
                path = root / (chosen if number == 0 else f"{chosen}-{number + 1}")
                with contextlib.suppress(FileExistsError):
                    path.mkdir()
                    return RunFolder(path)
                if name is not None:
                    raise RunError(f"{path} exists already. Choose another name, or `sordino resume {path}`.")
        except OSError as error:
            raise RunError(f"cannot make a run folder in {root}: {error.strerror}") from error
        raise RunError(f"cannot find a free name for a run folder in {root}.")

    def lock(self) -> None:
        """One process a run: two would spend and overwrite side by side."""
        try:
            self._lock = open(self.path / "lock", "w")  # noqa: PTH123, SIM115 (held until the run ends)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise RunError(f"{self.path} is in use by another process.") from error
        except OSError as error:
            raise RunError(f"cannot open the run folder {self.path}: {error.strerror}") from error

    def close(self) -> None:
        for handle in (self._records, self._lock):
            if handle is not None:
                with contextlib.suppress(OSError):
                    handle.close()
        self._records = self._lock = None

    def write(self, name: str, data: bytes) -> None:
        """Whole or not at all: a temporary file, synchronised, then renamed."""
        target, temporary = self.path / name, self.path / f"{name}.tmp"
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
            _sync_folder(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise RunError(f"cannot write {target}: {error.strerror}. Free some space, then resume.") from error

    def write_json(self, name: str, data: Any) -> None:
        self.write(name, (json.dumps(data, indent=2, allow_nan=False) + "\n").encode())

    def read_json(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text())
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path / name} is missing or damaged: {error}") from error

    def note_ledger(self, head: dict[str, Any]) -> None:
        """The last entry of the ledger that the run has seen, beside what is already known of it."""
        self.write_json("ledger.json", self.read_json("ledger.json") | head)

    # --- records

    def append(self, record: RoundRecord) -> None:
        try:
            if self._records is None:
                self._records = (self.path / "records.jsonl").open("a")
            self._records.write(record.to_line() + "\n")
            self._records.flush()
        except OSError as error:
            raise RunError(f"cannot write {self.path / 'records.jsonl'}: {error.strerror}.") from error

    def records(self, until: int | None = None) -> list[RoundRecord]:
        """The rounds on file; with `until`, later ones and a torn last line are dropped from the file too."""
        path = self.path / "records.jsonl"
        found = []
        if path.is_file():
            for line in path.read_text(errors="replace").splitlines():
                try:
                    found.append(RoundRecord.from_line(line))
                except (ValueError, TypeError, KeyError):
                    break  # the line a crash tore
        if until is not None:
            found = [r for r in found if r.round <= until]
            self.write("records.jsonl", "".join(r.to_line() + "\n" for r in found).encode())
        return found

    # --- checkpoint

    def save_state(self, state: State, done: int) -> None:
        """The state after `done` rounds; the one before is kept beside it."""
        faults.point("saving")
        data = _pack({"params": state.params} | {f"extra.{k}": v for k, v in state.extra.items()}, {"done": str(done)})
        current = self.path / CHECKPOINT
        if current.is_file():
            with contextlib.suppress(OSError):
                previous = self.path / PREVIOUS
                previous.unlink(missing_ok=True)
                os.link(current, previous)
        self.write(CHECKPOINT, data)
        faults.point("saved")

    def load_state(self) -> tuple[State, int, str | None] | None:
        """The newest sound checkpoint, the rounds behind it, and a warning if it is not the newest of all."""
        problems: list[str] = []
        for name in (CHECKPOINT, PREVIOUS):
            path = self.path / name
            if not path.is_file():
                continue
            try:
                tensors, metadata = _unpack(path)
                extra = {k.removeprefix("extra."): v for k, v in tensors.items() if k.startswith("extra.")}
                return (
                    State(tensors["params"], extra, int(metadata["done"])),
                    int(metadata["done"]),
                    "; ".join(problems) or None,
                )
            except (RunError, KeyError, ValueError) as error:
                problems.append(f"{path.name} is damaged ({error})")
        if problems:
            raise RunError(f"cannot resume {self.path}: {'; '.join(problems)}. Start the run anew.")
        return None


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(tensors: dict[str, Tensor]) -> str:
    total = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        total.update(name.encode() + tensors[name].numpy().tobytes())
    return total.hexdigest()


def _pack(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    held = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    return save(held, metadata | {"digest": _digest(held)})


def _unpack(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise RunError(str(error).splitlines()[0]) from error
    if metadata.get("digest") != _digest(tensors):
        raise RunError("its contents do not match its digest")
    return tensors, metadata


def pack_model(module: torch.nn.Module) -> bytes:
    """A safetensors file of a model's whole state dict."""
    return save({k: v.detach().cpu().clone().contiguous() for k, v in module.state_dict().items()})
