"""A run starts from the weights of a file; its sentence says where they come from, and a bad file changes nothing."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib

import pytest
import torch
from safetensors.torch import load_file, save_file

import sordino
from sordino.comparisons import compare
from sordino.core.errors import ModelError, RunError, SpecError
from sordino.deploy import agreement
from sordino.ledger import home
from sordino.runs import build, loop
from sordino.spec import spec
from support.killed import dies
from support.problems import federation, held_out, mlp, same_weights
from support.problems import job as job_of

CLIENTS, TEST = federation(), held_out()


@pytest.fixture
def file(tmp_path):
    """The weights of another network of the same shape."""
    save_file({name: value.detach().clone() for name, value in mlp(seed=7).named_parameters()}, at(tmp_path))
    return at(tmp_path)


def at(folder):
    return folder / "my-secret-name.safetensors"


def train(tmp_path, model=None, **keys):
    keys = {"rounds": 2, "epsilon": 3.0, "mode": "research", "device": "cpu", "learning_rate": 0.5} | keys
    return sordino.train(model or mlp(), CLIENTS, test=TEST, out=str(tmp_path / "runs"), **keys)


@pytest.mark.parametrize("method", ["dp-sgd", "dp-fedavg", "none"])
def test_the_first_model_is_that_of_the_file(method, file):
    ours = job_of(method=method, initial_weights=str(file), initial_weights_from="public")
    other = job_of(mlp(seed=7), method=method)
    assert torch.equal(loop.begin(ours).params, loop.begin(other).params)
    assert not torch.equal(loop.begin(ours).params, loop.begin(job_of(method=method)).params)


def test_a_run_is_the_one_that_was_given_such_a_model(tmp_path, file):
    ours = train(tmp_path, initial_weights=str(file), initial_weights_from="public", name="file")
    assert same_weights(ours.model, train(tmp_path, mlp(seed=7), name="model").model)
    assert not same_weights(ours.model, train(tmp_path, name="fresh").model)


@pytest.mark.parametrize("federation", ["simulator", "workers"])
def test_the_model_of_a_run_is_a_first_model(federation, tmp_path):
    done = train(tmp_path, name="before")
    public = {"initial_weights": done.folder / "public" / "model.safetensors", "initial_weights_from": "public"}
    more = {"federation": "workers", "workers": 1} if federation == "workers" else {"blocks": 4}
    still = train(tmp_path, learning_rate=1e-30, method="none", rounds=1, name="after", **more, **public)
    assert same_weights(still.model, done.model)


def test_types_are_those_of_the_model(tmp_path):
    kept = {name: value.detach().double() for name, value in mlp(seed=7).named_parameters()}
    save_file(kept, at(tmp_path))
    ours = job_of(initial_weights=str(at(tmp_path)), initial_weights_from="public")
    assert torch.equal(loop.begin(ours).params, loop.begin(job_of(mlp(seed=7))).params)


# --- whose data they come from


def test_the_sentence_names_public_weights_by_their_hash(tmp_path, file):
    result = train(tmp_path, initial_weights=str(file), initial_weights_from="public", name="it")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    words = f"the initial weights (sha256 {digest[:16]}), said to come from public data"
    assert f"Taken as public: how many records each client has; {words}; the 60 test" in result.guarantee.sentence()
    assert result.guarantee.epsilon == train(tmp_path, name="fresh").guarantee.epsilon
    plan = json.loads((result.folder / "public" / "plan.json").read_text())
    assert plan["initial_weights"] == {"sha256": digest, "source": "public"}
    shown = tomllib.loads((result.folder / "public" / "spec.toml").read_text())
    assert shown["initial_weights_from"] == "public" and "initial_weights" not in shown
    for path in (result.folder / "public").iterdir():
        assert b"my-secret-name" not in path.read_bytes()
    assert sordino.load(result.folder, mlp()).guarantee.sentence() == result.guarantee.sentence()


@pytest.mark.parametrize("method", ["dp-sgd", "dp-fedavg", "udp-fl-paper", "dp-ftrl"])
def test_weights_of_the_same_records_leave_no_guarantee(method, tmp_path, file):
    result = train(tmp_path, method=method, initial_weights=str(file), initial_weights_from="own", name="own")
    assert math.isinf(result.guarantee.epsilon) and all(math.isinf(g.epsilon) for g in result.guarantees.values())
    assert "trained on training records of this run, which nobody accounted for" in result.guarantee.sentence()
    assert all(value is None or math.isinf(value) for r in result.history for value in r.epsilon.values())
    facts = json.loads((result.folder / "public" / "accounting.json").read_text())
    assert result.guarantee.reason in {v["reason"] for v in facts["viewers"].values()}
    assert all(v["reason"] for v in facts["viewers"].values())
    fresh = train(tmp_path, method=method, name="fresh")
    assert result.private.guarantees["server"].epsilon == math.inf
    if method == "dp-sgd":  # the noise is what it was: only the promise is gone
        assert fresh.guarantee.epsilon <= 3.0
        z = [json.loads((r.folder / "public" / "plan.json").read_text())["noise_multiplier"] for r in (result, fresh)]
        assert z[0] == z[1] > 0
        assert any("the noise is that of epsilon = 3 for the rounds alone" in note for note in result.notes)


def test_the_ledger_counts_weights_of_the_same_records_as_no_guarantee(tmp_path, file):
    own = {"initial_weights": str(file), "initial_weights_from": "own", "data_name": "ward"}
    without = "not including charges that give no such guarantee: 1"
    assert without in str(train(tmp_path, name="own", **own).together)
    assert without in str(train(tmp_path, name="later", data_name="ward").together)
    public = own | {"initial_weights_from": "public", "data_name": "other"}
    assert "no such guarantee" not in str(train(tmp_path, name="public", **public).together)


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"initial_weights": "w.safetensors"}, r"initial_weights needs initial_weights_from: public .* or own"),
        ({"initial_weights_from": "public"}, "give both, or neither"),
        ({"initial_weights_from": "the run of May"}, "must be public .* or own .*, not 'the run of May'"),
        (
            {"initial_weights": "w", "initial_weights_from": "own", "budgets": "1:0.5,2:0.5"},
            "budgets of clients cannot be kept",
        ),
    ],
)
def test_what_they_were_made_from_is_asked(keys, match, tmp_path):
    with pytest.raises(SpecError, match=match):
        train(tmp_path, **keys)
    assert not (tmp_path / "runs").exists()


# --- bad files


def weights(**changed):
    return {name: value.detach().clone() for name, value in mlp().named_parameters()} | changed


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"0.weight": torch.zeros(6, 21)}, r"0.weight has shape \[6, 21\]; the model's has \[6, 20\]"),
        ({"9.weight": torch.zeros(1)}, "holds 9.weight, which is no parameter of the model"),
        ({"2.bias": torch.tensor([0.0, math.nan, 0.0])}, "2.bias holds values that are not finite"),
        ({"2.bias": torch.tensor([1e300, 0.0, 0.0], dtype=torch.float64)}, "2.bias holds values that are not finite"),
        ({"2.bias": torch.tensor([1, 2, 3])}, "2.bias has type torch.int64"),
        ({"2.bias": None}, "has no 2.bias, which is a parameter of the model"),
    ],
)
def test_a_file_that_does_not_fit_changes_nothing(changed, match, tmp_path):
    save_file({k: v for k, v in weights(**changed).items() if v is not None}, at(tmp_path))
    model = mlp()
    with pytest.raises(ModelError, match=match) as caught:
        train(tmp_path, model, initial_weights=str(at(tmp_path)), initial_weights_from="public")
    assert "\n" not in str(caught.value) and same_weights(model, mlp())
    assert not (tmp_path / "runs").exists() and not home.registry().exists()


@pytest.mark.parametrize("content", [b"", b"\x00" * 40, b"torch", b"\xff" * 9], ids=repr)
def test_a_file_of_another_kind_is_refused(content, tmp_path):
    at(tmp_path).write_bytes(content)
    with pytest.raises(ModelError, match="is no safetensors file"):
        job_of(initial_weights=str(at(tmp_path)), initial_weights_from="public")


@pytest.mark.parametrize("name", ["missing.safetensors", "", "a\x00b"])
def test_a_file_that_is_not_there_is_refused(name, tmp_path):
    with pytest.raises(ModelError, match="initial_weights: cannot read"):
        job_of(initial_weights=str(tmp_path / name), initial_weights_from="public")


def test_the_callers_model_is_left_alone(file):
    model = mlp()
    job_of(model, initial_weights=str(file), initial_weights_from="public")
    assert same_weights(model, mlp())


# --- resumed, compared, deployed


def test_a_resumed_run_starts_from_the_same_file(tmp_path, file, monkeypatch):
    keys = {"initial_weights": file.name, "initial_weights_from": "public", "name": "it", "checkpoint_seconds": 0.0}
    monkeypatch.chdir(tmp_path)
    whole = train(tmp_path / "whole", **keys)
    assert dies("planned", 0, lambda: train(tmp_path, **keys))
    folder, right = tmp_path / "runs" / "it", file.read_bytes()
    monkeypatch.chdir("/")
    save_file(weights(), file)
    with pytest.raises(RunError, match="started with another model"):
        sordino.train(mlp(), CLIENTS, test=TEST, resume=folder)
    file.unlink()
    with pytest.raises(ModelError, match="cannot read"):
        sordino.train(mlp(), CLIENTS, test=TEST, resume=folder)
    file.write_bytes(right)
    assert same_weights(sordino.train(mlp(), CLIENTS, test=TEST, resume=folder).model, whole.model)


def test_a_run_file_resumes_wherever_the_file_has_moved_from(small_npz, tmp_path):
    keys = {"dataset": str(small_npz), "rounds": 1, "clients": 4, "public_data": True, "device": "cpu"}
    plain = build.from_spec(spec.from_dict(keys))
    kept = {k: v.detach().clone() + 1 for k, v in plain.model.module.named_parameters()}
    save_file(kept, at(tmp_path))
    public = {"initial_weights": str(at(tmp_path)), "initial_weights_from": "public"}
    ours = build.from_spec(spec.from_dict(keys | public))
    assert {k: v.tolist() for k, v in ours.model.module.named_parameters()} == {
        k: v.tolist() for k, v in load_file(at(tmp_path)).items()
    }
    assert any("initial weights" in words for words in ours.public)


def test_methods_are_compared_from_the_same_weights():
    assert {"initial_weights", "initial_weights_from"} <= set(compare.SHARED)


@pytest.mark.parametrize("key", ["initial_weights", "initial_weights_from"])
def test_real_sites_take_no_file_of_the_server(key):
    with pytest.raises(SpecError, match=f"{key} is for simulations"):
        agreement.checked({"dataset": "breast-cancer", key: "public"})
