"""The rules about skipped tests, tried on a suite of their own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
SUITE = """
def test_that_needs_mnist(data_file):
    data_file("mnist/mnist.npz")

def test_that_needs_cifar10(data_file):
    data_file("cifar10/cifar10.npz")
"""


@pytest.fixture
def suite(tmp_path):
    folder = tmp_path / "repo" / "tests"
    folder.mkdir(parents=True)
    shutil.copy(CONFTEST, folder)
    (folder / "test_it.py").write_text(SUITE)
    (folder / "torch.py").write_text("def set_num_threads(n): pass")  # the real one takes seconds to import
    return folder


def run(suite, **env):
    clean = {k: v for k, v in os.environ.items() if k not in ("CI", "SORDINO_DATA") and "PYTEST" not in k}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(suite)]
    env = clean | {"PYTHONPATH": str(suite), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | env
    return subprocess.run(command, env=env, capture_output=True, text=True, cwd=suite.parent)


@pytest.mark.slow
def test_a_skip_for_data_that_lies_there_fails_ci_and_no_other(suite):
    shared = suite.parent.parent / "shared" / "data"
    away = {"SORDINO_DATA": str(suite / "nowhere")}
    done = run(suite, CI="1", **away)  # no ../shared/data here: nothing to complain of
    assert done.returncode == 0, done.stdout
    assert "tests that did not run" in done.stdout and "mnist/mnist.npz is not in" in done.stdout

    (shared / "mnist").mkdir(parents=True)
    (shared / "mnist" / "mnist.npz").touch()
    (shared / "cifar10").mkdir()
    (shared / "cifar10" / "cifar10.npz").touch()
    done = run(suite, CI="1", **away)
    assert done.returncode != 0 and "<- fails this CI run" in done.stdout
    assert done.stdout.count("<- fails") == 1  # not the one named for cifar10
    assert run(suite, **away).returncode == 0  # outside CI a skip is a skip
    assert run(suite, CI="1").returncode == 0  # found: not skipped
