"""Atomic download of a public file: the target is complete and verified, or absent.

The bytes are written to a temporary file of this process beside the target, which is renamed once its length (and its
sha256, if known) is right. An interrupted transfer is resumed a few times.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from sordino.core.errors import DataError

TRIES = 3
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 16  # bytes


def fetch(url: str, target: Path, sha256: str | None = None) -> None:
    """Download `url` to `target` and check its length and its sha256, if given."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with Progress(*columns, console=console, disable=not sys.stderr.isatty(), transient=True) as bar:
            _transfer(url, part, bar, bar.add_task(target.name, total=None))
        with part.open("rb") as handle:
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
        if sha256 is not None and digest != sha256:
            raise DataError(
                f"{url} has sha256 {digest[:16]}..., not {sha256[:16]}...: it has changed or was tampered with."
            )
        part.replace(target)
    except OSError as error:  # errors of the disk; _transfer reports those of the network
        raise DataError(f"cannot write {target}: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _transfer(url: str, part: Path, bar: Progress, task: TaskID) -> None:
    """Download all bytes of `url` to `part`, resuming after an interruption."""
    version, reason = "", "the transfer was interrupted"
    for _ in range(TRIES):
        have = part.stat().st_size if part.exists() else 0
        resume = {"Range": f"bytes={have}-"} | ({"If-Range": version} if version else {}) if have else {}
        request = urllib.request.Request(url, headers={"User-Agent": "sordino", **resume})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
                if reply.status != http.client.PARTIAL_CONTENT:
                    have = 0  # the server sends the whole file again
                version = reply.headers.get("ETag") or ""
                length = reply.headers.get("Content-Length")
                total = have + int(length) if length is not None and length.isdigit() else None
                bar.update(task, total=total, completed=have)
                with part.open("ab" if have else "wb") as out:
                    for chunk in _chunks(reply):
                        out.write(chunk)
                        bar.advance(task, len(chunk))
            if total is None or part.stat().st_size == total:
                return
            reason = f"it was interrupted after {part.stat().st_size} of {total} bytes"
        except urllib.error.HTTPError as error:
            error.close()
            raise DataError(f"{url} answered {error.code} {error.reason}.") from error
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reason = str(getattr(error, "reason", "") or error or type(error).__name__)
    raise DataError(f"cannot download {url}: {reason}.")


def _chunks(reply: Any) -> Iterator[bytes]:
    """Yield the bytes of a reply until it ends or is interrupted."""
    with suppress(OSError, http.client.HTTPException):
        while chunk := reply.read(CHUNK):
            yield chunk
