"""Clients that fail, are late or slow: by the stated law, at the stated price."""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chisquare, kstest, uniform

import sordino
from sordino.contract.method import Method, Release
from sordino.contract.presence import Stragglers
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.core.types import Batch, State
from sordino.data.clients import adopt
from sordino.federations.base import Work
from sordino.federations.simulator import Simulator
from sordino.ledger.account import ids
from sordino.privacy import tightest
from sordino.privacy.events import GaussianEvent, Repeated, Sampled
from sordino.privacy.mechanisms.gaussian import Gaussian as Mechanism
from sordino.privacy.release import Unproven
from sordino.privacy.samplers import Poisson
from sordino.runs import loop, prepare
from sordino.spec import spec
from support.killed import Killed, killing
from support.methods import federation_of, merged
from support.problems import federation, job, mlp, plan, registry, same_weights

RNG = Stream.research(17)
CPU = torch.device("cpu")


# --- the law


def test_each_client_has_its_own_probability_to_fail_and_keeps_it():
    law = Stragglers(dropout=(0.1, 0.5))
    own = law.failing(range(4000), RNG)
    assert kstest(own, uniform(0.1, 0.4).cdf).pvalue > 1e-3
    assert kstest(own, uniform(0.1, 0.44).cdf).pvalue < 1e-3  # the test can see ten per cent
    assert np.array_equal(law.failing([7, 3], RNG), own[[7, 3]])  # whoever else is drawn


def test_clients_fail_and_are_late_as_often_as_said():
    law, who = Stragglers(dropout=(0.2, 0.2), late=0.3), range(20_000)
    in_time, late = law.fates(who, law.failing(who, RNG), RNG.at("r"))
    assert not (in_time & late).any()
    for found, right in ((in_time, 0.8 * 0.7), (late, 0.8 * 0.3)):
        assert binomtest(int(found.sum()), 20_000, right).pvalue > 1e-3
        assert binomtest(int(found.sum()), 20_000, 1.1 * right).pvalue < 1e-3
    again = law.fates(who, law.failing(who, RNG), RNG.at("s"))[0]
    assert abs((in_time & again).mean() - 0.56**2) < 0.015  # another round, another draw


def test_slow_clients_do_every_part_equally_often():
    law = Stragglers(slow=0.4)
    steps = np.array(law.steps([6] * 20_000, RNG.rows(range(20_000))))
    assert binomtest(int((steps < 6).sum()), 20_000, 0.4).pvalue > 1e-3
    assert chisquare(np.bincount(steps[steps < 6], minlength=6)[1:]).pvalue > 1e-3
    assert steps.min() == 1 and steps.mean() == pytest.approx(law.mean_steps(6), rel=0.01)
    assert law.steps([1, 1], RNG.rows([0, 1])) == [1, 1] and Stragglers().steps([4, 2], RNG.rows([0, 1])) == [4, 2]


@pytest.mark.parametrize("low_high", [(0.0, 0.0), (0.3, 0.3), (0.0, 0.9), (0.2, 0.6)])
def test_nobody_counts_more_than_once(low_high):
    law = Stragglers(dropout=low_high)
    weights = law.weights(law.failing(range(2000), RNG))
    assert weights.max() <= 1 and weights.min() >= (1 - low_high[1]) / (1 - low_high[0]) - 1e-12


# --- what arrives


class Marks(Method):
    """A method whose message is the client's mark and the number of the round."""

    def releases(self, plan, round=0, state=None):
        return (Release("mark", Unproven("a test"), "client"),)

    def train(self, state, site):
        who = site.data.x[:, 0].long()
        marks = torch.nn.functional.one_hot(who, site.plan.population).float()
        return Message({"mark": site.out["mark"](marks), "origin": torch.full((len(who),), state.round)}), site.kept()


class Numbers:
    """Clients whose only record is their number."""

    def __init__(self, count):
        self.count = count

    def fetch(self, who, device):
        x = torch.tensor([[float(i)] for i in who]).reshape(-1, 1)
        return Batch(x, x[:, 0], (1,) * len(who))


