"""Who took part when, as the owner may see it."""

from __future__ import annotations

import json

import numpy as np
import pytest

import sordino
from sordino.run_folder.folder import RunFolder
from sordino.runs.participation import COLUMNS, ROWS, participation
from support.problems import federation, linear


class Paid:
    """The part of an account that participation reads."""

    def __init__(self, cohorts):
        self.paid = [(number, None) for number in cohorts]
        self._cohorts = cohorts

    def cohorts(self):
        for number, members in self._cohorts.items():
            yield number, np.asarray(members)


def test_every_client_is_counted_in_the_rounds_that_it_was_in():
    found = participation(Paid({0: [0, 2], 1: [2], 3: [1, 2]}), 4)
    assert found["counts"] == [[1, 0, 0, 0], [0, 0, 0, 1], [1, 1, 0, 1], [0, 0, 0, 0]]
    assert found["by_number"] == [1, 2, 0, 1]  # one client never, two once, one three times
    assert found["rounds"] == [1, 2, 3, 4] and found["last"] == 4 and found["together"] == 1


def test_long_runs_with_many_clients_are_drawn_together_and_lose_no_participation():
    draw = np.random.default_rng(0)
    cohorts = {k: draw.choice(1203, size=50, replace=False) for k in range(333)}
    found = participation(Paid(cohorts), 1203)
    counts = np.array(found["counts"])
    assert counts.shape == (401, COLUMNS) and len(counts) <= ROWS and found["together"] == 3
    assert counts.sum() == 333 * 50 == sum(k * n for k, n in enumerate(found["by_number"]))
    starts = [first - 1 for first in found["rounds"]]
    for column, (low, high) in enumerate(zip(starts, [*starts[1:], 333], strict=True)):
        assert counts[:, column].sum() == 50 * (high - low)


def test_a_run_without_rounds_has_no_columns():
    found = participation(Paid({}), 3)
    assert found["counts"] == [[], [], []] and found["by_number"] == [3] and found["last"] == 0


@pytest.mark.parametrize("method", ["dp-fedavg", "dp-sgd"])
def test_a_run_writes_it_for_the_owner_alone(tmp_path, method):
    module, keys = linear(), {"client_rate": 0.5, "seed": 1, "rounds": 4, "epsilon": 8.0, "delta": 1e-5}
    result = sordino.train(module, federation(), method=method, out=tmp_path, **keys)
    found = json.loads((result.folder / "private/participation.json").read_text())
    owners = RunFolder(result.folder).owner_records()
    assert [sum(column) for column in zip(*found["counts"], strict=True)] == [o.clients for o in owners]
    assert not list((result.folder / "public").glob("*participation*"))
