"""Membership attacks: they find the members of an overfitted federated model, and guess of one that never saw them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from sordino.attacks._likelihood import ratios
from sordino.attacks.base import Knowledge, Shadows, Targets
from sordino.attacks.canary import CanaryQueries
from sordino.attacks.lira import Lira
from sordino.attacks.loss_threshold import LossThreshold
from sordino.attacks.rmia import Rmia
from sordino.attacks.shadow_models import ShadowAttack
from sordino.attacks.white_box_gradient import WhiteBoxGradient
from sordino.audits.roc import Roc
from sordino.core.errors import SpecError
from sordino.core.types import Batch, State
from sordino.core.view import View
from sordino.runs import build
from sordino.runs.shadows import train_shadows
from sordino.spec import spec

RECORDS, FEATURES, CLASSES, CLIENTS, SHADOWS = 400, 30, 4, 4, 16
FRESH = (2, 3, 5, 6)  # records of models that never saw a target; 4 are the attacker's own


class Attacked(NamedTuple):
    """A model of clients who hold half of the pool, and models like it."""

    knowledge: Knowledge
    targets: Targets
    truth: np.ndarray
    views: list[View]  # of the model that was trained on the members
    fresh: list[list[View]]  # of several models that were trained on other records


def people(seed, records=RECORDS):
    """Records of four classes that overlap so much that a network has to learn many of them by heart."""
    draw = torch.Generator().manual_seed(seed)
    centres = 0.35 * torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
    y = torch.randint(0, CLASSES, (records,), generator=draw)
    return Batch(centres[y] + torch.randn(records, FEATURES, generator=draw), y, (records,))


def network():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(nn.Linear(FEATURES, 48), nn.ReLU(), nn.Linear(48, CLASSES))


@pytest.fixture(scope="module")
def attacked():
    pool, others, size = people(1), people(2), RECORDS // 2 // CLIENTS
    clients = [(others.x[:size], others.y[:size]) for _ in range(CLIENTS)]
    keys = {"method": "none", "rounds": 60, "local_steps": 3, "learning_rate": 0.5, "device": "cpu", "seed": 0}
    job = build.build(spec.from_dict(keys), network(), clients)
    models = train_shadows(job, pool, SHADOWS + 1, 3)
    known = Shadows(pool, models.params[:SHADOWS], models.members[:SHADOWS])
    auxiliary = people(4, 200)
    knowledge = Knowledge(job.model, CLASSES, shadows=known, seed=7)
    targets = Targets(pool, (0,), np.arange(RECORDS))
    never = [train_shadows(job, people(seed), 1, 3).params[0] for seed in FRESH]
    last, *fresh = ([View("public", 60, "", State(params, 60))] for params in (models.params[SHADOWS], *never))
    return Attacked(replace(knowledge, auxiliary=auxiliary), targets, models.members[SHADOWS], last, fresh)


ATTACKS = {
    "loss threshold": (LossThreshold(), 0.62),
    "shadow models": (ShadowAttack(records=200, examples=1000), 0.65),
    "lira": (Lira(), 0.75),
    "lira offline": (Lira(offline=True), 0.65),
    "lira own variance": (Lira(variance="own"), 0.7),
    "rmia": (Rmia(), 0.65),
    "rmia offline": (Rmia(offline=True), 0.65),
    "canary": (CanaryQueries(queries=2, steps=10), 0.65),
    "white box": (WhiteBoxGradient(), 0.65),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_members_are_found_and_only_where_there_are_any(name, attacked):
    attack, bar = ATTACKS[name]
    found, *guessed = (
        Roc.of(attack.score(views, attacked.knowledge, attacked.targets), attacked.truth).auc().value
        for views in (attacked.views, *attacked.fresh)
    )
    assert found > bar
    # 3.5 standard deviations of one model; the mean of several depends less on the draw of one of them
    assert 0.4 < np.mean(guessed) < 0.6, guessed


def test_an_attack_repeats_itself(attacked):
    attack, known = CanaryQueries(queries=1, steps=2), attacked.knowledge
    once, again, other = (
        attack.score(attacked.views, k, attacked.targets) for k in (known, known, replace(known, seed=8))
    )
    assert (once == again).all() and (once != other).any()


def test_shadow_models_help(attacked):
    """LiRA finds more than the loss alone: what it knows of each record counts."""
    rates = [
        Roc.of(attack.score(attacked.views, attacked.knowledge, attacked.targets), attacked.truth)
        for attack in (Lira(), LossThreshold())
    ]
    assert rates[0].auc().low > rates[1].auc().value and rates[0].tpr_at(0.01).value > rates[1].tpr_at(0.01).value


def test_the_members_of_the_shadows_matter(attacked):
    """Shadow models that are wrong about who was in them tell nothing, or the opposite."""
    shadows = attacked.knowledge.shadows
    wrong = replace(attacked.knowledge, shadows=replace(shadows, members=~shadows.members))
    assert Roc.of(Lira().score(attacked.views, wrong, attacked.targets), attacked.truth).auc().value < 0.4


def test_targets_may_come_in_any_order_and_number(attacked):
    order = np.random.default_rng(1).permutation(RECORDS)[:50]
    pool = attacked.targets.batch
    some = Targets(Batch(pool.x[order], pool.y[order], (50,)), (0,), order)
    for attack in (LossThreshold(), Lira(), Rmia()):
        whole = attack.score(attacked.views, attacked.knowledge, attacked.targets)
        part = attack.score(attacked.views, attacked.knowledge, some)
        if isinstance(attack, Lira):  # the variance that targets share is that of these targets
            assert np.corrcoef(part, whole[order])[0, 1] > 0.99
        else:
            assert part == pytest.approx(whole[order], abs=1e-3)


def test_a_likelihood_ratio_by_hand():
    others = np.array([[3.0], [5.0], [0.0], [2.0]])
    members = np.array([[True], [True], [False], [False]])
    # means 4 and 1, variances 2: at 4 the ratio of the densities is exp(9 / 4)
    assert ratios(np.array([4.0]), others, members, variance="own")[0] == pytest.approx(9 / 4, rel=1e-3)
    assert ratios(np.array([1.0]), others, members, variance="own")[0] == pytest.approx(-9 / 4, rel=1e-3)
    assert ratios(np.array([4.0]), others, members, offline=True)[0] == pytest.approx(3 / 2**0.5, rel=1e-3)


def test_a_client_learns_from_its_own_records(attacked):
    """With records whose membership it knows, the white-box attack needs no shadow models."""
    pool, truth = attacked.targets.batch, attacked.truth
    own = np.flatnonzero(truth)[:60]
    rest = np.setdiff1d(np.arange(RECORDS), own)
    knowledge = replace(
        attacked.knowledge, shadows=None, own=Batch(pool.x[own], pool.y[own], (60,)), auxiliary=people(4, 60)
    )
    views = [View("client", r, "train", State(attacked.views[0].state.params, r)) for r in (1, 2)]
    targets = Targets(Batch(pool.x[rest], pool.y[rest], (len(rest),)), (0,))
    scores = WhiteBoxGradient(rounds=2).score(views, knowledge, targets)
    assert Roc.of(scores, truth[rest]).auc().value > 0.6


def pictures(records=40):
    """Shadows that are nothing but random models of small pictures."""
    draw = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    x, y = torch.randn(records, 1, 8, 8, generator=draw), torch.randint(0, 3, (records,), generator=draw)
    keys = {"method": "none", "rounds": 1, "device": "cpu", "seed": 0}
    job = build.build(spec.from_dict(keys), net, [(x, y)])
    params = torch.randn(4, job.model.layout.dim, generator=draw)
    members = np.array([[True, False] * 20, [False, True] * 20] * 2)
    pool = Batch(x, y, (records,))
    view = [View("public", 1, "", State(params[0], 1))]
    return (
        view,
        Knowledge(job.model, 3, shadows=Shadows(pool, params, members)),
        Targets(pool, (0,), np.arange(records)),
    )


def test_more_queries_are_other_views_of_the_same_pictures():
    one, two = (Lira(queries=n).score(*pictures()) for n in (1, 2))
    assert np.isfinite(two).all() and (one != two).any()
    views, knowledge, targets = pictures()
    mirrored = replace(targets, batch=replace(targets.batch, x=targets.batch.x.flip(3)))
    assert Lira(queries=2).score(views, knowledge, mirrored) == pytest.approx(two, abs=1e-6)  # a set of two
    assert np.isfinite(Lira(queries=5).score(views, knowledge, targets)).all()


def test_what_is_missing_is_said(attacked):
    views, knowledge, targets = attacked.views, attacked.knowledge, attacked.targets
    bare, lost = replace(knowledge, shadows=None, own=None), replace(targets, pool=None)
    real = replace(targets, batch=replace(targets.batch, y=targets.batch.y.float()))
    shadows = knowledge.shadows
    single = replace(knowledge, shadows=Shadows(shadows.pool, shadows.params[:2], shadows.members[[0, 0]]))
    for attack, known, asked, words in (
        (Lira(), bare, targets, "lira needs shadow models"),
        (Rmia(), bare, targets, "rmia needs shadow models"),
        (ShadowAttack(), bare, targets, "shadow-models needs shadow models"),
        (CanaryQueries(), bare, targets, "canary needs shadow models"),
        (WhiteBoxGradient(), bare, targets, "its own records and auxiliary ones"),
        (Lira(), knowledge, lost, "Targets.pool"),
        (Lira(), single, targets, "in all shadow models, or in none"),
        (Lira(queries=2), knowledge, targets, "several queries per record are for pictures"),
        (Lira(), knowledge, real, "one label per record"),
    ):
        with pytest.raises(SpecError, match=words):
            attack.score(views, known, asked)
    assert np.isfinite(Lira(offline=True).score(views, knowledge, lost)).all()  # nobody trained on them
    with pytest.raises(SpecError, match="was given no view"):
        LossThreshold().score([], knowledge, targets)
    wire = [replace(views[0], viewer="wire:0")]
    with pytest.raises(SpecError, match="reads the views of the public or the client or the server, not"):
        LossThreshold().score(wire, knowledge, targets)


def test_bad_options_are_refused():
    for make in (lambda: Lira(queries=0), lambda: Lira(variance="none"), lambda: Rmia(gamma=0.0), lambda: Rmia(a=1.0)):
        with pytest.raises(SpecError):
            make()
