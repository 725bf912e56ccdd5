"""How errors of ours are told: in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import CompletedProcess

import pytest


@contextmanager
def one_line_error(error: type[Exception], match: str) -> Iterator[None]:
    """Assert that the block raises this error, with a message of one line that matches."""
    with pytest.raises(error, match=match) as found:
        yield
    assert "\n" not in str(found.value)


def one_line(done: CompletedProcess[str], kind: str, *words: str) -> None:
    """Assert that a command ended with an error of ours: one line on stderr, exit code 2, no traceback.

    With --json the line is an object with the kind and the message."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    if "--json" in done.args:
        assert json.loads(done.stderr)["error"] == kind, done.stderr
    else:
        assert done.stderr.startswith(f"sordino: {kind}: "), done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
