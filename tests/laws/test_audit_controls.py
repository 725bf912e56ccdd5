"""Negative controls of audits: what leaks must be caught at 99.99 %, and its honest twin must not.

Each faulty method is run through the same pipeline as a sound one, past rehearsals and outlets, and the game knows
nothing of the fault. THEORY 2.5, 3.2, 4.3 and 7.1 say why each claim is false.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from laws import leaky_methods as leaky
from sordino.audits import bounds, game
from sordino.audits.game import Trials
from sordino.core import plugin
from sordino.core.rng import Stream
from sordino.data.clients import ArrayClients
from sordino.federations.base import Work
from sordino.federations.simulator import Simulator
from sordino.methods.dp_fedavg import DpFedAvg
from sordino.methods.dp_sgd import DpSgd
from sordino.methods.udp_fl import published_code
from sordino.privacy.mechanisms.staircase import Staircase
from sordino.red_team import probe
from sordino.red_team.mechanisms import claimed, mechanism_trials
from sordino.red_team.pairs import claim_curve, pair_trials
from sordino.runs import loop, public_facts, returned
from sordino.spec import spec
from support.problems import job

DELTA = 1e-5
FAR, SLOW = probe.RECORD  # a record whose gradient is clipped, and steps that do not move its answer


def world(method, base, z, canaries, placement=None, **keys):
    """A made-up federation that runs a method object instead of the one that it is named after."""
    known = {"mode": "research", "method": base, "rounds": 2, "epsilon": 3.0, "delta": DELTA, "device": "cpu"}
    made = probe.probe(spec.from_dict(known | keys), canaries, placement, z)
    return replace(made, job=replace(made.job, method=method))


def played(made, count, seed=0):
    return game.play(probe.trials(made, count, seed), probe.epsilon_curve(made.job), DELTA)


def zeros(module):
    for p in module.parameters():
        nn.init.zeros_(p)
    return module


def records_job(method, z, clients, size, module=None, **keys):
    """A job of clients of one size on which a method object runs with a noise multiplier of our choice."""
    held = [(torch.zeros(size, 2), torch.arange(size) % 2)] * clients
    made = job(module or zeros(nn.Linear(2, 2, bias=False)), held, method="dp-sgd", learning_rate=SLOW, **keys)
    return replace(made, method=method, plan=replace(made.plan, noise_multiplier=z))


def of_pair(made, inside, outside, count, seed=0, claim=None):
    trials = pair_trials(made, inside, outside, count, seed, ("update",))
    return game.play(trials, claim or probe.epsilon_curve(made), DELTA)


# --- too little noise


def test_half_the_noise_at_the_clients():
    assert played(world(leaky.LessAtClients(), "dp-sgd", 2.0, 2400), 1200).refuted
    assert not played(world(DpSgd(), "dp-sgd", 2.0, 2400), 1200).refuted


def test_half_the_noise_at_the_server():
    assert played(world(leaky.LessAtServer(), "dp-fedavg", 2.0, 1000, "coordinates"), 2000).refuted
    assert not played(world(DpFedAvg(), "dp-fedavg", 2.0, 1000, "coordinates"), 2000).refuted


def test_a_quarter_of_the_noise_at_the_server_in_whole_runs():
    """Nothing is assumed of the noise: every run is one trial."""
    keys = {"canaries": 1, "placement": "runs", "rounds": 1}
    assert played(world(leaky.LessAtServer(part=0.25), "dp-fedavg", 1.0, **keys), 100).refuted
    assert not played(world(DpFedAvg(), "dp-fedavg", 1.0, **keys), 100).refuted


def test_next_to_no_noise_in_a_single_run():
    """One run with 1000 canaries that fair coins include: free of assumptions, and the weakest of the bounds.

    All canaries may fail at once with a probability of about their number times delta: 99.99 % need a small one.
    """

    def shown(method):
        made = world(method, "dp-fedavg", 2.0, 1000, "coordinates", delta=1e-7)
        included = probe.coins(made, 3)
        moved = -probe.run(made, included, 0)[:, -1]
        return bounds.one_run_scores(moved, included, 1e-7, game.ALARM).epsilon, made.job.promise.epsilon

    (wrong, claim), (right, same) = shown(leaky.LessAtServer(part=0.05)), shown(DpFedAvg())
    assert claim == same and wrong > claim and 0.0 < right < 0.5 * claim


def test_a_plug_in_that_says_2_and_adds_1_is_caught_at_every_seed(tmp_path, monkeypatch):
    """Its honest twin passes at all 20."""
    leaky.plug_in(tmp_path, "quiet", 0.5)
    leaky.plug_in(tmp_path, "honest", 1.0)
    monkeypatch.setenv(plugin.VARIABLE, str(tmp_path))
    caught = {}
    for name in ("quiet", "honest"):
        keys = {"mode": "research", "method": name, "rounds": 4, "delta": DELTA, "device": "cpu"}
        made = probe.probe(spec.from_dict(keys), 2000, noise=2.0)
        curve = {d: probe.epsilon_curve(made.job)(d) for d in (*game.DELTAS, DELTA)}
        caught[name] = sum(game.play(probe.trials(made, 1000, s), curve.__getitem__, DELTA).refuted for s in range(20))
    assert caught == {"quiet": 20, "honest": 0}


def test_a_number_without_noise():
    """A bias of no dimension: one weight of three is sent as it is."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.line, self.bias = zeros(nn.Linear(2, 1, bias=False)), nn.Parameter(torch.tensor(0.0))

        def forward(self, x):
            return self.line(x)[:, 0] + self.bias

    def found(method):
        held = [(torch.zeros(2, 2), torch.zeros(2))] * 240
        keys = {"method": "dp-sgd", "learning_rate": SLOW, "rounds": 1, "epsilon": 0.5}
        made = replace(job(Scaled(), held, "squared_error", **keys), method=method)
        inside = torch.zeros(2, 2), torch.tensor([FAR, 0.0])
        return of_pair(made, inside, held[0], 120)

    assert found(leaky.ScalarWithoutNoise()).refuted and not found(leaky.OneStep()).refuted


