from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm
from torch import nn

from sordino.contract.method import Local
from sordino.core.errors import DataError, SpecError
from sordino.core.types import Batch
from sordino.data import tags
from sordino.data.clients import adopt
from sordino.methods.fedsdp.method import UNITS, FedSdp, noise_for
from sordino.privacy.accountants import gdp
from sordino.privacy.events import GaussianEvent
from sordino.runs import loop
from sordino.runs.prepare import with_tags
from support.fedsdp_jobs import SIZES, at, budgets, knowing, made, message, rounds_of, sent, tagged
from support.methods import CPU, federation_of, play, price, whole
from support.problems import FEATURES, federation, job, plan
from support.silent import zero_clients, zero_layer

# --- accounting


def test_the_whole_run_is_one_gaussian():
    here = made(rounds=40, epsilon=1.0, delta=1e-5)
    assert 1 / here.plan.z == pytest.approx(0.268051123211, rel=1e-4)
    assert 1 / here.plan.z <= gdp.mu_for(1.0, 1e-5)
    (cost,) = whole(here.method, here.plan)
    assert cost.event == GaussianEvent(here.plan.z) and (cost.unit, cost.relation) == ("record", "add/remove")
    assert here.promise.epsilon == pytest.approx(1.0, abs=1e-4)
    assert made(rounds=7, refresh=1, slope=1.9, epsilon=1.0).plan.z == pytest.approx(here.plan.z)


@pytest.mark.parametrize("steps", [1, 4])
def test_without_slope_the_noise_is_that_of_dp_sgd(steps):
    plain = job(method="dp-sgd", clients=federation(SIZES), rounds=8, local_steps=steps, epsilon=2.0)
    here = made(rounds=8, local_steps=steps, epsilon=2.0, slope=0.0)
    units, _ = here.method.allow((0, 0, 0), at(0, 0.9), here.plan)
    assert noise_for(units, steps, here.plan.z) == pytest.approx(plain.plan.z, rel=1e-4)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("round", [0, 1])
def test_a_participation_is_priced_as_the_whole_budget_whether_groups_are_apart_or_not(round, steps):
    """No more is known beforehand; the groups of a refresh are one release, since a record lies in one of them."""
    here = made(2, rounds=8, local_steps=steps)
    (cost,) = price(here.method, here.plan, round)
    assert gdp.mu_of(cost.event) == pytest.approx(1 / here.plan.z, rel=1e-12)
    assert len(here.method.releases(here.plan, round)) == (3 if round == 0 else 1)


def test_clients_with_their_own_budgets_have_noise_of_their_own():
    here = made(budgets="0.5:0.5,4:0.5", epsilon=4.0)
    stds = play(here).sent["std"].tolist()
    assert len(set(here.plan.multipliers)) == 2
    assert stds == pytest.approx([z * 3**0.5 for z in here.plan.multipliers], rel=1e-4)


# --- noise and sensitivity


def silent(clients=(10,) * 4, **keys):
    """4001 weights whose gradient is zero."""
    zeros = tagged(zero_clients(4000, clients))
    return job(zero_layer(4000), zeros, "squared_error", method="fedsdp", learning_rate=1.0, **keys)


@pytest.mark.parametrize(("round", "parts"), [(0, 2), (1, 1)])
@pytest.mark.parametrize("steps", [1, 3])
def test_the_noise_has_the_scale_that_is_paid_for(round, parts, steps):
    here = silent(rounds=10, local_steps=steps, clip=0.3)
    state = knowing(replace(loop.begin(here), round=round), merged=round)
    units, _ = here.method.allow((0, 0, 0), state, here.plan)
    z = here.plan.z * (steps * UNITS / units) ** 0.5
    (message,) = sent(here, [state])
    scales = [(message["update"], 0.3 * z * (steps * parts) ** 0.5 / 10)]
    if parts == 2:
        scales += [(message["groups"][:, g], 0.3 * z * steps**0.5) for g in (0, 1)]
        assert torch.allclose(message["std"], torch.tensor(0.3 * z * steps**0.5, dtype=torch.float64), rtol=1e-4)
    assert ("groups" in message.fields) == (parts == 2)
    for found, std in scales:
        noise = found.flatten().numpy()
        assert kstest(noise, norm(scale=std).cdf).pvalue > 1e-3
        assert kstest(noise, norm(scale=1.1 * std).cdf).pvalue < 1e-3
    assert here.method.noise(state, here.plan) == pytest.approx(scales[0][1], rel=1e-4)


class Recorder:
    path, reason = "", ""

    def __init__(self, real):
        self.real, self.asked = real, []

    def sums(self, weights, batch, clip, *, seeds=None, groups=None):
        found = self.real.sums(weights, batch, clip, seeds=seeds, groups=groups)
        self.asked.append((weights, batch, clip, found))
        return found


