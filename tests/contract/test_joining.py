"""Clients that join after some rounds: never there before, never expected before, never dearer than the others."""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

import sordino
from sordino.contract.method import Method, Release
from sordino.contract.presence import Stragglers
from sordino.core import faults
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.core.types import Batch, State
from sordino.federations.base import Work
from sordino.federations.simulator import Simulator
from sordino.ledger.account import ids
from sordino.privacy.release import Unproven
from sordino.privacy.samplers import FixedSizeSampler, Poisson
from sordino.runs import loop, run
from support.killed import Killed
from support.problems import federation, job, linear, mlp, plan, registry, same_weights

RNG = Stream.research(23)
CPU = torch.device("cpu")
OPEN = SimpleNamespace(repeats=lambda done: None, free=lambda cohort: cohort)  # a ledger that lets everyone in


class Values(Method):
    """A client sends its value."""

    def releases(self, plan, round=0, state=None):
        return (Release("value", Unproven("a test"), "client"),)

    def train(self, state, site):
        return Message({"value": site.out["value"](site.data.x)}), site.kept()


class Holders:
    """Clients whose only record is their value."""

    def __init__(self, values):
        self.values = torch.tensor(values, dtype=torch.float32)[:, None]

    def fetch(self, who, device):
        x = self.values[list(who)]
        return Batch(x, x[:, 0], (1,) * len(who))


def sums(law, sampler, values, rounds, times):
    """What arrives: the sum of values and the weight of it [times, rounds, 2]."""
    made, model = plan(population=len(values), sampler=sampler, stragglers=law, rounds=rounds), job(method="none").model
    found = np.zeros((times, rounds, 2))
    for t in range(times):
        it = SimpleNamespace(plan=made, rng=RNG.at("time", t))
        federation = Simulator(CPU, Holders(values), it.rng, public=RNG)
        federation.open(Work(Values(), model, made))
        for r in range(rounds):
            total = federation.ask("train", State(torch.zeros(1), round=r), loop._draw(it, OPEN, r)).total()
            found[t, r] = float(total["value"]), float(total.weight)
    return found, np.array([made.expected_answers(r) for r in range(rounds)])


# --- the law


def test_the_last_clients_join_after_so_many_rounds():
    law, who = Stragglers(joining=(0.3, 4)), np.arange(10)
    assert [law.there(who, 10, r).tolist() for r in (0, 3)] == [list(range(7))] * 2
    assert law.there(who, 10, 4).tolist() == law.there(who, 10, 9).tolist() == list(range(10))
    assert law.there(np.array([2, 8]), 10, 0).tolist() == [2]
    assert [law.answers(0.5, 10, r) for r in (0, 3, 4)] == [3.5, 3.5, 5.0]
    assert Stragglers(joining=(0.99, 4)).joiners(10) == 9  # someone is there
    assert Stragglers().there(who, 10, 0).tolist() == who.tolist() and Stragglers().answers(0.5, 10, 0) == 5.0


@pytest.mark.parametrize("sampler", [Poisson(0.5), FixedSizeSampler(10)])
def test_the_mean_is_that_of_the_clients_that_are_there(sampler):
    """Unbiased in every round, also where clients fail; over all clients, or over who came, it is not."""
    values = [1.0] * 12 + [-3.0] * 8
    found, expected = sums(Stragglers(dropout=(0.3, 0.3), joining=(0.4, 2)), sampler, values, 4, 500)
    means = found[:, :, 0] / expected
    error = 4 * means.std(axis=0) / math.sqrt(len(means))
    right = [1.0, 1.0, np.mean(values), np.mean(values)]
    assert np.all(np.abs(means.mean(axis=0) - right) < error)
    assert abs(found[:, 0, 0].mean() / expected[3] - 1.0) > 2 * error[0]  # as if all were expected from the start


def test_late_answers_of_who_has_just_joined_are_not_expected():
    law = Stragglers(late=0.4, joining=(0.5, 2))
    found, expected = sums(law, Poisson(0.6), [1.0] * 40, 4, 300)
    error = 4 * found[:, :, 1].std(axis=0) / math.sqrt(len(found))
    assert np.all(np.abs(found[:, :, 1].mean(axis=0) - expected) < error)
    plain = Stragglers(late=0.4).answers(0.6, 40, 2)  # were they late from a round before they came
    assert plain - expected[2] > 2 * error[2] and expected[3] == pytest.approx(plain)


def test_a_client_that_is_there_is_drawn_no_more_often_while_others_are_not():
    """The sampler that is accounted draws: K of all N, not K of those who are there."""
    made = plan(population=10, sampler=FixedSizeSampler(4), stragglers=Stragglers(joining=(0.5, 1)))
    times = 4000
    first = [0 in loop._draw(SimpleNamespace(plan=made, rng=RNG.at(t)), OPEN, 0) for t in range(times)]
    assert binomtest(sum(first), times, 0.4).pvalue > 1e-3
    assert binomtest(sum(first), times, 0.44).pvalue < 1e-3


# --- what it costs


@pytest.mark.parametrize(
    "keys",
    [
        {"method": "dp-sgd"},
        {"method": "adaptive-noise"},
        {"method": "adaptive-noise-client", "client_rate": 0.5},
        {"method": "dp-fedavg", "client_rate": 0.5},
        {"method": "dp-fedavg", "client_rate": 0.5, "client_sampling": "fixed"},
    ],
)
def test_joining_costs_nothing_more(keys):
    with_it, without = job(**keys, rounds=6, joining="0.5:3"), job(**keys, rounds=6)
    assert with_it.plan.z == without.plan.z
    assert with_it.promise.epsilon == without.promise.epsilon
    for viewer in ("server", "public"):
        assert with_it.guarantee(viewer, 6, 6).epsilon <= without.guarantee(viewer, 6, 6).epsilon


