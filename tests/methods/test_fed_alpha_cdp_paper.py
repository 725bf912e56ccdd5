import math

import pytest
import torch
from torch import nn

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.methods.fed_alpha_cdp_paper import FedAlphaCdpPaper
from sordino.runs import loop
from support.methods import rows
from support.problems import job

RNG = Stream.research(12)
WIDE = 1500


def two_layers():
    """The second layer sees a constant; the first one's gradient is zero where the input is."""
    layers = nn.Sequential(nn.Linear(WIDE, 1, bias=False), nn.Linear(1, 1))
    nn.init.zeros_(layers[0].weight)
    nn.init.ones_(layers[1].weight)
    nn.init.ones_(layers[1].bias)
    return layers


def sent(first, records=9, **keys):
    x, y = torch.zeros(records, WIDE), torch.zeros(records)
    x[0, 0] = first
    keys = {"method": "fed-alpha-cdp-paper", "learning_rate": 1.0} | keys
    made = job(two_layers(), [(x, y)], "squared_error", **keys)
    return made, rows(made, rng=RNG)[0]


def test_the_noise_of_a_layer_shows_whether_the_record_is_there():
    """Negative control: one record alone reaches the first layer; without it that layer has no noise."""
    _, without = sent(0.0)
    _, there = sent(0.1)
    assert not without[:WIDE].any() and bool(without[WIDE:].all())
    assert bool(there[1:WIDE].all())


def test_the_scale_is_the_largest_norm_of_the_layer():
    made, there = sent(0.1, reading="sum")
    data = made.federation.data.fetch([0], torch.device("cpu"))
    state = loop.begin(made)
    gradient = made.model.gradients.sums(state.params, data, None, layers=[1.0, 1.0])[0, :WIDE]
    std = made.method.sigma(made.plan, 0) * float(gradient.norm()) / 9
    assert float(there[1:WIDE].std()) == pytest.approx(std, rel=0.08)
    _, larger = sent(0.2, reading="sum")
    assert float(larger[1:WIDE].std() / there[1:WIDE].std()) == pytest.approx(2.0, rel=1e-3)


def test_noise_for_every_example_is_more_by_the_root_of_the_batch():
    _, each = sent(0.1, reading="example")
    _, once = sent(0.1, reading="sum")
    assert float(each[1:WIDE].std() / once[1:WIDE].std()) == pytest.approx(3.0, rel=1e-3)


def test_once_an_upload_there_is_no_noise_for_every_example():
    _, each = sent(0.1, reading="example", noised="upload")
    made, once = sent(0.1, reading="sum", noised="upload")
    assert torch.equal(each, once) and bool(once[1:WIDE].all())
    assert math.isinf(made.promise.epsilon) and made.promise.reason == made.method.claim(made.plan).why_not


def test_a_run_is_infinite_and_says_so():
    made, _ = sent(0.1)
    assert math.isinf(made.promise.epsilon) and made.promise.reason == made.method.claim(made.plan).why_not
    with pytest.raises(SpecError, match="reading"):
        FedAlphaCdpPaper(reading="layer")
