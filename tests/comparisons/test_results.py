"""`sordino.compare`: the results of a comparison in Python, as a table and as HTML."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

import sordino
from sordino.core.errors import SpecError
from sordino.report import figures

EASY = {"features": "none", "clients": 4, "rounds": 1, "device": "cpu"}


@pytest.fixture
def compared(small_npz, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "ready", lambda: False)  # pictures take seconds, and have tests of their own
    return lambda methods, **keys: sordino.compare(
        methods, dataset=str(small_npz), out=tmp_path / "runs", name="trial", **EASY | {"seeds": 1} | keys
    )


def test_a_comparison_is_run_shown_and_continued(compared, capsys):
    comparison = compared(["none", "geodp-paper"], epsilon=4.0)
    bill = capsys.readouterr().err
    assert "2 runs are charged to them" in bill and "registry" not in bill  # a notebook keeps it, so no path
    assert [(row["method"], row["kind"]) for row in comparison.rows()] == [
        ("none", "reference"),
        ("geodp-paper", "printed"),
    ]
    assert comparison.table() == (comparison.folder / "public" / "table.md").read_text()
    shown = " ".join(ElementTree.fromstring(comparison._repr_html_()).itertext())
    assert "claimed epsilon" in shown and "geodp-paper, epsilon 4 claimed" in shown and "none, no privacy" in shown
    assert "<svg" in comparison._repr_html_()
    written = comparison.folder / "public" / "report.html"
    page = written.read_text()
    assert "2 runs are charged to them" in page and "registry" not in page and "geodp-paper" in page
    assert comparison.report() == written and written.read_text() == page
    assert comparison.report(comparison.folder.parent / "elsewhere.html").read_text() == page
    again = compared(["none", "geodp-paper"], epsilon=[4])
    assert again.rows() == comparison.rows() and not again.failures


def test_what_cannot_be_compared_is_one_line_and_makes_no_folder(compared, tmp_path):
    for keys, match in (
        ({"methods": [sordino.methods.DpSgd()]}, "methods must be names"),
        ({"methods": ["dp-sgd"], "epsilon": "much"}, "epsilon must be a number"),
        ({"methods": ["dp-sgd"], "clients": [1, 2]}, "clients"),
        ({"methods": ["dp-sgd"], "roundz": 3}, "has a key 'roundz'"),
        ({"methods": ["dp-sgd"], "jobs": 0}, "jobs"),
        ({"methods": "dp-sdg"}, "dp-sdg"),
    ):
        with pytest.raises(SpecError, match=match) as error:
            compared(**keys)
        assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()