def arrivals(law, rate, clients=30, rounds=1200):
    """What arrived in each round: weights [rounds, clients] and rounds of origin, and how many rows of each client."""
    made = plan(population=clients, sampler=Poisson(rate), stragglers=law)
    federation = Simulator(CPU, Numbers(clients), RNG, public=RNG)
    federation.open(Work(Marks(), job(method="none").model, made))
    heard, origin, most = np.zeros((rounds, clients)), np.full((rounds, clients), np.nan), 0
    for r in range(rounds):
        cohort = made.sampler.draw(clients, RNG.at("round", r).at("sample"))
        sent = federation.ask("train", State(torch.zeros(1), round=r), cohort)
        who = sent["mark"].argmax(1).numpy()
        assert sent.ids.tolist() == who.tolist()  # a row says who sent it, late or not
        most = max(most, int(np.bincount(who, minlength=1).max()))
        heard[r] = sent.total("mark")["mark"][0].double().numpy()
        origin[r, who] = sent["origin"].numpy()
    return heard, origin, most


@pytest.fixture(scope="module")
def seen():
    law = Stragglers(dropout=(0.1, 0.6), late=0.4)
    return law, *arrivals(law, 0.5)


def test_no_client_has_two_rows_in_one_sum_and_late_is_one_round(seen):
    _, heard, origin, most = seen
    assert most == 1 and heard.max() <= 1 + 1e-6
    rounds = np.arange(len(heard))[:, None] - origin
    assert set(np.unique(rounds[np.isfinite(rounds)])) == {0.0, 1.0}
    assert (rounds == 1).sum() > 500
    used = {(int(o), c) for (r, c), o in np.ndenumerate(origin) if np.isfinite(o)}
    assert len(used) == int(np.isfinite(origin).sum())  # no answer is heard twice


def test_what_is_expected_to_arrive_arrives(seen):
    law, heard, _, _ = seen
    failing = law.failing(range(30), RNG.at("dropout"))
    share, in_time = 0.5 * (1 - law.dropout[1]), 0.5 * (1 - failing) * (1 - law.late)
    own = share * (1 - law.late) + share * law.late * (1 - in_time)  # each client's, by hand
    error = 4 * math.sqrt(0.25 / len(heard) / 30)
    assert heard[1:].mean() == pytest.approx(own.mean(), abs=error)
    assert law.expected(0.5, 1) == pytest.approx(own.mean(), rel=0.02)  # those thirty clients are not all
    assert abs(heard.mean() - 0.5) > 10 * error  # what was drawn
    many = law.failing(range(200_000), RNG)
    exact = share * (1 - law.late) + share * law.late * (1 - 0.5 * (1 - many) * (1 - law.late))
    assert law.expected(0.5, 1) == pytest.approx(exact.mean(), rel=1e-3)
    first, _, _ = arrivals(law, 0.5, 400, 1)
    assert first.mean() == pytest.approx(law.expected(0.5, 0), abs=4 * math.sqrt(0.25 / 400))
    assert law.expected(0.5, 0) < 0.8 * law.expected(0.5, 1)


def test_those_who_often_fail_are_heard_as_much_as_the_others():
    """The mean is unbiased under unequal drop-out; the plain mean of the answers is not."""
    law, clients, rounds = Stragglers(dropout=(0.0, 0.8)), 30, 1200
    heard, _, _ = arrivals(law, 0.5, clients, rounds)
    failing = law.failing(range(clients), RNG.at("dropout"))
    value = failing * 10  # those who fail have the largest values
    mean = heard @ value / (law.expected(0.5, 1) * clients)
    error = 4 * mean.std() / math.sqrt(rounds)
    assert abs(mean.mean() - value.mean()) < error
    answers = heard > 0
    naive = (answers * value).sum(1) / np.maximum(1, answers.sum(1))
    assert abs(naive.mean() - value.mean()) > 3 * error
    undivided = answers @ value / (answers.mean() * clients)
    assert abs(undivided.mean() - value.mean()) > 3 * error


# --- what it costs


def patterns(rate, late, rounds, drop=0.0):
    """{(1 if the client's row is in the sum of round t else 0, ...): probability}, by going through every fate."""
    fates = {"out": 1 - rate * (1 - drop), "time": rate * (1 - drop) * (1 - late), "late": rate * (1 - drop) * late}
    found: dict[tuple[int, ...], float] = {}
    for story in itertools.product(fates, repeat=rounds):
        there, pending = [], False
        for fate in story:
            there.append(int(fate == "time" or pending))
            pending = fate == "late"
        key = tuple(there)
        found[key] = found.get(key, 0.0) + math.prod(fates[f] for f in story)
    assert math.fsum(found.values()) == pytest.approx(1)
    return found


