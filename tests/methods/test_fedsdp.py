from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm
from torch import nn

import sordino
from problems import FEATURES, federation, job, mlp, plan
from sordino.core.errors import DataError, SpecError
from sordino.core.rng import Stream
from sordino.core.types import Batch, State
from sordino.data.clients import adopt
from sordino.engines.simulator import Simulator
from sordino.methods.base import Local
from sordino.methods.fedsdp import TOLD, UNITS, FedSdp, noise_for
from sordino.privacy.allocation import budget_mu
from sordino.privacy.events import Gaussian
from sordino.runs import faults, loop
from sordino.runs.prepare import with_tags

CPU = torch.device("cpu")
RNG = Stream.research(8)
SIZES = (12, 5, 9, 7)


def tagged(pairs, groups=1, seed=0):
    held = adopt(pairs)
    draw = np.random.default_rng(seed)
    return with_tags(held, [draw.integers(0, groups + 1, n) for n in held.all_sizes().tolist()])


def made(groups=1, clients=None, **keys):
    return job(method="fedsdp", clients=clients or tagged(federation(SIZES), groups), groups=groups, **keys)


def at(round, ratio=0.5, merged=None, **extra):
    """A state as the server has it before a round."""
    numbers = {"ratio": float(ratio), "merged": float(round if merged is None else merged)}
    return State(torch.zeros(1), {k: torch.tensor(v, dtype=torch.float64) for k, v in (numbers | extra).items()}, round)


def stored(kept):
    """What comes back from the clients' own rows, which are float32."""
    return tuple(int(v) for v in torch.tensor(kept, dtype=torch.float32).tolist())


def price(units, steps, whole):
    """What so many steps really cost with the float32 multiplier in use, relative to the whole budget; exactly."""
    z = Fraction(float(torch.tensor(noise_for(units, steps, whole), dtype=torch.float32)))
    return steps * Fraction(whole) ** 2 / z**2 if units else Fraction(0)


# --- the filter


def test_no_adaptive_sequence_spends_more_than_the_budget():
    """Exactly, in fractions: the noise that is used, over all participations, however R is chosen."""
    draw, most = np.random.default_rng(0), Fraction(0)
    for trial in range(150):
        rounds, steps = int(draw.integers(1, 120)), int(draw.integers(1, 9))
        whole, slope = float(draw.uniform(0.1, 40)), float(draw.uniform(0, 1.999))
        method, rate = FedSdp(slope=slope), float(draw.choice([1.0, 0.3]))
        cap = int(draw.integers(1, rounds + 1)) if trial % 3 == 0 else None
        known = plan(rounds=rounds, noise_multiplier=whole, max_participations=cap)
        kept, spent = (0, 0, 0), Fraction(0)
        for t in range(rounds):
            if draw.uniform() > rate or kept[1] >= known.participations:
                continue
            # the worst is tried too: chosen by what is left so far
            ratio = (0.0, 1.0, float(draw.uniform()), float(spent > Fraction(1, 2)))[trial % 4]
            units, kept = method.allow(kept, at(t, ratio), known)
            assert units >= 0 and kept[0] <= UNITS
            kept = stored(kept)
            spent += price(units, steps, whole)
        assert spent <= 1
        most = max(most, spent)
    assert most > Fraction(999, 1000)


def test_an_even_contribution_spends_everything_in_equal_parts():
    known, kept, grants = plan(rounds=40), (0, 0, 0), []
    for t in range(40):
        units, kept = FedSdp(slope=1.7).allow(kept, at(t), known)
        grants.append(units)
    assert sum(grants) == UNITS and max(grants) - min(grants) <= 1


