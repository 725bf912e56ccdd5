"""The walkthrough for three hospitals: the page, the script that plays it and the programs agree on every command."""

from __future__ import annotations

import importlib.util
import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import click
import pytest

from sordino.cli.deploy import deploy
from sordino.cli.site import site
from sordino.deploy import readme
from sordino.deploy.agreement import checked
from sordino.deploy.folder import Roster, SiteEntry

TOP = Path(__file__).parents[2]
PAGE = (TOP / "docs" / "deploy.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = TOP / "examples" / "hospitals" / "three_hospitals.py"
    spec = importlib.util.spec_from_file_location("three_hospitals", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["three_hospitals"] = module  # dataclasses look there for the types of their fields
    spec.loader.exec_module(module)
    return module


def parsed(command: str) -> click.Context:
    """Return the context of a `sordino` command, whose options are known and complete; nothing is run."""
    words = shlex.split(command)
    if words[0] == "sudo":
        words = words[3:]
    assert words[0] == "sordino"
    if words[1] == "site":
        return site.make_context("site", words[2:])
    assert words[1] == "deploy"
    return deploy.commands[words[2]].make_context(words[2], words[3:])


def test_the_script_finds_what_it_plays(script: ModuleType) -> None:
    steps = script.steps(PAGE)
    assert list(steps) == [1, 2, 3, 4, 5, 6, 7]
    first = {number: [text.split()[0] for text in commands] for number, commands in steps.items()}
    assert first[1] == ["python3", "/opt/sordino/bin/pip", "ln"]
    assert first[5] == ["useradd", "cd", "mkdir", "chown", "chgrp", "sudo", "sudo"]
    assert [len(steps[n]) for n in (2, 3, 4, 6, 7)] == [1, 1, 1, 2, 1]
    assert script.folder_of(script.Party("operator", "", TOP, None)) in steps[4][0]
    assert steps[5][1] == f"cd {script.folder_of(script.Party('hospital A', '', TOP, None))}"
    assert script.NAMES["operator"] in steps[2][0]


def test_every_command_of_the_page_is_one_that_sordino_has(script: ModuleType) -> None:
    commands = [text for texts in script.steps(PAGE).values() for text in texts if "sordino " in text]
    ours = [text for text in commands if text.startswith(("sordino ", "sudo -u sordino sordino "))]
    assert len(ours) == 6
    names = [parsed(text).command.name for text in ours]
    assert names == ["init", "up", "site", "status", "run", "down"]
    with pytest.raises(click.UsageError):
        parsed("sordino deploy up --node 0 --fulder x")  # the test can tell


def test_the_run_file_of_the_page_is_one(script: ModuleType) -> None:
    spec = checked(tomllib.loads(script.run_file(PAGE)) | {"clients": 3})
    assert (spec.dataset, spec.schema, spec.seed) == ("patients.csv", "schema.toml", None)


def test_the_page_of_a_federation_has_the_same_commands_for_a_site(script: ModuleType) -> None:
    roster = Roster("study-7", "fl.example.org", 18000, tuple(SiteEntry(f"site-{i}", 1, "0" * 64) for i in (1, 2, 3)))
    own = {line.strip() for line in readme.page(roster, {}).splitlines() if line.startswith("    ")}
    wanted = [text for text in script.steps(PAGE)[5] if text.startswith(("mkdir", "chown", "chgrp"))]
    assert len(wanted) == 3 and set(wanted) <= own
    assert {"sordino site --data DATA --policy policy.toml", "./node.sh"} <= own
