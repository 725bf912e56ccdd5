"""The command, called where a test has put its files."""

import pytest


@pytest.fixture
def call(here, sordino_command):
    """call("run", "small.toml") runs the command in the folder `here`, which the test file makes."""
    return lambda *args, **keys: sordino_command(*args, cwd=here, **keys)
