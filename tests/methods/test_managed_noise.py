"""Noise multipliers that follow what is left of each client's budget: the noise, its price and its record."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, laplace, norm

from sordino.core.errors import RunError, SpecError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.methods.udp_fl import harmonizer, managed
from sordino.methods.udp_fl.managed import UNITS, least
from sordino.methods.udp_fl.method import UdpFl
from sordino.privacy.events import GaussianEvent, Repeated
from sordino.privacy.mechanisms.laplace import LaplaceL2Event
from sordino.privacy.tightest import epsilon
from sordino.runs import loop
from support.methods import federation_of, play, price, whole
from support.problems import CLASSES, federation, job, plan
from support.silent import silent_job
from support.udp import filters, rounds_of, spent

RNG = Stream.research(12)
WIDE = 8000


# --- the noise


def silent(rounds=8, **keys):
    """8001 weights whose gradient is zero."""
    keys = {"learning_rate": 1.0, "rounds": rounds, "managed": True} | keys
    return silent_job(WIDE, method="udp-fl", **keys)


@pytest.mark.parametrize("mechanism", harmonizer.MECHANISMS)
def test_each_client_has_the_noise_of_its_own_history_and_no_other(mechanism):
    made = silent(mechanism=mechanism, clip=0.5)
    start = loop.begin(made)
    state = replace(start, round=5, method=replace(start.method, merged=5))
    before = [[0, 0, 0], [5 * UNITS // 8, 5, 0], [UNITS // 8, 1, 0], [UNITS, 4, 0]]
    here = spent(federation_of(made, rng=RNG), before)
    sent = here.ask("train", state, range(4))
    rows, kept = sent["update"], filters(here, 4)
    wide = 0.5 * harmonizer.bound(mechanism, WIDE + 1) / 10
    law = norm if mechanism == "gaussian" else laplace
    left = [1.0, 3 / 8, 7 / 8]
    for row, share in zip(rows[:3].numpy(), left, strict=True):
        scale = made.plan.z * math.sqrt(3 / share) * wide  # a third of what is left
        assert kstest(row, law(scale=scale).cdf).pvalue > 1e-3
        size = float(np.abs(row).mean()) / scale / (math.sqrt(2 / math.pi) if law is norm else 1.0)
        assert abs(size - 1) < 0.045 < min(abs(size / 1.1 - 1), abs(size / 0.9 - 1))  # it can see ten per cent
    assert not rows[3].any() and sent.weight.tolist() == [1, 1, 1, 0]  # it has nothing left
    assert kept[:, 0].tolist() == [UNITS // 3, 6 * UNITS // 8, UNITS // 8 + 7 * UNITS // 24, UNITS]
    assert sent["std"][:3].numpy() == pytest.approx(rows[:3].numpy().std(axis=1), rel=0.06)  # what it says of it
    for i in range(4):
        alone = spent(federation_of(made, rng=RNG), before).ask("train", state, [i])["update"]
        assert torch.allclose(rows[[i]], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mechanism", harmonizer.MECHANISMS)
def test_a_client_that_forgets_what_it_spent_is_stopped_by_the_meter(mechanism):
    """The outlets count for themselves, in squares of noise levels: all of the budget, and not a unit more."""
    made = silent(mechanism=mechanism, rounds=2)
    state, here = loop.begin(made), federation_of(made, rng=RNG)
    for _ in range(2):
        here.ask("train", state, range(4))
        spent(here, [[0, 0, 0]] * 4)
    metered = here.store.read("spent", range(4), torch.zeros(4, dtype=torch.float64))
    assert metered.numpy() == pytest.approx(np.ones(4), rel=1e-6) and float(metered.max()) <= 1
    with pytest.raises(RunError, match="times the total that the run pays for"):
        here.ask("train", state, range(4))


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("mechanism", harmonizer.MECHANISMS)
def test_with_full_participation_it_is_the_constant_multiplier(mechanism, steps):
    keys = {"method": "udp-fl", "rounds": 5, "local_steps": steps, "epsilon": 3.0, "clients": federation((6,) * 4)}
    made = job(mechanism=mechanism, managed=True, **keys)
    constant = job(mechanism=mechanism, **keys)
    z = constant.plan.z if mechanism == "gaussian" else job(reselect=9, **keys).plan.z  # by rho alone, as that is
    want = made.plan.z * math.sqrt(5 * steps)
    assert want == pytest.approx(z, rel=5e-4)  # up to what the search for a multiplier leaves open
    constant = replace(constant, plan=replace(constant.plan, noise_multiplier=want))
    states, sent, _ = rounds_of(made, 5, rng=RNG)
    plain, theirs, _ = rounds_of(constant, 5, rng=RNG)
    for t in range(5):
        assert sent[t]["multiplier"].numpy() == pytest.approx(np.full(4, want), rel=1e-6)
        assert made.method.noise(states[t], made.plan) == pytest.approx(
            constant.method.noise(plain[t], constant.plan), rel=1e-6
        )
    first, atol = theirs[0]["update"], 1e-5 * float(theirs[0]["update"].std())
    assert torch.allclose(sent[0]["update"], first, rtol=1e-5, atol=atol)  # the same draws, so the same numbers
    assert torch.allclose(states[-1].params, plain[-1].params, rtol=1e-3, atol=100 * atol)


def test_multipliers_are_the_same_whatever_the_private_data():
    """Neighbours and worse: the transcript's multipliers, what clients keep and what is charged, bit for bit."""
    draw = np.random.default_rng(2)
    cohorts = [np.flatnonzero(draw.uniform(size=8) < 0.5).tolist() for _ in range(6)]
    pairs = federation()
    fewer = [(pairs[0][0][:1].expand(12, -1) * 50, pairs[0][1]), *pairs[1:]]
    others = [(7 * x, (y + 1) % CLASSES) for x, y in pairs]
    told = []
    for data in (pairs, fewer, others):
        made = job(method="udp-fl", clients=data, managed=True, rounds=6, client_rate=0.5, algorithm="scaffold")
        states, sent, here = rounds_of(made, 6, cohorts, rng=RNG)
        costs = [price(made.method, made.plan, s.round, s) for s in states[:-1]]
        said = [s[name] for s in sent for name in s.fields if name != "update"] + [s.weight for s in sent]
        told.append((said, filters(here, 8), costs, made.plan.z, sent[-1]["update"]))
    for one in told[1:]:
        assert all(torch.equal(a, b) for a, b in zip(told[0][0], one[0], strict=True)) and len(one[0]) == 6 * 7
        assert torch.equal(told[0][1], one[1]) and told[0][2:4] == one[2:4]
        assert not torch.equal(told[0][4], one[4])  # the messages do differ
    counts = [sum(i in c for c in cohorts) for i in range(8)]
    assert told[0][1][:, 1].tolist() == counts and len(set(told[0][1][:, 0].tolist())) > 2


