"""Adaptive noise as printed: Algorithms 2 to 4, Table II; and why its claim does not hold."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import kstest, norm
from torch import nn

import sordino
from sordino.contract.method import Local
from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.methods import _claims as claims
from sordino.methods.adaptive_noise_paper import AdaptiveNoisePaper
from sordino.runs import loop
from support.methods import federation_of, play
from support.problems import federation, job, linear, mlp

CPU, RNG = torch.device("cpu"), Stream.research(8)


def sent(made, state=None):
    """What leaves all clients."""
    return play(made, state=state, rng=RNG).sent


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "rmsprop"])
def test_the_foreseen_weights_are_those_of_table_2(optimizer):
    """A naive second implementation of the local steps, for one client and full batches."""
    k, eta, gamma = 5, 0.05, 0.9
    made = job(method="adaptive-noise-paper", module=mlp(), clients=federation((12,)), optimizer=optimizer,
               learning_rate=eta, momentum=gamma, local_steps=k, sigma0=1e-9, epsilon=1e24, beta=0.7)  # fmt: skip
    batch, w = made.federation.data.fetch([0], CPU), loop.begin(made).params.clone()
    start, v, m, e = w.clone(), torch.zeros_like(w), torch.zeros_like(w), torch.zeros_like(w)
    for step in range(1, k + 1):
        g = made.model.gradients.sums(w, batch, None)[0] / 12
        if optimizer == "sgd":
            moved, would = eta * g, eta * g
        elif optimizer == "momentum":
            v = gamma * v + eta * g
            moved, would = v, gamma * v + eta * g
        elif optimizer == "adam":
            m, e = gamma * m + (1 - gamma) * g, 0.999 * e + 0.001 * g * g
            moved = eta * m / (1 - gamma**step) / ((e / (1 - 0.999**step)).sqrt() + 1e-8)
            mm, ee = gamma * m + (1 - gamma) * g, 0.999 * e + 0.001 * g * g
            would = eta * mm / (1 - gamma ** (step + 1)) / ((ee / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8)
        else:
            e = gamma * e + (1 - gamma) * g * g
            moved = eta * g / (e.sqrt() + 1e-8)
            would = eta * g / ((gamma * e + (1 - gamma) * g * g).sqrt() + 1e-8)
        w = w - moved
        if step == k - 1:
            foreseen = w - would
    q = 0.5 * 0.7 * foreseen.abs()
    expected = torch.minimum(torch.maximum(w, start - q), start + q) - start
    found = sent(made)["update"][0]
    assert torch.allclose(found, expected, atol=1e-5)
    assert not torch.allclose(found, w - start, atol=1e-3)  # something was truncated


@pytest.mark.parametrize(
    ("reading", "factor"),
    [
        ("literal", math.sqrt(63)),
        ("per-tensor", math.sqrt(2)),
        ("per-batch", math.sqrt(2) / 6),
        ("per-dataset", math.sqrt(2) / 12),
    ],
)
def test_the_noise_of_every_reading(reading, factor):
    """sigma_m = sqrt(M) sigma_0 Delta_m, Delta_m = beta |w^|, in units of which the noise is standard normal."""
    module = linear()
    made = job(method="adaptive-noise-paper", module=module, clients=federation((12,) * 80), sigma0=3.0, beta=1.3,
               reading=reading, learning_rate=1e-6, batch_size=6)  # fmt: skip
    state = loop.begin(made)  # hardly any step, so w^ = w_0
    found = sent(made, state)["update"]
    each = (found / (factor * 3.0 * 1.3 * state.params.abs())).double().flatten().numpy()
    assert kstest(each, norm.cdf).pvalue > 1e-3
    assert kstest(1.1 * each, norm.cdf).pvalue < 1e-3


@pytest.mark.parametrize(("epsilon", "sigma", "rounds"), [(0.5, 26, 7), (2, 26, 108), (8, 10, 208), (0.3, 26, 2)])
def test_training_ends_where_algorithm_4_says(epsilon, sigma, rounds):
    """THEORY 3.3: the rounds that its own accountant allows at delta* = 1e-5."""
    made = job(method="adaptive-noise-paper", epsilon=epsilon, sigma0=sigma, rounds=300, delta=1e-5)
    state = loop.begin(made)

    def after(count):
        return replace(state, method=replace(state.method, most=count))

    assert not made.method.over(after(rounds - 1), made.plan) and made.method.over(after(rounds), made.plan)


def test_sigma_0_by_equation_13_is_the_least_that_lasts():
    made = job(method="adaptive-noise-paper", epsilon=0.5, rounds=7)
    sigma = made.method.level(made.plan)
    assert claims.xue_delta(0.5, 7, sigma) <= 1e-5 < claims.xue_delta(0.5, 7, 0.999 * sigma)
    assert 25 < sigma < 26


def test_an_epsilon_of_a_round_has_the_level_of_one_and_never_ends():
    made = job(method="adaptive-noise-paper", epsilon=0.5, rounds=7, scope="round")
    assert made.method.level(made.plan) == claims.xue_sigma(0.5, 1e-5, 1)
    state = loop.begin(made)
    late = replace(state, method=replace(state.method, most=7))
    assert not made.method.over(late, made.plan) and made.method.claim(made.plan).scope == "round"
    total = job(method="adaptive-noise-paper", epsilon=0.5, rounds=7, sigma0=made.method.level(made.plan))
    assert total.method.over(late, total.plan)


def test_a_level_at_which_not_even_a_round_fits_is_refused():
    with pytest.raises(SpecError, match="not even one round"):
        job(method="adaptive-noise-paper", sigma0=0.01)
    with pytest.raises(SpecError, match="leave sigma0 out"):
        job(method="adaptive-noise-paper", sigma0=26.0, scope="round")


def test_participations_are_counted_by_the_clients_and_the_busiest_counts():
    made = job(method="adaptive-noise-paper", rounds=9, module=linear())
    state, clients = loop.begin(made), federation_of(made, rng=RNG)
    for r, cohort in enumerate([[0, 1], [0], [0, 5], []]):  # 5 joins late, 1 drops out
        done = play(made, cohort, state, clients, RNG)
        assert done.sent["participations"].tolist() == [{0: r + 1, 1: 1, 5: 1}[c] for c in cohort]
        state = done.after
    assert made.method.decided(state, made.plan)["participations"] == 3


def test_counterexample_a_a_record_that_lights_a_dark_feature_is_seen_with_certainty():
    """THEORY 3.2 A: without the record the third weight is released as exactly 0, with it there is noise."""
    draw = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randn(20, 2, generator=draw), torch.zeros(20, 1)], dim=1)
    y = (torch.rand(20, 1, generator=draw) > 0.5).float()
    lit = x.clone()
    lit[0, 2] = 1.0

    def third(x):
        module = nn.Linear(3, 1, bias=False)
        nn.init.zeros_(module.weight)
        made = job(method="adaptive-noise-paper", module=module, clients=[(x, y)], loss="squared_error", sigma0=26.0,
                   reading="literal", learning_rate=0.01, local_steps=4)  # fmt: skip
        return float(sent(made)["update"][0, 2])

    assert third(x) == 0.0 and abs(third(lit)) > 0


def test_the_noise_gives_the_data_away():
    """The same transcript, other data: the scale of the noise is another."""
    a = job(method="adaptive-noise-paper", module=linear(), local_steps=8)
    other = [(-3 * x, y) for x, y in federation()]
    b = job(method="adaptive-noise-paper", module=linear(), local_steps=8, clients=other)
    noise = [sent(m)["std"] for m in (a, b)]
    assert float((noise[0] / noise[1] - 1).abs().mean()) > 0.05


def test_claimed_and_accounted_stand_side_by_side(tmp_path):
    result = sordino.train(mlp(), federation(), method="adaptive-noise-paper", epsilon=0.5, rounds=20, sigma0=26.0,
                           local_steps=2, out=str(tmp_path), seed=0)  # fmt: skip
    assert math.isinf(result.guarantee.epsilon) and "private records" in str(result.guarantee.reason)
    assert len(result.history) == 7  # the budget ended it, by its own count
    last = result.private.history[-1].decided
    assert last["delta_algorithm_4"] == pytest.approx(7.3377e-6, rel=1e-3)  # THEORY 3.5
    assert last["delta_exact_if_public"] == pytest.approx(1.1053e-8, rel=1e-3)
    head = (tmp_path / result.folder.name / "public" / "result.json").read_text()
    assert '"claim"' in head and "It does not hold" in head


def test_a_slow_client_is_foreseen_at_its_own_last_step(monkeypatch):
    """By hand: w_{K-1} - eta g(w_{K-2}) with each client's own K; with K = 1 there is nothing to foresee from: w_0."""
    made = job(method="adaptive-noise-paper", module=linear(), clients=federation((12,) * 24), local_steps=5, slow=0.9)
    watches, real = [], type(made.method)._watch

    def watch(self, *args):
        watches.append(real(self, *args))
        return watches[-1]

    monkeypatch.setattr(type(made.method), "_watch", watch)
    state = loop.begin(made)
    sent(made, state)
    ((foreseen, counts),) = watches
    assert min(counts) == 1 and len(set(counts)) > 2
    for i, count in enumerate(counts):
        weights, expected = state.params.clone(), state.params
        for step in range(1, count):
            moved = 0.1 * made.model.gradients.sums(weights, made.federation.data.fetch([i], CPU), None)[0] / 12
            weights = weights - moved
            if step == count - 1:
                expected = weights - moved
        assert torch.allclose(foreseen.weights[i], expected, atol=1e-6)
        if 1 < count < 5:  # not where the others have their last step
            assert not torch.allclose(foreseen.weights[i], weights, atol=1e-4)


def test_the_optimiser_forgets_what_it_only_considered():
    from sordino.core.optimizers import Optimizer

    g = torch.randn(2, 5, generator=torch.Generator().manual_seed(1))
    for name in ("sgd", "momentum", "adam", "rmsprop"):
        one, two = (Optimizer(Local(optimizer=name)) for _ in range(2))
        one(g), two(g)
        considered = one.would(2 * g)
        assert torch.equal(considered, two(2 * g))
        assert torch.equal(one.would(g), Optimizer.would(one, g)) and one.count == 1


def test_a_run_that_diverged_is_explained_all_the_same():
    told = {"sigma0": 26.0, "noise": None, "weights_quantiles": [None, 0.0, None]}
    told |= {"delta_algorithm_4": 1e-6, "delta_exact_if_public": 2e-7}
    (line,) = AdaptiveNoisePaper().explain([{"round": 3, "decided": told}])
    assert "noise of on average no finite number a weight" in line and "(a claim); exactly" in line and "2e-07" in line
