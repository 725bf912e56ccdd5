"""Bands for tables: the ratio is that of real runs, bands follow measured runs, and suggestions work."""

import math
from dataclasses import replace

import numpy as np
import pytest

from sordino.advice import case, tables
from sordino.advice.tables import TableRun
from sordino.spec import spec


@pytest.fixture
def mine(tmp_path):
    """The case of a table of one's own, with 600 records of 9 features."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(600, 9)).astype(np.float32)
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=(x[:, 0] > 0).astype(np.int64), classes=np.array(2))
    keys = {"dataset": str(tmp_path / "mine.npz"), "clients": 6, "validation": 0.0, "device": "cpu", "epsilon": 1.0}
    return lambda **more: case.of_spec(spec.from_dict(keys | more))


@pytest.mark.parametrize("channel", ["direct", "secure-sum"])
@pytest.mark.parametrize("rounds", [5, 50])
def test_the_ratio_of_a_job_is_that_of_the_formula(mine, channel, rounds):
    value = tables.ratio_of(mine(channel=channel, rounds=rounds, normalise="none"))
    assert value == pytest.approx(tables.ratio(1.0, 1e-5, 600, 9, 6, channel), rel=1e-3)
    assert tables.ratio(1.0, 1e-5, 600, 9, 6) == pytest.approx(
        math.sqrt(6) * tables.ratio(1.0, 1e-5, 600, 9, 6, "secure-sum"), rel=1e-12
    )


def test_a_band_holds_the_runs_that_it_is_made_of():
    runs = tables.measured().runs
    assert {run.dataset for run in runs} == {"adult", "credit-default", "breast-cancer"}
    for run in runs:
        low, high = tables.band(run.ratio)
        assert 0 <= low <= run.gain <= high <= 1
    assert tables.band(100 * max(run.ratio for run in runs)) is None
    assert tables.verdict(1e-5) == "works" and tables.verdict(2 * tables.DROWNS) == "hopeless"
    assert tables.verdict(tables.useful()) == "works"
    assert TableRun("t", 5, "direct", 1.0, 0.1, 0.7, 0.6, 0.8).gain == pytest.approx(0.5)


@pytest.fixture
def smooth(monkeypatch):
    """Made-up measurements, in which the gain falls smoothly with the noise."""
    ratios = [0.001 * 1.3**i for i in range(26)]
    runs = tuple(TableRun("made-up", 5, "direct", 1.0, r, 1 / (1 + (r / 0.2) ** 2), 0.0, 1.0) for r in ratios)
    monkeypatch.setattr(tables, "measured", lambda: tables.MeasuredTables("nobody", runs))
    tables.useful.cache_clear()
    yield
    tables.useful.cache_clear()


def test_what_is_suggested_works(mine, smooth):
    noisy = tables.advice(mine(epsilon=0.1))
    assert noisy.verdict == "hopeless" and noisy.ratio > tables.DROWNS
    needed = dict(noisy.needed)
    assert tables.advice(mine(epsilon=needed["epsilon"])).verdict == "works"
    assert tables.verdict(noisy.ratio * 600 / needed["records"]) == "works"
    middle = tables.advice(mine(epsilon=0.6))
    assert middle.verdict == "uncertain" and "channel" in dict(middle.needed)
    assert tables.advice(mine(epsilon=0.6, channel="secure-sum")).verdict == "works"


def test_no_band_for_what_was_not_measured(mine):
    assert tables.advice(mine(method="none")) is None
    assert tables.advice(mine(model="mlp")) is None
    assert tables.advice(replace(mine(), job=None)) is None
