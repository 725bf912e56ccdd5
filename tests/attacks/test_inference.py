"""Inference attacks learn more than imputation without privacy, and no more than it at a small epsilon."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import sordino
from sordino.attacks._questions import AttributeQuestion, PropertyQuestion
from sordino.attacks.attribute_from_model import AttributeFromModel
from sordino.attacks.attribute_from_updates import AttributeFromUpdates
from sordino.attacks.base import Knowledge
from sordino.attacks.property_inference import PropertyInference, on_simplex
from sordino.core.errors import DataError, SpecError
from sordino.core.types import Batch
from sordino.data.schema import Category, Number, encode
from sordino.data.sets import adult
from sordino.red_team.attributes import attribute, found, hidden, imputed
from sordino.runs import build
from sordino.spec import spec

SCHEMA = {"sex": Category(("f", "m")), **{f"x{i}": Number(-4.0, 4.0) for i in range(12)}}
CLASSES, CLIENTS, SIZE = 20, 20, 2
RECORDS = CLIENTS * SIZE


def people(records, seed):
    """Records whose sex is a coin, which no other column tells; labels are fine enough to be learned by heart."""
    draw = torch.Generator().manual_seed(seed)
    sex = torch.randint(0, 2, (records,), generator=draw)
    x = torch.cat([torch.eye(3)[sex], torch.randn(records, 12, generator=draw) / 2], dim=1)
    return x, torch.arange(records) % CLASSES


def network():
    torch.manual_seed(0)
    return nn.Linear(15, CLASSES)


def trained(tmp_path, **keys):
    """Return the views of a run, and what an attacker of it knows."""
    x, y = people(RECORDS, 1)
    clients = [(x[k : k + SIZE], y[k : k + SIZE]) for k in range(0, RECORDS, SIZE)]
    keys = {"rounds": 60, "learning_rate": 4.0, "seed": 0, "out": str(tmp_path), "device": "cpu"} | keys
    seen = []
    sordino.train(network(), clients, observe=seen.append, **keys)
    made = build.build(spec.from_dict({"device": "cpu", "method": "none", "learning_rate": 4.0}), network(), clients)
    others = Batch(*people(2000, 2), (2000,))
    known = Knowledge(made.model, classes=CLASSES, local=made.plan.local, client_size=SIZE, auxiliary=others)
    batch = Batch(x, y, (SIZE,) * CLIENTS)
    question, truth = hidden(batch, tuple(range(CLIENTS)), attribute(SCHEMA, "sex"))
    return seen, known, question, truth


def seen_by(viewer, views):
    return [v for v in views if v.viewer == viewer]


def test_without_privacy_both_attacks_beat_imputation(tmp_path):
    views, known, question, truth = trained(tmp_path, method="none")
    guessed = found(imputed(question, known.auxiliary, CLASSES), truth).accuracy
    model = found(AttributeFromModel().infer(seen_by("public", views), known, question), truth)
    updates = found(AttributeFromUpdates().infer(seen_by("server", views)[:3], known, question), truth)
    assert guessed < 0.65  # a coin is farther off once in 30 times
    assert model.accuracy >= 0.75 and updates.accuracy >= 0.85 and model.records == RECORDS
    cosine = AttributeFromUpdates("cosine", prior=False).infer(seen_by("server", views)[:3], known, question)
    assert found(cosine, truth).accuracy >= 0.75


def test_at_a_small_epsilon_neither_does(tmp_path):
    views, known, question, truth = trained(tmp_path, method="dp-sgd", epsilon=0.05, clip=1.0, rounds=3)
    for scores in (
        AttributeFromModel("uniform").infer(seen_by("public", views), known, question),
        AttributeFromUpdates(prior=False).infer(seen_by("server", views), known, question),
    ):
        assert abs(found(scores, truth).accuracy - 0.5) <= 0.26  # a coin is farther off once in 1,000 times


def test_the_prior_decides_where_the_model_says_nothing(tmp_path):
    """Under the untrained model all answers fit alike, so the guess is that of the imputation."""
    views, known, question, truth = trained(tmp_path, method="none", rounds=1, learning_rate=1e-9)
    x, y = people(2000, 2)
    x[:, 3] = x[:, 0] - x[:, 1] + 0.1 * x[:, 3]  # a column that tells the sex
    told = Knowledge(known.model, auxiliary=Batch(x, y, (2000,)))
    blank = question.batch.x.clone()
    blank[:, 3] = torch.from_numpy(1.0 - 2.0 * truth).float()
    asked = AttributeQuestion(
        Batch(blank, question.batch.y, question.batch.sizes), question.clients, (0, 1, 2), question.candidates
    )
    assert found(AttributeFromModel().infer(seen_by("public", views), told, asked), truth).accuracy == 1.0
    uniform = AttributeFromModel("uniform").infer(seen_by("public", views), told, asked)
    assert found(uniform, truth).accuracy < 0.8


def test_views_and_knowledge_that_do_not_suffice_are_refused(tmp_path):
    views, known, question, _ = trained(tmp_path, method="none", rounds=1)
    with pytest.raises(SpecError, match="--view server"):
        AttributeFromUpdates().infer(seen_by("public", views), known, question)
    with pytest.raises(SpecError, match="records from the same source"):
        AttributeFromModel().infer(seen_by("public", views), Knowledge(known.model), question)
    with pytest.raises(SpecError, match="records from the same source"):
        PropertyInference().infer(seen_by("server", views), Knowledge(known.model), PropertyQuestion((0,)))
    with pytest.raises(SpecError, match="no view holds a row of client 99"):
        PropertyInference().infer(seen_by("server", views), known, PropertyQuestion((99,)))
    hidden_sum, *_ = trained(tmp_path, method="none", channel="secure-sum", rounds=1)
    with pytest.raises(SpecError, match="saw a sum alone"):
        AttributeFromUpdates().infer(seen_by("server", hidden_sum), known, question)


def test_columns_of_a_table_are_found_by_the_schema():
    import pandas as pd

    cells = pd.DataFrame({c: ["20", "80"] if isinstance(k, Number) else k.values[:2] for c, k in adult.SCHEMA.items()})
    x = encode(cells, adult.SCHEMA)
    sex, age = attribute(adult.SCHEMA, "sex"), attribute(adult.SCHEMA, "age")
    assert sex.answers == ("Female", "Male") and torch.equal(x[:, list(sex.columns)], sex.candidates)
    question, truth = hidden(Batch(x, torch.zeros(2, dtype=torch.int64), (2,)), (0,), age)
    assert truth.tolist() == [0, 3] and question.batch.x[:, 0].tolist() == [0.0, 0.0] and len(age.answers) == 4
    with pytest.raises(DataError, match="no column 'fnlwgt'"):
        attribute(adult.SCHEMA, "fnlwgt")


# --- the make-up of clients


def mixed_clients(size=60):
    """Six clients of unequal make-up, of three overlapping classes."""
    draw = torch.Generator().manual_seed(5)
    centres = torch.randn(3, 8, generator=draw)
    shares = np.random.default_rng(3).dirichlet(np.ones(3), 6)
    pairs = []
    for share in shares:
        y = torch.from_numpy(np.random.default_rng(4).choice(3, size, p=share))
        pairs.append((centres[y] + torch.randn(size, 8, generator=draw), y))
    y = torch.arange(900) % 3
    true = np.stack([np.bincount(pair[1].numpy(), minlength=3) / size for pair in pairs])
    return pairs, Batch(centres[y] + torch.randn(900, 8, generator=draw), y, (900,)), true


@pytest.mark.parametrize(
    ("keys", "most"),
    [
        ({"method": "none"}, 0.08),
        ({"method": "none", "local_steps": 5, "batch_rate": 0.5}, 0.15),
        ({"method": "dp-sgd", "epsilon": 0.02, "clip": 1.0}, None),
    ],
)
def test_class_shares_of_clients_are_read_from_updates_unless_there_is_noise(keys, most, tmp_path):
    pairs, others, true = mixed_clients()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))
    keys = {"rounds": 4, "learning_rate": 0.3, "seed": 0, "out": str(tmp_path), "device": "cpu"} | keys
    seen = []
    sordino.train(net, pairs, observe=seen.append, **keys)
    made = build.build(spec.from_dict(keys), net, pairs)
    known = Knowledge(made.model, classes=3, local=made.plan.local, client_size=60, auxiliary=others)
    shares = PropertyInference().infer(seen_by("server", seen), known, PropertyQuestion(tuple(range(6))))
    error = np.abs(shares - true).mean()
    assert np.allclose(shares.sum(axis=1), 1) and (shares >= 0).all()
    if most is None:
        assert error > 0.15
    else:
        assert error < most < 0.5 * np.abs(1 / 3 - true).mean() + 0.1


def test_the_nearest_shares_are_those_of_a_quadratic_programme():
    rows = torch.tensor([[0.2, 0.3, 0.5], [2.0, 0.0, 0.0], [0.9, 0.8, -3.0]], dtype=torch.float64)
    expected = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.55, 0.45, 0.0]], dtype=torch.float64)
    assert torch.allclose(on_simplex(rows), expected)
