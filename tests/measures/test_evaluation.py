"""What is evaluated on where nobody says it: how much noise, at what price, and when no figure is shown."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import sordino
from sordino.core.errors import SpecError
from sordino.data.clients import ArrayClients
from sordino.measures import settings
from sordino.privacy.accountants import gdp
from sordino.privacy.algebra import gdp_mu_squared
from sordino.privacy.events import Composed
from sordino.runs import build, loop
from sordino.spec import spec
from support.problems import FEATURES, federation, job, linear, mlp

MANY = (60,) * 40


def users(most=1):
    """One number a record; three records a user, users in up to so many clients."""
    x, y = (np.concatenate(t) for t in zip(*federation(MANY), strict=True))
    number = np.arange(len(y)) // 3
    if most > 1:  # the third record of a user lies in the next client
        number[2::3] = (number[2::3] + 20) % (number.max() + 1)
    order = np.lexsort((number, np.repeat(np.arange(40), 60)))
    return ArrayClients(torch.from_numpy(x[order]), torch.from_numpy(y[order]), MANY, number[order])


def made(**keys):
    """As from a file of one's own, without test records."""
    clients = keys.pop("clients", None)
    keys = {"rounds": 3, "device": "cpu", "seed": 0} | keys
    return build.build(spec.from_dict(keys), linear(), clients or federation(MANY), own_file=True)


APART = [
    {"method": "dp-sgd"},
    {"method": "dp-sgd", "batch_rate": 0.2, "local_steps": 3},
    {"method": "dp-sgd", "batch_size": 10, "batch_sampling": "fixed"},  # replaced, by place
    {"method": "dp-sgd", "unit": "user"},
    {"method": "dp-sgd", "unit": "user", "clients_per_user": 2},
    {"method": "dp-fedavg", "unit": "user"},
    {"method": "dp-fedavg", "unit": "user", "client_rate": 0.5, "clients_per_user": 2},
]


@pytest.mark.parametrize("keys", APART, ids=str)
def test_where_a_unit_lies_on_one_side_the_price_is_the_larger_of_both(keys):
    def clients():
        return users(keys.get("clients_per_user", 1)) if "unit" in keys else None

    for epsilon in (1.0, 8.0):
        one = made(**keys, epsilon=epsilon, release_noise=1e6, clients=clients())  # next to nothing
        both = made(**keys, epsilon=epsilon, evaluate_on="validation", clients=clients())
        assert both.evaluation.apart and both.apart and not both.once
        assert both.plan.z == pytest.approx(one.plan.z, rel=2e-4)
        assert both.promise.epsilon <= epsilon and both.promise.epsilon == pytest.approx(epsilon, rel=2e-3)
        alone = gdp.epsilon(Composed(both.apart), 1e-5)
        assert alone == pytest.approx(epsilon, rel=1e-4) and alone < epsilon  # the evaluation has the whole budget
        before = both.guarantee(both.viewer, 3, 3, evaluated=False)
        assert before.epsilon == pytest.approx(one.promise.epsilon, rel=1e-3)


SHARED = [
    {"method": "dp-fedavg"},
    {"method": "nbafl"},
    {"method": "dp-sgd", "unit": "user", "batch_size": 5, "batch_sampling": "fixed"},  # replaced, by another number
]


@pytest.mark.parametrize("keys", SHARED, ids=str)
def test_where_it_lies_on_both_sides_the_evaluation_takes_a_fiftieth(keys):
    clients = users() if "unit" in keys else None
    found = made(**keys, epsilon=2.0, evaluate_on="validation", clients=clients)
    assert not found.apart and len(found.once) == 1 and not found.evaluation.apart
    assert gdp_mu_squared(found.once[0]) == pytest.approx(0.02 * gdp.mu_for(2.0, 1e-5) ** 2, rel=1e-4)
    assert 1.99 < found.promise.epsilon <= 2.0
    assert "2 % of the budget" in found.evaluation.text


def test_a_figure_is_shown_from_five_points_on():
    """z sqrt(clients) / held-out records, by hand: z = 1 / mu, where mu is the level of (epsilon, delta)."""
    sizes = (100,) * 10
    seen = set()
    for epsilon in np.geomspace(0.3, 6, 14):
        found = build.build(
            spec.from_dict({"epsilon": float(epsilon), "device": "cpu", "seed": 0, "rounds": 1}),
            linear(), federation(sizes), own_file=True,
        )  # fmt: skip
        split = settings.asked(found.spec, found.method, found.owner.brought, False, True)
        assert split.validation == 0.1 and split.on == "validation"
        trained = len(found.federation.data.y)
        if found.held_out is None:
            assert trained == 1000 and found.evaluation.on is None and not found.apart and not found.once
            told = float(found.evaluation.text.split("a deviation of ")[1].split(",")[0])
            assert told >= 0.05 and "no evaluation" in found.notes[0]
            need = int(found.evaluation.text.split("provide about ")[1].split(" ")[0].replace(",", ""))
            z = 1 / gdp.mu_for(float(epsilon), 1e-5)
            assert need == pytest.approx(z * math.sqrt(10) / 0.05 / 0.1, rel=1e-3)
        else:
            out = found.held_out.units
            assert trained + out == 1000 and not found.notes
            assert found.evaluation.deviation == pytest.approx(
                math.sqrt(10) / gdp.mu_for(float(epsilon), 1e-5) / out, rel=1e-4
            )
            assert found.evaluation.deviation <= 0.05 and found.evaluation.every == found.evaluation.times == 1
        seen.add(found.held_out is None)
    assert seen == {True, False}


