"""Noise that is correlated over the rounds: its covariance, its price, who takes part when."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

import sordino
from sordino.contract.method import started
from sordino.contract.presence import Stragglers
from sordino.core.errors import RunError, SpecError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.core.types import State
from sordino.core.vector import Layout
from sordino.methods.dp_ftrl import DpFtrl
from sordino.privacy.accountants import gdp
from sordino.privacy.samplers import FixedSizeSampler
from sordino.runs import loop
from support.killed import Killed, killing
from support.methods import merged, play, rows, whole
from support.problems import federation, job, linear, plan
from support.silent import zero_clients, zero_layer

RNG, DIM = Stream.research(35), 20_000


def start(method, made, dim):
    return started(method, State(torch.zeros(dim)), Layout.of(linear()), made)


def noise_by_round(method, made, dim=DIM):
    """What each round adds to a model that nobody moves, times the answers that are expected."""
    state, out, silence = start(method, made, dim), [], Message({"update": torch.zeros(3, dim)})
    for t in range(made.rounds):
        before = state.params
        state = replace(merged(method, made, state, silence, RNG), round=t + 1)
        out.append((state.params - before) * made.expected_answers(t) / method.turns)
    return torch.stack(out)


def test_the_running_sums_of_a_tree_have_one_node_for_every_binary_one():
    method, made = DpFtrl(clip=0.3), plan(rounds=8, noise_multiplier=2.0)
    sums = noise_by_round(method, made).cumsum(dim=0).numpy()
    for t in range(8):
        std = 0.3 * 2.0 * (t + 1).bit_count() ** 0.5
        assert kstest(sums[t], norm(scale=std).cdf).pvalue > 1e-3
        assert kstest(sums[t], norm(scale=1.1 * std).cdf).pvalue < 1e-3
    fresh = 0.3 * 2.0 * 8**0.5  # of as many rounds of fresh noise; here node 7 alone is left
    assert float(sums[7].std()) < 0.5 * fresh


def test_banded_noise_has_the_covariance_of_its_mechanism():
    method, made = DpFtrl(mechanism="banded", bands=3), plan(rounds=6, noise_multiplier=1.5)
    found = noise_by_round(method, made)
    sums = found.cumsum(dim=0).numpy()
    expected = method.noise_of(made).covariance()
    assert np.abs(np.cov(sums) - expected).max() < 0.05 * expected.max()
    assert np.abs(np.cov(sums) - 1.1**2 * expected).max() > 0.05 * expected.max()
    first = np.corrcoef(found[0], found[1])[0, 1]
    assert first < -0.2  # what was added is taken back


@pytest.mark.parametrize("method", [DpFtrl(), DpFtrl(mechanism="banded", bands=4)])
def test_the_noise_that_is_reported_is_the_noise_of_the_round(method):
    made = plan(rounds=6, noise_multiplier=1.5)
    added = noise_by_round(method, made)
    for t, row in enumerate(added):
        told = method.noise(State(torch.zeros(1), round=t), made)
        answers = 8 / method.turns
        assert float(row.std()) / answers**0.5 == pytest.approx(told, rel=0.03)


def test_one_participation_in_a_tree_costs_its_levels():
    """By hand: 8 rounds, one participation, 4 levels: mu = sqrt(4) / z."""
    made = job(method="dp-ftrl", rounds=8, max_participations=1, epsilon=2.0)
    assert made.plan.z == pytest.approx(2 / gdp.mu_for(2.0, 1e-5), rel=1e-3)
    assert made.promise.epsilon <= 2.0


def test_banded_participations_that_are_bands_apart_cost_their_root():
    made = job(method="dp-ftrl", rounds=8, mechanism="banded", bands=2, epsilon=2.0)
    assert made.method.most(made.plan) == 4
    assert made.plan.z == pytest.approx(2 / gdp.mu_for(2.0, 1e-5), rel=1e-3)  # sqrt(4) / z


def test_no_draw_amplifies():
    few = job(method="dp-ftrl", rounds=8, max_participations=1, client_rate=0.1)
    assert few.plan.z == pytest.approx(job(method="dp-ftrl", rounds=8, max_participations=1).plan.z, rel=1e-6)


def test_a_cohort_of_a_fixed_size_is_charged_twice_the_clip():
    made = plan(sampler=FixedSizeSampler(4), noise_multiplier=3.0, max_participations=1)
    costs = {c.viewer: c for c in whole(DpFtrl(), made)}
    assert costs["public"].event.noise_multiplier == pytest.approx(3.0 / 2 / 2**0.5)  # two levels of three rounds
    assert costs["public"].relation == "replace" and costs["server"].event.reason


def test_nobody_answers_more_often_than_is_charged():
    made = job(method="dp-ftrl", rounds=7, separation=3, learning_rate=1.0)
    state, counts = loop.begin(made), []
    for t in range(7):
        state = replace(state, round=t)
        counts.append((rows(made, state=state, rng=RNG) != 0).any(dim=1).numpy())
    turns = np.array(counts)  # [rounds, clients]
    assert turns.sum(0).max() == made.method.most(made.plan) == 3 and turns.sum(0).min() == 2
    for client in range(8):
        assert np.diff(np.flatnonzero(turns[:, client])).min() >= 3


def test_a_clients_turn_is_its_usual_round():
    """What it sends is what it would send if all had been asked."""
    pairs = federation()
    some, all_ = (job(method="dp-ftrl", clients=pairs, rounds=4, separation=s, local_steps=2) for s in (2, 1))
    sent = [rows(m, rng=RNG) for m in (some, all_)]
    assert torch.allclose(sent[0][::2], sent[1][::2], atol=1e-6) and not sent[0][1::2].any()
    quiet = replace(some, plan=replace(some.plan, noise_multiplier=1e-9))
    after = play(quiet, rng=RNG).after.params
    assert torch.allclose(after - loop.begin(some).params, sent[1][::2].mean(0), atol=1e-6)  # over four, not eight


@pytest.mark.parametrize("power", [0, 20, 37])
def test_no_message_is_longer_than_the_clip_whatever_the_data(power):
    wild = [(x * 10.0**power, y) for x, y in federation()]
    made = job(linear(), wild, method="dp-ftrl", clip=0.05, learning_rate=2.0, max_participations=1)
    norms = rows(made, rng=RNG).double().norm(dim=1)
    assert bool((norms <= 0.05).all()) and (power == 37 or float(norms.max()) > 0.04)


def test_what_has_no_price_is_refused():
    with pytest.raises(SpecError, match=r"8 bands need a client to wait.*use separation = 8"):
        job(method="dp-ftrl", mechanism="banded", bands=8, separation=2, rounds=20)
    job(method="dp-ftrl", mechanism="banded", bands=8, separation=2, rounds=20, max_participations=1)  # nobody twice
    with pytest.raises(SpecError, match="late = 0"):
        DpFtrl().require(plan(stragglers=Stragglers(late=0.1)))


def train(out, mode="research", kill=None, resume=None):
    """Six rounds on silent clients, so that the model is the noise; perhaps killed in the round of that number."""
    layer, zeros = zero_layer(2000, bias=False), zero_clients(2000, (3,) * 8)
    keys = {"method": "dp-ftrl", "rounds": 6, "mode": mode, "out": str(out), "name": "it", "device": "cpu"}
    keys = keys | {"checkpoint_seconds": 0.0} if resume is None else {"resume": resume}
    with nullcontext() if kill is None else killing("paid", kill - 1):
        return sordino.train(layer, zeros, loss="squared_error", **keys).model.weight.detach()[0]


@pytest.mark.parametrize("mode", ["research", "secure"])
def test_noise_cancels_over_the_rounds_of_a_whole_run(tmp_path, mode):
    """After six rounds two nodes are left: sqrt(2) z; with a key of its own in every round it would be sqrt(10) z."""
    noise = train(tmp_path, mode) * 8 / job(method="dp-ftrl", rounds=6).plan.z
    assert float(noise.std()) == pytest.approx(2**0.5, rel=0.08)


def test_a_run_that_died_goes_on_with_the_same_noise(tmp_path):
    uncut = train(tmp_path / "whole")
    with pytest.raises(Killed):
        train(tmp_path, kill=4)
    assert torch.equal(train(tmp_path, resume=tmp_path / "it"), uncut)


def test_a_secure_run_that_died_is_not_gone_on_with(tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, "secure", kill=4)
    with pytest.raises(RunError, match="Start a new run"):
        train(tmp_path, resume=tmp_path / "it")


def test_the_state_keeps_no_noise():
    """It is written to disk and public; noise that will be taken back later must not be in it."""
    made = plan(rounds=8)
    state = start(DpFtrl(), made, 5)
    after = merged(DpFtrl(), made, state, Message({"update": torch.zeros(8, 5)}), RNG)
    assert after.method is None and after.algorithm is None and after.average is None
    assert not torch.equal(after.params, state.params)


@pytest.mark.parametrize("bad", [{"clip": 0}, {"mechanism": "fresh"}, {"bands": 0}, {"separation": -1}])
def test_options_are_checked(bad):
    with pytest.raises(SpecError):
        DpFtrl(**bad)
