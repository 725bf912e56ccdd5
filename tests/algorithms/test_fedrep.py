"""FedRep against Algorithm 1 of the paper: the body is shared, heads stay where they are."""

from __future__ import annotations

import pytest
import torch

from papers import SIZES, Naive, Rounds, close, everyone
from sordino.core.errors import SpecError
from support.problems import CLASSES, FEATURES, federation, job, linear

CLIENTS = federation(SIZES)
STEPS, LR = 5, 0.2
BODY = FEATURES * 6 + 6  # of the small network: its first layer
HEAD = 6 * CLASSES + CLASSES


def ours(clients=CLIENTS, module=None, rounds=3, cohorts=None, **keys):
    keys = {"method": "none", "algorithm": "fedrep", "local_steps": STEPS, "learning_rate": LR} | keys
    made = job(module, clients, rounds=rounds, **keys)
    done = Rounds(made)
    done.run(cohorts or everyone(made, rounds))
    return done


@pytest.mark.parametrize("head_steps", [1, 3])
def test_fedrep(head_steps):
    cohorts, naive = [[0, 1], [1], [0, 1, 2]], Naive(CLIENTS)
    head = torch.arange(len(naive.weights)) >= BODY
    heads, first = {}, naive.weights[BODY:]
    for cohort in cohorts:
        moves = {}
        for k in cohort:
            w = torch.cat([naive.weights[:BODY], heads.get(k, first)])
            w = naive.descend(w, k, head_steps, LR, lambda g, _: torch.where(head, g, 0.0))
            end = naive.descend(w, k, STEPS - head_steps, LR, lambda g, _: torch.where(head, 0.0, g))
            heads[k], moves[k] = end[BODY:], end - naive.weights
        naive.weights = naive.weights + torch.where(head, 0.0, naive.mean(moves))
    done = ours(cohorts=cohorts, head_steps=head_steps)
    assert close(done.state.params, naive.weights)
    assert close(done.own(range(3)), torch.stack([heads[k] for k in range(3)]))
    assert torch.equal(done.state.params[BODY:], first)  # the server's head is never touched


@pytest.mark.parametrize("method", ["none", "dp-sgd", "dp-fedavg"])
def test_a_message_has_the_columns_of_the_body_alone(method):
    done = ours(method=method, rounds=1)
    assert {name: rows.shape[1] for name, rows in done.arrived.fields.items()} == {"update": BODY}
    assert done.own([0]).shape == (1, HEAD)


def test_personal_layers_by_name():
    assert ours(personal_layers="0", rounds=1).own([0]).shape == (1, BODY)
    assert ours(personal_layers="2.bias, 0.bias", rounds=1).own([0]).shape == (1, CLASSES + 6)
    for names, why in (("3", "no parameter begins with '3'"), ("0,2", "names every parameter")):
        with pytest.raises(SpecError, match=why):
            ours(personal_layers=names)
    with pytest.raises(SpecError):
        ours(module=linear())
    with pytest.raises(SpecError, match="local_steps above head_steps"):
        ours(local_steps=2, head_steps=2)


def test_epochs_too_short_for_the_body_are_refused():
    with pytest.raises(SpecError, match="head_steps"):
        job(method="none", algorithm="fedrep", local_epochs=1.0)


def phases(**keys):
    """What head and body moved by in a round with one step for each."""
    start = ours(rounds=1, local_steps=2, head_steps=1, learning_rate=1e-3, **keys)
    return start.own([0])[0] - start.state.params[BODY:]


def test_a_velocity_would_move_the_head_in_the_steps_of_the_body():
    for optimizer in ("momentum", "adam", "rmsprop"):
        with pytest.raises(SpecError, match="plain local SGD"):
            phases(optimizer=optimizer)


def test_decay_is_part_of_the_phase():
    """The head decays in its own step alone: lr (g + decay w), once."""
    start = job(method="none", algorithm="fedrep", local_steps=2).model
    head = start.layout.read(start.module)[BODY:]
    assert torch.allclose(phases(weight_decay=50.0) - phases(), -1e-3 * 50.0 * head, atol=1e-6)


def renamed(records=20):
    """Ten clients that share what a picture shows and name it each in its own order."""
    draw = torch.Generator().manual_seed(1)
    pairs = federation((2 * records,) * 10, seed=3)
    named = [(x, torch.randperm(CLASSES, generator=draw)[y]) for x, y in pairs]
    named[0], named[1] = (pairs[0][0], (pairs[0][1] + 1) % 3), (pairs[1][0], (pairs[1][1] + 2) % 3)
    return [(x[:records], y[:records]) for x, y in named], [(x[records:], y[records:]) for x, y in named]


def accuracy(models, tests):
    naive, hits = Naive(tests), []
    for k, model in enumerate(models):
        naive.loss(model, k)  # writes the weights
        hits.append(float((naive.module(tests[k][0]).argmax(1) == tests[k][1]).float().mean()))
    return sum(hits) / len(hits)


def test_it_learns_where_clients_name_the_classes_differently():
    clients, tests = renamed()
    keys = {"clients": clients, "rounds": 25, "local_steps": 6, "learning_rate": 0.3}
    rep = ours(head_steps=3, **keys)
    average = ours(algorithm="fedavg", **keys)
    assert accuracy(rep.own_models(range(10)), tests) > 0.9
    assert accuracy(average.state.params.expand(10, -1), tests) < 0.6


def test_a_newcomer_starts_with_the_first_head_and_the_newest_body():
    done = ours(cohorts=[[0], [0]])
    model = done.own_models([2])[0]
    assert torch.equal(model, done.state.params)
