"""Personal models and the figures of single clients, through `sordino.train`."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import sordino
from sordino.core.errors import DataError, RunError, SpecError
from support.problems import CLASSES, federation, linear, mlp, same_weights

RECORDS, COUNT = 24, 5


def unlike():
    """Five clients that name the classes each its own way; test records of each, and whose they are."""
    pairs = [(x, (y + k) % CLASSES) for k, (x, y) in enumerate(federation((2 * RECORDS,) * COUNT, seed=2))]
    test = torch.cat([x[RECORDS:] for x, _ in pairs]), torch.cat([y[RECORDS:] for _, y in pairs])
    return [(x[:RECORDS], y[:RECORDS]) for x, y in pairs], test, np.repeat(np.arange(COUNT), RECORDS)


CLIENTS, TEST, OWNERS = unlike()


def train(out, **keys):
    keys = {"method": "none", "rounds": 12, "local_steps": 5, "learning_rate": 0.3, "device": "cpu"} | keys
    keys = {"mode": "research", "test": TEST, "test_clients": OWNERS} | keys
    return sordino.train(keys.pop("model", mlp()), CLIENTS, out=str(out), **keys)


@pytest.mark.parametrize("algorithm", ["ditto", "fedrep"])
def test_personal_figures_are_those_of_the_clients_own_models(algorithm, tmp_path):
    result = train(tmp_path, algorithm=algorithm)
    found = result.metrics
    assert found["personal_accuracy"] > 0.85 > 0.6 > result.accuracy
    assert found["personal_worst_client"] <= found["personal_accuracy"] <= 1
    assert found["personal_client_gap"] >= 0 and found["personal_client_std"] >= 0
    stored = json.loads((result.folder / "public" / "result.json").read_text())
    assert stored["metrics"] == pytest.approx(found)
    again = sordino.train(mlp(), CLIENTS, test=TEST, test_clients=OWNERS, resume=result.folder)
    assert again.metrics == found and same_weights(again.model, result.model)


def test_dittos_shared_model_and_figures_are_fedavgs(tmp_path):
    ditto, fedavg = train(tmp_path, algorithm="ditto"), train(tmp_path, algorithm="fedavg")
    assert same_weights(ditto.model, fedavg.model)
    assert {k: v for k, v in ditto.metrics.items() if not k.startswith("personal")} == fedavg.metrics
    assert [r.loss for r in ditto.history] == [r.loss for r in fedavg.history]


@pytest.mark.parametrize("method", ["dp-sgd", "dp-fedavg"])
@pytest.mark.parametrize("algorithm", ["ditto", "fedrep"])
def test_a_private_run_shows_no_personal_figure(algorithm, method, tmp_path):
    result = train(tmp_path, algorithm=algorithm, method=method, epsilon=8.0, rounds=2)
    assert not [k for k in result.metrics if "personal" in k]
    assert "personal" not in (result.folder / "public" / "result.json").read_text().replace("personal_layers", "")
    assert "personal" not in (result.folder / "public" / "records.jsonl").read_text()
    assert "worst_client" in result.metrics  # of the shared model, on public test data


def test_nothing_personal_without_owners_of_the_test_records(tmp_path):
    result = train(tmp_path, algorithm="ditto", test_clients=None, rounds=2)
    assert not [k for k in result.metrics if "client" in k or "personal" in k]


def test_how_unequal_clients_fare_counted_by_hand(tmp_path):
    result = train(tmp_path, algorithm="fedavg", rounds=3, model=linear())
    with torch.no_grad():
        right = (result.model(TEST[0]).argmax(1) == TEST[1]).double().view(COUNT, RECORDS).mean(1)
    found = result.metrics
    assert found["worst_client"] == pytest.approx(float(right.min()))
    assert found["client_gap"] == pytest.approx(float(right.max() - right.min()))
    assert found["client_std"] == pytest.approx(float(right.std(correction=0)))
    assert result.accuracy == pytest.approx(float(right.mean()))
    assert result.history[-1].metrics == found


def test_personal_figures_cover_the_clients_that_took_part(tmp_path):
    """A client that was never drawn has no model of its own."""
    result = train(tmp_path, algorithm="ditto", rounds=1, client_rate=0.3, seed=4)
    assert 0 < result.private.history[0].clients < COUNT
    assert 0 <= result.metrics["personal_accuracy"] <= 1


def test_a_run_in_which_nobody_came_has_no_personal_figure(tmp_path):
    result = train(tmp_path, algorithm="ditto", rounds=1, client_rate=1e-6)
    assert result.private.history[0].clients == 0 and not [k for k in result.metrics if "personal" in k]


@pytest.mark.parametrize("owners", [np.zeros(3, dtype=int), np.zeros(len(OWNERS)), OWNERS[:, None], "abc"])
def test_owners_that_do_not_fit_the_test_records_are_refused(owners, tmp_path):
    with pytest.raises(DataError, match="test_clients must hold one whole number"):
        train(tmp_path, test_clients=owners)


def test_personal_figures_of_a_regression(tmp_path):
    """Each client has its own slope: y = (k + 1) x."""
    x = torch.linspace(-1, 1, 20)[:, None]
    clients = [(x, (k + 1) * x[:, 0]) for k in range(4)]
    test = torch.cat([p[0] for p in clients]), torch.cat([p[1] for p in clients])
    keys = {"rounds": 20, "local_steps": 10, "learning_rate": 0.3, "out": str(tmp_path), "device": "cpu", "seed": 0}
    result = sordino.train(
        nn.Linear(1, 1), clients, algorithm="ditto", method="none", test=test,
        test_clients=np.repeat(np.arange(4), 20), pull=0.05, **keys,
    )  # fmt: skip
    assert result.metrics["personal_rmse"] < 0.2 < 0.5 < result.metrics["rmse"]
    assert result.metrics["personal_worst_client"] >= result.metrics["personal_rmse"]


# --- pictures, changed anew in every step


@pytest.mark.parametrize(("algorithm", "method"), [("ditto", "none"), ("scaffold", "dp-sgd"), ("fedrep", "none")])
def test_augmented_views_go_with_every_algorithm(algorithm, method, tmp_path):
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.rand(6, 1, 8, 8, generator=draw), torch.randint(0, 2, (6,), generator=draw)) for _ in range(4)]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Linear(4, 2))
    keys = {"method": method, "epsilon": 8.0, "rounds": 2, "local_steps": 2, "device": "cpu", "algorithm": algorithm}
    keys |= {"seed": 0}
    made = [
        sordino.train(model, clients, out=str(tmp_path), **keys, **more).model
        for more in ({}, {"augment": "flip-crop", "views": 3}, {"augment": "flip-crop", "views": 3})
    ]
    assert same_weights(made[1], made[2]) and not same_weights(made[0], made[1])


def test_augment_on_no_pictures_is_refused_before_anything_is_paid(tmp_path):
    with pytest.raises(SpecError, match="augment = flip is for pictures"):
        train(tmp_path, augment="flip")
    assert not list(tmp_path.iterdir())


def test_owners_of_no_test_records_are_refused(tmp_path):
    with pytest.raises(DataError, match="test_clients"):
        train(tmp_path, test=None)


@pytest.mark.parametrize(("algorithm", "share"), [("fedavg", 1.0), ("scaffold", 2.0), ("fedrep", 126 / 147)])
def test_what_travels_is_counted(algorithm, share, tmp_path):
    """Down: the model, for SCAFFOLD its control variate too, for FedRep the body (126 of 147 parameters) alone."""
    keys = {"method": "none", "rounds": 1, "local_steps": 2, "device": "cpu", "out": str(tmp_path), "seed": 0}
    result = sordino.train(mlp(), federation(), algorithm=algorithm, **keys)
    assert result.private.history[0].bytes_down == pytest.approx(8 * 4 * 147 * share)
    assert result.private.history[0].bytes_up == pytest.approx(8 * 4 * 147 * share)  # weights are public already


def test_owners_that_are_no_clients_are_refused(tmp_path):
    with pytest.raises(DataError, match="names client 8; there are 8"):
        sordino.train(mlp(), federation(), test=federation((3,))[0], test_clients=[0, -1, 8], out=str(tmp_path))


@pytest.mark.parametrize(
    ("change", "hint"), [(lambda y: y[:, None], "reshape"), (lambda y: torch.eye(CLASSES)[y].long(), "argmax")]
)
def test_labels_of_a_wrong_shape_are_one_line(change, hint, tmp_path):
    with pytest.raises(DataError, match=hint):
        sordino.train(mlp(), [(x, change(y)) for x, y in federation()], out=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_run_is_not_resumed_with_other_test_records(tmp_path):
    x, y = federation((9,))[0]
    keys = {"method": "none", "rounds": 2, "device": "cpu", "out": str(tmp_path), "name": "it"}
    sordino.train(mlp(), federation(), test=(x, y), **keys)
    sordino.train(mlp(), federation(), test=(x, y), resume=tmp_path / "it")
    with pytest.raises(RunError, match="must be the same"):
        sordino.train(mlp(), federation(), test=(2 * x, y), resume=tmp_path / "it")


def test_a_run_that_diverged_is_shown_and_resumed(tmp_path):
    """A regression with an absurd learning rate: no number is made up for what is not finite."""
    clients = [(x, x[:, 0]) for x, _ in federation()]
    keys = {"method": "none", "rounds": 3, "learning_rate": 1e30, "device": "cpu", "out": str(tmp_path), "name": "it"}
    made = sordino.train(nn.Linear(20, 1), clients, test=clients[0], **keys)
    again = sordino.train(nn.Linear(20, 1), clients, test=clients[0], resume=tmp_path / "it")
    assert len(again.history) == 3 and not np.isfinite(list(made.metrics.values())).any()
    json.loads((tmp_path / "it" / "public" / "result.json").read_text(), parse_constant=lambda c: pytest.fail(c))