def test_the_noise_of_all_clients_is_not_counted_on():
    assert job(method="nbafl").plan.everyone and not job(method="nbafl", joining="0.5:2").plan.everyone
    alone, all_of = (job(method="nbafl", rounds=4, **k).guarantee("public", 4, 4) for k in ({"joining": "0.5:2"}, {}))
    assert alone.epsilon > 1.5 * all_of.epsilon
    with pytest.raises(SpecError, match="every client in every round"):
        job(method="dp-sgd", channel="secure-sum", joining="0.5:2")


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"joining": "0.3"}, "SHARE:ROUNDS"),
        ({"joining": "x:3"}, "SHARE:ROUNDS"),
        ({"joining": "0.3:2.5"}, "SHARE:ROUNDS"),
        ({"joining": "1:2"}, r"\[0, 1\)"),
        ({"joining": "nan:2"}, "finite"),
        ({"joining": "0.3:0"}, "at least 1"),
        ({"joining": "0.01:2"}, "none of 8 clients"),
        ({"joining": "0.5:3"}, "never happens in 3 rounds"),
        ({"joining": "0.5:1", "validation": 0.2, "evaluate_on": "validation"}, "some clients come later"),
        ({"joining": "0.5:1", "standardise": True}, "some clients come later"),
    ],
)
def test_what_cannot_be_meant(keys, told):
    with pytest.raises(SpecError, match=told):
        job(method="dp-fedavg", **keys)


# --- runs


def cohorts(folder):
    """Who was charged for a run, round by round."""
    kept = sqlite3.connect(registry())
    job = json.loads((folder / "private" / "ledger.json").read_text())["job"]
    rows = kept.execute(
        "SELECT what, owners FROM entry WHERE kind = 'round' AND job = ? ORDER BY id", (job,)
    ).fetchall()
    kept.close()
    return {json.loads(what)["round"]: ids(owners).tolist() for what, owners in rows}


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_nobody_is_in_a_cohort_or_pays_before_joining(sampling, tmp_path):
    keys = {
        "client_sampling": sampling,
        "client_rate": 0.6,
        "rounds": 8,
        "joining": "0.5:4",
        "device": "cpu",
        "seed": 0,
    }
    result = sordino.train(mlp(), federation(), method="dp-fedavg", out=str(tmp_path), **keys)
    sampler = Poisson(0.6) if sampling == "poisson" else FixedSizeSampler(5)
    found = cohorts(result.folder)
    for r in range(8):
        drawn = sampler.draw(8, Stream.research(0).at("round", r).at("sample")).tolist()
        assert found[r] == [i for i in drawn if i < 4 or r >= 4]
    assert [r.clients for r in result.private.history] == [len(found[r]) for r in range(8)]
    assert max(itertools.chain(*found.values())) >= 4  # they did join
    assert result.guarantee.epsilon <= 2.0


def test_a_killed_run_goes_on_bit_for_bit(tmp_path):
    keys = {"method": "adaptive-noise", "rounds": 5, "joining": "0.5:3", "client_rate": 0.7, "dropout": "0.2",
            "checkpoint_seconds": 0.0, "device": "cpu", "name": "it", "seed": 0}  # fmt: skip
    whole = sordino.train(linear(), federation(), out=str(tmp_path / "whole"), **keys)
    seen = itertools.count()

    def hook(name):
        if name == "merged" and next(seen) == 3:  # in the round in which they join
            raise Killed

    faults.set_hook(hook)
    try:
        with pytest.raises(Killed):
            sordino.train(linear(), federation(), out=str(tmp_path / "cut"), **keys)
    finally:
        faults.set_hook(None)
    again = sordino.train(linear(), federation(), resume=tmp_path / "cut" / "it")
    assert same_weights(whole.model, again.model) and cohorts(whole.folder) == cohorts(again.folder)


@pytest.mark.parametrize("method", ["adaptive-noise", "adaptive-noise-paper"])
def test_participations_are_counted_from_when_a_client_is_there(method, tmp_path):
    """Xue et al., V-F: whoever drops out is not counted, whoever joins late starts from zero."""
    made = job(linear(), method=method, rounds=6, joining="0.5:4", dropout="0.4", client_rate=0.6, out=str(tmp_path),
               epsilon=8.0)  # fmt: skip
    result = run.execute(made, own_model=True)
    found, answered, charged = cohorts(result.folder), np.zeros(8, int), np.zeros(8, int)
    for r in range(6):
        fates = made.rng.at("round", r).at("clients").at("stragglers").rows(found[r]).uniform(2)[:, 0]
        charged[found[r]] += 1
        answered[np.array(found[r])[fates >= 0.4]] += 1
    assert charged[4:].max() <= 2 and 2 < charged[:4].max() <= 6 and answered.sum() < charged.sum()
    assert sum(r.answers for r in result.private.history) == answered.sum()
    if method == "adaptive-noise":
        paid = made.guarantee("server", 6, int(charged.max())).epsilon  # by the busiest, who was there from the start
        assert result.private.guarantees["server"].epsilon == pytest.approx(paid) and paid < made.promise.epsilon
        assert result.guarantee.epsilon == pytest.approx(made.promise.epsilon)  # who took part how often is not told
        return
    fresh = made.method.keeps(loop.begin(made), 8, made.plan)
    counts = made.federation.store.read("participations", range(8), fresh["participations"]).flatten()
    assert counts.tolist() == answered.tolist()
    assert result.private.history[-1].decided["participations"] == answered.max()
