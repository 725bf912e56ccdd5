"""Tasks, weights and optimisers that a caller declares or brings, in whole runs."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import sordino
from sordino.cli.main import cli
from sordino.core.errors import DataError, RunError, SpecError
from support.errors import one_line_error
from support.killed import Killed
from support.problems import FEATURES, federation, held_out, mlp, same_weights

KEYS = {"rounds": 3, "epsilon": 8.0, "device": "cpu", "seed": 0}
LABELS = 4


def marked(sizes=(30,) * 4, seed=0):
    """Clients whose records have labels: four half-spaces."""
    draw = torch.Generator().manual_seed(seed)
    normals = torch.randn(FEATURES, LABELS, generator=torch.Generator().manual_seed(9))
    return [(x, (x @ normals > 0).long()) for x in (torch.randn(n, FEATURES, generator=draw) for n in sizes)]


# --- several labels


def test_a_model_of_several_labels_learns_them(tmp_path):
    test = marked((200,), seed=1)[0]
    keys = KEYS | {"rounds": 10, "learning_rate": 4.0, "epsilon": 50.0, "out": str(tmp_path), "test": test}
    result = sordino.train(nn.Linear(FEATURES, LABELS), marked(), task="multi-label", **keys)
    assert result.metrics["auc"] > 0.7 and result.metrics["micro_f1"] > 0.6 and result.accuracy > 0.6
    floats = [(x, y.float()) for x, y in marked()]
    test_of_floats = {"test": (test[0], test[1].float())}
    same = sordino.train(nn.Linear(FEATURES, LABELS), floats, loss="binary_cross_entropy", **keys | test_of_floats)
    assert same.metrics.keys() == result.metrics.keys()
    private = sordino.train(
        nn.Linear(FEATURES, LABELS), marked(), task="multi-label", validation=0.3, **KEYS, out=str(tmp_path)
    )
    assert 0 <= private.accuracy <= 1 and "with noise" in private.history[-1].evaluated_on


def test_labels_that_do_not_fit_are_refused():
    with one_line_error(DataError, "one output per label"):
        sordino.train(nn.Linear(FEATURES, 3), marked(), task="multi-label", **KEYS)
    with one_line_error(DataError, "neither 0 nor 1"):
        sordino.train(nn.Linear(FEATURES, 4), [(x, 2 * y) for x, y in marked()], task="multi-label", **KEYS)


def npz(path, **more):
    (x, y), (x_test, y_test) = marked((90,))[0], marked((40,), 1)[0]
    arrays = {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}
    np.savez(path, **{k: v.numpy() for k, v in arrays.items()}, **more)
    return path


def run(*flags):
    return CliRunner().invoke(cli, ["run", *map(str, flags), "--device", "cpu", "--rounds", "2", "--clients", "3"])


def test_a_file_declares_several_labels(tmp_path):
    done = run("--dataset", npz(tmp_path / "a.npz", task="multi-label"), "--out", tmp_path, "--name", "a", "--json")
    assert done.exit_code == 0, done.output + repr(done.exception)
    shown = json.loads(done.stdout)
    assert {"micro_f1", "auc", "exact_match"} <= shown["metrics"].keys() and shown["plan"]["parameters"] == 84
    assert not any("number of classes" in text for text in shown["plan"]["public"])
    bad = run("--dataset", npz(tmp_path / "b.npz", task="ranking"), "--out", tmp_path)
    assert isinstance(bad.exception, DataError) and "multi-label" in str(bad.exception)


# --- what is printed


def test_a_run_prints_accuracy_and_area_and_the_file_holds_the_rest(tmp_path):
    x, y = (t.numpy() for t in marked((150,))[0])
    np.savez(tmp_path / "two.npz", x_train=x, y_train=y[:, 0], x_test=x[:50] + 1e-3, y_test=y[:50, 0], classes=2)
    flags = ("--dataset", tmp_path / "two.npz", "--out", tmp_path, "--class-weights", "1,5")
    done = run(*flags, "--name", "a")
    assert done.exit_code == 0, done.output + repr(done.exception)
    (line,) = [text for text in done.output.splitlines() if "with privacy" in text]
    assert line.startswith("Accuracy with privacy: ") and ", AUC " in line and "brier" not in done.output
    stored = json.loads((tmp_path / "a" / "public" / "result.json").read_text())
    assert {"balanced_accuracy", "f1", "auc", "calibration_error", "brier"} <= stored["metrics"].keys()
    assert np.sum(stored["confusion"]) == 50 and np.shape(stored["confusion"]) == (2, 2)
    assert 'class_weights = "1,5"' in (tmp_path / "a" / "public" / "spec.toml").read_text()
    first = run(*flags, "--name", "b", "--metric", "f1")
    assert re.search(r"F1 with privacy: [01]\b", first.output) and re.search(r"round 1/2: F1 [01]\b", first.output)
    np.savez(tmp_path / "r.npz", x_train=x, y_train=x[:, 0], x_test=x[:50] + 1e-3, y_test=x[:50, 0])
    numbers = run("--dataset", tmp_path / "r.npz", "--out", tmp_path)
    assert "RMSE with privacy: " in numbers.output and ", R2 " in numbers.output


def test_class_weights_move_what_is_predicted(tmp_path):
    clients, test = [(x, y[:, 0]) for x, y in marked()], marked((100,), 1)[0]
    keys = KEYS | {"method": "none", "learning_rate": 1.0, "out": str(tmp_path), "test": (test[0], test[1][:, 0])}
    model = nn.Linear(FEATURES, 2)
    tables = [sordino.train(model, clients, class_weights=w, **keys).confusion for w in ([20.0, 1.0], [1.0, 20.0])]
    assert sum(row[1] for row in tables[1]) > sum(row[1] for row in tables[0]) + 10


# --- an optimiser of one's own


class Signs:
    """Steps along the signs of noisy gradients."""

    def __init__(self, local):
        self.lr = local.learning_rate

    def __call__(self, g):
        return self.lr * g.sign()


class Plain(Signs):
    def __call__(self, g):
        return self.lr * g


def test_an_own_optimizer_takes_the_steps_of_noisy_gradients(tmp_path):
    keys = KEYS | {"local_steps": 2, "test": held_out()}
    named = sordino.train(mlp(), federation(), out=str(tmp_path / "a"), **keys)
    plain = sordino.train(mlp(), federation(), optimizer=Plain, out=str(tmp_path / "b"), **keys)
    signs = sordino.train(mlp(), federation(), optimizer=Signs, out=str(tmp_path / "c"), **keys)
    assert same_weights(plain.model, named.model) and not same_weights(signs.model, named.model)
    assert signs.guarantee == named.guarantee
    moved = (signs.model[0].weight - mlp()[0].weight).detach().abs()
    assert float(moved.max()) <= 3 * 2 * 0.1 + 1e-5  # three rounds of two steps of 0.1


@pytest.mark.parametrize(
    ("optimizer", "keys", "words"),
    [
        (Signs, {"method": "dp-fedavg"}, "carry one client's data into another's"),
        (Signs, {"channel": "secure-sum"}, "optimizer = sgd"),
        (Signs, {"algorithm": "scaffold"}, "use optimizer = sgd"),
        (lambda local: lambda g: g[:, :1], {}, "steps shaped like the gradients"),
        (None, {"optimizer": "own"}, "stands for an object"),
        ("adamw", {}, "optimizer must be one of"),
    ],
    ids=["whole updates", "secure sum", "scaffold", "shape", "no object", "name"],
)
def test_an_optimizer_is_refused_where_it_would_not_be_sound(optimizer, keys, words, tmp_path):
    given = {} if optimizer is None else {"optimizer": optimizer}
    with one_line_error((SpecError, RunError), words):  # an error in the rehearsal is one of the run
        sordino.train(mlp(), federation(), out=str(tmp_path), **KEYS | keys, **given)
    assert not list(tmp_path.iterdir())


def test_a_run_with_own_code_is_resumed_with_it(tmp_path):
    def killed(record):
        if record.round == 2:
            raise Killed

    keys = KEYS | {"out": str(tmp_path), "name": "it", "checkpoint_seconds": 0.0}
    with pytest.raises(Killed):
        sordino.train(mlp(), federation(), optimizer=Signs, watch=killed, **keys)
    with one_line_error(SpecError, "stands for an object"):
        sordino.train(mlp(), federation(), resume=tmp_path / "it")
    with one_line_error(RunError, "keeps its keys"):
        sordino.train(mlp(), federation(), resume=tmp_path / "it", optimizer="adam")
    resumed = sordino.train(mlp(), federation(), optimizer=Signs, resume=tmp_path / "it")
    whole = sordino.train(mlp(), federation(), optimizer=Signs, **keys | {"name": "other"})
    assert same_weights(resumed.model, whole.model)