def divergences(found, z, epsilons, step=0.2):
    """Hockey-stick divergences of sums with the client (1 a row) against sums without, both ways, on a grid."""
    rounds = len(next(iter(found)))
    line = np.arange(-7 * z, 1 + 7 * z, step * z)
    grids = np.meshgrid(*[line] * rounds, indexing="ij", sparse=True)
    without = 1.0
    for g in grids:
        without = without * np.exp(-g * g / (2 * z * z)) / (z * math.sqrt(2 * math.pi)) * step * z
    ratio = sum(
        p * np.exp(sum((s * g - s / 2) / (z * z) for s, g in zip(there, grids, strict=True)))
        for there, p in found.items()
    )
    return [
        (
            float((without * np.maximum(ratio - math.exp(e), 0)).sum()),
            float((without * np.maximum(1 - math.exp(e) * ratio, 0)).sum()),
        )
        for e in epsilons
    ]


EPSILONS = (0.05, 0.3, 0.8, 1.5)


@pytest.mark.parametrize("rounds", [2, 3])
@pytest.mark.parametrize(("rate", "late", "drop"), [(0.3, 0.5, 0.0), (0.7, 0.9, 0.0), (0.5, 0.2, 0.3), (0.9, 0.5, 0.0)])
def test_late_answers_cost_no_more_than_is_charged(rounds, rate, late, drop):
    """The exact mechanism, every draw and delay gone through, against what is accounted; adding and removing."""
    z = 0.8
    event = Repeated(Sampled(GaussianEvent(z), rate), rounds)
    exact = divergences(patterns(rate, late, rounds, drop), z, EPSILONS)
    for epsilon, both in zip(EPSILONS, exact, strict=True):
        assert max(both) <= tightest.delta(event, epsilon) * (1 + 1e-3) + 1e-9
    less = Repeated(Sampled(GaussianEvent(z), 0.75 * rate * (1 - late) * (1 - drop)), rounds)  # as if late were never
    assert any(max(both) > tightest.delta(less, e) for e, both in zip(EPSILONS, exact, strict=True))


def test_the_grid_knows_the_known():
    """Without delays the exact mechanism is Poisson sampling itself."""
    for rounds in (2, 3):
        event = Repeated(Sampled(GaussianEvent(0.8), 0.4), rounds)
        for e, both in zip(EPSILONS, divergences(patterns(0.4, 0.0, rounds), 0.8, EPSILONS), strict=True):
            assert max(both) == pytest.approx(tightest.delta(event, e), rel=5e-3)


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.99, 1.0])
@pytest.mark.parametrize("late", [0.0, 0.1, 0.9])
def test_delays_do_not_raise_the_rate_at_which_a_row_is_there(rate, late):
    """pending + (1 - pending) rate (1 - late) with the worst odds rate late : 1 - rate of a pending row is `rate`."""
    for there in itertools.product((0, 1), repeat=2):  # given any presence before, the third round's odds stay within
        found = patterns(rate, late, 3)
        before = sum(p for k, p in found.items() if k[:2] == there)
        if before > 1e-12:
            assert sum(p for k, p in found.items() if k == (*there, 1)) / before <= rate * (1 + 1e-9)


