"""Writing reports to files: whole or not at all, over earlier reports alone, an owner's never into a public part."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sordino.core.errors import RunError
from sordino.core.parts import PRIVATE, PUBLIC
from sordino.report.document import Document
from sordino.report.reading import find, harmless, public_part, read_run

NAME = "report.html"
HEAD = 2000  # bytes of a file in which its mark stands
MARKS = (  # of pages, Markdown, JSON and pictures
    b'<meta name="generator" content="Sordino', b"<!-- sordino report", b'"kind": "sordino report"',
    b"Software\0Sordino", b"<dc:title>Sordino",
)  # fmt: skip
APART = "Name another file or folder with --out."


def write(path: Path, content: str | bytes, owner: bool = False) -> None:
    """Write a report or a picture of one, in the place of an earlier one if there is one.

    Args:
        path: the file.
        content: what it holds.
        owner: whether it is for the owner of the data alone.

    Raises:
        RunError: if it cannot be written there; then nothing has changed.
    """
    check_target(path, owner)
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # left behind by a crash; a link there is not followed
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if owner else 0o644)
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise _failed(path, error) from error


def check_target(path: Path, owner: bool) -> None:
    """Raise RunError if a report may not or cannot be written to a file."""
    shown = harmless(str(path))
    try:
        if not path.parent.is_dir():
            raise RunError(f"cannot write {shown}: there is no folder {harmless(str(path.parent))}.")
        if path.is_dir():
            raise RunError(f"cannot write {shown}: it is a folder. {APART}")
        if os.path.lexists(path) and not _ours(path):
            raise RunError(f"{shown} exists and is not a report of Sordino, so it was left as it is. {APART}")
        check_reader(path, owner)
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise RunError(f"cannot write {shown}: no permission to write in {harmless(str(path.parent))}. {APART}")
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        raise _failed(path, error) from error


def make_folder(path: Path, owner: bool) -> None:
    """Make a folder for reports or pictures, unless it is there already.

    Raises:
        RunError: if it cannot be made, or it may be handed out and the reports are for the owner.
    """
    check_reader(path, owner)
    try:
        path.mkdir(mode=0o700 if owner else 0o777, parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _failed(path, error) from error


def check_reader(path: Path, owner: bool) -> None:
    """Raise RunError if a path lies in a folder that may be handed out, and what is to be written is the owner's."""
    if owner and (public := _public_above(path)) is not None:
        raise RunError(
            f"a report for the owner must not be written into {harmless(str(public))}, which may be handed out. {APART}"
        )


def _failed(path: Path, error: Exception) -> RunError:
    why = getattr(error, "strerror", None) or str(error)
    return RunError(f"cannot write {harmless(str(path))[:300]}: {why}. {APART}")


def _ours(path: Path) -> bool:
    """Return whether a file is a report or a picture of one, or is empty."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(HEAD)
    return not head or any(mark in head for mark in MARKS)


def _public_above(path: Path) -> Path | None:
    """Return the folder that may be handed out and that a path lies in; None if there is none."""
    real = Path(os.path.realpath(path))
    for folder in (real, *real.parents):
        if folder.name == PUBLIC and (folder.parent / PRIVATE).is_dir():
            return folder
        if (folder / "plan.json").is_file() and (folder / "spec.toml").is_file():
            return folder
    return None


# --- where reports lie


def home(run: Path, owner: bool) -> Path:
    """Return the file of the report of a run that `find` has found: in the part of its reader, or beside a copy."""
    part = run / PRIVATE if owner else public_part(run)
    if not Path(os.path.realpath(part)).is_relative_to(os.path.realpath(run)):
        raise RunError(f"{harmless(str(part))} is a link that leads out of the run. {APART}")
    return part / NAME


def write_report(run: Path, owner: bool = False, out: Path | None = None) -> Path:
    """Write the report of a run as a page, and return its file.

    Args:
        run: the folder of the run.
        owner: whether it is for the owner of the data alone.
        out: the file; by default report.html in the part of the run that its reader may see.

    Raises:
        RunError: if there is no run, or the report cannot be written.
    """
    from sordino.report.page import page

    found = find(run)
    path = home(found, owner) if out is None else out
    check_target(path, owner)
    write(path, page(of_run(found, owner)), owner)
    return path


def automatic(run: Path) -> str:
    """Write the public report of a run that has just ended, and return the line that names it.

    A finished run never fails for its report: whatever went wrong is a note.
    """
    try:
        return f"Report: {write_report(run)}"
    except RunError as error:
        why = str(error)
    except Exception as error:
        why = type(error).__name__
    return f"Note: the report was not written ({why.rstrip('.')}). To try again: sordino report {harmless(str(run))}"


def of_run(run: Path, owner: bool = False) -> Document:
    """Return the report of a run for the public or for the owner."""
    from sordino.report.run.report import document

    return document(read_run(run, "owner" if owner else "public"))
