"""Named datasets, a table and a user column, from a spec to a trained model."""

import numpy as np
import pandas as pd
import pytest

from sordino.core.errors import DataError
from sordino.runs import build, run
from sordino.runs.prepare import prepare
from sordino.spec import spec
from support.methods import rows


def trained(tmp_path, **keys):
    keys = {"out": str(tmp_path / "runs"), "device": "cpu", "rounds": 2, "evaluate_every": 2, "seed": 0} | keys
    return run.execute(build.from_spec(spec.from_dict(keys)), own_model=False)


@pytest.mark.parametrize(
    ("file", "keys", "clients"),
    [
        ("adult/adult.csv.gz", {"dataset": "adult", "clients": 10, "partition": "dirichlet:0.5"}, 10),
        ("breast_cancer_wdbc/breast_cancer.csv.gz", {"dataset": "breast-cancer", "clients": 5}, 5),
        ("femnist_digits_subset/femnist_digits_subset.npz", {"dataset": "femnist-digits"}, 12),
        ("gefcom2014_wind/gefcom2014_wind.csv.gz", {"dataset": "gefcom-wind", "model": "mlp", "batch_rate": 0.01}, 10),
        (
            "omniglot_small/omniglot_small_28.npz",
            {"dataset": "omniglot", "method": "dp-fedavg", "features": "oriented-gradients", "clip": 0.1},
            128,
        ),
    ],
    ids=lambda v: v.get("dataset") if isinstance(v, dict) else "",
)
def test_a_dataset_by_its_name(file, keys, clients, tmp_path, data_file):
    folder = data_file(file).parents[1]
    result = trained(tmp_path, data_dir=str(folder), epsilon=8.0, **keys)
    assert np.isfinite(result.history[-1].loss) and result.guarantee.epsilon <= 8.0
    assert ("rmse" in result.metrics) == (keys["dataset"] == "gefcom-wind")
    assert (result.private.history[0].clients == clients and "worst_client" in result.metrics) or keys[
        "dataset"
    ] == "omniglot"


def test_text_by_speaker(tmp_path, data_file):
    folder = data_file("shakespeare/shakespeare_speeches.csv.gz").parents[1]
    keys = {"dataset": "shakespeare", "data_dir": str(folder), "method": "dp-fedavg", "model": "transformer"}
    job = build.from_spec(spec.from_dict(keys | {"client_rate": 0.005, "rounds": 1, "device": "cpu"}))
    assert job.plan.population == 1062 and job.test_clients is not None
    assert job.model.gradients.path == "book-keeping"
    cohort = job.plan.sampler.draw(1062, job.rng.at("x"))[:3]
    sent = rows(job, cohort)
    assert sent.shape == (3, job.model.layout.dim) and bool((sent.double().norm(dim=1) <= 1.0).all())


@pytest.mark.parametrize("method", ["dp-sgd", "dp-fedavg"])
def test_a_table_with_users_across_clients(method, tmp_path):
    """Patients seen in two hospitals each, in no order; the guarantee is about the patient."""
    rng = np.random.default_rng(0)
    n, patients = 1200, 150
    patient = rng.integers(0, patients, n)
    x = rng.normal(size=(n, 3))
    table = pd.DataFrame(x, columns=["a", "b", "c"])
    table["ill"] = (x[:, 0] + 0.2 * rng.normal(size=n) > 0).astype(int)
    table["hospital"] = [f"h{(p + k) % 6}" for p, k in zip(patient, rng.integers(0, 2, n), strict=True)]
    table["patient"] = [f"p{p}" for p in patient]
    table["part"] = np.where(rng.random(n) < 0.2, "test", "train")
    table.to_csv(tmp_path / "visits.csv", index=False)
    names = {"label": "ill", "client": "hospital", "user": "patient", "split": "part"}
    keys = {f"{k}_column": v for k, v in names.items()} | {"dataset": "visits.csv", "data_dir": str(tmp_path)}
    keys |= {
        "unit": "user",
        "clients_per_user": 2,
        "records_per_user": 6,
        "epsilon": 50.0,
        "rounds": 20,
        "normalise": "none",
    }
    result = trained(
        tmp_path, method=method, **keys, **({"clip": 1.0} if method == "dp-fedavg" else {}), learning_rate=1.0
    )
    assert result.guarantee.unit == "user" and result.guarantee.epsilon <= 50.0
    assert "all records of any single user" in result.guarantee.sentence()
    assert result.accuracy > 0.7


def test_some_of_the_clients_and_their_part_of_the_test_data(tmp_path):
    x = np.arange(9, dtype=np.float32)[:, None]
    whose = {"client_train": np.array([5, 5, 2, 2, 8, 8]), "client_test": np.array([8, 2, 5])}
    np.savez(tmp_path / "z.npz", x_train=x[:6], y_train=x[:6, 0], x_test=x[6:], y_test=x[6:, 0], **whose)
    found = prepare(spec.from_dict({"dataset": str(tmp_path / "z.npz"), "partition": "natural:2", "method": "none"}))
    assert found.clients.y.tolist() == [2, 3, 0, 1] and found.clients.count == 2 == found.spec.clients
    assert found.test[1].tolist() == [7, 8] and found.test_clients.tolist() == [0, 1]
    assert found.brought.count == 1 and len(found.brought.y) == 6  # a ledger knows the data by all of it
    whose["client_test"] = np.array([8, 8, 8])
    np.savez(tmp_path / "z.npz", x_train=x[:6], y_train=x[:6, 0], x_test=x[6:], y_test=x[6:, 0], **whose)
    with pytest.raises(DataError, match="natural:2: no test record belongs to any of these clients"):
        prepare(spec.from_dict({"dataset": str(tmp_path / "z.npz"), "partition": "natural:2", "method": "none"}))


def test_of_ones_own_data_no_label_decides_whose_a_test_record_is(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)).astype(np.float32), rng.integers(0, 3, 60)
    whose = []
    for turn in range(8):
        other = y[:40].copy()
        other[turn] = (other[turn] + 1) % 3
        np.savez(tmp_path / "o.npz", x_train=x[:40], y_train=other, x_test=x[40:], y_test=y[40:], classes=3)
        found = prepare(spec.from_dict({"dataset": str(tmp_path / "o.npz"), "clients": 3, "method": "dp-sgd"}))
        whose.append(found.test_clients.tolist())
    assert all(w == whose[0] for w in whose) and set(whose[0]) == {0, 1, 2}
