"""Pages that teach are followed step by step, and every page can be found, read and left again."""

from __future__ import annotations

import pytest

from sordino.advice import ledger_rules
from support.pages import follow

CONCEPTS = ("unit", "relation", "viewer", "channel", "total")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Work in an empty folder, as a reader would."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ledger_rules, "_temporary", list)  # the check would mind a ledger in this folder
    return tmp_path


@pytest.mark.parametrize("name", CONCEPTS)
def test_a_concept_shows_what_its_commands_print(name, folder):
    assert len(follow(f"concepts/{name}.md")) > 3
