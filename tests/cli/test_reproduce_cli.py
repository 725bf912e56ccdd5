"""`sordino reproduce` as it is typed: what is listed, what is refused, before anything runs."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from sordino.cli.reproduce import reproduce
from sordino.core.errors import SpecError
from sordino.experiments import run as running


def test_a_paper_alone_lists_its_items():
    listed = CliRunner().invoke(reproduce, ["003"]).output.splitlines()
    assert [line.split()[0] for line in listed] == [n for n in running.EXPERIMENTS if n.startswith("003/")]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--scale", "0.1"], "name the one to reproduce: 002/"),
        (["002", "--set", "rounds=2"], "name the one to reproduce: 002/"),
        (["002/fig4d", "--minutes", "-3"], "minutes must be a number above 0, not -3"),
        (["002/fig4d", "--minutes", "nan"], "minutes must be a number above 0"),
        (["002/fig4d", "--set", "round=3"], "unknown key 'round'. Did you mean 'rounds'?"),
        (["002/fig4d", "--set", "rounds"], "set takes KEY=VALUE"),
        (["002/fig4d", "--set", "batch_size=8"], "not both (set by you: batch_size=8; the rest by 002/fig4d)"),
    ],
)
def test_what_makes_no_sense_is_one_error_and_leaves_nothing(tmp_path, args, words):
    found = CliRunner().invoke(reproduce, [*args, "--out", str(tmp_path / "o")])
    assert isinstance(found.exception, SpecError) and words in str(found.exception)
    assert not (tmp_path / "o").exists()