def test_who_has_nothing_left_sends_nothing_and_changes_nothing():
    made = job(method="udp-fl", managed=True, algorithm="scaffold", local_steps=2, budgets="0.5:0.5,4:0.5", epsilon=4.0)
    here = spent(federation_of(made, rng=RNG), [[0, 0, 0], [0, 0, 0], [UNITS, 0, 0]])
    done = play(made, federation=here, rng=RNG)
    rows, after = done.sent["update"], done.after
    assert not rows[2].any() and rows[1].all() and [w > 0 for w in done.sent.weight[:3].tolist()] == [True, True, False]
    kept = here.store.read("algorithm", range(8), made.plan.algorithm.keeps(after, 8))
    assert not kept[2].any() and kept[1].any()  # scaffold's control variates begin as zeros
    assert torch.isfinite(after.params).all()
    found = made.method.decided(after, made.plan)
    assert found["silent"] == 1 and found["clients"]["2"]["noise_multiplier"] == 0 and found["multiplier"][0] > 0


def test_clients_with_budgets_of_their_own_share_out_their_own():
    made = silent(mechanism="gaussian", budgets="0.5:0.5,4:0.5", epsilon=4.0, penalty=False, rounds=4)
    own = np.array(made.plan.multipliers)
    assert len(set(own)) == 2
    sent = play(made, rng=RNG).sent
    assert sent["multiplier"].numpy() == pytest.approx(2 * own, rel=1e-5)  # a quarter of rho is twice the multiplier
    assert sent["update"].numpy().std(axis=1) == pytest.approx(2 * own / 10, rel=0.08)
    strengths = job(method="udp-fl", managed=True, budgets="0.5:0.5,4:0.5", epsilon=4.0)
    assert max(strengths.method.strengths(strengths.plan).values()) == pytest.approx(3.5 / 4, abs=2e-3)


