"""As printed: what it does, what it claims, and that the claim does not hold."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm
from torch import nn

from sordino.core.errors import BudgetError, SpecError
from sordino.core.message import Message
from sordino.methods.adap_dp_fl_paper import LEAST, AdapDpFlPaper, record_norms
from sordino.privacy.accountants import gdp
from sordino.privacy.algebra import non_private
from sordino.runs import loop
from support.methods import CPU, federation_of, price
from support.problems import federation, job, linear
from support.silent import silent_job


def silent(**keys):
    return silent_job(4000, bias=False, method="adap-dp-fl-paper", learning_rate=1.0, **keys)


def two_rounds(made, clients=None):
    """Messages of the first two rounds, on one public transcript (the server's model does not move), and the clips."""
    state, federation = loop.begin(made), federation_of(made, clients=clients)
    everyone = range(federation.data.count)
    messages = [federation.ask("train", replace(state, round=r), everyone) for r in range(2)]
    return messages, federation.store.read("clip", everyone, torch.zeros(len(everyone), 1))


def test_the_norms_are_those_of_autograd():
    made = job(linear(), method="adap-dp-fl-paper", clients=federation((5, 3)))
    data = made.federation.data.fetch(range(2), CPU)
    found = record_norms(loop.begin(made).params, data, made.model)
    for x, y, value in zip(data.x, data.y, found, strict=True):
        module = linear()
        nn.functional.cross_entropy(module(x[None]), y[None]).backward()
        by_hand = torch.cat([p.grad.flatten() for p in module.parameters()]).norm()
        assert float(value) == pytest.approx(float(by_hand), rel=1e-4)


def test_every_client_clips_and_noises_with_its_own_mean_norm():
    made = job(linear(), method="adap-dp-fl-paper", clip_factor=0.5, clients=federation((5, 9, 7)))
    data = made.federation.data.fetch(range(3), CPU)
    norms = record_norms(loop.begin(made).params, data, made.model).split((5, 9, 7))
    _, own = two_rounds(made)
    assert torch.allclose(own[:, 0], torch.stack([0.5 * n.mean() for n in norms]), rtol=1e-4)
    state = loop.begin(made)
    quiet, simulator = replace(state, method=replace(state.method, noise=1e-9)), federation_of(made)
    simulator.store.write("clip", range(3), own)
    rows = simulator.ask("train", quiet, range(3)).weighed()["update"]
    for k, n in enumerate((5, 9, 7)):
        one = made.federation.data.fetch([k], CPU)
        total = made.model.gradients.sums(state.params, one, float(own[k, 0]))
        assert torch.allclose(rows[k], -0.1 * total[0] / n * n / made.plan.mean_client, atol=1e-5)


def test_the_noise_is_sigma_times_the_clients_clip():
    made = silent(clip=0.3)
    state = loop.begin(made)
    (first, _), _ = two_rounds(made)
    std = state.method.noise * 0.3 / 10
    noise = first["update"].flatten().numpy()
    assert kstest(noise, norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=1.1 * std).cdf).pvalue < 1e-3


def test_noise_once_an_upload_is_sigma_times_clip_rate_and_passes():
    made = silent(clip=0.3, noised="upload", local_steps=6, batch_rate=0.5, start=1.0, rounds=4)
    level = loop.begin(made).method.noise
    (first, _), _ = two_rounds(made)
    std = level * 0.3 * 3 / 5  # three passes in batches of five
    noise = first["update"].flatten().numpy()
    assert kstest(noise, norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=1.05 * std).cdf).pvalue < 1e-3
    assert 0.8 * 2.0 < gdp.epsilon_of_mu(2 / level, 1e-5) <= 2.0  # one Gaussian a round, whatever the steps
    assert math.isinf(made.promise.epsilon) and "once to an update" in made.method.claim(made.plan).why_not
    with pytest.raises(SpecError, match="no noisy gradients"):
        AdapDpFlPaper(noised="upload", reading="noisy")


