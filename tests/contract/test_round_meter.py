"""What a round measures for the owner: how much was clipped, and signal and noise by layer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import sordino
from sordino.contract.outlets import Outlets
from sordino.contract.round_meter import RoundMeter
from sordino.core import clip_counts
from sordino.core.rng import Stream
from sordino.core.vector import Layout
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import Release
from sordino.run_folder.folder import RunFolder

RNG = Stream.research(3).at("round", 0)
MODEL = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))  # 8 and 3 parameters
UPDATE = Release("update", Gaussian(2.0), "client", 0.5, times=2)


def used(*rows, release=UPDATE, split=1):
    """Return what a meter says after the outlet was given these rows, one tensor per use."""
    meter = RoundMeter(Layout.of(MODEL))
    count = len(getattr(rows[0], "value", rows[0]))
    out = Outlets((release,), RNG.rows(range(count)), witness=meter, split=split)
    with clip_counts.counting(meter.clips):
        for x in rows:
            out[release.name](x)
    return meter.take(split)


def test_long_rows_are_counted_and_measured_in_bounds():
    long, short, zero = torch.full((11,), 3.0 / math.sqrt(11)), torch.full((11,), 0.25 / math.sqrt(11)), torch.zeros(11)
    found = used(torch.stack([long, short, zero, zero]))
    assert found["clipped"] == {"update": 0.25}
    assert found["norm"]["update"] == pytest.approx((6 + 0.5) / 4)


def test_a_row_that_is_not_finite_counts_as_clipped_and_has_no_length():
    found = used(torch.stack([torch.full((11,), math.inf), torch.zeros(11)]))
    assert found["clipped"] == {"update": 0.5} and found["norm"] == {"update": 0.0}


def test_the_signal_is_the_sum_that_was_clipped_and_the_noise_adds_up_over_clients_and_uses():
    x = torch.zeros(3, 11)
    x[0, 0], x[1, 0], x[2, 9] = 0.3, 0.1, 0.2
    found = used(x, x)
    assert found["signal"] == pytest.approx({"0": 0.8, "2": 0.4})
    assert found["noise"] == pytest.approx({"0": math.sqrt(8 * 6), "2": math.sqrt(3 * 6)})  # 2.0 * 0.5 a row
    assert used(x, x, split=3)["noise"] == pytest.approx({"0": math.sqrt(8 * 2), "2": math.sqrt(3 * 2)})


def test_the_noise_of_a_server_is_there_once():
    found = used(torch.zeros(5, 11), release=Release("update", Gaussian(2.0), "client", 0.5, where="server"))
    assert found["noise"] == pytest.approx({"0": math.sqrt(8), "2": math.sqrt(3)})


class Shift:
    """A mechanism of someone else's whose deviation is not known; it adds 2 to every value."""

    multiplier = None

    def apply(self, bounded, rng, use):
        return bounded.value + 2.0


def test_noise_of_unknown_deviation_is_measured_as_drawn():
    found = used(torch.zeros(5, 11), release=Release("update", Shift(), "client", 0.5))
    assert found["signal"] == {"0": 0, "2": 0}
    assert found["noise"] == pytest.approx({"0": 10 * math.sqrt(8), "2": 10 * math.sqrt(3)})


def test_values_that_are_not_shaped_like_the_model_have_no_layers():
    assert set(used(torch.ones(2, 4))) == {"clipped", "norm"}


def test_nothing_is_counted_outside_the_block_and_nothing_twice():
    meter = RoundMeter(Layout.of(MODEL))
    clip_counts.note(torch.ones(3), 0.5)
    assert meter.take() is None
    with clip_counts.counting(meter.clips), clip_counts.counting(None):
        clip_counts.note(torch.ones(3), 0.5)
    assert meter.clips.contributions == 0


def test_a_run_writes_it_for_its_owner_alone(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(6, 20, 3)
    clients = [(x[k], (x[k, :, 0] > 0).long()) for k in range(6)]
    model = nn.Sequential(nn.Linear(3, 2))
    result = sordino.train(
        model, clients, method="dp-sgd", epsilon=4.0, delta=1e-5, rounds=2, client_rate=0.5, seed=1, out=tmp_path,
        clip=0.01,
    )  # fmt: skip
    folder = RunFolder(result.folder)
    for record in folder.owner_records():
        assert record.measured["clipped"] == {"gradient": pytest.approx(1.0, abs=0.05)}
        assert record.measured["norm"]["gradient"] > 10
        assert record.measured["signal"].keys() == record.measured["noise"].keys() == {"0"}
    assert "measured" not in (folder.public / "records.jsonl").read_text()
