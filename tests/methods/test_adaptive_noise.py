"""Adaptive noise, sound: scales follow what was released, never the data; clip, noise and price are those of DP-SGD."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from sordino.contract.outlets import along
from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.methods.adaptive_noise_client import AdaptiveNoiseClient
from sordino.methods.none import NoPrivacy
from sordino.privacy.clip import Bounded, clip_rows
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import Use
from sordino.runs import loop, run
from support.methods import clients_stream, federation_of, let_out, merged, play, rows
from support.problems import FEATURES, federation, job, linear, mlp

RNG = Stream.research(5)
METHODS = {"record": "adaptive-noise", "client": "adaptive-noise-client"}  # by what they protect


def known(made, seed=0, spread=2.0):
    """A state in which some components are known to be larger than others."""
    state = loop.begin(made)
    draw = torch.Generator().manual_seed(seed)
    moment = torch.exp(spread * torch.randn(state.params.numel(), generator=draw))
    return replace(state, round=9, method=replace(state.method, moment=moment, noise_part=0.1 * moment))


def with_z(made, z):
    return replace(made, plan=replace(made.plan, noise_multiplier=z))


@pytest.mark.parametrize(("unit", "other"), [("record", "dp-sgd"), ("client", "nbafl")])
def test_the_price_is_that_of_the_gaussian_mechanism(unit, other):
    made = job(method=METHODS[unit], epsilon=1.0, rounds=16)
    assert made.promise.unit == unit and made.promise.viewer == "server"
    assert 0.995 < made.promise.epsilon <= 1.0
    assert made.plan.z == pytest.approx(4 * 3.73063163482, rel=1e-4)  # sqrt(T) sigma(1, 1e-5): THEORY, golden values
    assert made.plan.z == pytest.approx(job(method=other, epsilon=1.0, rounds=16).plan.z)


class Watched:
    """Gradients that note the thresholds they are asked for; blind ones are the same whatever the data."""

    path, reason = "", ""

    def __init__(self, real, blind):
        self.real, self.blind, self.asked = real, blind, []

    def sums(self, weights, batch, clip, *, scale=None, **keys):
        self.asked.append((clip, scale))
        if self.blind:
            return 500.0 * weights.expand(len(batch.sizes), -1)  # far beyond any clip
        return self.real.sums(weights, batch, clip, scale=scale, **keys)


def watched(made, state, blind):
    gradients = Watched(made.model.gradients, blind)
    model = replace(made.model, gradients=gradients)
    return rows(made, state=state, federation=federation_of(made, model=model, rng=RNG)), gradients.asked


def with_other_data(unit="record", **keys):
    """Two jobs that differ in the private data alone."""
    keys = {"method": METHODS[unit], "module": linear()} | keys
    return job(**keys), job(clients=[(-9 * x, (y + 1) % 3) for x, y in federation()], **keys)


def noise_of(made, state):
    """The noise of every step, drawn again; on the way, that thresholds and noise are all that is done to the sums."""
    uses, scale, drawn = let_out(made, state=state, rng=RNG), made.method.scales.of(state), []
    for number, use in enumerate(uses):
        assert use.x.bound == use.release.bound == 1.0
        stream = along(clients_stream(RNG, state.round).rows(use.ids), use.release.key, number)
        drawn.append(Gaussian(made.plan.z).apply(Bounded(torch.zeros_like(use.x.value), 1.0), stream, Use()))
        assert torch.equal(use.output, use.x.value + drawn[-1])
    sent = rows(made, state=state, rng=RNG)
    if isinstance(made.method, AdaptiveNoiseClient):  # what is clipped is the whole update
        plain = federation_of(replace(made, method=NoPrivacy()), rng=RNG).ask("train", state, range(8))["update"]
        assert torch.equal(uses[0].x.value, clip_rows(plain / scale, 1.0).value)
        assert torch.equal(sent, scale * uses[0].output)
    else:
        assert torch.allclose(sent, -0.1 / 12 * sum(scale * use.output for use in uses), atol=1e-5)
    return torch.stack(drawn)


@pytest.mark.parametrize("unit", ["record", "client"])
def test_scales_and_noise_are_the_same_bit_for_bit_whatever_the_data(unit):
    """The transcript is frozen, the private data change: thresholds and noise must not, not in a single bit."""
    made, other = with_other_data(unit, local_steps=3)
    state = known(made)
    assert torch.equal(made.method.scales.of(state), other.method.scales.of(state))
    assert made.method.decided(state, made.plan) == other.method.decided(state, other.plan)
    noise = [noise_of(m, state) for m in (made, other)]
    assert torch.equal(*noise) and float(noise[0].std()) == pytest.approx(made.plan.z, rel=0.1)
    a, b = (watched(m, state, blind=True)[0] for m in (made, other))  # clip and noise of what the data do not touch
    assert torch.equal(a, b) and a.isfinite().all() and bool(a.any())
    (shown, mine), (others, theirs) = (watched(m, state, blind=False) for m in (made, other))
    assert not (shown == others).all(dim=1).any()  # the data do show
    assert len(mine) == len(theirs) == 3
    for (clip, scale), (same, threshold) in zip(mine, theirs, strict=True):
        assert clip == same
        if unit == "record":  # a client's update is clipped once, as it leaves
            assert clip == 1.0 and torch.equal(scale, threshold) and torch.equal(scale, made.method.scales.of(state))


def test_what_was_released_is_all_that_the_scales_follow():
    """The rows of one federation, handed to the server of another one with other records: the same scales."""
    made, other = with_other_data(rounds=8)
    state, sent, scales = loop.begin(made), [], []
    for r in range(5):
        done = play(made, state=state, rng=RNG.at(r))
        sent.append(done.sent)
        state = done.after
        scales.append(made.method.scales.of(state))
    replayed, own = loop.begin(other), loop.begin(other)
    for r, (message, found) in enumerate(zip(sent, scales, strict=True)):
        replayed = replace(merged(other.method, other.plan, replayed, message), round=r + 1)
        assert torch.equal(other.method.scales.of(replayed), found)
        own = play(other, state=own, rng=RNG.at(r)).after
    assert float(scales[-1].std()) > 0
    assert not torch.equal(other.method.scales.of(own), scales[-1])  # from its own rows they are others


def test_while_nothing_is_known_it_is_dp_sgd():
    made, plain = (with_z(job(method=m, module=mlp(), clip=0.3), 0.5) for m in ("adaptive-noise", "dp-sgd"))
    assert torch.allclose(rows(made), rows(plain), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("unit", ["record", "client"])
def test_whatever_the_data_one_unit_moves_the_scaled_sum_by_one_at_most(unit):
    clients = [(x * 10.0**k, y) for k, (x, y) in enumerate(federation((1, 1, 1, 1)))]
    made = job(method=METHODS[unit], module=linear(), clients=clients, learning_rate=1.0, clip=0.2)
    state = known(made)
    sent = rows(with_z(made, 1e-12), state=state)  # one record a client: a row is its scaled, clipped gradient
    norms = (sent / made.method.scales.of(state)).double().norm(dim=1)
    assert float(norms.max()) <= 1 + 1e-6 and float(norms.max()) > 0.99


@pytest.mark.parametrize("unit", ["record", "client"])
def test_the_noise_of_a_component_is_z_times_its_scale(unit):
    zeros = [(torch.zeros(4, FEATURES), torch.zeros(4)) for _ in range(500)]
    layer = torch.nn.Linear(FEATURES, 1)
    torch.nn.init.zeros_(layer.weight), torch.nn.init.zeros_(layer.bias)
    made = job(
        method=METHODS[unit],
        module=layer,
        clients=zeros,
        loss="squared_error",
        learning_rate=1.0,
        clip=3.0,
    )
    state, z = known(made), 0.7
    sent = rows(with_z(made, z), state=state)
    batch = 4 if unit == "record" else 1
    each = (sent * batch / made.method.scales.of(state)).double().flatten().numpy()
    assert kstest(each, norm(scale=z).cdf).pvalue > 1e-3
    assert kstest(each, norm(scale=1.1 * z).cdf).pvalue < 1e-3


def test_the_allocation_is_the_best_there_is():
    made = job(method="adaptive-noise", module=linear(), floor=1e-3, clip=2.0)
    state = known(made, spread=2.0)
    s = made.method.scales.of(state).double()
    v = (state.method.moment - state.method.noise_part).double().sqrt()
    u = v / v.norm()
    assert float((u * 2.0 / s).norm()) == pytest.approx(1.0, abs=1e-5)  # |u C / s| = 1: a typical record just fits
    best = float((s * s).sum())
    assert best == pytest.approx(4.0 * float(u.sum()) ** 2, rel=1e-5)
    rng = np.random.default_rng(0)
    for _ in range(50):  # any other scales in which it just fits have more noise in total
        other = s.numpy() * np.exp(0.3 * rng.standard_normal(len(s)))
        other *= np.linalg.norm(u.numpy() * 2.0 / other)
        assert (other**2).sum() > best
    assert made.method.noise(state, made.plan) < job(method="dp-sgd", module=linear(), clip=2.0).method.noise(
        state, made.plan
    )


def test_the_variance_of_the_noise_is_taken_off():
    """On data without any gradient the history is noise, and its excess vanishes as rounds are averaged."""
    zeros = [(torch.zeros(12, FEATURES), torch.zeros(12)) for _ in range(8)]
    layer = torch.nn.Linear(FEATURES, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    made = job(method="adaptive-noise", module=layer, clients=zeros, loss="squared_error", memory=0.995, rounds=400)
    state = loop.begin(made)
    for r in range(300):
        still = replace(state, params=torch.zeros_like(state.params))
        state = play(made, state=still, rng=RNG.at(r)).after
    ratio = float(state.method.moment.mean() / state.method.noise_part.mean())
    assert ratio == pytest.approx(1.0, abs=4 * math.sqrt(2 / (FEATURES * 200)))


def test_client_level_goes_through_the_direct_channel_only():
    with pytest.raises(SpecError, match="does not go with channel"):
        job(method="adaptive-noise-client", channel="secure-sum")
    with pytest.raises(SpecError, match="use adaptive-noise-client"):
        job(method="adaptive-noise", unit="client")


def test_it_explains_itself():
    made = job(method="adaptive-noise", module=linear())
    head, text = made.method.explain([{"round": 3, "decided": made.method.decided(known(made), made.plan)}])
    assert "released updates" in head and text == "Round 3: 100.0 % for every parameter."


def test_it_records_what_a_round_used_not_what_the_next_one_will(tmp_path):
    """Three warm rounds are plain DP-SGD's; the noise and the words of a round are of that round."""
    made = job(method="adaptive-noise", module=linear(), rounds=5, out=str(tmp_path))
    history = run.execute(made, own_model=True).private.history
    for record in history:
        assert record.decided["scale_rms"] == pytest.approx(record.noise / history[0].noise, rel=1e-5)
    assert history[2].decided["scale_rms"] == pytest.approx(1.0) and history[3].decided["scale_rms"] < 0.99
    told = made.method.explain([{"round": r.round, "decided": r.decided} for r in history])
    assert told[3] == "Round 3: 100.0 % for every parameter." and "a twentieth" in told[4]
