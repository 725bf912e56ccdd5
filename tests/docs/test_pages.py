"""Pages that teach are followed step by step, and every page can be found, read and left again."""

from __future__ import annotations

import runpy

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


def test_the_tutorial_can_be_followed(folder):
    done = follow("tutorial.md", {"--seeds 3": "--seeds 1", "--methods none,dp-sgd,nbafl": "--methods dp-sgd,nbafl"})
    said = [step.text.split()[1] for step in done if step.text.startswith("sordino ")]
    assert said == ["run", "report", "report", "audit", "report", "compare"]
    assert {path.name for path in (folder / "runs").iterdir()} == {"first", "two-methods"}


@pytest.mark.parametrize("name", ["own_data", "own_model", "audit", "read_a_report"])
def test_a_how_to_page_can_be_followed(name, folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    follow(f"how_to/{name}.md")


def test_the_method_of_the_page_trains_and_passes_its_own_test(folder, monkeypatch):
    follow("how_to/add_a_method.md")
    monkeypatch.setenv("SORDINO_PLUGINS", "plugins")
    tests = runpy.run_path("test_shrinking_clip.py")
    tests["test_the_bound_falls_by_a_public_schedule"]()
    tests["test_the_price_does_not_depend_on_the_schedule"](folder)
    with monkeypatch.context() as patch:
        tests["test_a_method_that_forgets_its_outlet_is_refused"](folder, patch)


def test_the_folder_of_a_federation_is_made_as_shown(folder):
    follow("how_to/federation.md")
    assert len(list((folder / "federation" / "sites").iterdir())) == 3
