"""The figures of docs/errata.md are those that the scripts of examples/errata print."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errata.md").read_text()
SCRIPTS = sorted((ROOT / "examples" / "errata").glob("*.py"))
SHOWN = dict(re.findall(r"^```text\n\$ python examples/errata/(\w+)\.py\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))


def words(text: str) -> list[str]:
    """Split a text into words, since the page breaks lines elsewhere than the scripts do."""
    return text.split()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_page_shows_what_the_script_prints(script, capsys):
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    assert words(printed) == words(SHOWN[script.stem])
    assert re.search(r"\d", printed)


def test_every_script_that_the_page_shows_exists_and_is_shown_once():
    assert sorted(SHOWN) == [path.stem for path in SCRIPTS]
    assert PAGE.count("$ python examples/errata/") == len(SCRIPTS)


def test_every_file_of_the_package_that_the_page_names_exists():
    named = re.findall(r"`((?:src|docs|examples|tests)/[\w/.-]+)`", PAGE)
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_names_its_paper_and_fits_on_a_page(script):
    text = script.read_text()
    assert re.search(r"\(20\d\d\)", text.split('"""')[1])
    assert f"python examples/errata/{script.name}" in text
    assert len(text.splitlines()) <= 60
