"""Every page of the documentation can be found, has one title and something to say, and links to what exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest

from sordino.cli.main import cli
from support.pages import DOCS

PAGES = sorted(path for path in DOCS.rglob("*.md") if "_site" not in path.parts)
TEACHING = [
    "tutorial.md",
    "glossary.md",
    *(f"concepts/{name}.md" for name in ("unit", "relation", "viewer", "channel", "total")),
]
TEACHING += [f"how_to/{path.name}" for path in sorted((DOCS / "how_to").glob("*.md"))]
FENCE = re.compile(r"^(`{3,}).*?^\1\n", re.DOTALL | re.MULTILINE)
TREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+?\.(?:md|svg|png|json))(?:#[\w-]+)?\)")


def prose(page: Path) -> str:
    """Return a page without its blocks."""
    return FENCE.sub("", page.read_text())


def children(page: Path) -> set[Path]:
    """Return the pages that the tables of contents of a page name."""
    out: set[Path] = set()
    for block in TREE.findall(page.read_text()):
        for line in block.splitlines():
            if line.strip() and not line.startswith(":"):
                name = re.sub(r".*<(.+)>$", r"\1", line.strip())
                out |= {path.resolve() for path in page.parent.glob(f"{name}.md")}
    return out


def test_every_page_is_in_a_table_of_contents():
    reached, new = set(), {(DOCS / "index.md").resolve()}
    while new:
        reached |= new
        new = set().union(*(children(page) for page in new)) - reached
    assert [str(page.relative_to(DOCS)) for page in PAGES if page.resolve() not in reached] == []


@pytest.mark.parametrize("name", ["index.md", "guides.md", *TEACHING])
def test_a_page_has_one_title(name):
    titles = re.findall(r"^# .+", prose(DOCS / name), re.MULTILINE)
    assert len(titles) == 1 and prose(DOCS / name).startswith(titles[0])


@pytest.mark.parametrize("name", TEACHING)
def test_a_page_is_written(name):
    lines = [line for line in prose(DOCS / name).splitlines() if line.strip() and not line.startswith(("#", "|"))]
    assert len(lines) >= 15


def test_relative_links_lead_somewhere():
    broken = [
        f"{page.relative_to(DOCS)}: {link}"
        for page in PAGES
        for link in LINK.findall(prose(page))
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert broken == []


def test_every_drawing_is_shown_on_a_page():
    shown = {Path(link).name for page in PAGES for link in LINK.findall(prose(page))}
    assert {path.name for path in (DOCS / "drawings").glob("*.svg")} <= shown


def command(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that a line calls, and the rest of the line."""
    found: Any = cli
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        found, words = found.get_command(click.Context(found), words[0]), words[1:]
    return found, words


@pytest.mark.parametrize("name", TEACHING)
def test_every_shown_command_and_flag_exists(name):
    text = (DOCS / name).read_text()
    for line in re.findall(r"^\$ sordino (.+)$", text, re.MULTILINE) + re.findall(r"`sordino (\w[^`]*)`", text):
        words = line.split("  #")[0].split()
        found, rest = command(words)
        assert found is not None, f"sordino {line}"
        flags = {flag for option in found.params for flag in (*option.opts, *option.secondary_opts)}
        used = {word.split("=")[0] for word in rest if word.startswith("--")}
        assert used <= flags | {"--version", "--help"}, f"sordino {line}"


def test_the_glossary_is_in_order_and_leads_to_where_things_are():
    plain = (DOCS / "glossary.md").read_text().replace("é", "e")
    for part in re.split(r"^## ", plain, flags=re.MULTILINE)[1:]:
        terms = re.findall(r"^(\S.*)\n: ", part, re.MULTILINE)
        assert terms == sorted(terms, key=str.lower) and {term[0].upper() for term in terms} == {part[0]}
    assert plain.count("\n: ") > 80