# --- accounting


@pytest.mark.parametrize(
    ("keys", "event"),
    [
        ({"mechanism": "gaussian"}, GaussianEvent),
        ({}, GaussianEvent),  # the Harmonizer picks it, once
        ({"mechanism": "laplace"}, LaplaceL2Event),
        ({"reselect": 2}, LaplaceL2Event),
        ({"profile": "medical:0.5,iot:0.5"}, LaplaceL2Event),
    ],
)
def test_the_whole_run_is_one_event_that_no_choice_exceeds(keys, event):
    made = job(method="udp-fl", managed=True, epsilon=3.0, rounds=20, client_rate=0.5, **keys)
    (cost,) = whole(made.method, made.plan)
    assert cost.event == event(made.plan.z) and (cost.unit, cost.relation) == ("record", "add/remove")
    assert 0.99 * 3.0 < made.promise.epsilon <= 3.0
    assert made.promise.epsilon == pytest.approx(epsilon(cost.event, 1e-5), rel=1e-6)
    for t in (0, 7):  # of a round: what no participation in it exceeds
        (now,) = price(made.method, made.plan, t, replace(loop.begin(made), round=t))
        assert now.event == event(least(t, made.plan, 1)) and now == price(made.method, made.plan, t)[0]


def test_a_user_in_several_clients_is_charged_in_each():
    known = plan(unit="user", clients_per_user=3, noise_multiplier=2.0, dim=50)
    (cost,) = whole(UdpFl(managed=True, mechanism="gaussian"), known)
    assert cost.event == Repeated(GaussianEvent(2.0), 3) and cost.unit == "user"


def test_q_fedavg_pays_for_its_loss_out_of_the_same_participation():
    made = silent(mechanism="gaussian", algorithm="q-fedavg", local_steps=2)
    here = federation_of(made, rng=RNG)
    sent = play(made, federation=here, rng=RNG).sent
    want = made.plan.z * math.sqrt(8 * 3)  # eight rounds of two steps and a loss
    assert sent["multiplier"].numpy() == pytest.approx(np.full(4, want), rel=1e-5)
    metered = here.store.read("spent", range(4), torch.zeros(4, dtype=torch.float64))
    assert metered.numpy() == pytest.approx(np.full(4, 1 / 8), rel=1e-5)


def test_drawn_batches_are_refused():
    with pytest.raises(SpecError, match="batch_rate = 1"):
        job(method="udp-fl", managed=True, batch_rate=0.5)


def test_delta_zero_holds_for_all_that_was_released():
    """The pure levels 1 / z_t of all steps add up to what is said, at most."""
    made = job(method="udp-fl", pure=True, managed=True, rounds=6, local_steps=2, client_rate=0.5)
    draw = np.random.default_rng(4)
    cohorts = [np.flatnonzero(draw.uniform(size=8) < 0.5).tolist() for _ in range(6)]
    states, sent, _ = rounds_of(made, 6, cohorts, rng=RNG)
    paid = dict.fromkeys(range(8), 0.0)
    for state, message in zip(states[1:], sent, strict=True):
        for client, z in zip(message.ids.tolist(), message["multiplier"].tolist(), strict=True):
            paid[client] += 2 / z
        said = made.method.decided(state, made.plan)["epsilon_at_delta_0"]
        assert max(paid.values()) <= said
    assert said < 2 * max(paid.values())


# --- the record


