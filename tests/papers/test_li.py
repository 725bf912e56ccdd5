"""The experiments of 004: how noise depends on alpha, what alpha the paper's numbers imply, and who trains on what."""

from __future__ import annotations

import math

import pytest

from sordino.papers import li
from sordino.papers import run as running
from sordino.papers.base import Outcome
from sordino.privacy.pairs import gaussian_delta
from sordino.spec import spec


@pytest.mark.parametrize(("alpha", "growth"), [(2.0, 0.062), (0.3, 0.36), (0.1, 0.886)])
def test_the_smaller_alpha_is_the_more_the_noise_follows_the_contribution(alpha, growth):
    at = {r: li.noise_factor(alpha, r) for r in (0.0, 0.5, 1.0)}
    assert at[1.0] / at[0.0] - 1 == pytest.approx(growth, abs=0.005)
    assert at[0.5] == pytest.approx(math.sqrt((0.5 + alpha * math.log(50)) / (2 * math.log(62.5))))
    if alpha == 2:
        assert at[0.0] > 0.97 and at[1.0] < 1.04  # NbAFL's noise, whatever R is


@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.7])
def test_the_implied_alpha_gives_the_noise_that_it_was_implied_by(ratio):
    for equal in (1.5, 2.2, 2.5):
        alpha = li.implied_alpha(equal, ratio)
        assert li.noise_factor(alpha, ratio) == pytest.approx(1 / equal)


def test_the_papers_own_numbers_imply_an_alpha_far_below_2():
    assert li.equal_epsilon(li.CIFAR, 0.2) == pytest.approx(0.494, abs=1e-3)  # 74.79, between 72.70 and 74.92
    assert li.equal_epsilon(li.FEMNIST_LAST, 0.1) == pytest.approx(0.2, abs=1e-3)  # 64.80 and 64.85
    assert li.equal_epsilon(li.CIFAR, 0.3) is None  # 79.03: above all of NbAFL's
    found = []
    for numbers in (li.CIFAR, li.CIFAR_LAST, li.FEMNIST, li.FEMNIST_LAST):
        known = [(e, li.equal_epsilon(numbers, e)) for e in li.EPSILONS]
        found += [li.implied_alpha(equal / e, 0.25) for e, equal in known if equal is not None]
    assert len(found) == 7 and 0.25 < min(found) < li.ALPHA < max(found) < 0.5
    lines = li._implied(li.CIFAR, li.CIFAR_LAST)
    assert "| best | 0.2 | 0.49 | 0.35 | 0.28 | 0.22 |" in lines and len(lines) == 4 + 3


def test_the_page_says_what_the_smaller_noise_promises():
    """One Gaussian release of multiplier sqrt(T) / epsilon, the sensitivity granted: exactly, not by the paper."""
    mu = 0.2 / math.sqrt(0.25 + li.ALPHA * math.log(50))
    assert f"delta = {gaussian_delta(mu, 0.2):.3f}" in li.DEPENDS
    assert f"= {li.ALPHA * li.DELTA / 2:.3f}" in li.DEPENDS


def test_the_sweep_shows_what_came_out_beside_the_formula():
    experiment = running.find("004/alpha-femnist")
    trials = [t for t in experiment.trials(1.0) if t.x in (0.3, "no alpha")]
    records = [{"round": 1, "decided": {"ratio": 0.2, "std": 0.01}}, {"round": 2, "decided": {"ratio": 0.4}}]
    lines = experiment.extra([Outcome(t, {}, records) for t in trials])
    assert "| 0.3 | 0.38 | 0.45 | 0.51 | 0.3 | 0.01 |" in lines and "| 2 | 0.97 | 1.00 | 1.03 |  |  |" in lines
    for name, sweep in zip(("004/alpha", "004/alpha-femnist"), li.ALPHAS.values(), strict=True):
        assert {t.x for t in running.find(name).trials(1.0)} == {*sweep, "no alpha"} and {li.ALPHA, 2.0} <= {*sweep}


@pytest.mark.parametrize("name", ["004/table1", "004/table1-femnist"])
def test_all_methods_of_table_1_train_on_the_same_records(name):
    trials = running.find(name).trials(1.0)
    assert {t.seed for t in trials} == {0, 1, 2} and {t.x for t in trials} == {"none", 0.2, 0.5}
    shared = ("server_data", "augment", "partition", "clients", "without_private", "batch_size", "local_epochs")
    every = [spec.from_dict({"mode": "research"} | dict(t.keys)).to_dict() for t in trials]
    assert len({tuple(keys.get(k) for k in shared) for keys in every}) == 1 and every[0]["server_data"] > 0
    assert every[0]["augment"] == ("flip-crop" if name == "004/table1" else "none")  # a mirrored digit is none
    own = {t.row: t.keys for t in trials}
    assert own["FedSDP"]["validate_on"] == "server" and own["FedSDP"]["tolerance_slope"] == li.ALPHA
    assert own["Sensitive DP"]["reading"] == "per-batch" and "clip" not in own["Sensitive DP"]
    assert all(keys["scope"] == "round" for row, keys in own.items() if row not in ("FedAvg", "FedSDP"))