def test_the_one_evaluation_is_after_the_last_round(tmp_path):
    result = sordino.train(
        linear(), federation(MANY), rounds=4, epsilon=4.0, validation=0.1, seed=0, device="cpu", out=str(tmp_path)
    )
    assert [r.accuracy is not None for r in result.history] == [False, False, False, True]
    assert all(r.loss is None and r.metrics is None for r in result.history)
    spent = [r.epsilon["server"] for r in result.history]
    assert (
        spent[0] < spent[1] < spent[2] < spent[3] == pytest.approx(result.guarantee.epsilon)
    )  # then it is charged too
    again = job(clients=federation(MANY), rounds=4, epsilon=4.0, validation=0.1, seed=0)
    exact = loop.evaluate(replace(again, evaluation=replace(again.evaluation, noise=1e-9)), loop.begin(again).params, 1)
    assert exact["accuracy"] is not None and again.evaluation.times == 1


def test_several_evaluations_share_the_budget_that_one_would_have():
    one, three = (made(epsilon=2.0, evaluate_on="validation", evaluate_every=n) for n in (3, 1))
    assert three.evaluation.times == 3 and one.evaluation.times == 1
    assert three.evaluation.noise == pytest.approx(math.sqrt(3) * one.evaluation.noise)
    assert gdp_mu_squared(Composed(three.apart)) == pytest.approx(gdp_mu_squared(Composed(one.apart)))


def test_statistics_and_an_evaluation_together_keep_to_the_budget():
    clients = federation(MANY)
    found = made(epsilon=1.0, evaluate_on="validation", standardise=True, clients=clients)
    assert found.once and found.apart and 0.99 < found.promise.epsilon <= 1.0
    assert gdp.epsilon(Composed((*found.once, *found.apart)), 1e-5) <= 1.0


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"budgets": "1:0.5,2:0.5"}, "budgets of their own"),
        ({"joining": "0.3:1"}, "join during the run"),
        ({"method": "geodp-paper"}, "as printed"),
    ],
    ids=lambda v: "",
)
def test_nothing_is_held_out_unasked_where_it_cannot_be_evaluated(keys, words):
    found = made(**keys)
    assert found.held_out is None and len(found.federation.data.y) == sum(MANY) and words in found.evaluation.text


def test_what_is_asked_for_is_done_however_noisy():
    found = made(epsilon=0.05, evaluate_on="validation", validation=0.01, rounds=1)
    assert found.held_out is not None and found.evaluation.deviation > 0.05
    assert any("hold out more records" in n for n in found.notes)
    none = made(epsilon=8.0, validation=0.0)
    assert none.held_out is None and none.evaluation.on is None and not none.evaluation.text
    with pytest.raises(SpecError, match="evaluate_on = test, but there are no public test records"):
        made(evaluate_on="test")


def test_a_regression_on_held_out_records_shows_its_absolute_error_alone(tmp_path):
    pairs = [(x, x[:, 0]) for x, _ in federation(MANY)]
    result = sordino.train(
        nn.Linear(FEATURES, 1), pairs, loss="squared_error", epsilon=4.0, rounds=2, validation=0.1, seed=0,
        device="cpu", out=str(tmp_path),
    )  # fmt: skip
    last = result.history[-1]
    assert (
        set(last.metrics) == {"mae"} and 0 <= last.metrics["mae"] <= 1 and last.loss is None and last.accuracy is None
    )
    assert "with noise of deviation" in last.evaluated_on


def test_clients_whose_test_records_are_known_keep_their_numbers_when_others_are_left_out():
    alone = np.repeat(np.arange(12), 8)
    x, y = (np.concatenate(t) for t in zip(*federation((8,) * 12), strict=True))
    held = ArrayClients(torch.from_numpy(x), torch.from_numpy(y), (8,) * 12, alone)
    wanted = spec.from_dict({"unit": "user", "validation": 0.3, "seed": 1, "device": "cpu"})
    found = build.build(wanted, mlp(), held, None, (x[:12], y[:12]), np.arange(12))
    left = found.federation.data.users[np.asarray(found.federation.data.starts[:-1])]
    assert found.federation.data.count == len(left) < 12
    for client, place in enumerate(found.test_clients.tolist()):
        assert (place == -1) == (client not in left) and (place == -1 or left[place] == client)
