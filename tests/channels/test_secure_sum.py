"""The secure sum: the server sees one row; all clients together add the noise of one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import kstest, norm

from sordino.contract import pricing
from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy.accountants import gdp
from sordino.runs import loop
from support.methods import play, rows
from support.problems import federation, job, linear, mlp
from support.silent import silent_job

RNG = Stream.research(2)


def test_the_server_sees_the_sum_alone():
    made, open_ = (job(method="dp-sgd", module=linear(), channel=c) for c in ("secure-sum", "direct"))
    quiet = [replace(m, plan=replace(m.plan, noise_multiplier=1e-9)) for m in (made, open_)]
    hidden, shown = (play(m, rng=RNG) for m in quiet)
    assert len(hidden.seen) == 1 and len(shown.seen) == 8
    assert hidden.seen.ids is None and shown.seen.ids.tolist() == list(range(8))
    # clients send sums of gradients here, of 12 records each, and updates there
    rows = shown.seen["update"] * shown.seen.weight[:, None] * -12 / open_.plan.local.learning_rate
    assert torch.allclose(hidden.seen["gradient"][0], rows.sum(dim=0), atol=1e-4)
    assert torch.allclose(hidden.after.params, shown.after.params, atol=1e-6)


@pytest.mark.parametrize(("viewer", "honest"), [("server", 8), ("server+3", 5)])
@pytest.mark.parametrize("mode", ["research", "secure"])
@pytest.mark.parametrize(("method", "field"), [("dp-sgd", "gradient"), ("nbafl", "update")])
def test_the_shares_of_the_honest_add_up_to_the_whole_noise(method, field, viewer, honest, mode):
    wide, keys = 6000, {"method": method, "channel": "secure-sum", "viewer": viewer, "mode": mode}
    made = silent_job(wide, (4,) * 8, bias=False, **keys)
    z = made.plan.z
    left = rows(made, rng=RNG, field=field)[:honest].sum(dim=0)  # the others' shares are known to the viewer
    if mode == "secure":  # whole numbers, in steps of the lattice
        assert left.dtype == torch.int64
        noise = pricing.declared(made.method, made.plan)[0].mechanism
        left = noise.floats(left[None], 1.0, torch.float64)[0]
    assert kstest(left.double().numpy(), norm(scale=z).cdf).pvalue > 1e-3
    assert kstest(left.double().numpy(), norm(scale=1.1 * z).cdf).pvalue < 1e-3
    assert made.promise.epsilon <= 2.0 and made.promise.viewer == viewer


def test_the_noise_is_there_once_and_priced_once():
    hidden, open_ = (job(method="dp-sgd", channel=c, epsilon=1.0, rounds=16) for c in ("secure-sum", "direct"))
    assert hidden.plan.z == pytest.approx(open_.plan.z)
    shares = [m.method.noise(loop.begin(m), m.plan) for m in (hidden, open_)]
    assert shares[0] == pytest.approx(shares[1] / math.sqrt(8))


def test_another_client_knows_its_own_share():
    made = job(method="dp-sgd", channel="secure-sum", epsilon=1.0, rounds=4)
    inside = made.guarantee("client", 4, 4).epsilon
    mu = math.sqrt(4) / (made.plan.z * math.sqrt(7 / 8))
    assert inside == pytest.approx(gdp.epsilon_of_mu(mu, 1e-5), rel=1e-6) and inside > made.promise.epsilon


@pytest.mark.parametrize(
    "keys",
    [
        {"local_steps": 2},
        {"optimizer": "adam"},
        {"algorithm": "scaffold"},
        {"client_rate": 0.5},
        {"dropout": "0.1"},
        {"batch_size": 3},
        {"viewer": "server+8"},
        {"max_participations": 2},
        {"budgets": "0.5:0.5,2:0.5"},
        {"batch_rate": 0.05},
        {"batch_rate": 0.5, "batch_sampling": "fixed"},
    ],
    ids=str,
)
def test_what_would_not_hide_is_refused(keys):
    with pytest.raises(SpecError):
        job(method="dp-sgd", channel="secure-sum", **keys)


@pytest.mark.parametrize("method", ["dp-fedavg", "udp-fl", "adaptive-noise-paper"])
def test_methods_that_need_the_rows_say_so(method):
    with pytest.raises(SpecError, match="does not go with channel"):
        job(method=method, channel="secure-sum")


def test_unequal_clients_weigh_by_their_records():
    sizes = (4, 12, 20)
    made = job(
        method="dp-sgd", module=linear(), clients=federation(sizes), channel="secure-sum", clip=1e6, learning_rate=1.0
    )
    made = replace(made, plan=replace(made.plan, noise_multiplier=1e-12))
    state = loop.begin(made)
    after = play(made, state=state, rng=RNG).after
    batch = made.federation.data.fetch([0, 1, 2], torch.device("cpu"))
    whole = made.model.gradients.sums(state.params, replace(batch, sizes=(36,)), None)[0] / 36
    assert torch.allclose(after.params, state.params - whole, atol=1e-5)


def test_a_small_client_would_bring_less_than_its_share_of_the_noise():
    """It divides its noise by one record where it expects less: the sum would have too little (epsilon 55 for 1)."""
    sizes = [(200, 0)] + [(2, k) for k in range(1, 10)]
    clients = [federation((n,), seed)[0] for n, seed in sizes]
    with pytest.raises(SpecError, match=r"batch_rate >= 0\.5"):
        job(method="dp-sgd", clients=clients, channel="secure-sum", batch_rate=0.05)
    made = job(method="dp-sgd", clients=clients, channel="secure-sum", batch_rate=0.5)
    assert made.promise.epsilon <= 2.0


def test_the_sentence_says_what_the_server_sees():
    made = job(method="dp-sgd", channel="secure-sum")
    assert "the sum of all messages alone" in made.promise.sentence()
    assert "sees every message" not in made.promise.sentence() and made.promise.to_json()["channel"] == "secure-sum"
    assert "sees every message" in job(method="dp-sgd").promise.sentence()


def test_a_personal_algorithm_is_refused():
    with pytest.raises(SpecError, match="one step of plain SGD"):
        job(mlp(), method="dp-sgd", algorithm="fedrep", local_steps=3, channel="secure-sum")
