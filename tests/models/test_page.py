"""The table of docs/models.md, row by row against the code."""

from pathlib import Path

import pytest
from cases import CASES

from sordino.core.vector import Layout
from sordino.gradients import CohortGradients
from sordino.tasks.losses import cross_entropy

PAGE = Path(__file__).parent.parent.parent / "docs" / "models.md"


def table():
    rows = {}
    for line in PAGE.read_text().partition("\n## ")[2].partition("\n## ")[0].splitlines():
        if line.startswith("| `"):
            name, *rest = (cell.strip() for cell in line.strip("|").split("|"))
            rows[name.strip("`")] = rest
    return rows


def test_the_page_has_every_model_once_in_order():
    assert list(table()) == sorted(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_row_says_what_the_code_does(name):
    case, (shape, outputs, parameters, path, source) = CASES[name], table()[name]
    module = case.build(name, full=True)
    assert (shape, outputs) == (" x ".join(map(str, case.full)), str(case.full_outputs))
    assert parameters == f"{sum(p.numel() for p in module.parameters()):,}"
    assert path == CohortGradients.of(module, cross_entropy, Layout.of(module)).path
    assert source