def test_rounds_lost_in_a_crash_count_as_spent():
    """Secure mode: rounds after the last checkpoint were released, and what clients kept of them is gone."""
    draw, worst_naive = np.random.default_rng(1), 0
    for trial in range(300):
        rounds, slope = int(draw.integers(4, 60)), float(draw.uniform(0, 1.99))
        method, known = FedSdp(slope=slope), plan(rounds=rounds)
        first, lost = int(draw.integers(0, rounds // 2)), int(draw.integers(1, rounds // 2))
        spent, kept = 0, (0, 0, 0)
        for t in range(first):
            units, kept = method.allow(kept, at(t, draw.uniform()), known)
            spent += units
        gone = kept
        for t in range(first, first + lost):
            if trial % 2 or draw.uniform() < 0.5:
                units, gone = method.allow(gone, at(t, 0.0 if trial % 3 else draw.uniform()), known)
                spent += units
        total, naive, forgetful = spent, spent, kept
        for t in range(first + lost, rounds):
            ratio = 0.0 if trial % 3 else draw.uniform()
            units, kept = method.allow(kept, at(t, ratio, merged=t - lost), known)
            total += units
            units, forgetful = method.allow(forgetful, at(t, ratio), known)
            naive += units
        assert total <= UNITS
        worst_naive = max(worst_naive, naive)
    assert worst_naive > 1.1 * UNITS  # had nobody counted them


def test_the_state_counts_the_rounds_that_were_merged():
    here = made(rounds=6)
    state = loop.begin(here)
    for r in range(2):
        state = replace(played(here, state, r), round=r + 1)
    skipped = replace(state, round=4)
    assert int(skipped.extra["merged"]) == 2
    grown, careful = (
        here.method.allow((UNITS // 3, 2, 0), s, here.plan)[0] for s in (replace(state, round=2), skipped)
    )
    assert careful < grown


class Killed(BaseException):
    """Nothing in the run may catch it."""


@pytest.mark.parametrize(("mode", "every"), [("secure", 1e6), ("secure", 0.0), ("research", 1e6)])
def test_a_killed_run_releases_no_more_than_the_budget(mode, every, tmp_path, monkeypatch):
    """Everything that ever left a client, before the crash and after it; a research run repeats the same release."""
    left, rounds = {}, 6
    real = FedSdp.release

    def release(self, rows, sizes, state, plan, rng):
        for client, share in zip(rng.ids.tolist(), rows[:, -3].tolist(), strict=True):
            left[client, state.round if mode == "research" else len(left)] = share
        return real(self, rows, sizes, state, plan, rng)

    def die(name, seen=[0]):  # noqa: B006 (counts its own calls)
        seen[0] += name == "merged"
        if seen[0] == 4:
            raise Killed

    def train(**keys):
        tags = [np.arange(n) % 5 == 0 for n in SIZES]
        return sordino.train(mlp(), federation(SIZES), private_data=tags, test=federation((9,))[0], **keys)

    monkeypatch.setattr(FedSdp, "release", release)
    keys = {"method": "fedsdp", "slope": 1.9, "refresh": 2, "epsilon": 60.0, "rounds": rounds, "mode": mode}
    faults.set_hook(die)
    with pytest.raises(Killed):
        train(**keys, checkpoint_seconds=every, out=str(tmp_path), name="it", device="cpu")
    faults.set_hook(None)
    spent = sum(share for (client, _), share in left.items() if client == 0)
    assert 0.5 < spent < 1
    result = train(resume=tmp_path / "it")
    assert result.guarantee.epsilon <= 60
    each = [sum(share for (client, _), share in left.items() if client == k) for k in range(4)]
    assert len(set(each)) == 1 and spent < each[0] <= 1


def test_more_private_contribution_means_more_noise_and_no_slope_none():
    known = plan(rounds=20)
    units = [FedSdp(slope=1.5).allow((0, 0, 0), at(0, r), known)[0] for r in (0.0, 0.3, 0.5, 0.9, 1.0)]
    assert units == sorted(units, reverse=True) and len(set(units)) == 5
    assert units[2] == UNITS // 20 and units[4] == int(UNITS / 20 / 1.75)  # w = 1 / (1 + 1.5 / 2)
    assert len({FedSdp(slope=0.0).allow((0, 0, 0), at(0, r), known)[0] for r in (0.0, 0.5, 1.0)}) == 1


@pytest.mark.parametrize(("slope", "ratio"), [(1.0, 0.0), (1.99, 0.0), (1.99, 0.2), (0.7, 0.1)])
def test_what_is_spent_early_is_not_missing_at_the_end(slope, ratio):
    known, kept, grants = plan(rounds=40), (0, 0, 0), []
    for t in range(40):
        units, kept = FedSdp(slope=slope).allow(kept, at(t, ratio), known)
        grants.append(units / UNITS * 40)  # of an even part
    assert grants[0] > 1.2 and min(grants) > 0.499 and sum(grants) <= 40


def test_a_late_joiner_has_fewer_rounds_to_spend_on():
    known = plan(rounds=20)
    assert FedSdp().allow((0, 0, 0), at(15), known)[0] == UNITS // 5
    capped = plan(rounds=20, max_participations=4)
    assert FedSdp().allow((0, 0, 0), at(0), capped)[0] == UNITS // 4


def test_whoever_has_nothing_left_sends_nothing():
    here = made()
    state, data = loop.begin(here), here.clients.fetch(range(4), CPU)
    own = here.method.fresh(state, 4, here.plan)
    own[1, -3] = UNITS
    rows, kept = here.method.train(state, data, own, here.model, here.plan, RNG.rows(range(4)))
    assert rows[1, 0] == 0 and not rows[1, :-TOLD].any() and rows[0, :-TOLD].all()
    assert kept[1, -3] == UNITS and torch.isfinite(here.method.merge(state, rows, here.plan, RNG).params).all()


# --- accounting


def test_the_whole_run_is_one_gaussian():
    here = made(rounds=40, epsilon=1.0, delta=1e-5)
    assert 1 / here.plan.z == pytest.approx(0.268051123211, rel=1e-4)
    assert 1 / here.plan.z <= budget_mu(1.0, 1e-5)
    (cost,) = here.method.whole(here.plan)
    assert cost.event == Gaussian(here.plan.z) and (cost.unit, cost.relation) == ("record", "add/remove")
    assert here.promise.epsilon == pytest.approx(1.0, abs=1e-4)
    assert made(rounds=7, refresh=1, slope=1.9, epsilon=1.0).plan.z == pytest.approx(here.plan.z)


@pytest.mark.parametrize("steps", [1, 4])
def test_without_slope_the_noise_is_that_of_dp_sgd(steps):
    plain = job(method="dp-sgd", clients=federation(SIZES), rounds=8, local_steps=steps, epsilon=2.0)
    here = made(rounds=8, local_steps=steps, epsilon=2.0, slope=0.0)
    units, _ = here.method.allow((0, 0, 0), at(0, 0.9), here.plan)
    assert noise_for(units, steps, here.plan.z) == pytest.approx(plain.plan.z, rel=1e-4)


def test_clients_with_their_own_budgets_have_noise_of_their_own():
    here = made(budgets="0.5:0.5,4:0.5", epsilon=4.0)
    state, data = loop.begin(here), here.clients.fetch(range(4), CPU)
    rows, _ = here.method.train(
        state, data, here.method.fresh(state, 4, here.plan), here.model, here.plan, RNG.rows(range(4))
    )
    stds = rows[:, -1].tolist()
    assert len(set(here.plan.multipliers)) == 2
    assert stds == pytest.approx([z * 3**0.5 for z in here.plan.multipliers], rel=1e-4)


# --- noise and sensitivity


def silent(clients=(10,) * 4, **keys):
    """4001 weights whose gradient is zero."""
    layer = nn.Linear(4000, 1)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    zeros = [(torch.zeros(n, 4000), torch.zeros(n)) for n in clients]
    return job(layer, tagged(zeros), "squared_error", method="fedsdp", learning_rate=1.0, **keys)


@pytest.mark.parametrize(("round", "parts"), [(0, 2), (1, 1)])
@pytest.mark.parametrize("steps", [1, 3])
def test_the_noise_has_the_scale_that_is_paid_for(round, parts, steps):
    here = silent(rounds=10, local_steps=steps, clip=0.3)
    state = replace(loop.begin(here), round=round)
    state = replace(state, extra=state.extra | {"merged": torch.tensor(float(round))})
    units, _ = here.method.allow((0, 0, 0), state, here.plan)
    z = here.plan.z * (steps * UNITS / units) ** 0.5
    rows = sent(here, here.clients, [state])[0]
    dim = here.model.layout.dim
    scales = [(rows[:, :dim], 0.3 * z * (steps * parts) ** 0.5 / 10)]
    if parts == 2:
        scales += [(rows[:, k * dim : (k + 1) * dim], 0.3 * z * steps**0.5) for k in (1, 2)]
        assert torch.allclose(rows[:, -1], torch.tensor(0.3 * z * steps**0.5), rtol=1e-4)
    assert rows.shape[1] == (dim * 3 if parts == 2 else dim) + TOLD
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
    sent(replace(here, model=replace(here.model, gradients=recorder)), here.clients, [loop.begin(here)])
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


def sent(here, clients, states, engine=None):
    engine = engine or Simulator(CPU)
    who = range(clients.count)
    return [
        engine.clients(here.method, s, who, clients, here.model, here.plan, RNG.at("round", s.round)) for s in states
    ]


def played(here, state, round):
    rows = sent(here, here.clients, [state], here.engine)[0]
    return here.method.merge(state, rows, here.plan, RNG.at("merge", round))


def test_noise_and_allocation_are_the_same_whatever_the_private_data_given_the_transcript():
    here = made(rounds=6, refresh=2, local_steps=2, epsilon=50.0)
    states = [loop.begin(here)]
    for r in range(4):
        states.append(replace(played(here, states[-1], r), round=r + 1))
    assert len({float(s.extra["ratio"]) for s in states}) > 2  # the contribution did move
    other = tagged([(-7 * x, (y + 1) % 3) for x, y in federation(SIZES, seed=5)], seed=9)
    assert not torch.equal(other.tags, here.clients.tags)

    def noise(clients):  # gradients taken out: what is left is noise, and what is said of it
        engine = Simulator(CPU)
        blind = replace(here, model=replace(here.model, gradients=Nothing()))
        rows = sent(blind, clients, states, engine)
        return rows, engine.store.read("own", range(4), here.method.fresh(states[0], 4, here.plan))

    (one, own), (two, theirs) = noise(here.clients), noise(other)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True)) and torch.equal(own, theirs)
    real, changed = (sent(here, c, states, Simulator(CPU)) for c in (here.clients, other))
    for a, b in zip(real, changed, strict=True):
        assert torch.equal(a[:, -TOLD:], b[:, -TOLD:]) and not torch.equal(a[:, 0], b[:, 0])
    for s, *rows in zip(states, real, changed, strict=True):  # nor has the record of single clients anything of them
        one, two = (here.method.decided(here.method.merge(s, r, here.plan, RNG), here.plan) for r in rows)
        assert one["clients"] == two["clients"] and len(one["clients"]) == 4
    assert len({float(rows[0, -3]) for rows in real}) > 2  # shares of the budget: no two refreshes alike


# --- the contribution


def test_with_next_to_no_noise_the_contribution_is_the_shapley_share_of_the_groups():
    groups = 2
    here = made(groups, local_steps=1, clip=0.7)
    here = replace(here, plan=replace(here.plan, noise_multiplier=1e-7))
    state = loop.begin(here)
    after = played(here, state, 0)
    data = here.clients.fetch(range(4), CPU)
    sums = []
    for g in range(groups + 1):
        total = torch.zeros_like(state.params, dtype=torch.float64)
        for x, y in zip(data.x[data.tags == g], data.y[data.tags == g], strict=True):
            total += here.model.gradients.sums(state.params, Batch(x[None], y[None], (1,)), 0.7)[0].double()
        sums.append(total)
    whole = sum(sums)
    shares = [float(s @ whole / (whole @ whole)) for s in sums]
    assert after.extra["shares"].tolist() == pytest.approx(shares, abs=1e-4)
    assert float(after.extra["ratio"]) == pytest.approx(shares[1] + shares[2], abs=1e-4)
    assert float(after.extra["used"]) == 0.5
    assert len({round(s, 3) for s in shares}) == 3


def message(sums, std, here, draw):
    """A refresh round's rows of one client with these group sums."""
    noisy = sums + std * torch.randn(sums.shape, generator=draw)
    told = torch.tensor([1.0, 1.0, 0.1, 0.9, std])
    return torch.cat([torch.zeros(sums.shape[1]), noisy.flatten(), told])[None]


def test_the_part_of_the_noise_is_taken_away():
    """A fifth of the step is private; noise alone would count for both groups alike, and pull to a half."""
    here, draw = made(), torch.Generator().manual_seed(0)
    state, dim = loop.begin(here), here.model.layout.dim
    direction = torch.randn(dim, generator=draw)
    sums = torch.stack([0.8 * direction, 0.2 * direction])
    std = 0.5 * float(direction.norm()) / dim**0.5
    found, naive = [], []
    for _ in range(400):
        rows = message(sums, std, here, draw)
        after = here.method.merge(state, rows, here.plan, RNG)
        found.append(float(after.extra["shares"][1]))
        noisy = rows[0, dim : 3 * dim].reshape(2, dim)
        naive.append(float(noisy[1] @ noisy.sum(0) / noisy.sum(0).square().sum()))
    assert abs(np.mean(found) - 0.2) < 5 * np.std(found) / 20 + 0.005
    assert np.mean(naive) > 0.27  # what it would be otherwise


def test_what_is_lost_in_noise_changes_nothing():
    here, draw = made(), torch.Generator().manual_seed(1)
    state = loop.begin(here)
    sums = torch.stack([torch.full((here.model.layout.dim,), -1e-3)] * 2)
    kept = sum(
        not bool(here.method.merge(state, message(sums, 10.0, here, draw), here.plan, RNG).extra["learnt"])
        for _ in range(100)
    )
    assert kept > 70
    nobody = here.method.merge(state, message(sums, 1.0, here, draw)[:0], here.plan, RNG)
    assert float(nobody.extra["ratio"]) == 0.5 and not bool(nobody.extra["learnt"])


def test_the_contribution_stays_in_its_range():
    here, draw = made(), torch.Generator().manual_seed(2)
    state, one = loop.begin(here), torch.ones(here.model.layout.dim)
    for sums, ratio in (((2 * one, -one), 0.0), ((-one, 2 * one), 1.0), ((one, one), 0.5)):
        rows = message(torch.stack(sums), 1e-6, here, draw)
        assert float(here.method.merge(state, rows, here.plan, RNG).extra["ratio"]) == pytest.approx(ratio, abs=1e-3)


def test_refreshes_come_when_they_are_due():
    here = made(rounds=7, refresh=3, epsilon=50.0)
    state, widths, learnt = loop.begin(here), [], []
    for r in range(7):
        rows = sent(here, here.clients, [state], here.engine)[0]
        state = replace(here.method.merge(state, rows, here.plan, RNG.at("m", r)), round=r + 1)
        widths.append(rows.shape[1] // here.model.layout.dim)
        learnt.append(here.method.decided(state, here.plan)["learnt"])
    assert widths == [3, 1, 1, 3, 1, 1, 3] and learnt == [True, False, False, True, False, False, True]


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
    state = loop.begin(here)
    own = here.method.fresh(state, 4, here.plan)
    data = here.clients.fetch(range(4), CPU)
    with pytest.raises(DataError, match="private_data"):
        here.method.train(state, replace(data, tags=None), own, here.model, here.plan, RNG.rows(range(4)))
    with pytest.raises(DataError, match="groups = 1"):
        here.method.train(state, replace(data, tags=data.tags * 2), own, here.model, here.plan, RNG.rows(range(4)))


def test_a_run_from_the_shell_and_its_explanation(sordino_command, small_npz, tmp_path):
    done = sordino_command(
        "run", "--method", "fedsdp", "--dataset", str(small_npz), "--private-data", "label:0;2", "--groups", "2",
        "--clients", "4", "--rounds", "4", "--refresh", "2", "--epsilon", "20", "--seed", "1", "--json",
        "--name", "a", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["claim"] is None and told["guarantee"]["epsilon"] <= 20
    records = [json.loads(line) for line in (tmp_path / "runs/a/records.jsonl").read_text().splitlines()]
    chosen = [r["decided"] for r in records]
    assert [c["learnt"] for c in chosen] == [True, False, True, False]
    assert [c["sums"] for c in chosen] == [3, 1, 3, 1]
    left = [c["left"] for c in chosen]
    assert left == sorted(left, reverse=True) and left[0] == pytest.approx(0.75)
    assert chosen[1]["ratio_used"] == chosen[0]["ratio"] and sum(chosen[0]["shares"]) == pytest.approx(1)
    said = FedSdp(groups=2).explain(records)
    assert "1.7 times as much" in said[0] and "times as much" not in said[1]
    assert len(said) == 4 and "Round 1" in said[0] and "group 2" in said[0] and "Released anew" not in said[1]
    assert f"{100 * chosen[0]['ratio']:.0f} %" in said[1]
    assert "(nothing was learnt yet)" in said[0] and [c["learnt_in"] for c in chosen] == [0, 1, 1, 3]
    assert chosen[2]["shares_used"] == chosen[0]["shares"] != chosen[2]["shares"] == chosen[3]["shares_used"]
    for text, c in zip(said[1:], chosen[1:], strict=True):
        share, group = max((s, g) for g, s in enumerate(c["shares_used"][1:], start=1))
        assert f"(led by group {group} with {round(100 * share)} %, learnt in round {c['learnt_in']})" in text
    assert [set(c["clients"]) for c in chosen] == [{"0", "1", "2", "3"}] * 4
    first, second = (c["noise_multiplier"] / c["even_multiplier"] for c in chosen[:2])
    assert first == pytest.approx(1, rel=1e-4) and "as much noise as" in said[0]
    assert (second > 1) == (chosen[0]["ratio"] > 0.5) == ("asks for more noise" in said[1])


def test_each_client_is_told_what_its_own_participations_give():
    """Cohorts and budgets of their own; beside it the docstring's allocation, written out by client."""
    slope, rounds, steps = 1.5, 9, 2
    here = made(rounds=rounds, slope=slope, refresh=3, local_steps=steps, budgets="100:0.5,600:0.5", epsilon=600.0)
    state, draw, ratios = loop.begin(here), np.random.default_rng(4), set()
    left, seen, differ = [1.0] * 4, [0] * 4, 0
    for t in range(rounds):
        cohort = sorted(draw.choice(4, draw.integers(1, 5), replace=False).tolist())
        ratio = float(state.extra["ratio"])
        rows = here.engine.clients(here.method, state, cohort, here.clients, here.model, here.plan, RNG.at("t", t))
        state = replace(here.method.merge(state, rows, here.plan, RNG.at("m", t)), round=t + 1)
        told = here.method.decided(state, here.plan)["clients"]
        assert sorted(told) == [str(k) for k in cohort]
        for k in cohort:
            n = min(rounds - seen[k], rounds - t)
            rho = min(left[k] / n / (1 + slope * (ratio - 0.5)), left[k] - (n - 1) * 0.5 / rounds, left[k])
            left[k], seen[k] = left[k] - rho, seen[k] + 1
            z = here.plan.multipliers[k] * (steps / rho) ** 0.5
            found = [told[str(k)][name] for name in ("rho", "left", "noise_multiplier")]
            assert found == pytest.approx([rho, left[k], z], rel=1e-4, abs=1e-5)
        ratios.add(ratio)
        differ += len({told[str(k)]["rho"] for k in cohort}) > 1
    assert len(ratios) > 2 and differ > 3 and len(set(here.plan.multipliers)) == 2


def test_what_a_client_says_of_itself_survives_the_weight_of_its_answer():
    """Where clients drop out, whole rows count less; in float32 3 times 0.7, over 0.7, is not 3."""
    here = made(clients=tagged(federation((4,) * 12)))
    state = loop.begin(here)
    rows = sent(here, here.clients, [state])[0]
    for weight in torch.linspace(0.3, 0.99, 24):
        told = here.method.decided(here.method.merge(state, rows * weight, here.plan, RNG), here.plan)
        assert list(told["clients"]) == [str(k) for k in range(12)]
        assert all(own["left"] == pytest.approx(2 / 3, abs=1e-5) for own in told["clients"].values())


CHOSEN = {
    "ratio_used": 0.8, "ratio": 0.9, "shares": [0.1, 0.2, 0.7], "learnt": True, "sums": 3, "rho": 0.1, "left": 0.5,
    "noise_multiplier": 9.0, "even_multiplier": 8.0, "shares_used": [0.2, 0.5, 0.3], "learnt_in": 1,
    "clients": {"2": {"rho": 0.1, "left": 0.4, "noise_multiplier": 7.0},
                "5": {"rho": 0.1, "left": 0.6, "noise_multiplier": 9.5},
                "7": {"rho": 0.0, "left": 0.0, "noise_multiplier": 0.0}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "(led by group 1 with 50 %, learnt in round 1)"),  # not by the one that leads from here on
        ({}, "from here on the private share is 90 %, most of it by group 2."),
        ({}, "By client the multiplier was 7 (client 2) to 9.5 (client 5)."),
        ({"learnt": False}, "lost in that noise, so nothing new was learnt."),
        ({"learnt": False, "sums": 1}, "(led by group 1 with 50 %, learnt in round 1)"),
        ({"shares_used": [1.3, -0.2, -0.1]}, "(led by none, learnt in round 1)"),
        ({"shares_used": [0.4, 0.6]}, "80 % of the step (learnt in round 1), which"),
        ({"learnt_in": 0}, "80 % of the step (nothing was learnt yet), which"),
        ({"learnt_in": -1}, "80 % of the step, which"),
        ({"clients": {"5": CHOSEN["clients"]["5"]}}, "Client 5: multiplier 9.5, for 10 % of its budget; 60 % of it"),
        ({"clients": {"7": CHOSEN["clients"]["7"]}}, "Client 7 had nothing left, so it sent nothing"),
        ({"clients": {}}, "The client asked for was not in it."),
    ],
)
def test_words_for_what_was_chosen(change, words):
    (said,) = FedSdp(groups=2).explain([{"round": 4, "decided": CHOSEN | change}])
    assert words in said


def test_records_of_earlier_versions_are_explained_without_what_they_lack():
    old = {k: v for k, v in CHOSEN.items() if k not in ("shares_used", "learnt_in", "clients")}
    (said,) = FedSdp(groups=2).explain([{"round": 4, "decided": old}])
    assert "80 % of the step, which asks for more" in said and "lient" not in said and "group 2 70 %" in said


def test_a_refresh_that_is_lost_in_noise_leaves_the_round_in_which_it_was_learnt():
    here, draw = made(refresh=2), torch.Generator().manual_seed(3)
    state, one = loop.begin(here), torch.ones(here.model.layout.dim)
    clear, lost = torch.stack([one, 2 * one]), torch.stack([-1e-3 * one] * 2)
    state = replace(here.method.merge(state, message(clear, 1e-3, here, draw), here.plan, RNG), round=2)
    assert here.method.decided(state, here.plan)["learnt_in"] == 0  # of the noise of round 1
    while bool((after := here.method.merge(state, message(lost, 10.0, here, draw), here.plan, RNG)).extra["learnt"]):
        pass
    for again in (after, here.method.merge(replace(after, round=4), message(clear, 1e-3, here, draw), here.plan, RNG)):
        told = here.method.decided(again, here.plan)
        assert told["learnt_in"] == 1 and told["shares_used"] == pytest.approx([1 / 3, 2 / 3], abs=1e-2)
    assert again.extra["since"].tolist() == [1, 5]
    begun = {k: v for k, v in state.extra.items() if k not in ("since", "behind", "clients")}  # by an earlier version
    later = here.method.merge(replace(state, extra=begun), message(clear, 1e-3, here, draw), here.plan, RNG)
    assert here.method.decided(later, here.plan)["learnt_in"] == -1 and later.extra["since"][1] == 3


def test_features_of_zero_are_survived():
    zeros = tagged([(torch.zeros(n, FEATURES), torch.zeros(n).long()) for n in SIZES])
    here = job(nn.Linear(FEATURES, 3), zeros, method="fedsdp")
    after = played(here, loop.begin(here), 0)
    assert torch.isfinite(after.params).all() and 0 <= float(after.extra["ratio"]) <= 1


def test_a_schedule_that_ends_at_zero_leaves_the_last_round_alone():
    here = made(rounds=3, schedule="linear")
    state = loop.begin(here)
    for r in range(3):
        rows = sent(here, here.clients, [state], here.engine)[0]
        state = replace(here.method.merge(state, rows, here.plan, RNG.at("m", r)), round=r + 1)
    assert here.method.decided(state, here.plan)["noise_multiplier"] > 0


def test_noise_is_told_only_where_all_clients_have_spent_the_same():
    here = made(rounds=6, client_rate=0.5)
    assert here.method.noise(loop.begin(here), here.plan) is None
    assert made(rounds=6).method.noise(loop.begin(made(rounds=6)), made(rounds=6).plan) > 0
