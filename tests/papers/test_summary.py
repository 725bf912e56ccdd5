"""The one table of all figures: what stands in a line, and what is refused."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from sordino.cli.reproduce import reproduce
from sordino.core.errors import RunError, SpecError
from sordino.papers import summary
from sordino.papers.base import Experiment

SCORES = """row,epsilon,form,seed,method,score,honest_epsilon,claimed_epsilon,rounds
A,0.5,printed,0,a-paper,90.0,infinite,0.5,7
A,0.5,printed,1,a-paper,92.0,40.0,0.5,7
A,0.5,sound,0,a,80.0,0.4999,,7
A,0.5,features,0,a,97.0,0.4998,,7
B,0.5,printed,0,b-paper,30.0,12.5,0.5,7
A,none,reference,0,none,99.0,infinite,,7
"""
PAPER = {("A", 0.5): 93.7, ("B", 0.5): 70.0, ("A", "none"): 98.0, ("C", 2.0): 60.0}
MADE = Experiment("002/x", "Fig. X", "", lambda s: [], PAPER, verdict="Opposite: B is behind.")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "002").mkdir()
    (tmp_path / "002" / "x.csv").write_text(SCORES)
    return tmp_path


def test_claimed_printed_honest_and_sound_stand_in_one_line(folder):
    experiments = {"002/x": MADE, "002/y": Experiment("002/y", "Fig. Y", "", lambda s: [], within="002/x")}
    text = summary.page(folder, experiments, {"002": "A paper"})
    assert "## A paper" in text and "| [Fig. X](002.md) | Opposite: B is behind. |" in text and "Fig. Y" not in text
    assert "| x, epsilon 0.5 | A | 0.5 | 93.7 | 91.00 | infinite | 97.00 | 0.5 |" in text
    assert "| x, epsilon 0.5 | B | 0.5 | 70 | 30.00 | 12.5 | 97.00 | 0.5 |" in text  # the best of the figure
    assert "| x | A |  | 98 | 99.00 |  |  |  |" in text  # without privacy
    assert "| x, epsilon 2 | C |  | 60 |  |  |  |  |" in text  # not run


def test_a_page_that_has_older_numbers_is_marked_in_the_table_too(folder):
    experiments, papers = {"002/x": MADE}, {"002": "A paper", "004": "Another paper"}
    assert "computed again" not in summary.page(folder, experiments, papers)
    (folder / "002.md").write_text("# A paper\n\n**To be computed again.** The settings have changed.\n")
    (folder / "004.md").write_text("# Another paper\n\nNothing is old here.\n")
    text = summary.page(folder, experiments, papers)
    assert text.count("are to be computed again: [its page](002.md)") == 1 and "[its page](004.md)" not in text


def test_a_damaged_file_is_named(folder):
    (folder / "002" / "x.csv").write_text("row,epsilon\nA,0.5\n")
    with pytest.raises(RunError, match=r"x\.csv is damaged.*sordino reproduce 002/x"):
        summary.page(folder, {"002/x": MADE}, {"002": "A paper"})


def test_the_command_writes_the_page_and_takes_nothing_else(folder):
    done = CliRunner().invoke(reproduce, ["--summary", "--pages", str(folder)])
    assert done.exit_code == 0 and (folder / "README.md").read_text().startswith("# The papers, in one table")
    for more in (["002/fig3"], ["--scale", "0.5"], ["--set", "rounds=2"]):
        refused = CliRunner().invoke(reproduce, ["--summary", "--pages", str(folder), *more])
        assert isinstance(refused.exception, SpecError)
    missing = CliRunner().invoke(reproduce, ["--summary", "--pages", str(folder / "none")])
    assert isinstance(missing.exception, RunError) and "no folder" in str(missing.exception)
