"""Clients of several kinds in one run of udp-fl: who is of which, what is chosen for them, what it costs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest, laplace, norm

from sordino.contract.site import clients
from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.core.types import Batch
from sordino.federations.base import Work
from sordino.federations.simulator import answer
from sordino.methods.udp_fl import harmonizer, kinds
from sordino.methods.udp_fl.kinds import Kind, deal, mixed, parse
from sordino.methods.udp_fl.managed import UNITS
from sordino.methods.udp_fl.method import UdpFl
from sordino.privacy.accountants import zcdp
from sordino.privacy.events import Composed, Repeated
from sordino.privacy.mechanisms.laplace import LaplaceL2Event
from sordino.runs import loop
from support.methods import CPU, federation_of, play, price
from support.problems import CLASSES, federation, job, plan
from support.silent import silent_job
from support.udp import filters, records, rounds_of, spent

RNG = Stream.research(21)
WIDE = 6000
TWO = {"data": "dense:0.5,sparse:0.5", "resources": "standard:0.5,limited:0.5", "epsilon": 5.0, "prior": 0.95}


def silent(clients=4, **keys):
    """6001 weights whose gradient is zero."""
    return silent_job(WIDE, (10,) * clients, method="udp-fl", learning_rate=1.0, **keys)


@dataclass
class Watched:
    """A witness of what each outlet was given, and of which clients."""

    given: dict[str, Any]

    def known(self, release, ids):
        return None

    def passed(self, release, x, ids, output, multiplier):
        self.given[release.name] = x, ids.tolist()


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
    sent, scale = play(made, rng=RNG).sent, made.plan.z / 10
    drawn, std = sent["update"].numpy(), sent["std"].numpy()
    for k, row in enumerate(drawn):
        right, wrong = (norm, laplace) if k < 2 else (laplace, norm)
        assert kstest(row, right(scale=scale).cdf).pvalue > 1e-3
        assert kstest(row, wrong(scale=scale).cdf).pvalue < 1e-3
    assert std == pytest.approx(drawn.std(axis=1), rel=0.05)
    assert float(std[3] / std[0]) == pytest.approx(math.sqrt(2), rel=1e-5)
    rms = math.sqrt(float((std**2).mean()))
    assert made.method.noise(loop.begin(made), made.plan) == pytest.approx(rms, rel=1e-5)


@pytest.mark.parametrize("managed", [False, True])
def test_a_mixed_cohort_is_every_client_by_itself(managed):
    made = job(method="udp-fl", clients=federation((6, 12, 5, 9, 7, 6)), managed=managed, algorithm="scaffold", **TWO)
    state, ids = loop.begin(made), [4, 0, 5, 2]
    control = torch.randn(6, made.plan.dim, generator=torch.Generator().manual_seed(2))  # which differ, too

    def asked(cohort):
        here = federation_of(made, rng=RNG)
        here.store.write("algorithm", range(6), control)
        if managed:  # they have spent differently
            spent(here, [[k * (UNITS // 7), 0, 0] for k in range(6)])
        message = here.ask("train", state, cohort)
        kept = here.store.read("algorithm", range(6), torch.zeros(6, made.plan.dim))
        return message, [kept, filters(here, 6) if managed else torch.zeros(6)]

    together, after = asked(ids)
    for place, i in enumerate(ids):
        alone, own = asked([i])
        for name, value in together.fields.items():
            assert torch.allclose(value[place], alone[name][0], rtol=1e-4, atol=1e-5)
        for whole, part in zip(after, own, strict=True):
            assert torch.allclose(whole[i].double(), part[i].double(), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(together["update"][0], together["update"][1], atol=1e-3)
    assert not torch.equal(after[0][0], control[0]) and torch.equal(after[0][1], control[1])  # client 1 was not there
    nobody, _ = asked([])
    assert {k: v.shape[1:] for k, v in nobody.fields.items()} == {k: v.shape[1:] for k, v in together.fields.items()}
    assert len(nobody) == 0


@pytest.mark.parametrize("managed", [False, True])
def test_nothing_is_seen_in_the_noise_of_several_mechanisms(managed):
    """The variance of the mean is that of the rows that came, whatever noise each of them had."""
    made = silent(reselect=1, managed=managed, rounds=4, dropout="0.3", **TWO)
    for state in rounds_of(made, 3, rng=RNG)[0][1:]:
        found = made.method.decided(state, made.plan)["seen"]
        assert not found["visible"] and abs(found["signal"]) < 0.15


def test_each_client_is_clipped_in_the_norm_of_its_own_mechanism():
    """Gaussian and L1-Laplace noise side by side, as re-selection may have it."""
    wild = [(x * 10.0**k, y) for k, (x, y) in enumerate(federation((6, 6, 6, 6)))]
    made = job(method="udp-fl", clients=wild, reselect=1, clip=0.3, **TWO)
    start, watched = loop.begin(made), Watched({})
    state = replace(start, method=replace(start.method, mechanism=torch.tensor([0, 2])))  # gaussian, laplace
    work, here = Work(made.method, made.model, made.plan), federation_of(made, rng=RNG)
    answer(work, here.store, here.data, CPU, "train", state, np.arange(4), RNG, watched)
    assert {name: ids for name, (_, ids) in watched.given.items()} == {
        "gradient gaussian": [0, 1], "gradient laplace": [2, 3]
    }  # fmt: skip
    wide = 0.3 * harmonizer.dense_l1(made.plan.dim)
    for name, order, bound, ids in (("gaussian", 2, 0.3, [0, 1]), ("laplace", 1, wide, [2, 3])):
        found, batch = watched.given[f"gradient {name}"][0], records(made, ids)
        single = [replace(batch, x=batch.x[[i]], y=batch.y[[i]], sizes=(1,)) for i in range(len(batch.y))]
        each = torch.stack([made.method.clipped(name, state.params, r, made.model, [0]).value[0] for r in single])
        assert torch.allclose(found.value, each.reshape(2, 6, -1).sum(dim=1), atol=1e-5)
        norms = torch.linalg.vector_norm(each.double(), ord=order, dim=1)
        assert found.norm == order and found.bound == pytest.approx(bound) and len(each) == 12
        assert 0.95 * bound < float(norms.max()) <= bound * (1 + 1e-6)
    other = torch.linalg.vector_norm(each.double(), dim=1)  # in the other norm they are not bounded by C
    assert float(other.max()) > 1.02 * 0.3


def test_one_release_for_each_noise_that_occurs_at_the_price_of_one():
    """Re-selection may leave two kinds with one noise, and then there is one release."""
    made = job(method="udp-fl", reselect=1, algorithm="q-fedavg", **TWO)
    start, z = loop.begin(made), made.plan.z
    for numbers, names in (([0, 2], ["gradient gaussian", "losses gaussian", "gradient laplace", "losses laplace"]),
                           ([3, 3], ["gradient", "losses"])):  # fmt: skip
        state = replace(start, method=replace(start.method, mechanism=torch.tensor(numbers)))
        found = made.method.releases(made.plan, 1, state)
        assert [r.name for r in found] == names and [r.part for r in found] == [n.partition(" ")[2] for n in names]
        (cost,) = price(made.method, made.plan, 1, state)
        assert cost.event == Composed((LaplaceL2Event(z), LaplaceL2Event(z)))


def test_the_choice_and_the_noise_are_those_of_the_public_plan():
    others = [(7 * x, (y + 1) % CLASSES) for x, y in federation()]
    one, two = (job(method="udp-fl", clients=data, managed=True, **TWO) for data in (federation(), others))
    assert one.plan.z == two.plan.z
    sent = []
    for made in (one, two):
        sent.append(play(made, state=loop.begin(one), rng=RNG).sent)
        assert [made.method.chosen(made.plan, kind=k) for k in (0, 1)] == [
            one.method.chosen(one.plan, kind=k) for k in (0, 1)
        ]
    told = [name for name in sent[0].fields if name != "update"]
    assert len(told) == 6 and all(torch.equal(sent[0][name], sent[1][name]) for name in told)
    assert torch.equal(sent[0].weight, sent[1].weight) and not torch.equal(sent[0]["update"], sent[1]["update"])


# --- accounting and the record


def test_kinds_are_charged_by_rho_alone_and_share_one_scale():
    made = job(method="udp-fl", rounds=20, **TWO)
    (cost,) = price(made.method, made.plan)
    assert cost.event == LaplaceL2Event(made.plan.z)
    assert made.promise.epsilon <= 5.0 < zcdp.epsilon(Repeated(LaplaceL2Event(0.99 * made.plan.z), 20), 1e-5)
    scales = {c.scale for k in (0, 1) for c in made.method.chosen(made.plan, kind=k).candidates}
    assert len(scales) == 1
    other = UdpFl(**{k: v for k, v in TWO.items() if k != "epsilon"})
    assert price(other, plan(dim=9)) == (replace(cost, event=LaplaceL2Event(1.0)),)


def test_the_record_and_its_words_tell_the_kinds_apart():
    made = job(method="udp-fl", rounds=4, reselect=2, **TWO)
    states = rounds_of(made, 4, rng=RNG)[0][1:]
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
    states = rounds_of(made, 3, rng=RNG)[0]
    assert torch.isfinite(states[-1].params).all() and not torch.equal(states[-1].params, states[0].params)
    found = made.method.decided(states[-1], made.plan)
    assert len(found["clients"]) == 8 and len(found["kinds"]) == 2 and len(found["path_loss"]) == 11
    assert len({c["noise_multiplier"] for c in found["clients"].values()}) == 2


def test_clients_keep_their_users_when_they_are_taken_apart():
    x = torch.arange(6.0)[:, None]
    whole = Batch(x, x[:, 0].long(), (2, 1, 3), groups=((1, 1), (1,), (2, 1)))
    part = clients(whole, np.array([2, 0]))
    assert part.x[:, 0].tolist() == [3, 4, 5, 0, 1] and part.sizes == (3, 2) and part.groups == ((2, 1), (1, 1))
    assert kinds.deal("standard", "standard", "dense", 3).of.tolist() == [0, 0, 0]