def test_the_off_by_one_staircase():
    """THEORY 2.5: a geometric variable that starts at 0, less 1; the loss of one step is 15 instead of 5."""
    right, wrong = Staircase(published_code.LAMBDA, published_code.GAMMA), published_code.OffByOne()
    step, claim = published_code.STEP, claimed(right)
    found = [game.play(mechanism_trials(m, step, count=10_000), claim, DELTA) for m in (wrong, right)]
    assert [f.refuted for f in found] == [True, False] and found[0].lower.epsilon > 5.5
    noise = np.abs(mechanism_trials(wrong, step, count=20_000).outside) / step
    assert np.mean((noise > 0.5019) & (noise <= 1)) == pytest.approx(0.9865, abs=3e-3)
    assert noise.mean() == pytest.approx(0.7443, rel=0.01)  # 0.2592 if it were right


# --- too much of one unit


def test_noise_for_equal_weights_under_unequal_ones():
    """Clients of 7 records among others with 1 weigh 7/4; a cap on weights is the sound way."""
    sizes, axes = [7, 1] * 150, 150
    large = torch.arange(300) % 2 == 0

    def found(method, **keys):
        length, step = probe.CLIENT
        owner = torch.arange(300).repeat_interleave(torch.tensor(sizes))
        module = zeros(nn.Linear(axes, 2, bias=False))
        data = ArrayClients(torch.zeros(len(owner), axes), torch.ones_like(owner), sizes)
        made = job(module, data, method="dp-fedavg", learning_rate=step, rounds=1, **keys)
        made = replace(made, method=method, plan=replace(made.plan, noise_multiplier=1.0))
        one, zero = [], []
        for seed in range(24):
            inside = (owner // 2 % 2 == seed % 2) & large[owner]
            x = torch.zeros(len(owner), axes)
            x[inside, owner[inside] // 2] = length
            state = unpaid(made, ArrayClients(x, torch.ones_like(owner), sizes), seed)
            moved = state.params.double().reshape(2, axes)
            score = (moved[1] - moved[0]).numpy()[:, None]
            one.append(score[seed % 2 :: 2])
            zero.append(score[1 - seed % 2 :: 2])
        return game.play(Trials(np.concatenate(one), np.concatenate(zero)), probe.epsilon_curve(made), DELTA)

    assert found(leaky.UnequalWeights()).refuted
    assert not found(DpFedAvg(weight_cap=7.0), weight_cap=7.0).refuted


def unpaid(made, data, seed):
    """The state after all rounds of a job on these records."""
    rng = Stream.research(seed)
    federation = Simulator(made.device, data, rng, 2.0, Stream.research(0), public_facts.of_clients(data))
    federation.open(Work(returned.checked(made), made.model, made.plan))
    return loop.unpaid(replace(made, federation=federation), rng)


def test_a_batch_that_is_clipped_as_a_whole():
    """One record turns the batch's gradient round against another one: it moves by two bounds, not by one."""
    other, absent = [FAR, 0.0], [0.0, 0.0]
    outside = torch.tensor([other, absent]), torch.tensor([0, 1])
    inside = torch.tensor([other, [2 * FAR, 0.0]]), torch.tensor([0, 1])
    made = [records_job(m, 1.5, 2000, 2, rounds=2) for m in (leaky.BatchClip(), DpSgd())]
    wrong, right = (of_pair(j, inside, outside, 2000) for j in made)
    assert wrong.refuted and not right.refuted


# --- draws and seeds that are not what they were accounted as


def test_a_shuffled_loader_that_is_accounted_as_poisson():
    """At small noise: whoever is in every epoch for certain cannot hide behind the chance of not being drawn."""

    def found(method):
        made = world(method, "dp-sgd", 0.25, 2000, rounds=10, batch_rate=0.1)
        trials = probe.trials(made, 1000)
        along = [rows[:, 0:40:4] - rows[:, 2:40:4] for rows in (trials.inside, trials.outside)]  # of every round
        return game.play(Trials(*along), probe.epsilon_curve(made.job), DELTA)

    assert found(leaky.ShuffledLoader()).refuted and not found(leaky.OneStep()).refuted


def test_noise_that_two_clients_share():
    """The server takes one client's row off the other's; as a trial it looks at both rows."""
    inside, outside = (torch.tensor([[FAR, 0.0]]), torch.tensor([1])), (torch.zeros(1, 2), torch.tensor([1]))

    def found(method):
        made = records_job(method, 2.0, 2400, 1, rounds=1)
        both = [pair_trials(made, mine, outside, 1200, seed) for seed, mine in enumerate((inside, outside))]
        rows = [np.concatenate([t.inside, t.outside], axis=1) for t in both]
        return game.play(Trials(*rows), probe.epsilon_curve(made), DELTA)

    assert found(leaky.SharedByClients()).refuted and not found(leaky.OneStep()).refuted


def test_noise_that_two_rounds_share():
    """A record that is drawn in one round only is all that is left of the difference between two rounds."""

    def found(method):
        made = world(method, "dp-sgd", 2.0, 2000, batch_rate=0.5)
        trials = probe.trials(made, 1000)
        apart = [rows[:, 4:8] - rows[:, :4] for rows in (trials.inside, trials.outside)]
        return game.play(Trials(*apart), probe.epsilon_curve(made.job), DELTA)

    assert found(leaky.SharedByRounds()).refuted and not found(leaky.OneStep()).refuted


# --- methods as they were printed


def xue(method, module, size, **keys):
    held = [(torch.zeros(size, keys.pop("features")), torch.arange(size) % 2)] * keys.pop("clients")
    return job(module, held, method=method, rounds=1, local_steps=4, epsilon=0.5, **keys)


@pytest.mark.parametrize("method", ["adaptive-noise-paper", "adaptive-noise"])
def test_adaptive_noise_as_printed_on_a_weight_that_stays_zero(method):
    """THEORY 3.2, pair A: a feature that one record alone has; without it, neither the weight nor its noise moves."""
    draw = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randn(20, 2, generator=draw), torch.zeros(20, 1)], dim=1)
    y = torch.arange(20) % 2
    x[0] = 0.0
    other = x.clone()
    other[0, 2] = 1.0
    made = xue(method, zeros(nn.Linear(3, 2, bias=False)), 20, features=3, clients=400, learning_rate=0.01)
    printed = method.endswith("paper")
    claim = claim_curve(made.method.claim(made.plan)) if printed else probe.epsilon_curve(made)
    found = of_pair(made, (other, y), (x, y), 200, claim=claim)
    assert found.refuted == printed
    if printed:
        trials = pair_trials(made, (other, y), (x, y), 200, 1, ("update",))
        assert (trials.outside[:, [2, 5]] == 0).all() and (trials.inside[:, [2, 5]] != 0).all()  # probability 1 and 0


