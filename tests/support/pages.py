"""Run the commands and the Python blocks of a page, and compare what they print with what the page shows.

A block of the language `console` holds commands after `$ ` and what they print. `toml` and `python` blocks whose first
line names a file (`# study.toml`) are written to it; other `python` blocks are run, and an `output` block holds what
the one before it prints. A line that is shown as `...` stands for any lines, and one that ends in ` ...` for any end. A
command whose shown lines begin with `sordino: ` must fail with that message. `export NAME=VALUE` holds for what follows
on the page, and `python FILE` runs in this process. Blocks of the language `text` are not run.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sordino.cli import main

DOCS = Path(__file__).parent.parent.parent / "docs"
BLOCK = re.compile(r"^```(console|toml|python|output)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"^# ([\w./-]+\.(?:toml|py))\n")
# figures that depend on the noise, or on the time
NUMBER = r"[\d.,]+"
VARIES = re.compile(
    rf"(?<=accuracy ){NUMBER}|(?<=accuracy: ){NUMBER}|(?<=privacy: ){NUMBER}|(?<=AUC ){NUMBER}"
    rf"|(?<=worst client ){NUMBER}"
    rf"|(?<=at least ){NUMBER}, {NUMBER}|\b[0-9a-f]{{12,}}\b"
)


@dataclass
class Step:
    """One thing that a reader of a page does, and what she sees."""

    kind: str  # file, command or python
    text: str
    name: str = ""
    shown: list[str] = field(default_factory=list)


def steps(page: str) -> list[Step]:
    """Return what a page does, in its order."""
    out: list[Step] = []
    for kind, text in BLOCK.findall((DOCS / page).read_text()):
        if kind in ("toml", "python"):
            name = FILE.match(text)
            out.append(Step("file", text, name[1]) if name else Step("python", text))
        elif kind == "output":
            out[-1].shown += text.splitlines()
        else:
            for line in text.splitlines():
                if line.startswith("$ "):
                    out.append(Step("command", line[2:]))
                else:
                    out[-1].shown.append(line)
    return out


def follow(page: str, shorter: dict[str, str] | None = None) -> list[Step]:
    """Do in the current folder what a page does; `shorter` replaces flags by cheaper ones."""
    names: dict[str, Any] = {"__name__": "__main__"}
    done = steps(page)
    with patch.dict(os.environ):  # what the page exports holds for the page alone
        for step in done:
            if step.kind == "file":
                Path(step.name).parent.mkdir(parents=True, exist_ok=True)
                Path(step.name).write_text(step.text)
                continue
            for old, new in (shorter or {}).items():
                step.text = step.text.replace(old, new)
            compare(step, execute(step, page, names) if step.kind == "python" else run(step))
    return done


def execute(step: Step, page: str, names: dict[str, Any]) -> str:
    """Run a block of Python with the names of the blocks before it, and return what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(step.text, page, "exec"), names)
    return out.getvalue()


def run(step: Step) -> str:
    """Run a command and return what it printed; it must end as the page shows it."""
    if exported := re.fullmatch(r"export (\w+)=(\S+)", step.text):
        os.environ[exported[1]] = exported[2]
        return ""
    out, err = io.StringIO(), io.StringIO()
    if step.text.startswith("python "):
        with contextlib.redirect_stdout(out):
            runpy.run_path(step.text.split()[1], run_name="__main__")
        return out.getvalue()
    if not step.text.startswith("sordino "):
        return subprocess.run(step.text, shell=True, check=True, capture_output=True, text=True).stdout
    code: Any = 0
    words = shlex.split(step.text, comments=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), patch("sys.argv", words):
        try:
            main.main()
        except SystemExit as end:
            code = end.code
    refused = any(line.startswith("sordino: ") for line in step.shown)
    assert bool(code) == refused or step.text.startswith("sordino check"), (
        f"$ {step.text}\n{out.getvalue()}{err.getvalue()}"
    )
    return out.getvalue() + (err.getvalue() if refused else "")


def compare(step: Step, printed: str) -> None:
    """Raise an error unless the shown lines were printed, in this order."""
    lines = iter([alike(line) for line in printed.splitlines()])
    for shown in step.shown:
        text = alike(shown)
        if text == "...":
            continue
        start = text.removesuffix(" ...")
        assert any(line == text or (start != text and line.startswith(start)) for line in lines), (
            f"{step.text}\nprints no line like: {shown}\nbut:\n{printed}"
        )


def alike(text: str) -> str:
    """Return a line without the figures that vary, and with single spaces."""
    return " ".join(VARIES.sub("#", text).split())