def test_where_data_change_inside_a_late_client_no_amplification_is_claimed():
    users = [np.arange(12) // 4 + 3 * k for k in range(8)]
    clients = prepare.with_users(adopt(federation()), users, spec.from_dict({"unit": "user"}))[0]
    made = job(clients=clients, method="dp-fedavg", unit="user", client_rate=0.5, late=0.3, rounds=4)
    assert made.plan_cost().event == Repeated(GaussianEvent(made.plan.z / 2), 4)
    made = job(method="dp-fedavg", client_rate=0.5, late=0.3, rounds=4)
    (event, times) = made.plan_cost().event.event, made.plan_cost().event.count
    assert event.rate == pytest.approx(0.5) and times == 4


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_late_row_moves_the_noised_sum_by_at_most_the_bound_of_the_round_it_is_in(adaptive, monkeypatch):
    """Also where the bound has fallen since the row was clipped."""
    clients = [(20 * x, y) for x, y in federation()]
    options = {"adaptive_clip": True, "clip_lr": 2.0, "quantile": 0.1} if adaptive else {}
    made = job(clients=clients, method="dp-fedavg", learning_rate=3.0, late=0.5, epsilon=20.0, **options)
    state, dim, long, added = loop.begin(made), made.model.layout.dim, 0, []
    everyone, real = federation_of(made, rng=RNG), Mechanism.apply

    def spy(self, x, rng, use):
        if x.value.shape[1] == dim:  # the update, and not the count
            added.append(x)
        return real(self, x, rng, use)

    monkeypatch.setattr(Mechanism, "apply", spy)
    for r in range(4):
        sent = everyone.ask("train", state, range(8))
        bound = state.method.clip
        long += int((sent["update"].norm(dim=1) > bound).sum())
        for i in range(len(sent)):
            added.clear()
            for some in (sent, sent.pick(torch.tensor([j for j in range(len(sent)) if j != i]))):
                merged(made.method, made.plan, state, some, RNG)
            assert added[0].bound == added[1].bound == bound
            assert float((added[0].value - added[1].value).double().norm()) <= bound * (1 + 1e-5)
        # a count that says "all were within", so that the bound falls
        fields = {"update": 0 * sent["update"], "within": torch.full((len(sent), 1), 0.5)} if adaptive else sent.fields
        counted = Message(fields, sent.weight, sent.ids)
        state = replace(merged(made.method, made.plan, state, counted, RNG), round=r + 1)
    assert (long > 0) == adaptive  # there were rows that an older bound had let through


# --- runs


def keys(tmp_path, **more):
    wanted = {"rounds": 6, "device": "cpu", "out": str(tmp_path), "learning_rate": 0.3, "method": "dp-fedavg"}
    wanted |= {"mode": "research"}
    return (
        wanted | {"client_rate": 0.6, "dropout": "0.1-0.4", "late": 0.4, "checkpoint_seconds": 0.0, "name": "it"} | more
    )


def killed(point, number, model, clients, **keys):
    with killing(point, number), pytest.raises(Killed):
        sordino.train(model, clients, **keys)


def test_everyone_who_is_drawn_pays_heard_or_not(tmp_path):
    result = sordino.train(mlp(), federation(), **keys(tmp_path, dropout="0.5", rounds=8))
    kept = sqlite3.connect(registry())
    rows = kept.execute("SELECT what, owners FROM entry WHERE kind = 'round' ORDER BY id").fetchall()
    kept.close()
    charged = [ids(owners).tolist() for _, owners in rows]
    drawn = [
        Poisson(0.6).draw(8, Stream.research(0).at("round", json.loads(what)["round"]).at("sample")).tolist()
        for what, _ in rows
    ]
    assert charged == drawn and len(drawn) == 8
    assert [r.clients for r in result.private.history] == [len(d) for d in drawn]
    answers = [r.answers for r in result.private.history]
    assert sum(answers) < sum(map(len, drawn))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return sordino.train(mlp(), federation(), **keys(tmp_path_factory.mktemp("whole"), algorithm="ditto"))


@pytest.mark.parametrize(("point", "number"), [("merged", 3), ("stored", 2), ("saved", 4)])
def test_late_answers_survive_a_kill(point, number, whole, tmp_path):
    """Bit for bit, with what clients keep beside it."""
    killed(point, number, mlp(), federation(), **keys(tmp_path / "cut", algorithm="ditto"))
    again = sordino.train(mlp(), federation(), resume=tmp_path / "cut" / "it")
    assert same_weights(whole.model, again.model)
    assert [r.answers for r in whole.private.history] == [r.answers for r in again.private.history]


def test_in_secure_mode_a_late_answer_is_not_heard_again_after_a_kill(tmp_path, monkeypatch):
    """A re-run is a new release with new noise; a row in both would be charged once."""
    heard, real = [], Simulator._with_late

    def spy(self, phase, message, waiting):
        before, now = self.store.clients("late train"), set(message.ids[~waiting.numpy()].tolist())
        heard.append({i for i in before if i not in now})
        return real(self, phase, message, waiting)

    monkeypatch.setattr(Simulator, "_with_late", spy)
    both = set()
    for attempt in range(3):  # the draw is the operating system's
        heard.clear()
        wanted = keys(tmp_path / str(attempt), mode="secure", late=0.8, dropout="0", client_rate=0.5)
        killed("recorded", 1, mlp(), federation(), **wanted)
        sordino.train(mlp(), federation(), resume=tmp_path / str(attempt) / "it")
        both |= heard[1] & heard[2]  # the second round, and again
    assert not both