class Nothing:
    """Gradients that know no data."""

    path, reason = "", ""

    def sums(self, weights, batch, clip, *, seeds=None, groups=None):
        return weights.new_zeros(len(batch.sizes), weights.shape[-1])


def test_a_record_is_in_one_groups_sum_and_moves_it_by_at_most_the_clip():
    """Wild data; every record taken out: what is released in a refresh moves by C in all its groups together."""
    clip, groups = 0.3, 2
    wild = [(x * 10.0**p, y) for (x, y), p in zip(federation(SIZES), (1, 2, 6, 0), strict=True)]
    here = made(groups, tagged(wild, groups), clip=clip, local_steps=2)
    recorder = Recorder(here.model.gradients)
    sent(replace(here, model=replace(here.model, gradients=recorder)), [loop.begin(here)])
    assert len(recorder.asked) == 2 * (groups + 1)
    total, longest = sum(len(b.y) for _, b, _, _ in recorder.asked[:3]), 0.0
    assert total == sum(SIZES)  # each record in one group
    for weights, batch, asked, found in recorder.asked:
        assert asked == clip
        owner = np.repeat(np.arange(4), batch.sizes)
        for i in range(len(batch.y)):
            keep = [j for j in range(len(batch.y)) if j != i]
            sizes = tuple(np.bincount(owner[keep], minlength=4).tolist())
            less = here.model.gradients.sums(weights, Batch(batch.x[keep], batch.y[keep], sizes), clip, seeds=[0] * 4)
            moved = (found - less).double().norm(dim=1)
            assert float(moved[owner[i]]) <= clip * (1 + 1e-4)
            longest = max(longest, float(moved[owner[i]]))
    assert longest > 0.9 * clip


def test_noise_and_allocation_are_the_same_whatever_the_private_data_given_the_transcript():
    here = made(rounds=6, refresh=2, local_steps=2, epsilon=50.0)
    states, _ = rounds_of(here, 4)
    assert len({s.method.ratio for s in states}) > 2  # the contribution did move
    other = tagged([(-7 * x, (y + 1) % 3) for x, y in federation(SIZES, seed=5)], seed=9)
    assert not torch.equal(other.tags, here.federation.data.tags)

    def noise(clients):  # gradients taken out: what is left is noise, and what is said of it
        federation = federation_of(here, clients=clients, model=replace(here.model, gradients=Nothing()))
        return sent(here, states, federation=federation), budgets(federation)

    (one, own), (two, theirs) = noise(here.federation.data), noise(other)
    for a, b in zip(one, two, strict=True):
        assert all(torch.equal(a[name], b[name]) for name in a.fields)
    assert torch.equal(own, theirs)
    real, changed = (sent(here, states, c) for c in (here.federation.data, other))
    for a, b in zip(real, changed, strict=True):
        public = {"spent", "left", "std"} & set(a.fields)
        assert len(public) >= 2 and all(torch.equal(a[name], b[name]) for name in public)
        assert not torch.equal(a["update"], b["update"])
    for s, *messages in zip(states, real, changed, strict=True):  # nor has the record of clients anything of them
        one, two = (here.method.decided(here.method.merge(s, m, here.plan), here.plan) for m in messages)
        assert one["clients"] == two["clients"] and len(one["clients"]) == 4
    assert len({int(m["spent"][0]) for m in real}) > 2  # shares of the budget: no two refreshes alike


# --- the contribution


def test_with_next_to_no_noise_the_contribution_is_the_shapley_share_of_the_groups():
    groups = 2
    here = made(groups, local_steps=1, clip=0.7)
    here = replace(here, plan=replace(here.plan, noise_multiplier=1e-7))
    state = loop.begin(here)
    after = play(here, federation=federation_of(here)).after
    data = here.federation.data.fetch(range(4), CPU)
    sums = []
    for g in range(groups + 1):
        total = torch.zeros_like(state.params, dtype=torch.float64)
        for x, y in zip(data.x[data.tags == g], data.y[data.tags == g], strict=True):
            total += here.model.gradients.sums(state.params, Batch(x[None], y[None], (1,)), 0.7)[0].double()
        sums.append(total)
    whole = sum(sums)
    shares = [float(s @ whole / (whole @ whole)) for s in sums]
    assert after.method.shares.tolist() == pytest.approx(shares, abs=1e-4)
    assert after.method.ratio == pytest.approx(shares[1] + shares[2], abs=1e-4)
    assert after.method.ratio_used == 0.5
    assert len({round(s, 3) for s in shares}) == 3


