import math

import pytest
import torch
from torch import nn

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.methods._measured import sigma, sums_and_norms
from sordino.methods.private_dl_paper import PrivateDlPaper, three_sigma
from sordino.privacy.accountants import gdp
from sordino.runs import loop
from support.methods import rows
from support.problems import job

RNG = Stream.research(13)
WIDE = 2000


def made_with(outlier, records=400, **keys):
    """Records with gradients of norm about 2, and one of another size."""
    layer = nn.Linear(WIDE, 1, bias=False)
    nn.init.zeros_(layer.weight)
    x, y = torch.zeros(records, WIDE), torch.ones(records)
    x[:, 0] = 1.0
    y[0] = outlier
    keys = {"method": "private-dl-paper", "learning_rate": 1.0} | keys
    return job(layer, [(x, y)], "squared_error", **keys)


def sent(made):
    return rows(made, rng=RNG)[0]


def estimate(made):
    data = made.federation.data.fetch([0], torch.device("cpu"))
    _, norms = sums_and_norms(loop.begin(made).params, data, made.model, [0], None)
    return norms, float(three_sigma(norms))


def test_the_criterion_is_mean_plus_three_deviations():
    values = torch.tensor([[1.0], [2.0], [3.0], [6.0]])
    assert float(three_sigma(values)) == pytest.approx(3.0 + 3 * 3.5**0.5)


def test_one_record_moves_the_sum_by_far_more_than_is_assumed():
    """Negative control: the outlier's gradient is many times the estimated sensitivity, even with it in the batch."""
    norms, found = estimate(made_with(1000.0))
    assert float(norms[0]) > 5 * found
    _, without = estimate(made_with(1.0))
    assert float(norms[0]) > 900 * without


def test_the_scale_of_the_noise_shows_the_record():
    quiet, loud = made_with(1.0), made_with(1000.0)
    ratio = float(sent(loud)[1:].std() / sent(quiet)[1:].std())
    assert ratio == pytest.approx(estimate(loud)[1] / estimate(quiet)[1], rel=1e-3) and ratio > 50


def test_the_noise_is_sigma_times_the_estimate():
    made = made_with(1.0)
    std = sigma(made.plan) * estimate(made)[1] / 400
    assert float(sent(made)[1:].std()) == pytest.approx(std, rel=0.08)


def test_noise_once_an_upload_follows_the_learning_rate_and_the_passes():
    """By hand: sigma S eta E / b with the S of the first step, which is the largest: the gradients shrink."""
    made = made_with(1.0, noised="upload", learning_rate=0.1, local_steps=4, batch_rate=0.5, rounds=3)
    level, row = sigma(made.plan, noised="upload"), sent(made)
    assert 0.999 < gdp.epsilon_of_mu(3**0.5 / level, made.plan.delta) / made.plan.epsilon <= 1.0
    std = level * estimate(made)[1] * 0.1 * 2 / 200
    assert float(row[1:].std()) == pytest.approx(std, rel=0.05)
    assert float(row[0]) == pytest.approx(1 - 0.8**4, abs=5 * std)  # the local steps have no noise
    assert math.isinf(made.promise.epsilon) and "once to an update" in made.method.claim(made.plan).sentence()
    assert made.promise.reason == made.method.claim(made.plan).why_not
    with pytest.raises(SpecError, match="noised"):
        PrivateDlPaper(noised="round")


def test_a_run_is_infinite_and_views_are_refused():
    made = made_with(1.0)
    assert math.isinf(made.promise.epsilon) and "outlier" in made.method.claim(made.plan).sentence()
    pictures = [(torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64))]
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with pytest.raises(SpecError, match="views"):
        job(module, pictures, method="private-dl-paper", augment="flip", views=2)
