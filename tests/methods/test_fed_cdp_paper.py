import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import kstest, norm
from torch import nn

from sordino.contract.method import Local
from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.data.clients import ArrayClients
from sordino.privacy import tightest
from sordino.privacy.accountants import gdp
from sordino.privacy.events import GaussianEvent, Repeated, Sampled
from sordino.privacy.samplers import Poisson
from sordino.runs import loop
from support.methods import let_out, price, rows
from support.problems import federation, job, mlp

RNG = Stream.research(21)


def three_layers(zero=True):
    layers = nn.Sequential(nn.Linear(1500, 1), nn.Linear(1, 1), nn.Linear(1, 1))
    for p in layers.parameters():
        nn.init.zeros_(p) if zero else nn.init.ones_(p)
    return layers


def test_the_noise_is_sigma_c_in_every_layer():
    zeros = [(torch.zeros(10, 1500), torch.zeros(10)) for _ in range(4)]
    made = job(three_layers(), zeros, "squared_error", method="fed-cdp-paper", clip=0.5, learning_rate=1.0)
    state = loop.begin(made)
    noise = rows(made, state=state, rng=RNG).flatten().numpy()
    std = made.method.sigma(made.plan) * 0.5 / 10  # without the root of the layers
    assert kstest(noise, norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=1.1 * std).cdf).pvalue < 1e-3
    assert made.method.noise(state, made.plan) == pytest.approx(std)


def test_a_record_moves_the_sum_further_than_is_counted():
    """Negative control: a single record reaches C in each of the three layers at once."""
    x, y = torch.ones(5, 1500), torch.full((5,), -1e3)
    made = job(three_layers(zero=False), [(x, y)], "squared_error", method="fed-cdp-paper", clip=0.5)
    (use,) = let_out(made, clients=ArrayClients(x[:1], y[:1], (1,)))
    moved = float(use.x.value.double().norm())
    assert moved == pytest.approx(0.5 * math.sqrt(3), rel=1e-4) and moved == pytest.approx(use.x.bound, rel=1e-4)
    assert use.release.multiplier * use.release.bound == pytest.approx(made.method.sigma(made.plan) * 0.5)


@pytest.mark.parametrize(("rounds", "steps", "wanted"), [(4, 1, 2.0), (9, 3, 0.5)])
def test_claimed_and_accounted_by_hand(rounds, steps, wanted):
    """Full batches and all clients: rounds x steps Gaussians compose exactly, at 1/sigma and at sqrt(layers)/sigma."""
    made = job(mlp(), method="fed-cdp-paper", rounds=rounds, epsilon=wanted, local_steps=steps)
    sigma, claim = made.method.sigma(made.plan), made.method.claim(made.plan)
    times = math.sqrt(rounds * steps)
    assert claim.epsilon == wanted and 0.999 * wanted < gdp.epsilon_of_mu(times / sigma, 1e-5) <= wanted
    accounted = made.guarantee("server", rounds, rounds)
    assert accounted.epsilon == pytest.approx(gdp.epsilon_of_mu(times * math.sqrt(2) / sigma, 1e-5), rel=1e-6)
    assert 1.3 * claim.epsilon < accounted.epsilon < math.inf
    assert (accounted.unit, accounted.relation) == ("record", "add/remove")
    assert "does not hold" in claim.sentence() and "root of the number of layers" in claim.why_not


def test_with_one_layer_and_all_clients_the_claim_holds():
    made = job(nn.Linear(20, 3), method="fed-cdp-paper", rounds=4)
    assert 0.999 * 2.0 < made.guarantee("server", 4, 4).epsilon <= 2.0 and "its claim holds" in made.notes[-1]
    assert made.method.claim(made.plan) is None  # nothing to correct, as of udp-fl-paper with gaussian noise
    assert not job(mlp(), method="fed-cdp-paper").notes
    assert made.method.sigma(made.plan) == pytest.approx(job(nn.Linear(20, 3), method="fed-cdp", rounds=4).plan.z)


@pytest.mark.parametrize(
    ("keys", "why"),
    [({"client_rate": 0.5}, "hidden from the server"), ({"batch_sampling": "fixed", "batch_rate": 0.5}, "fixed size")],
)
def test_with_one_layer_the_claim_fails_by_what_is_left_of_its_assumptions(keys, why):
    made = job(nn.Linear(20, 3), method="fed-cdp-paper", rounds=4, **keys)
    claim = made.method.claim(made.plan)
    assert why in claim.why_not and "layer" not in claim.why_not and not any("holds" in n for n in made.notes)
    assert made.guarantee("server", 4, 4).epsilon > 1.1 * claim.epsilon


def test_with_one_layer_and_poisson_batches_of_all_clients_no_more_is_accounted_than_claimed():
    made = job(nn.Linear(20, 3), federation((9, 5)), method="fed-cdp-paper", rounds=4, batch_rate=0.5)
    assert made.method.claim(made.plan) is None and 1.9 < made.guarantee("server", 4, 4).epsilon <= 2.0


def test_the_claim_takes_the_draw_of_clients_as_hidden_and_the_price_does_not():
    made = job(mlp(), method="fed-cdp-paper", rounds=6, epsilon=1.0)
    local = Local(steps=2, batch_rate=0.5)
    plan = replace(made.plan, local=local, sampler=Poisson(0.2), max_participations=3)
    z = made.method.sigma(plan)
    claimed = tightest.epsilon(Repeated(Sampled(GaussianEvent(z), 0.1), 12), 1e-5)  # q = B K_t / N in all T rounds
    assert 0.99 < claimed <= 1.0
    (cost,) = price(made.method, plan)
    assert cost.event == Repeated(Sampled(GaussianEvent(z / math.sqrt(2)), 0.5), 2) and cost.viewer == "server"


def test_what_cannot_be_accounted_is_refused_before_a_run():
    with pytest.raises(SpecError, match="clients of one size"):
        job(mlp(), federation((5, 9)), method="fed-cdp-paper", local_epochs=1.0, batch_size=3)
    with pytest.raises(SpecError, match="does not go with scaffold"):
        job(mlp(), method="fed-cdp-paper", algorithm="scaffold")
