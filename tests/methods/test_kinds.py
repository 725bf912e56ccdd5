"""Clients of several kinds in one run of udp-fl: who is of which, what is chosen for them, what it costs."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, laplace, norm
from torch import nn

from problems import CLASSES, federation, job, plan, played, rows_of
from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.methods import _kinds, _managed, harmonizer
from sordino.methods._kinds import Kind, deal, mixed, parse
from sordino.methods._managed import KEPT, TOLD, UNITS
from sordino.methods.udp_fl import UdpFl
from sordino.privacy.accountants import zcdp
from sordino.privacy.events import Repeated
from sordino.privacy.mechanisms.laplace import LaplaceL2Event
from sordino.runs import loop

CPU = torch.device("cpu")
RNG = Stream.research(21)
WIDE = 6000
TWO = {"data": "dense:0.5,sparse:0.5", "resources": "standard:0.5,limited:0.5", "epsilon": 5.0, "prior": 0.95}


def silent(clients=4, **keys):
    """6001 weights whose gradient is zero."""
    layer = nn.Linear(WIDE, 1)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    zeros = [(torch.zeros(10, WIDE), torch.zeros(10)) for _ in range(clients)]
    return job(layer, zeros, "squared_error", method="udp-fl", learning_rate=1.0, **keys)


# --- who is of which kind


def test_clients_are_dealt_in_order_and_to_the_last_one():
    found = deal("medical:0.3,iot:0.7", "standard", "dense", 10)
    assert found.of.tolist() == [0] * 3 + [1] * 7 and found.counts() == [3, 7]
    assert found.kinds == (Kind("medical", "standard", "dense"), Kind("iot", "standard", "dense"))
    assert deal("medical:0.5,iot:0.5", "standard", "dense", 3).counts() == [2, 1]  # the remainder goes to the first
    one = deal("standard", "high", "small", 5)
    assert one.kinds == (Kind("standard", "high", "small"),) and one.counts() == [5]
    assert deal("medical:0.01,iot:0.99", "standard", "dense", 4).kinds == (Kind("iot", "standard", "dense"),)


def test_equal_cuts_describe_the_same_clients_and_a_word_may_come_twice():
    found = deal("medical:0.3,iot:0.7", "high:0.3,limited:0.4,high:0.3", "dense", 10)
    assert [str(k) for k in found.kinds] == [
        "profile medical, compute high, data dense",
        "profile iot, compute limited, data dense",
        "profile iot, compute high, data dense",
    ]
    again = deal("iot:0.2, medical:0.2, iot:0.6", "standard", "dense", 5)
    assert len(again.kinds) == 2 and again.of.tolist() == [0, 1, 0, 0, 0]


def test_every_client_has_a_kind_whatever_the_shares():
    draw = np.random.default_rng(0)
    for _ in range(100):
        shares, n = draw.dirichlet(np.ones(3)), int(draw.integers(1, 60))
        text = ",".join(f"{w}:{float(s)!r}" for w, s in zip(("standard", "medical", "iot"), shares, strict=True))
        try:
            parse("profile", text, ("standard", "medical", "iot"))
        except SpecError:
            continue
        found = deal(text, "standard", "dense", n)
        names = [found.kinds[k].profile for k in found.of]
        assert len(names) == n
        for word, share in zip(("standard", "medical", "iot"), shares, strict=True):
            assert abs(names.count(word) - share * n) < 1


@pytest.mark.parametrize(
    "keys",
    [
        {"profile": "medical:0.3,iot:0.6"},
        {"profile": "medical:0.3,rich:0.7"},
        {"profile": "medical:half,iot:0.5"},
        {"resources": "high:-1,limited:2"},
        {"data": "dense,sparse"},
        {"data": "dense:0.5,sparse:0.5", "mechanism": "laplace"},
    ],
)
def test_nonsense_is_refused(keys):
    with pytest.raises(SpecError):
        UdpFl(**keys)


def test_one_kind_is_no_mixture():
    assert not mixed("standard", "high:1", "dense") and mixed("standard", "high", "dense:0.5,sparse:0.5")
    with pytest.raises(SpecError, match="batch_rate = 1"):
        job(method="udp-fl", profile="medical:0.5,iot:0.5", batch_rate=0.5)
    job(method="udp-fl", profile="medical:1", rounds=1)
    assert not UdpFl(profile="medical:1").free and UdpFl(**{k: TWO[k] for k in ("data", "prior")}).free


# --- the choice


def test_each_kind_chooses_by_its_own_score():
    """Table 2, given nearly all the weight: Gaussian noise for dense data, Laplace noise for sparse and limited."""
    made = silent(**TWO)
    names = [made.method.noise_of(loop.begin(made), made.plan, k) for k in (0, 1)]
    assert names == ["gaussian", "l2-laplace"]
    for k, (data, resources) in enumerate((("dense", "standard"), ("sparse", "limited"))):
        alone = silent(**(TWO | {"data": data, "resources": resources, "reselect": 5}))
        choice, theirs = made.method.chosen(made.plan, kind=k), alone.method.chosen(alone.plan)
        assert [(c.mechanism, c.score) for c in choice.candidates] == [
            (c.mechanism, c.score) for c in theirs.candidates
        ]
        assert choice.mechanism == names[k] == choice.candidates[0].mechanism
        assert choice.candidates[0].score == max(c.score for c in choice.candidates)
    standard = UdpFl(profile="medical:0.5,iot:0.5", resources="limited").chosen(made.plan, kind=0)
    assert standard.setting.profile == "medical"


def test_two_mechanisms_live_in_one_round_each_with_its_own_noise():
    made = silent(**TWO)
    rows = rows_of(made, loop.begin(made), made.clients.fetch(range(4), CPU), made.plan, RNG.rows(range(4)))
    rows, told, scale = rows[:, :-TOLD], _managed.heard(rows[:, -TOLD:]), made.plan.z / 10
    for k, row in enumerate(rows.numpy()):
        right, wrong = (norm, laplace) if k < 2 else (laplace, norm)
        assert kstest(row, right(scale=scale).cdf).pvalue > 1e-3
        assert kstest(row, wrong(scale=scale).cdf).pvalue < 1e-3
    assert told[:, 4].numpy() == pytest.approx(rows.numpy().std(axis=1), rel=0.05)
    assert float(told[3, 4] / told[0, 4]) == pytest.approx(math.sqrt(2), rel=1e-5)
    rms = math.sqrt(float((told[:, 4] ** 2).mean()))
    assert made.method.noise(loop.begin(made), made.plan) == pytest.approx(rms, rel=1e-5)


@pytest.mark.parametrize("managed", [False, True])
def test_a_mixed_cohort_is_every_client_by_itself(managed):
    made = job(method="udp-fl", clients=federation((6, 12, 5, 9, 7, 6)), managed=managed, algorithm="scaffold", **TWO)
    state, ids = loop.begin(made), [4, 0, 5, 2]
    own = made.method.fresh(state, 4, made.plan)  # control variates that differ, too
    own = own + torch.randn(own.shape, generator=torch.Generator().manual_seed(2))
    if managed:  # they have spent differently
        own[:, -KEPT:] = 0
        own[:, -KEPT] = torch.arange(4) * (UNITS // 5)
    together = made.method.train(
        state, made.clients.fetch(ids, CPU), own, made.model, made.plan, RNG.rows(ids)
    )  # fmt: skip
    for place, i in enumerate(ids):
        one = made.method.train(
            state, made.clients.fetch([i], CPU), own[[place]], made.model, made.plan, RNG.rows([i])
        )  # fmt: skip
        for whole, alone in zip(together, one, strict=True):
            assert torch.allclose(whole[place], alone[0], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(together[0][0, :9], together[0][1, :9], atol=1e-3)
    empty = made.method.train(
        state, made.clients.fetch([], CPU), own[:0], made.model, made.plan, RNG.rows([])
    )  # fmt: skip
    assert empty[0].shape == (0, together[0].shape[1]) and empty[1].shape == (0, own.shape[1])


@pytest.mark.parametrize("managed", [False, True])
def test_nothing_is_seen_in_the_noise_of_several_mechanisms(managed):
    """The variance of the mean is that of the rows that came, whatever noise each of them had."""
    made = silent(reselect=1, managed=managed, rounds=4, dropout="0.3", **TWO)
    for state in played(made, 3)[0][1:]:
        found = made.method.decided(state, made.plan)["seen"]
        assert not found["visible"] and abs(found["signal"]) < 0.15


def test_each_client_is_clipped_in_the_norm_of_its_own_mechanism(monkeypatch):
    """Gaussian and L1-Laplace noise side by side, as re-selection may have it."""
    wild = [(x * 10.0**k, y) for k, (x, y) in enumerate(federation((6, 6, 6, 6)))]
    made = job(method="udp-fl", clients=wild, reselect=1, clip=0.3, **TWO)
    start, seen = loop.begin(made), {}
    state = replace(start, extra=start.extra | {"mechanism": torch.tensor([0, 2])})  # gaussian, laplace
    real = UdpFl.clipped

    def clipped(self, weights, batch, model, state, plan, seeds, groups):
        found = real(self, weights, batch, model, state, plan, seeds, groups)
        single = [replace(batch, x=batch.x[[i]], y=batch.y[[i]], sizes=(1,), groups=None) for i in range(len(batch.y))]
        each = [real(self, state.params, one, model, state, plan, [0], None).value[0].double() for one in single]
        seen[self.noise_of(state, plan)] = (found, torch.stack(each))
        return found

    monkeypatch.setattr(UdpFl, "clipped", clipped)
    rows_of(made, state, made.clients.fetch(range(4), CPU), made.plan, RNG.rows(range(4)))
    assert set(seen) == {"gaussian", "laplace"}
    wide = 0.3 * harmonizer.dense_l1(made.plan.dim)
    for name, order, bound in (("gaussian", 2, 0.3), ("laplace", 1, wide)):
        found, each = seen[name]
        norms = torch.linalg.vector_norm(each, ord=order, dim=1)
        assert found.norm == order and found.bound == pytest.approx(bound) and len(each) == 12
        assert 0.95 * bound < float(norms.max()) <= bound * (1 + 1e-6)
    other = torch.linalg.vector_norm(seen["laplace"][1], dim=1)  # in the other norm they are not bounded by C
    assert float(other.max()) > 1.02 * 0.3


def test_the_choice_and_the_noise_are_those_of_the_public_plan():
    others = [(7 * x, (y + 1) % CLASSES) for x, y in federation()]
    one, two = (job(method="udp-fl", clients=data, managed=True, **TWO) for data in (federation(), others))
    assert one.plan.z == two.plan.z
    sent = []
    for made in (one, two):
        data = made.clients.fetch(range(8), CPU)
        sent.append(rows_of(made, loop.begin(one), data, made.plan, RNG.rows(range(8))))
        assert [made.method.chosen(made.plan, kind=k) for k in (0, 1)] == [
            one.method.chosen(one.plan, kind=k) for k in (0, 1)
        ]
    assert torch.equal(sent[0][:, -TOLD:], sent[1][:, -TOLD:])
    assert not torch.equal(sent[0][:, :9], sent[1][:, :9])


# --- accounting and the record


def test_kinds_are_charged_by_rho_alone_and_share_one_scale():
    made = job(method="udp-fl", rounds=20, **TWO)
    (cost,) = made.method.costs(made.plan)
    assert cost.event == Repeated(LaplaceL2Event(made.plan.z), 1)
    assert made.promise.epsilon <= 5.0 < zcdp.epsilon(Repeated(LaplaceL2Event(0.99 * made.plan.z), 20), 1e-5)
    scales = {c.scale for k in (0, 1) for c in made.method.chosen(made.plan, kind=k).candidates}
    assert len(scales) == 1
    assert UdpFl(**{k: v for k, v in TWO.items() if k != "epsilon"}).costs(plan(dim=9)) == (
        replace(cost, event=Repeated(LaplaceL2Event(1.0), 1)),
    )


def test_the_record_and_its_words_tell_the_kinds_apart():
    made = job(method="udp-fl", rounds=4, reselect=2, **TWO)
    states = played(made, 4)[0][1:]
    rounds = [{"round": s.round, "decided": made.method.decided(s, made.plan)} for s in states]
    json.dumps(rounds)
    first = rounds[0]["decided"]["kinds"]
    assert [k["mechanism"] for k in first] == ["gaussian", "l2-laplace"] and [k["clients"] for k in first] == [4, 4]
    assert [k["choice"]["candidates"][0]["mechanism"] for k in first] == ["gaussian", "l2-laplace"]
    assert [k["norm"] for k in first] == [2, 2] and [k["sensitivity"] for k in first] == [1.0, 1.0]
    assert "choice" not in rounds[1]["decided"]["kinds"][0] and "next" in rounds[1]["decided"]["kinds"][1]
    said = " ".join(made.method.explain(rounds))
    for word in (
        "4 clients, profile standard, compute standard, data dense:",
        "4 clients, profile standard, compute limited, data sparse:",
        "chose gaussian",
        "chose l2-laplace",
        "a step of clients with profile standard, compute limited, data sparse by at most 1 in the L2 norm",
        "Round 2: the signal",
        "stays for profile standard, compute standard",
        "% of the run's privacy loss was spent, measured",
    ):
        assert word in said, word


def test_kinds_with_own_budgets_penalty_path_and_managed_multipliers_together():
    made = job(
        method="udp-fl", budgets="0.5:0.5,4:0.5", managed=True, reselect=2, path="polygon", server_data=0.25,
        path_steps=2, local_steps=2, **(TWO | {"epsilon": 4.0}),
    )  # fmt: skip
    states = played(made, 3)[0]
    assert torch.isfinite(states[-1].params).all() and not torch.equal(states[-1].params, states[0].params)
    found = made.method.decided(states[-1], made.plan)
    assert len(found["clients"]) == 8 and len(found["kinds"]) == 2 and len(found["path_loss"]) == 11
    assert len({c["noise_multiplier"] for c in found["clients"].values()}) == 2


def test_clients_keep_their_users_when_they_are_taken_apart():
    from sordino.core.types import Batch
    from sordino.methods._harmonised import _clients

    x = torch.arange(6.0)[:, None]
    whole = Batch(x, x[:, 0].long(), (2, 1, 3), groups=((1, 1), (1,), (2, 1)))
    part = _clients(whole, np.array([2, 0]))
    assert part.x[:, 0].tolist() == [3, 4, 5, 0, 1] and part.sizes == (3, 2) and part.groups == ((2, 1), (1, 1))
    assert _kinds.deal("standard", "standard", "dense", 3).of.tolist() == [0, 0, 0]