def test_one_record_shows_in_the_noise_of_the_next_round():
    """The counterexample: clients whose gradients are zero, and one of them with one more record. From its second
    message alone anyone can tell, with certainty: without the record there is next to no noise in it."""
    made = silent()
    with_it = [(torch.zeros(10, 4000), torch.zeros(10))] * 3
    loud = torch.zeros(11, 4000), torch.zeros(11)
    loud[0][10, 0], loud[1][10] = 1.0, 50.0
    neighbour = job(nn.Linear(4000, 1), [*with_it, loud], method="none").federation.data
    (_, second), _ = two_rounds(made)
    (_, other), own = two_rounds(made, neighbour)
    assert float(second["update"][3, 1:].std()) < 1e-4  # coordinates in which no record has a gradient
    assert float(other["update"][3, 1:].std()) > 1.0
    assert float(own[3, 0]) > 1e3 * LEAST


def test_the_noisy_reading_is_post_processing_of_the_message():
    """Its clips are a function of the noisy gradients: on silent data they are the noise's own norm."""
    made = silent(reading="noisy")
    messages, own = two_rounds(made)
    sigma = loop.begin(made).method.noise
    assert own.shape == (4, 1) and bool((own > 100 * LEAST).all())
    once = sigma / 10 * math.sqrt(4000)  # of the first round's noise: the second clip; and once more
    assert torch.allclose(own[:, 0], torch.full((4,), once**2), rtol=0.1)
    assert "not charged" in made.method.claim(made.plan).why_not and "norms" not in made.method.claim(made.plan).why_not
    assert messages[0]["update"].shape == (4, 4000) and messages[0]["loss"].shape == (4, 1)


def test_sigma_falls_with_the_loss_and_the_claim_ends_the_run():
    made = silent(rounds=20, noise_step=0.5, patience=1)
    state, method, losses = loop.begin(made), made.method, []
    for t in range(20):
        if method.over(state, made.plan):
            break
        fields = {"update": torch.zeros(4, 4000), "loss": torch.full((4, 1), 5.0 - t)}
        losses.append(state.method.noise)
        state = replace(method.merge(state, Message(fields, torch.ones(4), np.arange(4)), made.plan), round=t + 1)
    assert losses[:4] == pytest.approx([losses[0], losses[0], losses[0] / 2, losses[0] / 4])
    spent = sum(z**-2 for z in losses)
    assert len(losses) < 10 and gdp.epsilon_of_mu(math.sqrt(spent), 1e-5) < 2.0


def test_an_even_run_would_claim_its_share():
    """By hand: the Renyi bound of T Gaussians is above the exact one, by less than 15 %."""
    made = silent(rounds=10, start=1.0)
    exact = gdp.epsilon_of_mu(math.sqrt(10) / loop.begin(made).method.noise, 1e-5)
    assert 0.85 * 2.0 < exact < 2.0
    half = silent(rounds=10, start=0.5)
    ratio = loop.begin(half).method.noise / loop.begin(made).method.noise
    assert ratio == pytest.approx(math.sqrt(2), rel=1e-4)


def test_extreme_claims_are_followed_or_refused():
    assert loop.begin(silent(epsilon=1e7)).method.noise < 1e-2
    with pytest.raises(BudgetError, match=r"claims epsilon = 0\.001 for no noise"):
        silent(epsilon=0.001)


def test_nothing_is_accounted():
    made = silent()
    (cost,) = price(made.method, made.plan)
    assert "exact norms" in non_private(cost.event) and made.promise.epsilon == math.inf
    assert made.method.claim(made.plan).epsilon == 2.0


def test_drawn_batches_go_too():
    made = job(method="adap-dp-fl-paper", batch_rate=0.5, local_steps=2)
    assert 0 < loop.begin(made).method.noise < float(silent(local_steps=2).method._first(silent().plan)) * 2


def test_the_command_line_prints_the_claim(small_npz, sordino_command):
    keys = ("--dataset", "small.npz", "--features", "none", "--clients", "4", "--rounds", "2", "--seed", "0", "--json")
    done = sordino_command("run", "--method", "adap-dp-fl-paper", *keys, cwd=small_npz.parent)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "It does not hold" in found["claim"]["sentence"] and found["guarantee"]["infinite"]


@pytest.mark.parametrize("bad", [{"reading": "both"}, {"clip_factor": 0}, {"noise_step": 1.0}, {"patience": 0}])
def test_options_are_checked(bad):
    with pytest.raises(SpecError):
        AdapDpFlPaper(**bad)