def test_the_part_of_the_noise_is_taken_away():
    """A fifth of the step is private; noise alone would count for both groups alike, and pull to a half."""
    here, draw = made(), torch.Generator().manual_seed(0)
    state, dim = loop.begin(here), here.model.layout.dim
    direction = torch.randn(dim, generator=draw)
    sums = torch.stack([0.8 * direction, 0.2 * direction])
    std = 0.5 * float(direction.norm()) / dim**0.5
    found, naive = [], []
    for _ in range(400):
        heard = message(sums, std, here, draw)
        found.append(float(here.method.merge(state, heard, here.plan).method.shares[1]))
        noisy = heard["groups"][0]
        naive.append(float(noisy[1] @ noisy.sum(0) / noisy.sum(0).square().sum()))
    assert abs(np.mean(found) - 0.2) < 5 * np.std(found) / 20 + 0.005
    assert np.mean(naive) > 0.27  # what it would be otherwise


def test_what_is_lost_in_noise_changes_nothing():
    here, draw = made(), torch.Generator().manual_seed(1)
    state = loop.begin(here)
    sums = torch.stack([torch.full((here.model.layout.dim,), -1e-3)] * 2)
    kept = sum(
        not here.method.merge(state, message(sums, 10.0, here, draw), here.plan).method.learnt for _ in range(100)
    )
    assert kept > 70
    empty = message(sums, 1.0, here, draw).pick(torch.zeros(1, dtype=torch.bool))
    nobody = here.method.merge(state, empty, here.plan).method
    assert nobody.ratio == 0.5 and not nobody.learnt


def test_the_contribution_stays_in_its_range():
    here, draw = made(), torch.Generator().manual_seed(2)
    state, one = loop.begin(here), torch.ones(here.model.layout.dim)
    for sums, ratio in (((2 * one, -one), 0.0), ((-one, 2 * one), 1.0), ((one, one), 0.5)):
        heard = message(torch.stack(sums), 1e-6, here, draw)
        assert here.method.merge(state, heard, here.plan).method.ratio == pytest.approx(ratio, abs=1e-3)


def test_refreshes_come_when_they_are_due():
    here = made(rounds=7, refresh=3, epsilon=50.0)
    states, messages = rounds_of(here, 7)
    apart = [m["groups"].shape[1] if "groups" in m.fields else 0 for m in messages]
    learnt = [here.method.decided(s, here.plan)["learnt"] for s in states[1:]]
    assert apart == [2, 0, 0, 2, 0, 0, 2] and learnt == [True, False, False, True, False, False, True]


# --- what is refused, and what is said


def test_what_is_not_accounted_is_refused():
    for keys in ({"batch_rate": 0.5}, {"batch_size": 3}):
        with pytest.raises(SpecError, match="batch_rate = 1"):
            made(**keys)
    with pytest.raises(SpecError, match="late"):
        made(late=0.1)
    for bad in ({"slope": 2.0}, {"slope": -0.1}, {"groups": 0}, {"refresh": 0}):
        with pytest.raises(SpecError):
            FedSdp(**bad)
    with pytest.raises(SpecError, match="goes with"):
        made(algorithm="q-fedavg")
    with pytest.raises(SpecError, match="secure-sum"):  # behind which the server could not tell clients apart
        made(channel="secure-sum")
    assert FedSdp().require(plan(local=Local(batch_size=12, batch_rate=None))) is None


def test_data_must_say_what_is_private():
    here = made()
    with pytest.raises(DataError, match="private_data"):
        sent(here, [loop.begin(here)], adopt(federation(SIZES)))
    double = with_tags(adopt(federation(SIZES)), [2 * t.numpy() for t in here.federation.data.tags.split(SIZES)])
    with pytest.raises(DataError, match="groups = 1"):
        sent(here, [loop.begin(here)], double)


def test_features_of_zero_are_survived():
    zeros = tagged([(torch.zeros(n, FEATURES), torch.zeros(n).long()) for n in SIZES])
    here = job(nn.Linear(FEATURES, 3), zeros, method="fedsdp")
    after = play(here).after
    assert torch.isfinite(after.params).all() and 0 <= after.method.ratio <= 1


def test_a_schedule_that_ends_at_zero_leaves_the_last_round_alone():
    here = made(rounds=3, schedule="linear")
    states, _ = rounds_of(here, 3)
    assert here.method.decided(states[-1], here.plan)["noise_multiplier"] > 0


def test_noise_is_told_only_where_all_clients_have_spent_the_same():
    here = made(rounds=6, client_rate=0.5)
    assert here.method.noise(loop.begin(here), here.plan) is None
    assert made(rounds=6).method.noise(loop.begin(made(rounds=6)), made(rounds=6).plan) > 0


def test_a_mask_that_is_no_array_is_refused_by_what_was_expected(tmp_path):
    bad = {"pickle": pickle.dumps({"a": 1}), "text": b"0,1,1", "empty": b"", "zip": b"PK\x03\x04no"}
    for name, content in bad.items():
        path = tmp_path / f"{name}.npy"
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"one whole number .* for each of 4 records") as found:
            tags.read(f"file:{path}", torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64), 3)
        assert str(path) in str(found.value) and "pickle=" not in str(found.value) and "unsafe" not in str(found.value)
