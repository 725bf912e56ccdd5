"""Clip and noise that follow the transcript, and a filter that never lets them spend more than there is."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from scipy.stats import chi2, kstest, norm
from torch import nn

import sordino
from problems import federation, job, linear, plan
from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.core.types import State
from sordino.engines.simulator import Simulator
from sordino.methods.adap_dp_fl import AdapDpFl
from sordino.privacy.accountants import gdp
from sordino.runs import faults, loop, run

CPU, RNG, DIM = torch.device("cpu"), Stream.research(36), 40


def silent(**keys):
    layer = nn.Linear(4000, 1, bias=False)
    nn.init.zeros_(layer.weight)
    zeros = [(torch.zeros(10, 4000), torch.zeros(10))] * 4
    return job(layer, zeros, "squared_error", method="adap-dp-fl", learning_rate=1.0, **keys)


def sent(made, state, who=None):
    ids = range(made.clients.count) if who is None else who
    return Simulator(CPU).clients(made.method, state, ids, made.clients, made.model, made.plan, RNG.at(state.round))


def told(square, loss, clients=8, dim=DIM):
    """Rows that moved nothing and tell this norm and this loss."""
    return torch.cat([torch.zeros(clients, dim), torch.tensor([[square, loss, 1.0]]).expand(clients, -1)], dim=1)


def follow(method, made, heard):
    """The states after rounds in which these (square, loss) were heard."""
    states = [method.begin(State(torch.zeros(DIM)), None, made)]
    for t, (square, loss) in enumerate(heard):
        states.append(replace(method.merge(states[-1], told(square, loss), made, RNG), round=t + 1))
    return states


def test_the_noise_is_that_of_the_state_times_the_clip_of_the_state():
    made = silent(local_steps=2)
    state = loop.begin(made)
    state = replace(state, extra=state.extra | {"clip": torch.tensor(0.3), "noise": 2 * state.extra["noise"]})
    z = made.method.z_now(state, made.plan)
    assert z == pytest.approx(2 * float(loop.begin(made).extra["noise"]))
    noise = sent(made, state)[:, :-3].flatten().numpy()
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
    losses = sent(made, state)[:, -2].double()
    std = 2.0 * made.method.z_now(state, made.plan) * 0.7 / 10
    assert kstest(losses.numpy(), norm(scale=std).cdf).pvalue > 1e-3
    squares = float((losses / std).square().sum())
    assert 1e-3 < chi2(1500).cdf(squares) < 1 - 1e-3
    assert chi2(1500).cdf(squares / 1.1**2) < 1e-3 and chi2(1500).cdf(squares / 0.9**2) > 1 - 1e-3


def test_one_record_moves_the_told_loss_by_at_most_its_cap():
    wild = [(x * 10.0**k, y) for k, (x, y) in enumerate(federation((6,) * 4))]
    made = job(linear(), wild, method="adap-dp-fl", loss_bound=0.4)
    plan, data = replace(made.plan, noise_multiplier=1e-9), made.clients.fetch(range(4), CPU)
    state = made.method.begin(loop.begin(made), made.model.layout, plan)
    sums = 6 * made.method._loss(state, data, made.model, plan, RNG.rows(range(4)))
    assert bool(torch.isfinite(sums).all()) and bool((sums <= 6 * 0.4 + 1e-4).all()) and float(sums.max()) > 1.0


def test_the_told_norm_is_that_of_the_mean_gradient_without_the_noise():
    """4,000 coordinates of noise, one of signal: taking the noise off leaves the signal, on average over clients."""
    made = silent()
    state = loop.begin(made)
    rows = sent(made, state)
    square, weight = rows[:, -3].double(), rows[:, -1].double()
    std = made.method.z_now(state, made.plan) / 10
    assert torch.allclose(weight, torch.ones(4, dtype=torch.float64))
    assert float(square.abs().max()) < 5 * std**2 * math.sqrt(2 * 4000)  # five deviations around zero
    assert float((rows[:, :-3].double().square().sum(1) - square).min()) == pytest.approx(4000 * std**2, rel=1e-3)


def test_the_clip_follows_the_norm_within_its_reach():
    method, made = AdapDpFl(clip=1.0, clip_factor=2.0, clip_reach=4.0), plan(rounds=9)
    clips = [float(s.extra["clip"]) for s in follow(method, made, [(0.09, 1), (1e-9, 1), (-0.5, 1), (100.0, 1)])]
    assert clips == pytest.approx([1.0, 0.6, 0.25, 0.25, 4.0])
    state = follow(method, made, [(0.09, 1)])[-1]
    assert method.bound(state, made) == pytest.approx(0.6)


def test_the_noise_is_lowered_after_enough_falls_in_a_row():
    method, made = AdapDpFl(patience=2, noise_step=0.5), plan(rounds=9)
    losses = [5, 4, 3, 3.5, 3.4, 3.3, 3.2]  # falls: -, 1, 2*, 0, 1, 2*, 3*
    noise = [float(s.extra["noise"]) for s in follow(method, made, [(1.0, x) for x in losses])]
    assert [b / a for a, b in pairwise(noise)] == pytest.approx([1, 1, 0.5, 1, 1, 0.5, 0.5])


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("start", [0.5, 1.0])
def test_without_lowering_the_run_uses_its_share_by_hand(steps, start):
    method, made = AdapDpFl(start=start, loss_noise=2.0), plan(rounds=5, noise_multiplier=3.0)
    made = replace(made, local=replace(made.local, steps=steps))
    states = follow(method, made, [(1.0, 1.0)] * 5)
    z = float(states[0].extra["noise"])
    assert z == pytest.approx(3.0 * math.sqrt(5 * (steps + 0.25) / start))
    spent = float(states[-1].extra["paid"].sum())
    assert spent == pytest.approx(5 * (steps + 0.25) / z**2) == pytest.approx(start / 9)
    assert method.decided(states[-1], made)["budget_used"] == pytest.approx(start)
    assert not any(method.over(s, made) for s in states[:-1])


@pytest.mark.parametrize("participations", [None, 3])
@pytest.mark.parametrize("step", [0.5, 0.8, 0.95])
def test_the_filter_never_spends_more_than_there_is(participations, step):
    """The loss always falls, so the noise does: whatever a client was in, the squares stay below 1 / z^2."""
    method = AdapDpFl(patience=1, noise_step=step)
    made = plan(rounds=20, noise_multiplier=2.0, max_participations=participations)
    state, paid = method.begin(State(torch.zeros(DIM)), None, made), []
    for t in range(20):
        if method.over(state, made):
            break
        paid.append(method.releases(made) / method.z_now(state, made) ** 2)
        (cost,) = method.now_costs(state, made)
        assert gdp.mu_of(cost.event) ** 2 == pytest.approx(paid[-1])  # what the ledger writes down
        state = replace(method.merge(state, told(1.0, 10.0 - t), made, RNG), round=t + 1)
    dearest = sum(sorted(paid)[-(participations or 20) :])
    assert dearest <= 0.25 and dearest > 0.25 * (0.8 if step > 0.5 else 0.5)
    assert len(paid) < 20  # it ended early


def test_rounds_that_a_crash_swallowed_count_at_their_dearest():
    """Noise might have been lowered in each of them; the state of the checkpoint cannot know."""
    method, made = AdapDpFl(patience=1, noise_step=0.9), plan(rounds=20, noise_multiplier=2.0)
    ran = follow(method, made, [(1.0, 10.0 - t) for t in range(9)])
    truth = float(ran[9].extra["paid"].sum())
    skipped = replace(ran[5], round=9)  # rounds 5 to 8 were paid for, then the process died
    assert float(method.paid(skipped, made).sum()) >= truth > float(ran[5].extra["paid"].sum())
    assert method.left(skipped, made) <= method.left(ran[9], made)
    after = method.merge(skipped, told(1.0, 1.0), made, RNG)
    assert int((after.extra["paid"] > 0).sum()) == 10


class Killed(BaseException):
    """Nothing in the run may catch it."""


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
        first = float(method.begin(State(torch.zeros(1)), None, made).extra["noise"])
        lost = sum(method.releases(made) / (first * 0.9**n) ** 2 for n in range(6))
        assert result.history[0].round == 7 and used > lost / made.z**-2


def test_the_choices_know_the_data_through_the_rows_only():
    """Two federations, the same transcript: clip, noise and end of the run are the same, bit for bit."""
    one, other = (job(method="adap-dp-fl", clients=federation(seed=s)) for s in (1, 2))
    state, rows = loop.begin(one), told(0.3, 0.5, dim=one.model.layout.dim)
    after = [m.method.merge(state, rows, m.plan, RNG) for m in (one, other)]
    assert all(torch.equal(after[0].extra[k], after[1].extra[k]) for k in ("clip", "noise", "paid", "loss", "falls"))
    assert not torch.equal(sent(one, state), sent(other, state))


def test_public_records_at_the_server_save_the_release_of_the_loss():
    made = job(method="adap-dp-fl", clients=federation((30,) * 4), server_data=0.2)
    assert made.method.releases(made.plan) == 1.0 < made.method.releases(replace(made.plan, public=None))
    state = loop.begin(made)
    after = made.method.merge(state, sent(made, state), made.plan, RNG)
    batch = made.plan.public.batch
    by_hand = nn.functional.cross_entropy(loop.trained(made, state.params)(batch.x), batch.y).detach()
    assert float(after.extra["loss"]) == pytest.approx(float(by_hand), rel=1e-5)


def test_a_round_in_which_nobody_came_is_paid_and_changes_nothing():
    method, made = AdapDpFl(), plan()
    state = method.begin(State(torch.zeros(DIM)), None, made)
    after = method.merge(state, told(0.0, 0.0, clients=0), made, RNG)
    assert float(after.extra["paid"][0]) > 0 and all(
        torch.equal(after.extra[k], state.extra[k]) for k in ("clip", "noise", "loss", "falls")
    )


def test_a_whole_run_keeps_its_promise_and_explains_itself(tmp_path):
    made = job(method="adap-dp-fl", rounds=8, epsilon=3.0, noise_step=0.7, patience=1, out=str(tmp_path))
    result = run.execute(made, own=True)
    used = [r.decided["budget_used"] for r in result.private.history]
    assert used[-1] <= 1 and result.guarantee.epsilon <= 3.0
    said = made.method.explain([{"round": r.round, "decided": r.decided} for r in result.private.history])
    assert len(said) == 3 and "the loss has fallen 1 times in a row" in said[0]
    assert "clipped at 1 in round 1" in said[1]  # the first clip is the one that was asked for


def test_a_record_has_what_its_round_used(tmp_path):
    """Clip and noise of a round, not those that were made of it for the next one."""
    made = job(method="adap-dp-fl", rounds=5, epsilon=3.0, noise_step=0.7, patience=1, clip=0.8, out=str(tmp_path))
    result = run.execute(made, own=True)
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
