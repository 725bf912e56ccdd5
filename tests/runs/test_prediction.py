"""Predictions afterwards: read as the run read its own records, through the stored model, without the training data."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

import sordino
from sordino.core.errors import DataError, RunError
from sordino.data import schema
from sordino.run_folder import boundary
from sordino.runs import build, run
from sordino.spec import spec
from support.problems import federation, held_out, linear
from support.tables import people, trained


@pytest.fixture(scope="module")
def table_run(tmp_path_factory):
    """A run on a table, whose data are gone."""
    folder = tmp_path_factory.mktemp("table")
    result = trained(folder)
    (folder / "t.csv").unlink()
    (folder / "schema.toml").unlink()
    return result


def encoded(table):
    """The records as the schema says, by hand."""
    unit = (table.age - 18) / 72, np.log1p(table.income) / np.log1p(100_000)
    numbers = [2 * u - 1 for u in unit]
    slots = [(table.sex == "F"), (table.sex == "M"), ~table.sex.isin(["F", "M"])]
    return torch.tensor(np.stack([numbers[0], *slots, numbers[1]], axis=1).astype(np.float32))


def test_a_table_is_predicted_with_the_runs_own_schema_and_without_its_data(table_run, tmp_path):
    new = people(30, seed=1).assign(id=range(30))
    new.loc[0, "sex"] = "X"  # a value that was not declared
    with torch.no_grad():
        chances = table_run.model(encoded(new)).double().softmax(-1).numpy()
    names = np.array(["no", "yes"])[chances.argmax(1)]
    assert len(set(names)) == 2
    shutil.copytree(table_run.folder / "public", tmp_path / "public")  # what an export hands out
    new[["income", "id", "sex", "age"]].to_csv(tmp_path / "new.csv", index=False)
    for found in (table_run, sordino.load(table_run.folder), sordino.load(tmp_path / "public")):
        for source in (new, tmp_path / "new.csv", str(tmp_path / "new.csv")):
            shown = found.predict_table(source, keep=["id"])
            assert list(shown.columns) == ["id", "prediction", "probability_no", "probability_yes"]
            assert (shown.prediction == names).all() and list(map(int, shown.id)) == list(range(30))
            assert np.abs(shown.iloc[:, 2:].to_numpy() - chances).max() < 1e-6
        assert (found.predict(new) == names).all() and np.allclose(found.predict_proba(new), chances)
    # columns that are flipped would be seen
    assert np.abs(chances - table_run.predict_proba(new.assign(age=new.age + 5))).max() > 1e-3


def test_what_cannot_be_predicted_is_one_line(table_run, tmp_path):
    new = people(5)
    with pytest.raises(DataError, match="lacks the columns sex, income, which the model needs; there are age, ill"):
        table_run.predict(new.drop(columns=["sex", "income"]))
    with pytest.raises(DataError, match="has no column 'id' to keep"):
        table_run.predict_table(new, keep=["id"])
    with pytest.raises(DataError, match="column 'age', row 2: the value is missing"):
        table_run.predict(new.assign(age=[30, None, 40, 50, 60]))
    with pytest.raises(DataError, match=r"records have shape \[3\], those of the run \[5\]"):
        table_run.predict(np.zeros((2, 3)))
    with pytest.raises(DataError, match="there is no file or folder"):
        table_run.predict(tmp_path / "nowhere.csv")
    with pytest.raises(DataError, match=r"is none of \.csv"):
        (tmp_path / "x.xlsx").write_text("")
        table_run.predict(tmp_path / "x.xlsx")
    with pytest.raises(DataError, match="holds a nan"):
        table_run.predict(np.full((2, 5), np.nan))


def test_the_public_part_says_how_records_are_read_and_nothing_of_undeclared_columns(table_run, tmp_path):
    stored = json.loads((table_run.folder / "public" / "inputs.json").read_text())
    assert stored["class_names"] == ["no", "yes"] and stored["table"]["columns"] == ["age", "sex", "income"]
    assert set(stored["table"]["schema"]) == {"age", "sex", "income", "ill"}
    boundary.check_fields("inputs.json", stored)
    damaged = tmp_path / "run"
    shutil.copytree(table_run.folder / "public", damaged)
    (damaged / "inputs.json").write_text('{"task": "classification"}')
    with pytest.raises(RunError, match=r"inputs\.json is damaged"):
        sordino.load(damaged)
    (damaged / "inputs.json").unlink()  # an earlier version
    with pytest.raises(RunError, match="pass one of its architecture"):
        sordino.load(damaged).predict(people(3))


def test_without_a_schema_the_names_of_the_columns_are_said_to_be_public(tmp_path):
    people()[["age", "income", "ill"]].assign(ill=lambda t: (t.ill == "yes") * 1).to_csv(
        tmp_path / "t.csv", index=False
    )
    keys = {"dataset": str(tmp_path / "t.csv"), "label_column": "ill", "rounds": 1, "clients": 2, "standardise": True}
    keys |= {"out": str(tmp_path / "runs"), "seed": 0, "device": "cpu"}
    done = run.execute(build.from_spec(spec.from_dict(keys)), own_model=False)
    assert "the names of the columns" in done.guarantee.sentence()
    loaded = sordino.load(done.folder)  # with the layer that standardises
    assert torch.equal(loaded.model[0].scale, done.model[0].scale) and loaded.model[0].scale.ne(1).any()
    new = people(9)[["income", "sex", "age"]]
    with torch.no_grad():
        wanted = done.model(torch.tensor(new[["age", "income"]].to_numpy(np.float32))).argmax(1)
    assert loaded.predict(new).tolist() == wanted.tolist()


def test_a_number_is_predicted_on_its_own_scale(tmp_path):
    done = trained(tmp_path, "score", rounds=1, learning_rate=0.3)
    new = people(20, seed=1)
    with torch.no_grad():
        unit = done.model(encoded(new)).reshape(-1).clamp(0, 1).double().numpy()
    assert np.allclose(done.predict(new), 20 + 60 * unit, rtol=1e-6) and np.ptp(unit) > 0
    figures = done.evaluate(new, records="mine").metrics
    assert figures["mae"] == pytest.approx(np.abs(20 + 60 * unit - new.score).mean(), rel=1e-6)
    assert list(done.predict_table(new).columns) == ["prediction"]
    with pytest.raises(DataError, match="predicts numbers, not classes"):
        done.predict_proba(new)


@pytest.mark.parametrize("log", [False, True])
def test_the_scale_of_a_target_is_undone(log):
    column, values = schema.Number(-50, 1000, log), np.array([-50.0, -3, 0, 7, 999, 1000])
    assert np.allclose(column.value(column.unit(values)), values)
    assert np.allclose(column.value(np.array([-1.0, 2.0])), [-50, 1000])


def test_arrays_and_archives_are_predicted_like_the_test_records(small_npz, tmp_path):
    keys = {"dataset": str(small_npz), "clients": 4, "rounds": 2, "seed": 0, "device": "cpu", "learning_rate": 1.0}
    done = run.execute(build.from_spec(spec.from_dict(keys | {"out": str(tmp_path / "runs")})), own_model=False)
    small_npz.rename(tmp_path / "other.npz")
    loaded, (x, y) = sordino.load(done.folder), held_out()
    with torch.no_grad():
        wanted = done.model(x).argmax(1)
    assert loaded.predict(x).tolist() == wanted.tolist() == loaded.predict(tmp_path / "other.npz").tolist()
    figures = loaded.evaluate(tmp_path / "other.npz", records="public")  # x_test and y_test
    assert figures.metrics["accuracy"] == done.accuracy and figures.records == 60
    assert loaded.evaluate(x, y, records="mine").metrics == figures.metrics
    with pytest.raises(DataError, match="there are 3 labels for 60 records"):
        loaded.evaluate(x, y[:3])
    with pytest.raises(DataError, match="out of range"):
        loaded.evaluate(x, y + 1)
    with pytest.raises(DataError, match="is a table, but the run was trained on records of shape"):
        (tmp_path / "t.csv").write_text("a\n1\n")
        loaded.predict(tmp_path / "t.csv")


def test_ones_own_model_predicts_raw_arrays(tmp_path):
    done = sordino.train(linear(), federation(), rounds=1, seed=0, out=str(tmp_path), name="it", device="cpu")
    x = held_out()[0]
    with torch.no_grad():
        wanted = done.model(x).argmax(1).tolist()
    assert done.predict(x).tolist() == done.predict(x.numpy().astype(np.float64)).tolist() == wanted
    assert sordino.load(done.folder, linear(seed=9)).predict(x).tolist() == wanted
    with pytest.raises(RunError, match="pass one of its architecture"):
        sordino.load(done.folder).predict(x)


def test_a_folder_of_pictures_is_predicted_with_the_features_of_the_run(tmp_path):
    from PIL import Image

    draw = np.random.default_rng(0)
    for part, rows in (("train", 24), ("test", 6)):
        for i in range(rows):
            path = tmp_path / "pets" / part / ("cat", "dog")[i % 2] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            bright = 160 if i % 2 else 20
            Image.fromarray(draw.integers(bright, bright + 60, (12, 12), dtype=np.uint8)).save(path)
    keys = {"dataset": str(tmp_path / "pets"), "clients": 2, "rounds": 2, "seed": 0, "features": "oriented-gradients"}
    keys |= {"out": str(tmp_path / "runs"), "device": "cpu", "method": "none", "model": "linear"}
    done = run.execute(build.from_spec(spec.from_dict(keys)), own_model=False)
    (tmp_path / "pets" / "test").rename(tmp_path / "new")
    shutil.rmtree(tmp_path / "pets")
    shown = sordino.load(done.folder).predict_table(tmp_path / "new")
    assert list(shown.file) == [
        f"{kind}/{i}.png" for kind in ("cat", "dog") for i in range(6) if i % 2 == (kind == "dog")
    ]
    figures = sordino.load(done.folder).evaluate(tmp_path / "new", records="public")
    right = [file.startswith(name) for file, name in zip(shown.file, shown.prediction, strict=True)]
    assert figures.metrics["accuracy"] == np.mean(right) == done.accuracy
    (tmp_path / "new" / "cat").rename(tmp_path / "new" / "lion")
    with pytest.raises(DataError, match="not named like a class of the run, which are cat, dog"):
        done.evaluate(tmp_path / "new")
