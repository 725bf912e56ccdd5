"""Location of the files of a benchmark: a data folder, the package, the cache, or a download from a public source."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from sordino.core.errors import DataError
from sordino.data.dataset import Dataset
from sordino.data.download import fetch
from sordino.data.sets.base import DatasetSource, FileLayout


@dataclass(frozen=True)
class FoundFiles:
    """All files of one layout of a dataset, and where they were found."""

    where: str  # "data folder", "package" or "cache"
    layout: FileLayout
    paths: list[Path]

    @property
    def size(self) -> int:
        """Total size of the files in bytes."""
        return sum(p.stat().st_size for p in self.paths)


def cache() -> Path:
    """Return the folder of downloaded datasets."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sordino"


def folders(data_dir: str | None) -> list[tuple[str, Path]]:
    """Return the folders that are searched, with what each of them is, in order."""
    given = [Path(d) for d in (data_dir, os.environ.get("SORDINO_DATA")) if d]
    return [
        *(("data folder", folder) for folder in given),
        ("package", Path(__file__).parent / "files"),
        ("cache", cache()),
    ]


def locate(source: DatasetSource, data_dir: str | None = None) -> FoundFiles | None:
    """Return the files of the first folder that has all files of one layout, or None.

    Files may lie in their sub-folder or, if they allow it, in the folder itself.
    """
    for where, folder in folders(data_dir):
        for layout in source.layouts:
            paths = [_lies(folder, f.path, f.flat) for f in layout.files]
            there = [p for p in paths if p is not None]
            if len(there) == len(paths):
                return FoundFiles(where, layout, there)
    return None


def _lies(folder: Path, name: str, flat: bool) -> Path | None:
    tries = [folder / name, folder / Path(name).name] if flat else [folder / name]
    try:
        return next((p for p in tries if p.is_file()), None)
    except OSError:  # no permission to read the folder
        return None


def obtain(source: DatasetSource, data_dir: str | None = None) -> Dataset:
    """Read a dataset from its files after verifying them, and download them first if they are not there."""
    files = locate(source, data_dir)
    if files is not None:
        check_files(files)
        return _read(source.name, files)
    files = download(source, data_dir)
    try:
        return _read(source.name, files)
    except DataError:  # the download is not the dataset: delete it
        for path in files.paths:
            path.unlink(missing_ok=True)
        raise


def _read(name: str, files: FoundFiles) -> Dataset:
    try:
        return files.layout.read(files.paths)
    except DataError:
        raise
    except Exception as error:  # files that are not verified before reading can fail in many ways
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"cannot read {name} from {files.paths[0]}: {reason}. Fetch it again.") from error


def check_files(files: FoundFiles) -> None:
    """Raise an error unless every file with a known sha256 matches it."""
    for file, path in zip(files.layout.files, files.paths, strict=True):
        if file.sha256 is None:
            continue
        try:
            with path.open("rb") as handle:
                there = hashlib.file_digest(handle, "sha256").hexdigest()
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from error
        if there != file.sha256:
            raise DataError(
                f"{path} is damaged or another file: its sha256 is {there[:16]}..., not {file.sha256[:16]}.... "
                "Put the right file there, or remove it; to use data of your own, give their path."
            )


def download(source: DatasetSource, data_dir: str | None) -> FoundFiles:
    """Download the files of a dataset to the cache; those already there are not downloaded again."""
    layout = next((candidate for candidate in source.layouts if candidate.downloads), None)
    if layout is None:
        raise DataError(f"{source.name} is not here and cannot be downloaded. {how(source, data_dir)}")
    paths = []
    for file in layout.files:
        path = cache() / file.path
        if not path.is_file():
            try:
                fetch(file.url or "", path, file.sha256)
            except DataError as error:
                raise DataError(f"{source.name} is not here: {error} {how(source, data_dir)}") from error
        paths.append(path)
    return FoundFiles("cache", layout, paths)


def how(source: DatasetSource, data_dir: str | None = None) -> str:
    """Return, for an error message, which files to put into which folder."""
    layout = next((candidate for candidate in source.layouts if candidate.downloads), source.layouts[0])
    names = [Path(f.path).name for f in layout.files]
    folder = Path(data_dir or os.environ.get("SORDINO_DATA") or cache()) / Path(layout.files[0].path).parent
    return f"Put {', '.join(names)} into {folder}. {source.origin}"
