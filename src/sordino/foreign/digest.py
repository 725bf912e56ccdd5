"""The digest of a Flower app: one sha256 of all files that Flower packs of it.

The mod computes it of the folder in which Flower has installed the app, and a site of the copy that its owner has
reviewed (deploy/reviewed.py). The mod's digest only names an app. What a site runs is its own copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

PROJECT = "pyproject.toml"
PACKED = (".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl")  # and LICENSE: what Flower packs of an app


def of_files(files: Mapping[str, bytes]) -> str:
    """Return the digest of files, given by their paths inside the app."""
    lines = [f"{hashlib.sha256(content).hexdigest()} {path}\n" for path, content in sorted(files.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def of_installed(folder: Path) -> str:
    """Return the digest of an app that Flower has installed in a folder."""
    files = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and "__pycache__" not in name.parts and (name.suffix in PACKED or str(name) == "LICENSE"):
            files[name.as_posix()] = path.read_bytes()
    return of_files(files)


def around(file: str) -> Path | None:
    """Return the folder of the app to which a source file belongs, or None if it belongs to none."""
    return next((folder for folder in Path(file).absolute().parents if (folder / PROJECT).is_file()), None)
