"""The run folder: all files that a run writes, in such a way that a crash loses at most one round.

It has two parts (docs/boundary.md names every file with its first reader). Files in `public/` may be given to anyone
whom the guarantee names; every field in them is checked against the table in boundary.py before it is written:

    spec.toml               the spec, without paths
    plan.json               what was derived from it: noise multiplier, guarantees, gradient path, environment
    inputs.json             the form of a record: shape, columns, schema, names of the classes
    records.jsonl           one line per round: epsilon, loss, accuracy
    model.safetensors       the final model
    result.json             the guarantee and the final figures
    accounting.json         the privacy events of the run by viewer, as planned, to be priced again
    seal.json               hashes of these files and of the code, and commitments to the private part (seal.py)
    seal.json.sig           a signature of seal.json, if the owner signed it
    report.html             the report

Files in `private/` (mode 0700) are for the owner alone:

    spec.toml               the spec, with all paths
    job.json                what a resumed run must share with this one
    ledger.json             the ledger, the job in it, and the last ledger entry that the run saw
    records.jsonl           one line per round: who was drawn, bytes, seconds, what the method decided
    checkpoint.safetensors  the state after a round (and the one before it, checkpoint.previous.safetensors)
    clients.sqlite          the clients' own state, if they keep any (clients-N.sqlite: of block N)
    views/                  what server and public saw in every round, if record_views is set
    attacks/                what `sordino attack` found: figures, scores, pictures, shadow models
    result.json             epsilon for the draws that happened
    notes.txt               what the owner was told
    statistics.key          the key of the noise of private statistics, until these are in the first checkpoint
    error.json              why the run stopped, if it did
    seal.key, seal.json     what opens the commitments of public/seal.json: their key and their contents
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from pathlib import Path
from typing import IO, Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sordino.core import faults
from sordino.core.errors import RunError
from sordino.core.parts import PRIVATE, PUBLIC, locate
from sordino.core.record import OwnerRecord, RoundRecord
from sordino.core.saved import Saved, written
from sordino.core.types import State
from sordino.run_folder import boundary

CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
RECORDS, INPUTS = "records.jsonl", "inputs.json"
R = TypeVar("R", RoundRecord, OwnerRecord)


class RunFolder:
    """The folder of a run (or of a comparison), with a public and a private part.

    Only `publish`, `publish_json` and `append` write to the public part; everything else goes to the private part.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        self._records: dict[str, IO[str]] = {}

    @property
    def public(self) -> Path:
        """The folder of the public part."""
        return self.path / PUBLIC

    @property
    def private(self) -> Path:
        """The folder of the private part."""
        return self.path / PRIVATE

    @property
    def flat(self) -> bool:
        """Whether an earlier version wrote it, without parts; it can be read but not resumed."""
        return not self.private.is_dir() and (self.path / "plan.json").is_file()

    @staticmethod
    def create(out: str, name: str | None) -> RunFolder:
        """Create a new run folder in `out`; without a name, the name is the current time.

        Raises:
            RunError: if a folder of this name exists, or none can be created.
        """
        root = Path(out)
        chosen = name or time.strftime("%Y%m%d-%H%M%S")
        try:
            root.mkdir(parents=True, exist_ok=True)
            for number in range(1000):
                path = root / (chosen if number == 0 else f"{chosen}-{number + 1}")
                with contextlib.suppress(FileExistsError):
                    path.mkdir()
                    return RunFolder(path)._with_parts()
                if name is not None:
                    raise RunError(f"{path} exists already. Choose another name, or `sordino resume {path}`.")
        except OSError as error:
            raise RunError(f"cannot make a run folder in {root}: {error.strerror}") from error
        raise RunError(f"cannot find a free name for a run folder in {root}.")

    def _with_parts(self) -> RunFolder:
        self.public.mkdir(exist_ok=True)
        self.private.mkdir(mode=0o700, exist_ok=True)
        self.private.chmod(0o700)
        return self

    def lock(self) -> None:
        """Lock the run for this process, since two would spend budget and overwrite files side by side.

        Raises:
            RunError: if another process holds the lock.
        """
        try:
            self._with_parts()
            self._lock = open(self.private / "lock", "w")  # noqa: PTH123, SIM115 (held until the run ends)
            _take(self._lock)
        except BlockingIOError as error:
            self.close()
            raise RunError(f"{self.path} is in use by another process.") from error
        except OSError as error:
            raise RunError(f"cannot open the run folder {self.path}: {error.strerror}") from error

    def close(self) -> None:
        """Close all files and release the lock."""
        for handle in (*self._records.values(), self._lock):
            if handle is not None:
                with contextlib.suppress(OSError):
                    handle.close()
        self._records, self._lock = {}, None

    def write(self, name: str, data: bytes) -> None:
        """Write a file of the private part atomically."""
        self._write(PRIVATE, name, data)

    def publish(self, name: str, data: bytes) -> None:
        """Write a file of the public part atomically; it must be listed in run_folder/boundary.py."""
        boundary.check_file(name)
        self._write(PUBLIC, name, data)

    def publish_json(self, name: str, data: dict[str, Any], compact: bool = False) -> None:
        """Write a JSON file of the public part; all its fields must be listed in run_folder/boundary.py."""
        boundary.check_fields(name, data)
        self._write(PUBLIC, name, _json(data, compact))

    def _write(self, part: str, name: str, data: bytes) -> None:
        """Write a temporary file, sync it to disk, then rename it."""
        folder = self.path / part
        target, temporary = folder / name, folder / f"{name}.tmp"
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
            _sync_folder(folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise RunError(f"cannot write {target}: {error.strerror}. Free some space, then try again.") from error

    def write_json(self, name: str, data: Any) -> None:
        """Write a JSON file of the private part."""
        self.write(name, _json(data))

    def read_json(self, name: str, part: str = PRIVATE) -> Any:
        """Return the contents of a JSON file of one part."""
        path = locate(self.path, part, name)
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise RunError(f"{path} is missing or damaged: {error}") from error

    def remove(self, name: str) -> None:
        """Remove a file of the private part if it exists."""
        (self.private / name).unlink(missing_ok=True)

    def tell_owner(self, text: str) -> None:
        """Append to notes.txt what only the owner may know; a terminal shows it as well."""
        try:
            with (self.private / "notes.txt").open("a", encoding="utf-8") as file:
                file.write(text.rstrip() + "\n")
        except OSError as error:
            raise RunError(f"cannot write {self.private / 'notes.txt'}: {error.strerror}.") from error

    def note_ledger(self, head: dict[str, Any]) -> None:
        """Update ledger.json with the last ledger entry that the run has seen."""
        self.write_json("ledger.json", self.read_json("ledger.json") | head)

    def owner_notes(self) -> tuple[str, ...]:
        """Return the lines of notes.txt: what the owner was told."""
        path = self.private / "notes.txt"
        return tuple(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else ()

    # --- records

    def append(self, record: RoundRecord, owners: OwnerRecord) -> None:
        """Append the records of a round: first the owner's, then the public one."""
        boundary.check_fields(RECORDS, json.loads(record.to_line()))
        for part, line in ((PRIVATE, owners.to_line()), (PUBLIC, record.to_line())):
            path = self.path / part / RECORDS
            try:
                if part not in self._records:
                    self._records[part] = path.open("a")
                self._records[part].write(line + "\n")
                self._records[part].flush()
            except OSError as error:
                raise RunError(f"cannot write {path}: {error.strerror}.") from error

    def records(self, until: int | None = None) -> list[RoundRecord]:
        """Return the public records of the rounds on file.

        If `until` is given, later rounds and an incomplete last line are also removed from the file.
        """
        return self._rounds(PUBLIC, RoundRecord, until)

    def owner_records(self, until: int | None = None) -> list[OwnerRecord]:
        """Return the owner's records of the rounds on file; `until` works as in `records`."""
        return self._rounds(PRIVATE, OwnerRecord, until)

    def _rounds(self, part: str, kind: type[R], until: int | None) -> list[R]:
        path = locate(self.path, part, RECORDS)
        records: list[R] = []
        if path.is_file():
            for line in path.read_text(errors="replace").splitlines():
                try:
                    records.append(kind.from_line(line))
                except (ValueError, TypeError, KeyError):
                    break  # a line left incomplete by a crash
        if until is not None:
            records = [r for r in records if r.round <= until]
            self._write(part, RECORDS, "".join(r.to_line() + "\n" for r in records).encode())
        return records

    # --- checkpoint

    def save_state(self, state: State, done: int) -> None:
        """Write a checkpoint of the state after `done` rounds, and keep the previous checkpoint."""
        faults.point("saving")
        data = pack(written(state), {"done": str(done)})
        current = self.private / CHECKPOINT
        if current.is_file():
            with contextlib.suppress(OSError):
                previous = self.private / PREVIOUS
                previous.unlink(missing_ok=True)
                os.link(current, previous)
        self.write(CHECKPOINT, data)
        faults.point("saved")

    def load_state(self) -> tuple[Saved, int, str | None] | None:
        """Return the newest undamaged checkpoint, or None if there are no checkpoints.

        Returns:
            The saved state, the number of rounds completed, and a warning if a newer checkpoint is damaged.

        Raises:
            RunError: if all checkpoints are damaged.
        """
        problems: list[str] = []
        for name in (CHECKPOINT, PREVIOUS):
            path = self.private / name
            if not path.is_file():
                continue
            try:
                tensors, metadata = unpack(path)
                done = int(metadata["done"])
                return Saved(tensors, done), done, "; ".join(problems) or None
            except (RunError, KeyError, ValueError) as error:
                problems.append(f"{path.name} is damaged ({error})")
        if problems:
            raise RunError(f"cannot resume {self.path}: {'; '.join(problems)}. Start a new run.")
        return None


def _json(data: Any, compact: bool = False) -> bytes:
    return (json.dumps(data, indent=None if compact else 2, allow_nan=False) + "\n").encode()


def _take(lock: IO[str]) -> None:
    """Lock a file; a reader that looks whether a run goes on (report/reading.py) holds the lock for an instant."""
    for wait in (0.01, 0.03, 0.0):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not wait:
                raise
            time.sleep(wait)


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(tensors: dict[str, Tensor]) -> str:
    total = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        total.update(name.encode() + tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def pack(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """Return a safetensors file with a digest of its contents."""
    held = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    return save(held, metadata | {"digest": _digest(held)})


def unpack(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and metadata that `pack` wrote; raise RunError if the file is damaged."""
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
    """Return a safetensors file with the state dict of a model."""
    return save({k: v.detach().cpu().clone().contiguous() for k, v in module.state_dict().items()})