@pytest.mark.parametrize("method", ["adaptive-noise-paper", "adaptive-noise"])
def test_adaptive_noise_as_printed_where_one_record_scales_it(method):
    """THEORY 3.2, pair B: no weight is zero, and one record makes the noise of ten of them twice as large."""
    x, y = torch.zeros(20, 10), torch.ones(20, dtype=torch.int64)
    other = x.clone()
    other[0] = 1.0
    module = zeros(nn.Linear(10, 2, bias=False))
    with torch.no_grad():
        module.weight[1], module.weight[0] = 0.01, -0.01
    made = xue(method, module, 20, features=10, clients=800, learning_rate=0.1)
    printed = method.endswith("paper")
    claim = claim_curve(made.method.claim(made.plan)) if printed else probe.epsilon_curve(made)
    trials = pair_trials(made, (other, y), (x, y), 400, 0, ("update",))
    assert game.play(trials, claim, DELTA).refuted == printed
    if printed:
        inside, outside = (rows.std(axis=0).mean() for rows in (trials.inside, trials.outside))
        assert inside / outside == pytest.approx(2.0, abs=0.2)


@pytest.mark.parametrize("method", ["fedsdp-paper", "fedsdp"])
def test_fedsdp_as_printed_on_one_record_against_its_opposite(method):
    """THEORY 4.3: 500 records trained on; the clipped weight is +1 or -1 by one record's label."""
    x, up = torch.zeros(625, 1), torch.zeros(625)
    x[0, 0], up[0] = 5.0, 100.0
    keys = {"clip": 1.0, "batch_size": 50, "local_epochs": 2.0} if method == "fedsdp-paper" else {}
    held = ArrayClients(x.repeat(200, 1), up.repeat(200), [625] * 200, tags=torch.zeros(125_000, dtype=torch.int64))
    made = job(
        zeros(nn.Linear(1, 1, bias=False)),
        held,
        "squared_error",
        method=method,
        epsilon=1.0,
        rounds=1,
        learning_rate=0.1,
        **keys,
    )
    printed = method.endswith("paper")
    claim = claim_curve(made.method.claim(made.plan)) if printed else replaced(probe.epsilon_curve(made))
    found = of_pair(made, (x, up), (x, -up), 100, claim=claim)
    assert found.refuted == printed


def replaced(curve):
    """The curve of two units, by group privacy: a record is taken out, another one put in."""
    each = [(d, curve(d)) for d in (0.2, 0.1, 0.05, 0.01, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)]
    return lambda delta: min([2 * e for d, e in each if (1 + math.exp(e)) * d <= delta], default=math.inf)
