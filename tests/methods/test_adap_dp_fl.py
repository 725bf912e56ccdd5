"""Clip and noise that follow the transcript, and a filter that never lets them spend more than there is."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.stats import chi2, kstest, norm
from torch import nn

import sordino
from sordino.contract.method import started
from sordino.core import faults
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.core.types import State
from sordino.core.vector import Layout
from sordino.federations.simulator import SPENT
from sordino.methods.adap_dp_fl import AdapDpFl
from sordino.privacy.accountants import gdp
from sordino.privacy.events import GaussianEvent
from sordino.runs import loop, run
from support.killed import Killed
from support.methods import federation_of, play, price, whole
from support.problems import federation, job, linear, plan
from support.silent import silent_job

RNG, DIM = Stream.research(36), 40


def silent(**keys):
    return silent_job(4000, bias=False, method="adap-dp-fl", learning_rate=1.0, **keys)


def sent(made, state, plan=None, clients=None):
    return federation_of(made, plan, clients, rng=RNG).ask("train", state, range(made.plan.population))


def told(square, loss, clients=8, dim=DIM):
    """Messages that moved nothing and tell this norm and this loss."""
    each = {"square": torch.full((clients, 1), float(square)), "loss": torch.full((clients, 1), float(loss))}
    return Message({"update": torch.zeros(clients, dim)} | each, torch.ones(clients), np.arange(clients))


def first(method, made):
    return started(method, State(torch.zeros(DIM)), Layout(()), made)


def follow(method, made, heard):
    """The states after rounds in which these (square, loss) were heard."""
    states = [first(method, made)]
    for t, (square, loss) in enumerate(heard):
        states.append(replace(method.merge(states[-1], told(square, loss), made), round=t + 1))
    return states


def test_the_noise_is_that_of_the_state_times_the_clip_of_the_state():
    made = silent(local_steps=2)
    state = loop.begin(made)
    state = replace(state, method=replace(state.method, clip=0.3, noise=2 * state.method.noise))
    z = made.method.z_now(state, made.plan)
    assert z == pytest.approx(2 * loop.begin(made).method.noise)
    noise = sent(made, state)["update"].flatten().numpy()
    std = math.sqrt(2) * z * 0.3 / 10
    assert made.method.noise(state, made.plan) == pytest.approx(std)
    assert kstest(noise, norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=1.1 * std).cdf).pvalue < 1e-3


def test_the_loss_has_its_noise_and_its_cap():
    """On silent data the loss is zero; what is told is noise of loss_noise z loss_bound / n."""
    zeros = [(torch.zeros(10, 2), torch.zeros(10))] * 1500
    layer = nn.Linear(2, 1)
    nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
    made = job(layer, zeros, "squared_error", method="adap-dp-fl", loss_bound=0.7, loss_noise=2.0)
    state = loop.begin(made)
    losses = sent(made, state)["loss"][:, 0].double()
    std = 2.0 * made.method.z_now(state, made.plan) * 0.7 / 10
    assert kstest(losses.numpy(), norm(scale=std).cdf).pvalue > 1e-3
    squares = float((losses / std).square().sum())
    assert 1e-3 < chi2(1500).cdf(squares) < 1 - 1e-3
    assert chi2(1500).cdf(squares / 1.1**2) < 1e-3 and chi2(1500).cdf(squares / 0.9**2) > 1 - 1e-3


def test_one_record_moves_the_told_loss_by_at_most_its_cap():
    wild = [(x * 10.0**k, y) for k, (x, y) in enumerate(federation((6,) * 4))]
    made = job(linear(), wild, method="adap-dp-fl", loss_bound=0.4)
    plan = replace(made.plan, noise_multiplier=1e-9)
    state = started(made.method, loop.begin(made), made.model.layout, plan)
    sums = 6 * sent(made, state, plan)["loss"]
    assert bool(torch.isfinite(sums).all()) and bool((sums <= 6 * 0.4 + 1e-4).all()) and float(sums.max()) > 1.0


def test_the_told_norm_is_that_of_the_mean_gradient_without_the_noise():
    """4,000 coordinates of noise, one of signal: taking the noise off leaves the signal, on average over clients."""
    made = silent()
    state = loop.begin(made)
    message = sent(made, state)
    square, weight = message["square"][:, 0].double(), message.weight.double()
    std = made.method.z_now(state, made.plan) / 10
    assert torch.allclose(weight, torch.ones(4, dtype=torch.float64))
    assert float(square.abs().max()) < 5 * std**2 * math.sqrt(2 * 4000)  # five deviations around zero
    assert float((message["update"].double().square().sum(1) - square).min()) == pytest.approx(4000 * std**2, rel=1e-3)


def test_the_clip_follows_the_norm_within_its_reach():
    method, made = AdapDpFl(clip=1.0, clip_factor=2.0, clip_reach=4.0), plan(rounds=9)
    clips = [s.method.clip for s in follow(method, made, [(0.09, 1), (1e-9, 1), (-0.5, 1), (100.0, 1)])]
    assert clips == pytest.approx([1.0, 0.6, 0.25, 0.25, 4.0])
    state = follow(method, made, [(0.09, 1)])[-1]
    assert method.releases(made, 1, state)[0].bound == pytest.approx(0.6)


def test_the_noise_is_lowered_after_enough_falls_in_a_row():
    method, made = AdapDpFl(patience=2, noise_step=0.5), plan(rounds=9)
    losses = [5, 4, 3, 3.5, 3.4, 3.3, 3.2]  # falls: -, 1, 2*, 0, 1, 2*, 3*
    noise = [s.method.noise for s in follow(method, made, [(1.0, x) for x in losses])]
    assert [b / a for a, b in pairwise(noise)] == pytest.approx([1, 1, 0.5, 1, 1, 0.5, 0.5])


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("start", [0.5, 1.0])
def test_without_lowering_the_run_uses_its_share_by_hand(steps, start):
    method, made = AdapDpFl(start=start, loss_noise=2.0), plan(rounds=5, noise_multiplier=3.0)
    made = replace(made, local=replace(made.local, steps=steps))
    states = follow(method, made, [(1.0, 1.0)] * 5)
    z = states[0].method.noise
    assert z == pytest.approx(3.0 * math.sqrt(5 * (steps + 0.25) / start))
    spent = float(states[-1].method.paid.sum())
    assert spent == pytest.approx(5 * (steps + 0.25) / z**2) == pytest.approx(start / 9)
    assert method.decided(states[-1], made)["budget_used"] == pytest.approx(start)
    assert not any(method.over(s, made) for s in states[:-1])


@pytest.mark.parametrize("participations", [None, 3])
@pytest.mark.parametrize("step", [0.5, 0.8, 0.95])
def test_the_filter_never_spends_more_than_there_is(participations, step):
    """The loss always falls, so the noise does: whatever a client was in, the squares stay below 1 / z^2."""
    method = AdapDpFl(patience=1, noise_step=step)
    made = plan(rounds=20, noise_multiplier=2.0, max_participations=participations)
    state, paid = first(method, made), []
    for t in range(20):
        if method.over(state, made):
            break
        paid.append(method.worth(made) / method.z_now(state, made) ** 2)
        (cost,) = price(method, made, t, state)
        assert gdp.mu_of(cost.event) ** 2 == pytest.approx(paid[-1])  # what the ledger writes down
        state = replace(method.merge(state, told(1.0, 10.0 - t), made), round=t + 1)
    dearest = sum(sorted(paid)[-(participations or 20) :])
    assert dearest <= 0.25 and dearest > 0.25 * (0.8 if step > 0.5 else 0.5)
    assert len(paid) < 20  # it ended early


def test_rounds_that_a_crash_swallowed_count_at_their_dearest():
    """Noise might have been lowered in each of them; the state of the checkpoint cannot know."""
    method, made = AdapDpFl(patience=1, noise_step=0.9), plan(rounds=20, noise_multiplier=2.0)
    ran = follow(method, made, [(1.0, 10.0 - t) for t in range(9)])
    truth = float(ran[9].method.paid.sum())
    skipped = replace(ran[5], round=9)  # rounds 5 to 8 were paid for, then the process died
    assert float(method.paid(skipped, made).sum()) >= truth > float(ran[5].method.paid.sum())
    assert method.left(skipped, made) <= method.left(ran[9], made)
    after = method.merge(skipped, told(1.0, 1.0), made)
    assert int((after.method.paid > 0).sum()) == 10


def test_the_run_is_one_gaussian_and_the_first_round_its_part():
    made = job(method="adap-dp-fl", rounds=5, local_steps=2, start=1.0)
    (cost,), (one,) = whole(made.method, made.plan), price(made.method, made.plan)
    assert cost.event == GaussianEvent(made.plan.z) and (cost.unit, cost.relation) == ("record", "add/remove")
    assert 5 * gdp.mu_of(one.event) ** 2 == pytest.approx(made.plan.z**-2)


def test_the_outlets_meter_what_the_filter_counts():
    made = job(method="adap-dp-fl", rounds=6, patience=1, noise_step=0.8, local_steps=2)
    federation, state = federation_of(made), None
    for _ in range(4):
        state = play(made, state=state, federation=federation).after
    metered = federation.store.read(SPENT, range(8), torch.zeros(8, dtype=torch.float64))
    used = made.method.decided(state, made.plan)["budget_used"]
    assert torch.allclose(metered, torch.full_like(metered, used), rtol=1e-9) and 0 < used < 1


@pytest.mark.parametrize("mode", ["research", "secure"])
def test_a_run_that_died_never_spends_more_than_there_is(mode, tmp_path):
    """Nothing was saved but the beginning, five rounds had been paid for: in secure mode they are lost, and counted."""
    seen = 0

    def hook(name):
        nonlocal seen
        seen += name == "paid"
        if seen == 6:
            raise Killed

    keys = {"method": "adap-dp-fl", "rounds": 12, "patience": 1, "noise_step": 0.9, "mode": mode, "device": "cpu"}
    faults.set_hook(hook)
    with pytest.raises(Killed):
        sordino.train(linear(), federation(), checkpoint_seconds=1e6, out=str(tmp_path), name="it", **keys)
    faults.set_hook(None)
    result = sordino.train(linear(), federation(), resume=tmp_path / "it")
    used = result.private.history[-1].decided["budget_used"]
    assert used <= 1 and result.guarantee.epsilon <= 2.0
    if mode == "secure":
        method, made = AdapDpFl(patience=1, noise_step=0.9), plan(rounds=12)
        noise = first(method, made).method.noise
        lost = sum(method.worth(made) / (noise * 0.9**n) ** 2 for n in range(6))
        assert result.history[0].round == 7 and used > lost / made.z**-2


def test_the_choices_know_the_data_through_the_rows_only():
    """Two federations, the same transcript: clip, noise and end of the run are the same, bit for bit."""
    one, other = (job(method="adap-dp-fl", clients=federation(seed=s)) for s in (1, 2))
    state, heard = loop.begin(one), told(0.3, 0.5, dim=one.model.layout.dim)
    a, b = (m.method.merge(state, heard, m.plan).method for m in (one, other))
    assert (a.clip, a.noise, a.loss, a.falls) == (b.clip, b.noise, b.loss, b.falls) and torch.equal(a.paid, b.paid)
    assert a.clip != state.method.clip
    assert not torch.equal(sent(one, state)["update"], sent(other, state)["update"])


def test_public_records_at_the_server_save_the_release_of_the_loss():
    made = job(method="adap-dp-fl", clients=federation((30,) * 4), server_data=0.2)
    without = replace(made.plan, public=None, server_data=False)
    assert made.method.worth(made.plan) == 1.0 < made.method.worth(without)
    assert [r.name for r in made.method.releases(made.plan)] == ["gradient"]
    assert [r.name for r in made.method.releases(without)] == ["gradient", "loss"]
    state, message = loop.begin(made), sent(made, loop.begin(made), replace(made.plan, public=None))
    after = made.method.merge(state, message, made.plan)
    assert set(message.fields) == {"update", "square"}  # clients do not have the server's records
    batch = made.plan.public.batch
    by_hand = nn.functional.cross_entropy(loop.trained(made, state.params)(batch.x), batch.y).detach()
    assert after.method.loss == pytest.approx(float(by_hand), rel=1e-5)


def test_a_round_in_which_nobody_came_is_paid_and_changes_nothing():
    method, made = AdapDpFl(), plan()
    state = first(method, made)
    before, after = state.method, method.merge(state, told(0.0, 0.0, clients=0), made).method
    assert float(after.paid[0]) > 0
    assert (after.clip, after.noise, after.loss, after.falls) == (before.clip, before.noise, before.loss, before.falls)


def test_a_whole_run_keeps_its_promise_and_explains_itself(tmp_path):
    made = job(method="adap-dp-fl", rounds=8, epsilon=3.0, noise_step=0.7, patience=1, out=str(tmp_path))
    result = run.execute(made, own_model=True)
    used = [r.decided["budget_used"] for r in result.private.history]
    assert used[-1] <= 1 and result.guarantee.epsilon <= 3.0
    said = made.method.explain([{"round": r.round, "decided": r.decided} for r in result.private.history])
    assert len(said) == 3 and "the loss has fallen 1 or more times in a row" in said[0]
    assert "clipped at 1 in round 1" in said[1]  # the first clip is the one that was asked for


def test_a_record_has_what_its_round_used(tmp_path):
    """Clip and noise of a round, not those that were made of it for the next one."""
    made = job(method="adap-dp-fl", rounds=5, epsilon=3.0, noise_step=0.7, patience=1, clip=0.8, out=str(tmp_path))
    result = run.execute(made, own_model=True)
    history, owners = result.history, result.private.history
    assert history[0].clip == owners[0].decided["clip"] == pytest.approx(0.8)
    batch = made.plan.local.expected_batch(round(made.plan.mean_client))
    for record, own in zip(history, owners, strict=True):
        used = made.plan.local.learning_rate * own.decided["noise"] * own.decided["clip"] / batch
        assert record.noise == pytest.approx(used) and record.clip == pytest.approx(own.decided["clip"])
    for before, after in pairwise(owners):
        assert after.decided["clip"] == pytest.approx(before.decided["next_clip"])
    assert len({r.clip for r in history}) > 1  # else there was nothing to be off by


def test_batches_that_are_drawn_are_refused():
    with pytest.raises(SpecError, match="use batch_rate = 1"):
        job(method="adap-dp-fl", batch_rate=0.5)


@pytest.mark.parametrize(
    "bad", [{"clip_factor": 0}, {"clip_reach": 0.5}, {"noise_step": 1.0}, {"patience": 0}, {"start": 1.5}]
)
def test_options_are_checked(bad):
    with pytest.raises(SpecError):
        AdapDpFl(**bad)
