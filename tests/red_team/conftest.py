"""Small finished runs to attack, a second each."""

from __future__ import annotations

import numpy as np
import pytest

from sordino.runs import build
from sordino.runs.run import execute
from sordino.spec import spec
from support.problems import federation, held_out


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    """A file of 96 records of eight clients, and 120 test records."""
    path = tmp_path_factory.mktemp("table") / "small.npz"
    clients, (x, y) = federation(), held_out(120, seed=0)
    inside = [np.concatenate([c[k].numpy() for c in clients]) for k in (0, 1)]
    np.savez(path, x_train=inside[0], y_train=inside[1], x_test=x.numpy() + 0.01, y_test=y.numpy(), classes=np.array(3))
    return path


@pytest.fixture(scope="session")
def finished(table, tmp_path_factory):
    """finished(method="none") is the folder of a small run with recorded views; equal keys give the same folder."""
    folders = {}

    def make(**keys):
        usual = {"dataset": str(table), "method": "dp-sgd", "epsilon": 8.0, "delta": 1e-3, "rounds": 2, "clients": 8}
        usual |= {"model": "linear", "normalise": "none", "seed": 0, "mode": "research", "device": "cpu"}
        usual |= {"record_views": True, "partition": "iid", "learning_rate": 0.5}
        key = repr(sorted((usual | keys).items()))
        if key not in folders:
            wanted = spec.from_dict(usual | keys | {"out": str(tmp_path_factory.mktemp("runs"))})
            folders[key] = execute(build.from_spec(wanted), own_model=False, owner=lambda text: None).folder
        return folders[key]

    return make
