"""Distributed noise: what the server sees of whole numbers with shares of noise, and what it is charged."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.stats import kstest, norm

import sordino
from sordino.channels.secure_sum import SecureSum
from sordino.contract import pricing
from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.measures import beside
from sordino.measures.row_moments import RowMoments
from sordino.methods.distributed import Distributed
from sordino.privacy.events import Visible
from sordino.privacy.mechanisms.poisson_binomial import PoissonBinomialEvent
from sordino.privacy.mechanisms.skellam import SkellamEvent
from sordino.privacy.shared_integers import Coins
from sordino.runs import loop
from sordino.spec import legal, spec
from support.methods import play, price
from support.problems import federation, job, linear, mlp
from support.silent import silent_job

RNG = Stream.research(3)
MECHANISMS = ("skellam", "discrete-gaussian", "poisson-binomial")


def with_noise(made, z):
    return replace(made, plan=replace(made.plan, noise_multiplier=z))


# --- what the server learns


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_mean_update_is_that_of_plain_federated_averaging(mechanism):
    """With next to no noise, and a clip and a peak that nothing exceeds."""
    keys = {"module": linear(), "learning_rate": 0.5}
    made = with_noise(job(method="distributed", mechanism=mechanism, clip=8.0, peak=8.0, levels=4096, **keys), 1e-3)
    plain = job(method="none", **keys)
    ours, right = play(made), play(plain)
    start = loop.begin(plain).params
    close = 0.25 if mechanism == "poisson-binomial" else 0.05  # rounding; coins are noisier
    assert float((ours.after.params - right.after.params).norm()) < close * float((right.after.params - start).norm())


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("keys", [{}, {"allowed_dropouts": 1, "viewer": "server+1"}], ids=str)
def test_the_noise_in_the_model_is_the_noise_that_is_recorded(mechanism, keys):
    made = silent_job(2000, sizes=(3,) * 8, method="distributed", mechanism=mechanism, **keys)
    state = loop.begin(made)
    assert made.plan.split == (8 if not keys else 6)
    moved = (play(made, state=state).after.params - state.params).double() * made.plan.expected_answers(0)
    std = 8**0.5 * made.method.noise(state, made.plan)  # of the sum
    assert kstest(moved.numpy(), norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(moved.numpy(), norm(scale=1.3 * std).cdf).pvalue < 1e-3
    if mechanism != "poisson-binomial":  # one share more than is priced for each client that may be missing or collude
        assert std == pytest.approx(made.plan.z * (8 / made.plan.split) ** 0.5, rel=2e-3)


def test_integers_are_added_modulo_two_to_the_bits():
    made = job(method="distributed", bits=12, module=linear())
    assert made.plan.channel == SecureSum(12)
    sent = play(made).sent
    assert sent["update"].dtype == torch.int16 and int(sent["update"].abs().max()) <= 2**11
    few = job(method="distributed", bits=20, module=linear())
    wide = play(few).sent["update"]
    assert wide.dtype == torch.int32 and wide.shape == (8, 64)
    total = SecureSum(12).carry(sent, RNG)["update"]
    assert int(total.abs().max()) <= 2**11


def test_a_sum_that_wraps_costs_accuracy_and_no_privacy():
    made = job(method="distributed", module=linear())
    narrow = replace(made, plan=replace(made.plan, channel=SecureSum(6)))
    assert price(made.method, made.plan) == price(narrow.method, narrow.plan)
    assert not torch.equal(play(made).after.params, play(narrow).after.params)


def test_other_sums_of_the_run_keep_their_own_modulus():
    """Statistics with shared noise are whole numbers of up to 62 bits, whatever the rounds need."""
    made = job(method="distributed", mode="secure", module=linear())
    figure = RowMoments(unit="record", features=20, multiplier=1e-4)
    args = (made.federation, figure, made.model, replace(made.plan, unit="record"), loop.begin(made), made.rng)
    narrow = beside.released(*args)["rows"]
    right = beside.released(*args[:3], replace(args[3], channel=SecureSum()), *args[4:])["rows"]
    assert torch.allclose(narrow, right, atol=0.05)


# --- what it costs


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("viewer", ["server", "server+2", "public"])
def test_noise_is_calibrated_to_the_budget(mechanism, viewer):
    made = job(method="distributed", mechanism=mechanism, viewer=viewer, epsilon=1.5, rounds=4)
    assert 0.99 * 1.5 < made.promise.epsilon <= 1.5 and made.promise.unit == "client"
    for looks in ("server", "public", "client"):
        assert made.guarantee(looks, 4, 4).epsilon < 1.5 * 1.2
    assert made.plan.split == (6 if viewer == "server+2" else 8)


def test_what_is_charged_for_a_silenced_a_replaced_and_a_drawn_client():
    made = job(method="distributed", rounds=4)
    (server, *_) = price(made.method, made.plan)
    assert server.relation == "add/remove" and isinstance(server.event, SkellamEvent)
    assert "silenced: it takes part with its share of the noise" in made.promise.sentence()
    fixed = job(method="distributed", rounds=4, client_sampling="fixed", client_rate=0.5)
    (server, *_) = price(fixed.method, fixed.plan)
    limits = fixed.method.releases(fixed.plan)[0].mechanism.limits
    assert server.relation == "replace" and server.event.l2 == pytest.approx(2 * limits.l2)
    assert "replaced by other data" in fixed.promise.sentence()
    coins = job(method="distributed", rounds=4, mechanism="poisson-binomial")
    (server, *_) = price(coins.method, coins.plan)
    assert server.relation == "replace" and isinstance(server.event, PoissonBinomialEvent)


def test_sampling_helps_against_the_public_and_not_against_the_server():
    full = job(method="distributed", rounds=4)
    half = job(method="distributed", rounds=4, client_rate=0.5, min_cohort=3)
    assert half.plan.split == 3 and half.plan.z == pytest.approx(full.plan.z, rel=1e-2)
    assert half.guarantee("server", 4, 4).epsilon == pytest.approx(full.guarantee("server", 4, 4).epsilon, rel=1e-2)
    costs = [c for c in pricing.costs(half.method, half.plan) if c.viewer == "server"]
    assert {c.draw for c in costs} == {"inside"} and not isinstance(costs[0].event, Visible)
    assert half.guarantee("public", 4, 4).epsilon < 0.97 * half.guarantee("server", 4, 4).epsilon
    assert any("give min_cohort" in note for note in job(method="distributed", client_rate=0.5).notes)


def test_in_secure_mode_the_proof_covers_floating_point():
    for mechanism in MECHANISMS:
        made = job(method="distributed", mechanism=mechanism, mode="secure")
        assert made.promise.exact and made.doubt("public") is None
    assert not job(method="distributed").promise.exact


def test_the_notes_say_how_likely_a_sum_wraps():
    (note,) = job(method="distributed", bits=11).notes
    assert "modulo 2^11" in note and 0 < float(note.rsplit(" ", 1)[1]) < 1e-10
    (note,) = job(method="distributed", mechanism="poisson-binomial").notes
    assert "no sum of coins wraps" in note


# --- runs


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_run_whose_clients_drop_out(mechanism, tmp_path):
    result = sordino.train(
        mlp(), federation(), method="distributed", mechanism=mechanism, allowed_dropouts=2, dropout="0.2", rounds=8,
        epsilon=8.0, device="cpu", seed=1, out=str(tmp_path),
    )  # fmt: skip
    lost = [record.lost is not None for record in result.history]
    assert 0 < sum(lost) < 8 and result.guarantee.epsilon <= 8.0 and result.guarantee.viewer == "server"


def test_without_thresholds_every_client_adds_all_of_the_noise():
    made = job(method="distributed", dropout="0.5")
    assert made.plan.split == 1 and not made.plan.thresholds
    sent = play(made)  # whoever answers, nothing is lost
    assert 0 < len(sent.sent) < 8


# --- refusals


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"channel": "direct"}, "use secure-sum .a share of the noise protects nobody unless"),
        ({"channel": "shuffler"}, "does not go with channel = shuffler"),
        ({"late": 0.1}, "whole numbers, which have no weights"),
        ({"dropout": "0.1-0.2"}, "one dropout for all"),
        ({"mechanism": "gaussian"}, "mechanism must be one of"),
        ({"bits": 3}, "between 4 and 32"),
        ({"bits": 40}, "between 4 and 32"),
        ({"mechanism": "poisson-binomial", "bits": 8}, "use bits = 9, or fewer levels"),
        ({"clip": 0.0}, "clip must be positive"),
        ({"unit": "record"}, "does not go with"),
        ({"algorithm": "scaffold"}, "does not go with scaffold"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(keys, said):
    with pytest.raises(SpecError, match=said):
        job(method="distributed", **keys)


def test_bits_that_hold_no_sum_are_refused_before_the_run():
    with pytest.raises(sordino.SordinoError, match=r"bits|noise multiplier"):
        job(method="distributed", bits=4, epsilon=0.1)


def test_the_channel_of_a_method_is_the_first_that_it_names():
    assert spec.from_dict({"method": "distributed"}).channel == "secure-sum"
    assert spec.from_dict({"method": "nbafl"}).channel == spec.from_dict({}).channel == "direct"
    assert legal.verdict("distributed", "fedavg").allowed and not legal.verdict("distributed", "ditto").allowed


def test_options_are_what_is_declared():
    made = job(method="distributed", mechanism="poisson-binomial", levels=4, peak=1.5, clip=0.5)
    coins = made.method.releases(made.plan)[0].mechanism
    assert isinstance(coins, Coins) and coins.levels == 4
    assert coins.peak == pytest.approx(1.5 * 0.5 / coins.dim**0.5) and made.method == Distributed(
        0.5, "poisson-binomial", 20, 4, 1.5
    )
