"""`sordino attack`: the list, one table, sentences, JSON, refusals and exit codes."""

from __future__ import annotations

import json

import pytest

PLUGIN = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

__all__ = ["Cheat"]


@dataclass(frozen=True)
class Cheat:
    """Read the truth from a file."""

    path: str = "small.npz"  # where the truth is
    loud: bool = True  # whether to use it

    name: ClassVar[str] = "cheat"
    kind: ClassVar[str] = "membership"
    sees: ClassVar[tuple[str, ...]] = ("public",)
    reads: ClassVar[str] = "models"
    needs: ClassVar[tuple[str, ...]] = ()

    def score(self, views, knowledge, targets):
        inside = {tuple(x) for x in np.load(self.path)["x_train"].tolist()}
        known = np.array([tuple(x) in inside for x in targets.batch.x.tolist()], dtype=float)
        return known if self.loud else np.random.default_rng(0).random(len(known))
'''


@pytest.fixture
def here(small_npz, tmp_path):
    (tmp_path / "plugins" / "attacks").mkdir(parents=True)
    (tmp_path / "plugins" / "attacks" / "cheat.py").write_text(PLUGIN)
    return tmp_path


@pytest.fixture
def attacked(call):
    """Train a small run with a small epsilon, and attack it with more arguments."""
    keys = ["--dataset", "small.npz", "--model", "linear", "--rounds", "2", "--clients", "8", "--seed", "0"]
    keys += ["--epsilon", "0.3", "--name", "it", "--record-views", "--normalise", "none"]
    done = call("run", *keys)
    assert done.returncode == 0, done.stderr
    return lambda *more: call("attack", "runs/it", *more, env={"SORDINO_PLUGINS": "plugins"})


def test_one_table_and_one_sentence_for_each_attack(attacked, here):
    before = sorted((here / "runs/it/public").iterdir())
    done = attacked("--attack", "gradient_alignment,loss-threshold", "--records", "30")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("What follows depends on private records") and "owner of the data alone" in lines[0]
    heading = next(line for line in lines if "without DP" in line)
    assert heading.split("  ")[0].strip() == "attack" and heading.rstrip().endswith("chance")
    assert sum(line.strip().startswith(("gradient-alignment  ", "loss-threshold  ")) for line in lines) == 2
    assert any(line.startswith("gradient-alignment: The server tells members from other records in ") for line in lines)
    assert any("lets the server find at most" in line for line in lines)
    assert any("was trained for this, in the private part, and is deleted" in line for line in lines)
    assert sorted((here / "runs/it/public").iterdir()) == before
    assert not (here / "runs/it/private/attacks/without_privacy").exists()


def test_a_violated_bound_has_an_exit_code_and_an_honest_attack_has_none(attacked):
    bad = attacked("--attack", "cheat", "--records", "60", "--no-baseline", "--json")
    assert bad.returncode == 3
    told = json.loads(bad.stdout)
    assert told["for"] == "owner" and told["violated"] and told["rows"][0]["with_dp"]["value"] > 0.9
    assert told["rows"][0]["without_dp"] is None and told["warnings"][0].startswith("WARNING: the guarantee does not")
    good = attacked("--attack", "cheat", "--records", "60", "--no-baseline", "--set", "cheat.loud=false")
    assert good.returncode == 0 and "WARNING" not in good.stdout + good.stderr


def test_refusals_are_one_line(attacked, call):
    for args, words in (
        (("--attack", "lirra"), "Did you mean 'lira'"),
        (("--attack", "gradient-alignment", "--view", "public"), "Use --view server"),
        (("--attack", "cheat", "--set", "cheat.lout=1"), "Did you mean 'loud'?"),
        (("--attack", "cheat", "--set", "lira.offline=true"), "lira is not among the attacks"),
        (("--attack", "cheat", "--set", "cheat=1"), "--set takes ATTACK.OPTION=VALUE"),
        (("--attack", "cheat", "--records", "0"), "records must be"),
    ):
        done = attacked(*args)
        assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr and not done.stdout
    assert "name the run folder" in call("attack", "--attack", "lira").stderr


def test_the_list_says_what_each_attack_needs(call):
    done = call("attack", env={"SORDINO_PLUGINS": "plugins"})
    assert done.returncode == 0 and "Read the truth from a file." in done.stdout
    entries = {e["attack"]: e for e in json.loads(call("attack", "--attack", "list", "--json").stdout)["attacks"]}
    assert entries["lira"]["needs"] == ["shadows"] and entries["gradient-alignment"]["views"] == ["server", "wire"]
    assert entries["gradient-alignment"]["options"]["field"].startswith("field of the message")
    assert all(e["what"].endswith(".") for e in entries.values())
