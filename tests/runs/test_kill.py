"""Real processes that are really killed, or run out of disk."""

from __future__ import annotations

import json
import random

import pytest

from sordino.run_folder.folder import RunFolder
from support.problems import charges

TOML = """
dataset = "small.npz"
features = "none"
clients = 8
method = "dp-fedavg"
adaptive_clip = true
learning_rate = 0.5
algorithm = "fedavgm"
server_momentum = 0.5
rounds = {rounds}
epsilon = 5.0
checkpoint_seconds = {every}
device = "cpu"
mode = "{mode}"
"""


@pytest.mark.slow
def test_a_real_full_disk(small_npz, sordino_command):
    """RLIMIT_FSIZE: no file may grow past 120,000 bytes; the ledger is the first to hit it."""
    here = small_npz.parent
    (here / "it.toml").write_text(TOML.format(rounds=250, every=0, mode="research"))
    whole = sordino_command("run", "it.toml", "--name", "whole", "--json", cwd=here)
    assert whole.returncode == 0, whole.stderr
    own = ("--ledger", "it.sqlite")  # the registry is large already
    failed = sordino_command("run", "it.toml", "--name", "it", "--json", *own, cwd=here, fsize=120_000)
    assert failed.returncode == 2 and "Traceback" not in failed.stderr
    assert json.loads(failed.stderr)["error"] == "RunError" and failed.stderr.count("\n") == 1
    assert json.loads(failed.stderr)["message"].startswith("cannot write")
    state = RunFolder(here / "runs" / "it").load_state()
    assert state is not None and state[1] > 5 and state[2] is None  # sound, and some way into the run
    resumed = sordino_command("resume", "runs/it", "--json", cwd=here)
    assert resumed.returncode == 0, resumed.stderr
    one, other = ((here / "runs" / n / "public" / "model.safetensors").read_bytes() for n in ("whole", "it"))
    assert one == other


@pytest.mark.slow
def test_five_real_kills(small_npz, sordino_command):
    """SIGKILL at random moments of a fixed seed; the model at the end is the one of the run that was left alone."""
    here, draw = small_npz.parent, random.Random(5)
    (here / "it.toml").write_text(TOML.format(rounds=120, every=0.01, mode="research"))
    whole = sordino_command("run", "it.toml", "--name", "whole", "--json", cwd=here)
    assert whole.returncode == 0, whole.stderr
    folder = here / "runs" / "it"
    command, killed = ("run", "it.toml", "--name", "it", "--json"), 0
    for i in range(5):
        at = {"file": str(folder / "public" / "records.jsonl"), "kill": 12 * (i + 1), "delay": draw.random() * 0.02}
        done = sordino_command(*command, cwd=here, **at)
        killed += done.returncode == -9
        command = ("resume", "runs/it", "--json")
    assert killed == 5
    done = sordino_command(*command, cwd=here)
    assert done.returncode == 0, done.stderr
    assert (folder / "public" / "model.safetensors").read_bytes() == (
        here / "runs/whole/public/model.safetensors"
    ).read_bytes()
    assert charges(folder) == list(range(120))
    result = json.loads((folder / "public" / "result.json").read_text())
    assert result["rounds"] == 120 and result["guarantee"]["epsilon"] <= 5.0


@pytest.mark.slow
def test_a_secure_run_that_is_really_killed_pays_for_what_it_lost(small_npz, sordino_command):
    """No seed, so a re-run is a new release: charged again, and the run ends with fewer rounds."""
    here = small_npz.parent
    (here / "it.toml").write_text(TOML.format(rounds=70, every=1000, mode="secure"))
    folder, command = here / "runs" / "it", ("run", "it.toml", "--name", "it", "--json")
    for i in range(2):
        at = {"file": str(folder / "public" / "records.jsonl"), "kill": 10 * (i + 1), "delay": 0.0}
        assert sordino_command(*command, cwd=here, **at).returncode == -9
        command = ("resume", "runs/it", "--json")
    done = sordino_command(*command, cwd=here)
    assert done.returncode == 0, done.stderr
    result = json.loads((folder / "public" / "result.json").read_text())
    assert len(charges(folder)) == 70  # never one more than was planned
    assert result["rounds"] < 70 and 0 < result["guarantee"]["epsilon"] <= 5.0