def test_the_record_tells_the_multipliers_and_what_is_left():
    made = job(method="udp-fl", managed=True, rounds=6, client_rate=0.5, dropout="0.1", reselect=3)
    draw = np.random.default_rng(5)
    cohorts = [np.flatnonzero(draw.uniform(size=8) < 0.5).tolist() for _ in range(5)] + [list(range(8))]
    states, sent, _ = rounds_of(made, 6, cohorts, rng=RNG)
    rounds = [{"round": s.round, "decided": made.method.decided(s, made.plan)} for s in states[1:]]
    json.dumps(rounds)
    for record, message in zip(rounds, sent, strict=True):
        found, each = record["decided"], managed.heard(message)
        assert found["heard"] == len(message) and found["silent"] == int((each[:, 3] == 0).sum())
        loud = each[each[:, 3] > 0, 3]
        assert found["multiplier"] == pytest.approx([float(loud.min()), float(loud.mean()), float(loud.max())])
        assert found["left"][1] == pytest.approx(float(each[:, 2].mean()))
        assert (
            found["std"] == pytest.approx(float(each[:, 4].mean())) and made.method.noise(states[0], made.plan) is None
        )
        assert found["renyi"] == pytest.approx((1 - found["left"][1]) * found["renyi_total"])
    assert rounds[-1]["decided"]["left"][0] >= 0 and rounds[-1]["decided"]["left"][2] < 0.01  # the last round takes all
    said = made.method.explain(rounds)
    first = next(line for line in said if line.startswith("Round 1: noise multiplier"))
    assert "were all in every round" in first and "is left" in first
    assert "on average over the clients that were heard" in said[-1]
    one = [r | {"decided": r["decided"] | {"clients": {}}} for r in rounds]
    assert "The client asked for was not in it." in " ".join(made.method.explain(one))
    empty = play(made, [], rng=RNG).after
    nobody = [{"round": 1, "decided": made.method.decided(empty, made.plan)}]
    assert "no client was heard" in " ".join(made.method.explain(nobody))


def test_scaled_answers_of_stragglers_say_the_same_of_their_noise():
    device = torch.device("cpu")
    fields = managed.remarks([18, 6], [(0.1, 0.5), (0.2, 0.0)], [5.0, 0.0], [2.0, 0.0], [48.0, 0.0], device)
    told = Message(fields, torch.tensor([1.5, 0.5]), np.array([3, 4]))
    half = told.weighted(torch.tensor([0.5, 0.5]))
    assert torch.equal(managed.heard(half), managed.heard(told))
    assert managed.heard(told)[:, 0].tolist() == [3, 4] and managed.heard(told).dtype == torch.float64
    assert managed.noise_of_mean(told, 2.0, 12.0) == pytest.approx((1.0, 3.0))  # 3 / 1 draw: Laplace
    assert managed.noise_of_mean(half, 2.0, 12.0) == pytest.approx((0.25, 3.0))  # a quarter of it, the same shape
    assert managed.noise_of_mean(told.pick(torch.zeros(2, dtype=torch.bool)), 2.0, 12.0) == (0.0, 0.0)


def test_a_run_from_the_shell_with_clients_that_come_and_go(sordino_command, small_npz, tmp_path):
    done = sordino_command(
        "run", "--method", "udp-fl", "--dataset", str(small_npz), "--clients", "6", "--rounds", "5", "--managed",
        "--client-rate", "0.5", "--dropout", "0.2", "--epsilon", "8", "--seed", "1", "--json", "--name", "a",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["guarantee"]["epsilon"] <= 8
    records = [json.loads(line) for line in (tmp_path / "runs/a/private/records.jsonl").read_text().splitlines()]
    spent = {}
    for record in records:
        for client, own in record["decided"]["clients"].items():
            spent[client] = spent.get(client, 0) + own["spent"]
            assert spent[client] + own["left"] == pytest.approx(1, abs=1e-4)
    assert max(spent.values()) <= 1 + 1e-6
    lowest = min(r["decided"]["multiplier"][0] for r in records if r["decided"]["heard"])
    assert lowest < 0.9 * records[0]["decided"]["even_multiplier"]  # less noise than a constant multiplier
    told = sordino_command("explain", str(tmp_path / "runs/a"), "--client", "0", "--owner", cwd=tmp_path)
    assert told.returncode == 0 and "noise multiplier" in told.stdout
