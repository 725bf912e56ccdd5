"""Rounds that are released only if enough clients are drawn and answer: shares of noise, lost rounds, refusals."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import sordino
from sordino.channels.secure_sum import SecureSum
from sordino.channels.shuffler import Shuffler
from sordino.contract import pricing
from sordino.contract.presence import Stragglers
from sordino.core.errors import LostRound, RunError, SpecError
from sordino.federations.base import Work
from sordino.federations.workers import Workers
from sordino.methods.nbafl import NbAFL
from sordino.privacy import price
from sordino.privacy.accountants import gdp
from sordino.privacy.crowd import Crowd, honest_in_any_sum
from sordino.privacy.events import GaussianEvent
from sordino.privacy.mechanisms.rounded_gaussian import RoundedGaussian
from sordino.privacy.samplers import FixedSizeSampler, Poisson
from sordino.privacy.trust import viewer
from sordino.runs import loop
from support.methods import federation_of, play, rows
from support.problems import federation, job, linear, mlp, plan, same_weights

SUM = {"method": "nbafl", "channel": "secure-sum"}

# --- how many honest clients are in any sum


def attacked(members: int, dropouts: int, colluders: int) -> int:
    """Return the fewest honest members in a sum, over everything a server can tell its clients; 0: a single row."""
    least, honest = members - dropouts, members - colluders
    needed = least - colluders  # shares that the colluders do not hold
    left_out = [
        frozenset(c) for size in range(dropouts + 1) for c in itertools.combinations(range(honest), size)
    ]  # whoever leaves out a colluder helps nobody
    fewest = honest
    for lists in itertools.combinations_with_replacement(left_out, honest):
        keys = [sum(j in lost for lost in lists) for j in range(honest)]
        if any(key >= needed and honest - key >= needed for key in keys):
            return 0  # mask and key of one member
        if all(key >= needed or honest - key >= needed for key in keys):
            fewest = min(fewest, sum(key < needed for key in keys))
    return fewest


@pytest.mark.parametrize(
    ("members", "dropouts", "colluders"),
    [(3, 1, 0), (4, 1, 0), (4, 1, 1), (5, 1, 0), (5, 1, 2), (5, 2, 0), (6, 1, 1), (6, 2, 0), (6, 2, 1), (6, 0, 3)],
)
def test_no_lists_of_survivors_leave_fewer_honest_members_in_a_sum(members, dropouts, colluders):
    found, bound = attacked(members, dropouts, colluders), honest_in_any_sum(members, dropouts, colluders)
    assert bound <= found and (bound == 0) == (found == 0)
    if dropouts:  # as many as answer is too many: the server lies
        assert bound <= members - dropouts - colluders


def test_the_bound_is_as_the_count_says_and_grows_with_the_cohort():
    for n, d, c in itertools.product(range(1, 60), range(12), range(8)):
        least, honest = n - d, n - c
        if 2 * least > n + c:
            by_lists = math.ceil((honest * least - n * (honest - least + c)) / (least - c)) - c
            assert honest_in_any_sum(n, d, c) == by_lists >= 1
            assert honest_in_any_sum(n + 1, d, c) >= by_lists + 1
        else:
            assert honest_in_any_sum(n, d, c) == 0
    assert honest_in_any_sum(250, 25, 0) == 223 and honest_in_any_sum(250, 0, 7) == 243
    assert honest_in_any_sum(100, 30, 10) == 45  # 60 if servers told everyone the same


def test_what_missing_shares_cost():
    """Shares sized for all of a hundred clients, of whom thirty are missing, are worth 5.39 where 4.38 was meant."""
    for missing, right in ((0, 4.3772), (10, 4.652984531), (30, 5.388238133)):
        left = GaussianEvent(math.sqrt((100 - missing) / 100))
        assert gdp.epsilon(left, 1e-5) == pytest.approx(right, rel=1e-4)
    share = NbAFL().noise(None, plan(channel=SecureSum(), population=100, noise_multiplier=1.0, colluders=40))
    assert share == pytest.approx(0.1290994449, rel=1e-9)  # sixty honest clients


# --- plans


@pytest.mark.parametrize(
    ("keys", "sharing", "sure"),
    [
        ({}, 8, 8),
        ({"min_cohort": 8}, 8, 8),
        ({"min_cohort": 6}, 6, 6),  # a server that draws fewer than it should meets clients who accept six
        ({"allowed_dropouts": 1}, 7, 7),
        ({"allowed_dropouts": 2}, 6, 6),
        ({"allowed_dropouts": 3}, 4, 5),
        ({"allowed_dropouts": 2, "colluders": 1}, 5, 6),
        ({"allowed_dropouts": 2, "stragglers": Stragglers(dropout=(0.1, 0.1))}, 6, 6),
        ({"sampler": Poisson(0.5)}, 1, 1),
        ({"sampler": Poisson(0.5), "min_cohort": 4}, 4, 4),
        ({"sampler": FixedSizeSampler(5)}, 5, 5),
        ({"sampler": FixedSizeSampler(5), "allowed_dropouts": 1}, 4, 4),
        ({"sampler": FixedSizeSampler(5), "max_participations": 2}, 1, 1),
        ({"stragglers": Stragglers(dropout=(0.1, 0.1))}, 1, 1),  # no round is lost, so nobody is sure to be there
    ],
    ids=str,
)
def test_who_shares_the_noise(keys, sharing, sure):
    made = plan(channel=SecureSum(), **keys)
    assert made.crowd.sharing == made.split == sharing and made.crowd.sure == sure
    assert replace(made, channel=Shuffler()).split == 1
    assert made.everyone == (sharing == 8)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"method": "nbafl", "min_cohort": 4}, "channel = direct shows each of them"),
        ({"method": "dp-fedavg", "allowed_dropouts": 1}, "shows each of them"),
        (SUM | {"min_cohort": 9}, "at most 8 clients are drawn"),
        (SUM | {"min_cohort": 5, "client_rate": 0.5, "client_sampling": "fixed"}, "at most 4 clients are drawn"),
        (SUM | {"allowed_dropouts": 2, "client_rate": 0.5}, "needs min_cohort"),
        (SUM | {"allowed_dropouts": 4}, "min_cohort of at least 9"),
        (SUM | {"allowed_dropouts": 3, "viewer": "server+2"}, "min_cohort of at least 9"),
        (SUM | {"min_cohort": 2, "viewer": "server+2"}, "min_cohort of at least 3"),
        (SUM | {"allowed_dropouts": 1, "late": 0.1}, "use late = 0"),
        (SUM | {"allowed_dropouts": 1, "dropout": "0.1-0.2"}, "one dropout for all"),
        (SUM | {"min_cohort": 0}, "min_cohort must be"),
        (SUM | {"allowed_dropouts": -1}, "allowed_dropouts must not be negative"),
    ],
    ids=str,
)
def test_thresholds_that_make_no_sense_are_refused(keys, said):
    with pytest.raises(SpecError, match=said):
        job(**keys)


def test_noise_of_a_trusted_server_counts_on_a_secret_draw():
    made = job(method="dp-fedavg", client_rate=0.5)
    with pytest.raises(SpecError, match="a lost round tells how many were drawn"):
        pricing.costs(made.method, replace(made.plan, min_cohort=2, channel=SecureSum()))


# --- the noise is there


@pytest.mark.parametrize("mode", ["research", "secure"])
@pytest.mark.parametrize("method", ["nbafl", "dp-sgd"])
def test_the_noise_of_the_fewest_is_the_noise_that_is_priced(method, mode):
    """Of eight clients two may be missing and one colludes: five honest ones are in any sum."""
    made = job(
        method=method, channel="secure-sum", allowed_dropouts=2, viewer="server+1", mode=mode, module=linear(),
        clients=[(torch.zeros(12, 20), torch.zeros(12, dtype=torch.int64))] * 8, learning_rate=1e-9,
    )  # fmt: skip
    name = "update" if method == "nbafl" else "gradient"
    release = pricing.declared(made.method, made.plan)[0]
    assert isinstance(release.mechanism, RoundedGaussian) == (mode == "secure") and made.plan.split == 5
    (cost,) = (c for c in pricing.costs(made.method, made.plan) if c.viewer == "server")
    sums = []
    for round in range(60):
        sent = rows(made, range(8), replace(loop.begin(made), round=round), field=name)[:5]
        floats = release.mechanism.floats if mode == "secure" else None
        sums.append(sent.sum(dim=0) if floats is None else floats(sent.sum(0, True), release.bound, torch.float64)[0])
    seen = torch.stack(sums).double().sub(torch.stack(sums).double().mean(dim=0)).std()
    draw = getattr(cost.event, "event", cost.event)
    priced = getattr(draw, "noise_multiplier", None) or draw.event.noise_multiplier
    assert float(seen) == pytest.approx(priced * release.bound, rel=0.06)


def test_what_each_viewer_is_charged_where_clients_may_be_missing():
    crowd = Crowd(100, members=90, dropouts=9, sure=81)
    assert SecureSum().split(crowd) == crowd.sharing == 81 - 1
    for looks, left in (("server", 80), ("public", 81), ("client", 80)):
        found = SecureSum().cost(GaussianEvent(2.0), viewer(looks), crowd, linear=True)
        assert found == GaussianEvent(2.0 * min(1.0, math.sqrt(left / 80)))
    one = replace(crowd, dropouts=0, sure=90)
    assert SecureSum().cost(GaussianEvent(2.0), viewer("client"), one, True) == GaussianEvent(2 * math.sqrt(89 / 90))
    uneven = replace(one, single=True, heaviest=2.0, lightest=0.5)  # those who answer may be the lightest
    found = SecureSum().cost(GaussianEvent(2.0), viewer("server"), uneven, True)
    assert found.noise_multiplier == pytest.approx(2 * math.sqrt((1 + 89 / 16) / 90))


def test_an_absent_client_is_no_neighbour():
    """What is priced is a row that becomes zero, with its noise: then no price depends on who else is there."""
    costs = [
        {c.viewer: c.event for c in pricing.costs(made.method, made.plan)}
        for made in (job(**SUM, allowed_dropouts=d, epsilon=1.0) for d in (0, 2))
    ]
    assert costs[0]["server"] == costs[1]["server"]
    fixed = job(**SUM, client_rate=0.5, client_sampling="fixed", allowed_dropouts=1)
    assert price.cost_to("server", pricing.costs(fixed.method, fixed.plan)).relation == "replace"


# --- lost rounds


def train(tmp_path: Path, rounds: int = 12, **more):
    keys = SUM | {"device": "cpu", "mode": "research", "learning_rate": 0.3, "checkpoint_seconds": 0.0} | more
    return sordino.train(mlp(), federation(), rounds=rounds, out=str(tmp_path), name="it", **keys)


def test_a_lost_round_is_charged_and_changes_nothing(tmp_path):
    seen = []
    result = train(tmp_path, dropout="0.25", allowed_dropouts=2, observe=seen.append)
    models = [view.state.params for view in seen if view.viewer == "public"]
    lost = [record.lost is not None for record in result.history]
    assert 0 < sum(lost) < 12  # P(more than 2 of 8 are missing) = 0.32
    start = loop.begin(job(**SUM)).params
    for before, after, gone in zip([start, *models], models, lost, strict=False):
        assert torch.equal(before, after) == gone
    assert result.history[-1].round == 12 and result.guarantee.epsilon == pytest.approx(2.0, rel=1e-2)
    spent = [record.epsilon["server"] for record in result.history]
    assert spent == sorted(spent) and len(set(spent)) == 12  # lost rounds too
    answers = [record.answers for record in result.private.history]
    assert [a is None for a in answers] == lost and min(a for a in answers if a is not None) >= 6
    text = (tmp_path / "it" / "public" / "records.jsonl").read_text().splitlines()
    assert ["lost" in line for line in text] == lost


def test_a_cohort_that_is_too_small_is_lost_before_anyone_trains():
    made = job(**SUM, min_cohort=6, client_rate=0.9)
    with pytest.raises(LostRound, match="too few clients were drawn"):
        play(made, range(5))
    assert play(made, range(6)).sent["update"].shape[0] == 6
    unlimited = job(**SUM, client_rate=0.9)
    assert play(unlimited, range(1)).sent["update"].shape[0] == 1


def test_workers_lose_the_rounds_that_the_simulator_loses(monkeypatch):
    made = job(**SUM, allowed_dropouts=2, min_cohort=6, client_rate=0.9)
    simulator = federation_of(made)
    state, workers = loop.begin(made), Workers.__new__(Workers)
    workers._work = Work(made.method, made.model, made.plan)
    monkeypatch.setattr(workers, "_turns", lambda state, ids: [[0]])
    monkeypatch.setattr(workers, "_ask_all", lambda verb, phase, state, *_: [{0: simulator.answers(phase, state, six)}])
    six = [0, 1, 2, 3, 4, 5]
    assert len(workers.ask("train", state, range(8))) == 6
    six.pop()
    with pytest.raises(LostRound, match="did not answer"):
        workers.ask("train", state, range(8))
    with pytest.raises(LostRound, match="too few"):
        workers.ask("train", state, range(5))


def test_many_lost_rounds_end_a_run_that_can_be_resumed(tmp_path, monkeypatch):
    with pytest.raises(RunError, match="10 rounds in a row were lost") as caught:
        train(tmp_path, rounds=14, dropout="0.9", allowed_dropouts=2)
    assert not isinstance(caught.value, LostRound)
    monkeypatch.setattr(Stragglers, "fates", lambda self, ids, failing, rng: (failing >= 0, failing < 0))
    result = sordino.train(mlp(), federation(), resume=tmp_path / "it")
    assert [record.lost is not None for record in result.history] == [True] * 10 + [False] * 4
    assert not same_weights(result.model, mlp())


def test_a_shuffler_counts_on_those_who_are_sure_to_answer():
    made = plan(channel=Shuffler(), min_cohort=6, allowed_dropouts=2, sampler=Poisson(0.9))
    assert made.crowd.sure == 4 and made.thresholds
