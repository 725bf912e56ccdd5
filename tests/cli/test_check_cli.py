"""`sordino check` as people and programs meet it."""

import json

import numpy as np
import pytest

from support.problems import held_out

TOML = """
dataset = "small.npz"
features = "none"
clients = 8
rounds = 3
epsilon = 4.0
mode = "secure"
device = "cpu"
"""


@pytest.fixture
def here(small_npz):
    x, y = held_out(seed=7)  # strangers to the training records
    np.savez(small_npz, **(dict(np.load(small_npz)) | {"x_test": x.numpy(), "y_test": y.numpy()}))
    (small_npz.parent / "small.toml").write_text(TOML)
    return small_npz.parent


def test_nothing_broken_is_exit_code_zero_and_says_what_was_looked_at(call, here):
    done = call("check", "small.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "small.toml: 0 broken" in done.stdout and "Checked: whether the method adds noise" in done.stdout
    assert "note: " in done.stdout and "why: " in done.stdout and "fix: " in done.stdout
    assert not (here / "runs").exists()  # looking leaves nothing behind


def test_broken_is_exit_code_one_for_people_and_programs(call, here):
    (here / "small.toml").write_text(TOML + 'method = "none"\n')
    done = call("check", "small.toml")
    assert done.returncode == 1 and "broken: method = none adds no noise" in done.stdout
    done = call("check", "small.toml", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and found["broken"] and found["findings"][0]["rule"] == "no_noise"
    assert set(found["findings"][0]) == {"severity", "found", "why", "fix", "rule"}
    assert len(found["looked_at"]) >= 18 and found["not_looked_at"] == []


def test_json_without_anything_broken(call):
    done = call("check", "small.toml", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and not found["broken"] and found["checked"] == "small.toml"


def test_a_finished_run(call):
    assert call("run", "small.toml", "--name", "it", "--mode", "research", "--json").returncode == 0
    done = call("check", "--run", "runs/it")
    assert done.returncode == 1 and "default seed 0" in done.stdout


def test_a_run_from_python_says_what_could_not_be_looked_at(call, here):
    import sordino
    from support.problems import federation, linear

    sordino.train(
        linear(), federation(), rounds=1, mode="secure", out=str(here / "runs"), name="own", device="cpu", epsilon=1.0
    )
    done = call("check", "--run", "runs/own")
    assert done.returncode == 0 and "Not checked, since it is not available: model and data." in done.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epsilom = 1\n", "Did you mean 'epsilon'?"),
        ("epsilon = \n", "not valid TOML"),
        ("epsilon = -1\n", "epsilon must be positive"),
        ('dataset = "none.npz"\n', "no dataset 'none.npz'"),
    ],
)
def test_what_cannot_be_read_is_one_line(text, words, call, here):
    (here / "bad.toml").write_text(text)
    done = call("check", "bad.toml")
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1 and not done.stdout


def test_a_file_or_a_run_not_both_and_not_neither(call):
    for args in ((), ("small.toml", "--run", "runs/it")):
        done = call("check", *args)
        assert done.returncode == 2 and "give either a run file" in done.stderr
    assert "cannot read" in call("check", "missing.toml").stderr
    assert "no run folder" in call("check", "--run", "runs/none").stderr


@pytest.mark.slow
def test_the_embedded_data_and_the_default_file(call, here):
    """What `sordino init` writes: an experiment by its seed, otherwise in order."""
    assert call("init").returncode == 0
    done = call("check", "sordino.toml", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and [f["rule"] for f in found["findings"] if f["severity"] == "broken"] == ["seeds"]
    assert "metrics_in_clear" not in [f["rule"] for f in found["findings"]]  # MNIST's test split shares no record
