"""`sordino audit`, and runs that end with an audited number."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

PLUGIN = '''
"""A method that declares one noise and adds another."""
from dataclasses import dataclass
from sordino.mechanisms import Gaussian
from sordino.methods import DpSgd
from sordino.methods.dp_sgd import Recipe, Whole

__all__ = ["HalfNoise"]


@dataclass(frozen=True)
class Quiet(Gaussian):
    def apply(self, x, rng, use):
        return Gaussian(self.noise_multiplier / 2).apply(x, rng, use)


@dataclass(frozen=True)
class HalfNoise(DpSgd):
    def recipe(self):
        return Recipe(Whole(self.clip), noise=Quiet)
'''


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A run file on 1,200 made-up records of two classes."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 2, 1300)
    x = draw.normal(size=(1300, 6)).astype(np.float32) + 2 * y[:, None]
    np.savez(tmp_path / "d.npz", x_train=x[:1200], y_train=y[:1200], x_test=x[1200:], y_test=y[1200:], classes=2)
    keys = 'dataset = "d.npz"\npublic_data = true\nclients = 4\nrounds = 3\nepsilon = 4.0\nseed = 1\ndevice = "cpu"\n'
    (tmp_path / "my.toml").write_text(keys + 'normalise = "none"\n')
    return tmp_path


def test_before_a_run_nothing_is_spent_and_after_it_the_result_is_public(table, sordino_command):
    before = sordino_command("audit", "my.toml", "--canaries", "1500", cwd=table)
    assert before.returncode == 0 and "Accounted: epsilon = 4. Audited: at least" in before.stdout
    assert "no private record was used" in before.stdout and "many clients" in before.stdout
    assert not (table / "runs").exists()
    run = sordino_command("run", "my.toml", "--audit", "--name", "it", cwd=table)
    assert run.returncode == 0 and "Accounted: epsilon = 4. Audited: at least" in run.stdout
    folder = table / "runs" / "it"
    found = json.loads((folder / "public" / "audit.json").read_text())
    assert found["planted"]["ceiling"] > 0 and not found["alarm"] and found["least"] < found["accounted"]
    done = sordino_command("audit", "runs/it", "--canaries", "500", "--json", cwd=table)
    again = json.loads(done.stdout)
    assert done.returncode == 0 and again["planted"] == found["planted"]  # kept: the run cannot be played again
    assert json.loads((folder / "public" / "audit.json").read_text())["trials"][0]["trials"] == 500


def test_a_run_without_noise_is_audited_as_its_report_proposes(table, sordino_command):
    run = sordino_command("run", "my.toml", "--method", "none", "--name", "bare", cwd=table)
    assert run.returncode == 0, run.stderr
    done = sordino_command("audit", "runs/bare", "--canaries", "300", cwd=table)
    assert done.returncode == 0 and "Nothing is promised against the server. Audited: at least" in done.stdout
    found = json.loads((table / "runs" / "bare" / "public" / "audit.json").read_text())
    assert found["moves"] == [] and found["least"] > 1


def test_a_plug_in_that_adds_half_of_its_noise_is_refuted(table, sordino_command):
    (table / "plugins" / "methods").mkdir(parents=True)
    (table / "plugins" / "methods" / "half_noise.py").write_text(PLUGIN)
    (table / "bad.toml").write_text((table / "my.toml").read_text() + 'method = "half-noise"\n')
    env = {"SORDINO_PLUGINS": str(table / "plugins")}
    done = sordino_command("audit", "bad.toml", "--canaries", "3000", cwd=table, env=env)
    assert done.returncode == 3 and "ALARM: the guarantee is refuted" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere",), "there is no run folder and no run file nowhere"),
        (("my.toml", "--canaries", "3"), "canaries must be at least 100, not 3"),
        (("my.toml", "--view", "client"), "Use public"),
        (("my.toml", "--view", "god"), "viewer must be one of server, public"),
        (("my.toml", "--confidence", "1"), "confidence must lie strictly between 0 and 1"),
    ],
)
def test_what_cannot_be_audited_is_one_clear_error(table, sordino_command, words, message):
    done = sordino_command("audit", *words, cwd=table)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("key", "message"),
    [('method = "dp-fedavg"', "this run protects a client: use `sordino audit`"), ("", "needs at least 1000 records")],
)
def test_canaries_that_cannot_be_planted_are_refused(table, sordino_command, key, message):
    if not key:
        with np.load(table / "d.npz") as file:
            few = {k: v[:90] if v.ndim else v for k, v in file.items()}
        np.savez(table / "d.npz", **few)
    (table / "x.toml").write_text((table / "my.toml").read_text() + key + "\n")
    done = sordino_command("run", "x.toml", "--audit", cwd=table)
    assert done.returncode == 2 and message in done.stderr and not (table / "runs").exists()
