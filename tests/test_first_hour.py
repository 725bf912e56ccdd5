"""docs/first_hour.md is right: its commands run in the order of the page, and print the lines that it shows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from sordino.advice import ledger_rules
from sordino.cli import main

PAGE = (Path(__file__).parent.parent / "docs" / "first_hour.md").read_text()
BLOCK = re.compile(r"^```(console|toml)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# figures that depend on the noise
VARIES = re.compile(r"(?:(?<=accuracy )|(?<=accuracy: )|(?<=privacy: )|(?<=AUC )|(?<=worst class: ))[\d.]+")


def steps() -> list[tuple[str, str, list[str]]]:
    """Return what the page does, in order: ("file", name, lines) or ("command", line, lines that are shown)."""
    out: list[tuple[str, str, list[str]]] = []
    for kind, text in BLOCK.findall(PAGE):
        lines = text.splitlines()
        if kind == "toml":
            out.append(("file", lines[0].removeprefix("# "), lines))
            continue
        for line in lines:
            if line.startswith("$ "):
                out.append(("command", line[2:], []))
            else:
                out[-1][2].append(line)
    return out


def alike(text: str) -> str:
    """Return a line without the figures that vary, and with single spaces."""
    return " ".join(VARIES.sub("#", text).split())


def test_the_page_goes_from_a_file_to_a_card():
    commands = [line for kind, line, _ in steps() if kind == "command" and line.startswith("sordino ")]
    assert [line.split()[1] for line in commands] == [
        "datasets", "schema", "schema", "check", "plan", "run", "explain", "ledger", "ledger", "predict", "evaluate",
        "export", "export",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_first_hour(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ledger_rules, "_temporary", list)  # the check would mind a ledger in this folder
    for kind, line, shown in steps():
        if kind == "file":
            Path(line).write_text("\n".join(shown) + "\n")
            continue
        printed = (alike(text) for text in run(line, monkeypatch, capfd).splitlines())
        for text in shown:  # in this order
            assert text == "..." or any(alike(text) in each for each in printed), (
                f"$ {line}\nprints no line like: {text}"
            )
    assert sorted(path.name for path in Path("runs/first").iterdir()) == ["private", "public"]


def run(line: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    """Run a line of the page and return what it printed; it must succeed."""
    if not line.startswith("sordino "):
        return subprocess.run(line, shell=True, check=True, capture_output=True, text=True).stdout
    monkeypatch.setattr("sys.argv", line.split())
    try:
        main.main()
    except SystemExit as end:
        assert not end.code, f"$ {line}\n{capfd.readouterr()}"
    return capfd.readouterr().out
