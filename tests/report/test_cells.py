"""What is read from the files of a comparison."""

import math

import pytest

from sordino.core.errors import RunError
from sordino.report.cells import read


def test_a_cell_has_what_its_files_say(fabricated):
    fabricated.add("dp-sgd", 2.0, [0.9], accounted=1.9, channel="secure-sum", rounds=4, losses=[0.25])
    (cell,) = read(fabricated.folder, {})
    assert (cell.method, cell.asked, cell.seed, cell.error) == ("dp-sgd", 2.0, 0, "")
    assert (cell.accuracy, cell.loss, cell.accounted, cell.rounds) == (0.9, 0.25, 1.9, 4)
    assert (cell.unit, cell.relation, cell.viewer, cell.channel) == ("record", "add/remove", "server", "secure-sum")
    assert (cell.bytes_up, cell.seconds) == (400, 2.0)  # all rounds together
    assert len(cell.curve.accuracy) == 4 and cell.curve.noise[0] == 0.1 and cell.claim is None


def test_null_is_infinite_for_an_epsilon_and_unknown_elsewhere(fabricated):
    fabricated.add("none", None, [None], accounted=math.inf, noise=None, reason="no noise is added")
    (cell,) = read(fabricated.folder, {})
    assert math.isinf(cell.accounted) and cell.reason == "no noise is added"
    assert math.isnan(cell.accuracy) and all(math.isnan(v) for v in cell.curve.noise)


def test_no_noise_is_not_drawn_as_noise_of_zero(fabricated):
    fabricated.add("dp-sgd", 2.0, [0.9], noise=0.0)
    assert all(math.isnan(v) for v in read(fabricated.folder, {})[0].curve.noise)


def test_failed_and_unfinished_cells_say_so(fabricated):
    fabricated.add("dp-sgd", 2.0, [0.9])
    failed, open_ = fabricated.fail("dp-sgd", 2.0, 1), fabricated.fail("dp-sgd", 2.0, 2)
    found = {c.name: c.error for c in read(fabricated.folder, {failed: "BudgetError: too little"})}
    assert found == {"dp-sgd-eps2-seed0": "", failed: "BudgetError: too little", open_: "not finished"}


@pytest.mark.parametrize("name", ["comparison.json", "cells/dp-sgd-eps2-seed0/result.json"])
@pytest.mark.parametrize("text", ["{", "{}", "[]"])
def test_damaged_files_are_one_clear_error(fabricated, name, text):
    fabricated.add("dp-sgd", 2.0, [0.9])
    (fabricated.folder / name).write_text(text)
    with pytest.raises(RunError, match="damaged"):
        read(fabricated.folder, {})
